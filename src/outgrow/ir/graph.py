"""What is a training step? A list of instructions over storages, as immutable data.

    graph       = storage* value* instruction* results
    storage     = name, size in bytes, role, home            a block of memory
    value       = name, storage@version, dtype, shape, strides, offset   a view of one version of a storage
    instruction = op | swap_out | swap_in | wait | drop
    op          = name, operator, arguments, keywords, results            reads values, writes versions
    argument    = value | layout of a value | literal | tuple of arguments

*Versions.* Every write makes a new version of a storage. The op whose result is version 0 of a storage
brings that storage into being; a result of version n+1 is a write in place onto version n. Storages that
no op brings into being are there at version 0 when the step begins: its inputs. Views need no op: a value
is a description of bytes in a storage, and any number of values may describe the same version. An op that
asks a value for its layout alone (`Like`) reads no byte of it: the storage need not be there, nor exist at that time.

*Residence.* A storage is in device memory from its birth (inputs: from the beginning) until the last
instruction that touches it, or until it is dropped; from then on its bytes are free. Persistent storages
(parameters, buffers, optimizer state, inputs) stay to the end. A storage whose home is the next tier rests there
between steps: it begins the step with no device bytes, and ends it dropped.

    swap_out s begin:end   begin to copy these bytes of s from the device to the next tier
    drop s begin:end       free these bytes on the device; their copy in the tier remains
    swap_in s begin:end    reserve these bytes on the device and begin to copy them back from the tier
    wait s                 go on once no copy of s is in flight

Host scalars (a step counter read from a tensor, a learning rate) are values of a storage of 0 bytes.
The random generator is a storage that random ops read and write, so its order is a dependence like any other. A turn
is a storage of 0 bytes, too, that is there for nothing but the order of the ops that write it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import TypeAlias


class Role(StrEnum):
    """What a storage is to the user; the first six outlive the step."""

    PARAMETER = "parameter"
    BUFFER = "buffer"
    OPTIMIZER = "optimizer"
    INPUT = "input"
    GENERATOR = "generator"
    TURN = "turn"
    GRADIENT = "gradient"
    ACTIVATION = "activation"
    SCALAR = "scalar"


DEVICE, TIER = "device", "tier"
"""The homes that a storage may have: the device, and the next tier."""

PERSISTENT = frozenset({Role.PARAMETER, Role.BUFFER, Role.OPTIMIZER, Role.INPUT, Role.GENERATOR, Role.TURN})


@dataclass(frozen=True, slots=True)
class Storage:
    """A block of `size_bytes` bytes; `home` is where it rests between steps: `DEVICE` or `TIER`."""

    name: str
    size_bytes: int
    role: Role = Role.ACTIVATION
    home: str = DEVICE

    @property
    def is_persistent(self) -> bool:
        """Whether the storage outlives the step."""
        return self.role in PERSISTENT


@dataclass(frozen=True, slots=True)
class Value:
    """A view of version `version` of `storage`; strides and offset count elements."""

    name: str
    storage: str
    version: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Ref:
    """The use of a value as an argument."""

    value: str


@dataclass(frozen=True, slots=True)
class Like:
    """The use of a value's dtype, shape, strides and offset as an argument, but not of its content."""

    value: str


@dataclass(frozen=True, slots=True)
class Symbol:
    """A literal that is a name: a dtype, a layout, a memory format, a device."""

    name: str


Argument: TypeAlias = "Ref | Like | Symbol | int | float | complex | bool | str | tuple[Argument, ...] | None"


@dataclass(frozen=True)
class Op:
    """One call of an operator. `results` are value names, or None where a result is not used.

    `writes` are storages that the operator changes without returning them (running statistics, the
    generator): each gets its next version. `origin` is the captured op that this one is or repeats.
    """

    name: str
    operator: str
    arguments: tuple[Argument, ...] = ()
    keywords: tuple[tuple[str, Argument], ...] = ()
    results: tuple[str | None, ...] = ()
    writes: tuple[str, ...] = ()
    origin: str = ""

    @property
    def captured(self) -> str:
        """The name of the captured op that this op is or repeats."""
        return self.origin or self.name

    @cached_property
    def references(self) -> tuple[str, ...]:
        """The names of the values that this op reads, in order, as often as it names them.

        >>> Op("add", "aten.add.Tensor", (Ref("x"), (Ref("y"), Ref("x")))).references
        ('x', 'y', 'x')
        """
        found: list[str] = []
        for argument in self.arguments:
            if isinstance(argument, Ref):
                found.append(argument.value)
            elif isinstance(argument, tuple):
                found.extend(argument_values(argument))
        for _, argument in self.keywords:
            found.extend(argument_values(argument))
        return tuple(found)

    @cached_property
    def operands(self) -> tuple[str, ...]:
        """The names of the values that this op reads, each once, in order."""
        return tuple(dict.fromkeys(self.references))

    @cached_property
    def layouts(self) -> tuple[str, ...]:
        """The names of the values of which this op uses the layout alone, in order, as often as it names them."""
        arguments = (*self.arguments, *(argument for _, argument in self.keywords))
        able = [argument for argument in arguments if isinstance(argument, Like | tuple)]
        return tuple([name for argument in able for name in argument_values(argument, Like)])


@dataclass(frozen=True, slots=True)
class SwapOut:
    """Begin to copy bytes begin:end of a storage from the device to the next tier."""

    storage: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class SwapIn:
    """Reserve bytes begin:end of a storage on the device and begin to copy them back."""

    storage: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Go on once no copy of a storage is in flight."""

    storage: str


@dataclass(frozen=True, slots=True)
class Drop:
    """Free bytes begin:end of a storage on the device, whose content rests in the next tier."""

    storage: str
    begin: int
    end: int


Transfer: TypeAlias = SwapOut | SwapIn | Wait | Drop
Instruction: TypeAlias = Op | Transfer


def argument_values(argument: Argument, use: type[Ref] | type[Like] = Ref) -> Iterator[str]:
    """Yield the names of the values that an argument uses, in order; `use` is how: their content, or their layout."""
    if isinstance(argument, use):
        yield argument.value
    elif isinstance(argument, tuple):
        for item in argument:
            yield from argument_values(item, use)


def leaving_out(op: Op, positions: Sequence[int]) -> Op:
    """Return `op` with None for the arguments at `positions`, and without hidden writes."""
    arguments = tuple(None if at in positions else argument for at, argument in enumerate(op.arguments))
    return replace(op, arguments=arguments, writes=())


def asking_layouts(op: Op, positions: Sequence[int]) -> Op:
    """Return `op` with the layout of a value in place of the value, for the arguments at `positions`."""
    arguments = tuple(
        Like(argument.value) if at in positions and isinstance(argument, Ref) else argument
        for at, argument in enumerate(op.arguments)
    )
    return replace(op, arguments=arguments)


@dataclass(frozen=True)
class Graph:
    """One training step. `results` are the values that the caller receives or that outlive the step."""

    storages: Mapping[str, Storage]
    values: Mapping[str, Value]
    instructions: tuple[Instruction, ...]
    results: tuple[str, ...] = ()

    @cached_property
    def ops(self) -> tuple[Op, ...]:
        """The ops, without the transfers."""
        return tuple(item for item in self.instructions if isinstance(item, Op))

    @cached_property
    def op_positions(self) -> Mapping[str, int]:
        """The position in `instructions` of each op, by name."""
        return {item.name: at for at, item in enumerate(self.instructions) if isinstance(item, Op)}

    @cached_property
    def born_at(self) -> Mapping[str, int]:
        """The position that brings each storage into being; inputs are missing."""
        births: dict[str, int] = {}
        for at, item in enumerate(self.instructions):
            for name in self.born(item):
                births.setdefault(name, at)
        return births

    @cached_property
    def kept(self) -> frozenset[str]:
        """The storages that hold results."""
        return frozenset(self.values[name].storage for name in self.results)

    @cached_property
    def outliving(self) -> frozenset[str]:
        """The storages that outlive the step: persistent ones, and those that hold results."""
        return self.kept | {name for name, storage in self.storages.items() if storage.is_persistent}

    @cached_property
    def dying_at(self) -> Mapping[int, tuple[str, ...]]:
        """The storages that each position is the last to touch, without those that stay to the end of the step."""
        of_ops = iter(self.touched_at)
        touched = [next(of_ops) if isinstance(item, Op) else (item.storage,) for item in self.instructions]
        last = {name: at for at, names in enumerate(touched) for name in names}
        dying: dict[int, list[str]] = {}
        for name, at in last.items():
            if name not in self.outliving:
                dying.setdefault(at, []).append(name)
        return {at: tuple(names) for at, names in dying.items()}

    @cached_property
    def touched_at(self) -> tuple[tuple[str, ...], ...]:
        """What each op touches (see `touched`), in the order of `ops`."""
        return tuple([self.touched(op) for op in self.ops])

    @cached_property
    def used(self) -> frozenset[str]:
        """The storages that some op touches."""
        return frozenset(name for touched in self.touched_at for name in touched)

    @cached_property
    def written_at(self) -> tuple[tuple[str, ...], ...]:
        """What each op writes (see `written`), in the order of `ops`."""
        return tuple([self.written(op) for op in self.ops])

    def reads(self, item: Instruction) -> tuple[str, ...]:
        """The storages whose content `item` reads, each once, in order."""
        if isinstance(item, Op):
            return tuple(dict.fromkeys([self.values[name].storage for name in item.operands]))
        return ()

    def written(self, item: Instruction) -> tuple[str, ...]:
        """The storages that `item` writes, by a result or in place, each once, in order."""
        if isinstance(item, Op):
            results = [self.values[name].storage for name in result_values(item)]
            return tuple(dict.fromkeys([*results, *item.writes]))
        return ()

    def born(self, item: Instruction) -> tuple[str, ...]:
        """The storages that `item` brings into being, in order."""
        results = [self.values[name] for name in result_values(item)]
        return tuple(dict.fromkeys([value.storage for value in results if value.version == 0]))

    def touched(self, item: Instruction) -> tuple[str, ...]:
        """The storages that `item` needs resident: all it reads or writes, or the one it moves."""
        if isinstance(item, Op):
            read = [self.values[name].storage for name in item.operands]
            return tuple(dict.fromkeys([*read, *self.written(item)]))
        return (item.storage,)


def result_values(item: Instruction) -> tuple[str, ...]:
    """Return the values that `item` defines, in order."""
    return tuple([name for name in item.results if name is not None]) if isinstance(item, Op) else ()
