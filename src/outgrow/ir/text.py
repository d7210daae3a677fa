"""How is a graph written down? One statement a line, printed and parsed by exact inverses.

    storage w parameter 64                         name, role (if not activation), bytes (also "453MiB")
    storage m optimizer 64 at tier                 ... and home, if that is not the device
    storage x input 64
    storage y 64
    value %w: w@0 f32[4,4]                         a value that no op defines: an input or a view
    value %corner: w@0 f32[2,2]:[4,1]+10           ... with strides if it is not dense, and offset
    %y: y@0 f32[4,4] = aten.mm.default(%x, %w)     an op, called `mm` after its operator
    swap_out y
    wait y
    drop y 0:32                                    these bytes of y; without any, all of them
    swap_in y 0:32
    %u: u@0 f32[4,4] = my.op(like %y, %z)          the layout of %y, and nothing that is in it
    again: %z: z@0 f32[4,4], _ = my.op(%y, [1, -inf], "text", dtype=:torch.float32) writes g origin op
    return %y, %z

The grammar, where [] is optional and a list* has commas between its items:

    statement = "storage" name [role] bytes ["at" name]  |  "value" view  |  op  |  transfer
              | "return" "%"name*
    op        = [name ":"] [result* "="] operator "(" argument* ")" ["writes" name*] ["origin" name]
    result    = view  |  "%"name (its view stands elsewhere)  |  "_" (not used)
    view      = "%"name ":" storage "@" version dtype "[" size* "]" [":" "[" stride* "]"] ["+" offset]
    transfer  = ("swap_out" | "drop" | "swap_in") name [begin ":" end]  |  "wait" name
    argument  = [keyword "="] ("%"name | "like" "%"name | number | "None" | "True" | "False" | string | ":"symbol
              | "[" argument* "]")

Numbers are written as Python does, complex ones without brackets (0.5+1.0j). An op without a name is called after the
second part of its operator: `relu` for `aten.relu.default`, then `relu_1`, `relu_2`, ... where an op above has that
name. A name that is not made of letters, digits, `_`, `.` and `$` stands in quotes. `#` begins a comment. Whether the
graph makes sense is for `ir.verify` to say.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from math import copysign

from outgrow.ir.graph import (
    DEVICE,
    Argument,
    Drop,
    Graph,
    Instruction,
    Like,
    Op,
    Ref,
    Role,
    Storage,
    SwapIn,
    SwapOut,
    Symbol,
    Value,
    Wait,
)
from outgrow.ir.layout import LONG, SHORT, contiguous_strides
from outgrow.ir.tokens import Line, spelled

_ROLES = {role.value: role for role in Role}
_TRANSFERS = {"swap_out": SwapOut, "drop": Drop, "swap_in": SwapIn}
_AROUND = 5
"""How many instructions before and behind a position show where it is."""


def print_graph(graph: Graph) -> str:
    """Return the text of `graph`, from which `parse_graph` makes an equal graph."""
    lines = [_storage_line(storage) for storage in graph.storages.values()]
    defined = {name for op in graph.ops for name in op.results}
    lines += [f"value {_view(value)}" for name, value in graph.values.items() if name not in defined]
    lines += _instruction_lines(graph)
    if graph.results:
        lines.append(f"return {_names(graph.results, '%')}")
    return "".join(f"{line}\n" for line in lines)


def print_around(graph: Graph, position: int) -> str:
    """Return the instructions around `position`, which is marked with `>`."""
    lines = list(_instruction_lines(graph))
    begin, end = max(0, position - _AROUND), position + _AROUND + 1
    shown = enumerate(lines[begin:end], start=begin)
    return "\n".join(f"{'>' if at == position else ' '} {at:5d}  {line}" for at, line in shown)


def fingerprint(graph: Graph) -> str:
    """Return 16 hexadecimal digits that tell graphs of different text apart."""
    return sha256(print_graph(graph).encode()).hexdigest()[:16]


def parse_graph(text: str) -> Graph:
    """Return the graph that `text` describes.

    Raises `GraphSyntaxError` with line and column where the text does not follow the grammar.

    >>> parse_graph('''
    ... storage x input 8
    ... storage y 8
    ... value %x: x@0 f32[2]
    ... %y: y@0 f32[2] = aten.relu.default(%x)
    ... return %y
    ... ''').ops[0].name
    'relu'
    """
    draft = _Draft()
    for number, content in enumerate(text.splitlines(), start=1):
        line = Line(content, number)
        if line.peek():
            draft.add(line)
            line.end()
    return Graph(draft.storages, draft.values, tuple(draft.instructions), draft.results or ())


@dataclass(frozen=True, slots=True)
class _OpNames:
    """Gives ops their default names: the first of relu, relu_1, relu_2, ... that no op above has."""

    taken: set[str] = field(default_factory=set[str])
    counts: dict[str, int] = field(default_factory=dict[str, int])

    def default(self, operator: str) -> str:
        base = operator.split(".", 2)[1] if "." in operator else operator
        count = self.counts.get(base, 0)
        name = f"{base}_{count}" if count else base
        while name in self.taken:
            count += 1
            name = f"{base}_{count}"
        self.counts[base] = count
        return name


# ---- printing


def _names(names: tuple[str, ...], prefix: str = "") -> str:
    return ", ".join(prefix + spelled(name) for name in names)


def _storage_line(storage: Storage) -> str:
    role = "" if storage.role is Role.ACTIVATION else f"{storage.role.value} "
    home = "" if storage.home == DEVICE else f" at {spelled(storage.home)}"
    return f"storage {spelled(storage.name)} {role}{storage.size_bytes}{home}"


def _view(value: Value) -> str:
    shape = ",".join(map(str, value.shape))
    is_contiguous = value.strides == contiguous_strides(value.shape)
    strides = "" if is_contiguous else f":[{','.join(map(str, value.strides))}]"
    offset = f"+{value.offset}" if value.offset else ""
    dtype = spelled(SHORT.get(value.dtype, value.dtype))
    name, storage = spelled(value.name), spelled(value.storage)
    return f"%{name}: {storage}@{value.version} {dtype}[{shape}]{strides}{offset}"


def _instruction_lines(graph: Graph) -> Iterator[str]:
    names = _OpNames()
    for item in graph.instructions:
        match item:
            case Op():
                yield _op_line(graph, item, names.default(item.operator))
                names.taken.add(item.name)
            case SwapIn(storage, begin, end):
                yield f"swap_in {spelled(storage)} {begin}:{end}"
            case SwapOut():
                yield f"swap_out {_part(graph, item)}"
            case Wait(storage):
                yield f"wait {spelled(storage)}"
            case Drop():
                yield f"drop {_part(graph, item)}"


def _part(graph: Graph, item: SwapOut | Drop) -> str:
    """A storage, and the bytes begin:end of it unless they are all."""
    storage = graph.storages.get(item.storage)
    is_whole = storage is not None and (item.begin, item.end) == (0, storage.size_bytes)
    return spelled(item.storage) if is_whole else f"{spelled(item.storage)} {item.begin}:{item.end}"


def _op_line(graph: Graph, op: Op, default_name: str) -> str:
    name = "" if op.name == default_name else f"{spelled(op.name)}: "
    results = ", ".join(_result(graph, result) for result in op.results)
    arguments = [_argument(argument) for argument in op.arguments]
    arguments += [f"{spelled(key)}={_argument(argument)}" for key, argument in op.keywords]
    writes = f" writes {_names(op.writes)}" if op.writes else ""
    origin = f" origin {spelled(op.origin)}" if op.origin else ""
    call = f"{spelled(op.operator)}({', '.join(arguments)})"
    return f"{name}{results}{' = ' if op.results else ''}{call}{writes}{origin}"


def _result(graph: Graph, name: str | None) -> str:
    if name is None:
        return "_"
    return _view(graph.values[name]) if name in graph.values else f"%{spelled(name)}"


def _argument(argument: Argument) -> str:
    match argument:
        case Ref(name):
            return f"%{spelled(name)}"
        case Like(name):
            return f"like %{spelled(name)}"
        case Symbol(name):
            return f":{spelled(name)}"
        case tuple():
            return f"[{', '.join(map(_argument, argument))}]"
        case str():
            return json.dumps(argument)
        case complex():
            return f"{argument.real!r}{'-' if copysign(1, argument.imag) < 0 else '+'}{abs(argument.imag)!r}j"
        case _:
            return repr(argument)


# ---- parsing


@dataclass(slots=True)
class _Draft:
    """The graph as far as it is read."""

    storages: dict[str, Storage] = field(default_factory=dict[str, Storage])
    values: dict[str, Value] = field(default_factory=dict[str, Value])
    instructions: list[Instruction] = field(default_factory=list[Instruction])
    results: tuple[str, ...] | None = None
    names: _OpNames = field(default_factory=_OpNames)

    def add(self, line: Line) -> None:
        """Read one statement. A keyword before `:` or `(` is the name of an op or an operator."""
        keyword = "" if line.peek(1) in (":", "(") else line.peek()
        match keyword:
            case "storage":
                self._storage(line)
            case "value":
                line.take()
                self._view(line, line.value_name())
            case "swap_out" | "drop" | "swap_in":
                self._transfer(line)
            case "wait":
                line.take()
                self.instructions.append(Wait(line.name()))
            case "return":
                if self.results is not None:
                    line.fail("a second return")
                line.take()
                self.results = line.sequence(line.value_name)
            case _:
                self.instructions.append(self._op(line))

    def _transfer(self, line: Line) -> None:
        transfer, name = _TRANSFERS[line.take()], line.name()
        if line.peek():
            begin = line.size()
            line.expect(":")
            self.instructions.append(transfer(name, begin, line.size()))
        elif name in self.storages:
            self.instructions.append(transfer(name, 0, self.storages[name].size_bytes))
        else:
            line.fail(f"which bytes of {name}, a storage that no line above declares")

    def _storage(self, line: Line) -> None:
        line.take()
        name = line.name()
        if name in self.storages:
            line.fail(f"storage {name} is already declared", back=1)
        role = _ROLES[line.take()] if line.peek() in _ROLES else Role.ACTIVATION
        size_bytes = line.size()
        home = line.name() if line.accept("at") else DEVICE
        self.storages[name] = Storage(name, size_bytes, role, home)

    def _view(self, line: Line, name: str) -> None:
        line.expect(":")
        storage = line.name()
        line.expect("@")
        version, dtype, shape = line.integer(), line.name(), line.integers()
        strides = line.integers() if line.accept(":") else contiguous_strides(shape)
        offset = line.integer() if line.accept("+") else 0
        value = Value(name, storage, version, LONG.get(dtype, dtype), shape, strides, offset)
        if self.values.setdefault(name, value) != value:
            line.fail(f"%{name} is already {_view(self.values[name])}", back=1)

    def _op(self, line: Line) -> Op:
        explicit_name = None
        if line.peek(1) == ":" and line.peek()[0] != "%":
            explicit_name = line.name()
            line.expect(":")
        results: tuple[str | None, ...] = ()
        if line.peek()[:1] == "%" or line.peek(1) in ("=", ","):
            results = line.sequence(lambda: self._result(line))
            line.expect("=")
        operator = line.name()
        name = self.names.default(operator) if explicit_name is None else explicit_name
        self.names.taken.add(name)
        arguments, keywords = line.arguments()
        writes = line.sequence(line.name) if line.accept("writes") else ()
        origin = line.name() if line.accept("origin") else ""
        return Op(name, operator, arguments, keywords, results, writes, origin)

    def _result(self, line: Line) -> str | None:
        if line.accept("_"):
            return None
        name = line.value_name()
        if line.peek() == ":":
            self._view(line, name)
        return name
