"""What does the runtime execute? A graph whose operators are functions and whose deaths are written down.

A program is made by `frontends.lowering.lower` from a derived graph and is run by `runtime.execute`. It decides
nothing: order, transfers and frees are those of the graph.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TypeGuard

import torch

from outgrow.analysis.cost import Cost
from outgrow.ir.graph import Drop, SwapIn, SwapOut, Wait
from outgrow.plan import Addresses

Scalar = int | float | bool
Item = torch.Tensor | Scalar
"""What a value is while a step runs: a tensor, or a host scalar."""

Slot = Callable[["Lookup"], object]
Lookup = Callable[[str], Item]


@dataclass(frozen=True, slots=True)
class Geometry:
    """How a value lies in its storage; `dtype` is None for a host scalar. Strides and offset count elements."""

    storage: str
    dtype: torch.dtype | None
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def over(self, storage: torch.UntypedStorage) -> torch.Tensor:
        """Return the tensor that lies so in a storage."""
        assert self.dtype is not None, "a tensor has a type"
        empty = torch.empty(0, dtype=self.dtype, device=storage.device)
        return empty.set_(storage, self.offset, self.shape, self.strides)


@dataclass(frozen=True, slots=True)
class Result:
    """A result of a call: the value that it defines, how it lies, the storage born with it, and the bytes of that.

    No storage is born where the result is written in place.
    """

    value: str
    geometry: Geometry
    born: str | None
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Call:
    """One op, ready to run. `results` are None where nobody reads them.

    Arguments are as in `constants`, except those that are `values`, by position, and those that contain one, which
    `slots` find; likewise for `keywords`. `updates` says that it writes a parameter or optimizer state, so that the
    step can no longer be undone, and `slowdown` how many times as long as captured it takes.
    """

    name: str
    captured: str
    function: Callable[..., object]
    constants: tuple[object, ...]
    values: tuple[tuple[int, str], ...]
    slots: tuple[tuple[int, Slot], ...]
    keywords: Mapping[str, object]
    keyword_slots: tuple[tuple[str, Slot], ...]
    results: tuple[Result | None, ...]
    updates: bool
    slowdown: float

    def given(self, lookup: Lookup) -> tuple[list[object], Mapping[str, object]]:
        """Return the arguments, with what is looked up, and those by keyword."""
        arguments = list(self.constants)
        for at, name in self.values:
            arguments[at] = lookup(name)
        for at, slot in self.slots:
            arguments[at] = slot(lookup)
        keywords = self.keywords
        if self.keyword_slots:
            keywords = {**keywords, **{key: slot(lookup) for key, slot in self.keyword_slots}}
        return arguments, keywords

    def run(self, lookup: Lookup) -> object:
        """Call the function on what is looked up, and return what it returns."""
        arguments, keywords = self.given(lookup)
        return self.function(*arguments, **keywords)


def is_nested(argument: object, kind: type) -> TypeGuard[list[object]]:
    """Whether an argument is a list that has something of a kind in it, or in its lists."""
    return isinstance(argument, list) and any(isinstance(item, kind) or is_nested(item, kind) for item in argument)


@dataclass(frozen=True, slots=True)
class Aim:
    """Which allocation of an op becomes a storage: its number, counted from 0, and its bytes."""

    number: int
    size_bytes: int
    storage: str


Instruction = Call | SwapOut | SwapIn | Wait | Drop


@dataclass(frozen=True, eq=False)
class Program:
    """Instructions in order, what dies after each, and how every value lies in its storage.

    `offsets` says where in the scratch each swapped storage begins that does not outlive the step. Storages that are
    `sunk` go to the tier below, and have their places in the scratch there. Storages that outlive the step and leave
    the device are `lasting`; of these, `stowed` ones rest in the tier between steps. Where addresses matter,
    `addresses` are those of an arena, and `aims` say by instruction what is allocated there. Ops have these `costs`, by
    name as captured.
    """

    instructions: tuple[Instruction, ...]
    dies: Mapping[int, tuple[str, ...]]
    geometry: Mapping[str, Geometry]
    sizes: Mapping[str, int]
    offsets: Mapping[str, int]
    lasting: frozenset[str]
    stowed: frozenset[str]
    results: tuple[str, ...]
    sunk: frozenset[str] = frozenset()
    addresses: Addresses | None = None
    aims: Mapping[int, tuple[Aim, ...]] = field(default_factory=dict)
    costs: Mapping[str, Cost] = field(default_factory=dict)

    @property
    def placed(self) -> Addresses:
        """The addresses of a program that runs in an arena."""
        assert self.addresses is not None, "a program that runs in an arena has addresses"
        return self.addresses

    @property
    def moves(self) -> bool:
        """Whether anything leaves, or rests in a tier between steps."""
        return bool(self.lasting or self.offsets)

    @property
    def scratch_bytes(self) -> int:
        """Bytes of the tier that the program needs beside those of lasting storages."""
        return self._bytes(self.offsets.keys() - self.sunk)

    @property
    def sunk_bytes(self) -> int:
        """Bytes of the tier below that the program needs beside those of lasting storages."""
        return self._bytes(self.sunk & self.offsets.keys())

    def _bytes(self, names: Collection[str]) -> int:
        return max((self.offsets[name] + self.sizes[name] for name in names), default=0)
