"""What stays the same in every run of a program with planned addresses? Almost everything, so it is prepared once.

Where a storage lies is known at every instruction, and so are the tensors over it: they are made once, and are put into
the arguments of the ops that read them. Nothing has to be looked up, viewed or freed while such an op runs.

    fixed    what lies in the arena, or is the user's and stays where it is
    loose    what lies elsewhere in the next run: the batch, numbers, what the step takes of the host's memory, and what
             outlives the step, which torch's allocator places. It is looked up as in any run (`runtime.execute`)

Tensors of a score own nothing. A score holds for as long as the user's storages stay where they were.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from outgrow.ir.graph import Drop, SwapIn, SwapOut, Wait
from outgrow.runtime.memory import storage_on
from outgrow.runtime.program import Call, Instruction, Program, Result, is_nested


@dataclass(frozen=True, slots=True)
class Loose:
    """An argument that is looked up while the step runs: a tensor or a number."""

    name: str
    is_number: bool


@dataclass(frozen=True, slots=True)
class Placed:
    """Result number `at` of an op: the storage `born` comes into being with it; its first element is at `address`."""

    at: int
    address: int
    born: str
    result: Result


@dataclass(frozen=True, slots=True, repr=False)
class Played:
    """One op with its arguments; `loose` and `loose_keywords` name the values that are looked up when it runs.

    If a `Loose` argument stands inside a list, the op is `nested`. Its results, by number, are `placed` at known
    addresses, `numbers`, or `born` loose. An op that `is_placing` makes results or scratch, so the memory is told when
    it begins and ends.
    """

    call: Call
    arguments: tuple[object, ...]
    keywords: Mapping[str, object]
    loose: tuple[tuple[int, str], ...]
    loose_keywords: tuple[tuple[str, str], ...]
    nested: bool
    placed: tuple[Placed, ...]
    numbers: tuple[tuple[int, str], ...]
    born: tuple[tuple[int, Result], ...]
    is_placing: bool


@dataclass(frozen=True, slots=True)
class Moved:
    """A copy between the next tier and the device, where its first byte is at `address`."""

    copy: SwapOut | SwapIn
    address: int


Part: TypeAlias = Played | Moved | Wait | None
"""An op, a copy, or a wait for copies; None for a drop, which frees nothing here."""


@dataclass(frozen=True, slots=True, repr=False)
class Score:
    """The part of each instruction.

    `dies` has the loose storages that die with each instruction, `there` the addresses of the user's storages.
    """

    parts: tuple[Part, ...]
    dies: Mapping[int, tuple[str, ...]]
    there: Mapping[str, int]


def scored(program: Program, base: int, device: torch.device, there: Mapping[str, torch.UntypedStorage]) -> Score:
    """Return the score of a program whose arena begins at `base`; the user's storages `there` stay where they are."""
    scoring = _Scoring(program, base, device, there)
    parts = tuple([scoring.part(at, item) for at, item in enumerate(program.instructions)])
    loose = {at: tuple(filter(scoring.is_loose, names)) for at, names in program.dies.items()}
    return Score(
        parts,
        {at: names for at, names in loose.items() if names},
        {name: item.data_ptr() for name, item in there.items()},
    )


class _Scoring:
    """Goes through a program once, and knows where everything is by then."""

    def __init__(
        self, program: Program, base: int, device: torch.device, there: Mapping[str, torch.UntypedStorage]
    ) -> None:
        self._program, self._base, self._device = program, base, device
        self._addresses = program.placed
        self._where = {name: (item.device, item.data_ptr()) for name, item in there.items()}
        self._made: dict[tuple[str, int], torch.Tensor] = {}

    def is_loose(self, storage: str) -> bool:
        """Whether no address of a storage is known so far."""
        return storage not in self._where

    def part(self, position: int, item: Instruction) -> Part:
        """Return what is done at a position; positions are asked for in order."""
        stays = self._addresses.stays.get(position, {})
        match item:
            case Call():
                return self._op(position, item, stays)
            case SwapOut(storage, begin) | SwapIn(storage, begin):
                self._settle(storage, stays)
                return Moved(item, self._where[storage][1] + begin)
            case Wait():
                return item
            case Drop():
                return None

    def _settle(self, storage: str, stays: Mapping[str, int]) -> None:
        if storage in stays:
            self._where[storage] = self._device, self._base + stays[storage]

    def _op(self, position: int, call: Call, stays: Mapping[str, int]) -> Played:
        def lookup(name: str) -> Any:
            tensor = self._tensor(name)
            return Loose(name, is_number=self._program.geometry[name].dtype is None) if tensor is None else tensor

        arguments, keywords = call.given(lookup)
        loose = tuple((at, item.name) for at, item in enumerate(arguments) if isinstance(item, Loose))
        loose_keywords = tuple((key, item.name) for key, item in keywords.items() if isinstance(item, Loose))
        nested = any(is_nested(item, Loose) for item in (*arguments, *keywords.values()))
        placed, numbers, born = self._results(call, stays)
        is_placing = bool(self._addresses.scratch.get(position) or self._program.aims.get(position) or placed or born)
        return Played(
            call, tuple(arguments), keywords, loose, loose_keywords, nested, placed, numbers, born, is_placing
        )

    def _results(self, call: Call, stays: Mapping[str, int]) -> "_Results":
        placed, numbers, born = list[Placed](), list[tuple[int, str]](), list[tuple[int, Result]]()
        for at, result in enumerate(call.results):
            if result is None:
                continue
            if result.born is not None and result.size_bytes:
                self._settle(result.born, stays)
            tensor = self._tensor(result.value)
            if result.geometry.dtype is None:
                numbers.append((at, result.value))
            elif tensor is None:
                born.append((at, result))
            elif result.born is not None:
                placed.append(Placed(at, tensor.data_ptr(), result.born, result))
        return tuple(placed), tuple(numbers), tuple(born)

    def _tensor(self, name: str) -> torch.Tensor | None:
        """Return the tensor of a value where its storage is now; None for a number, or if the storage is loose."""
        geometry = self._program.geometry[name]
        if geometry.dtype is None or geometry.storage not in self._where:
            return None
        device, address = self._where[geometry.storage]
        key = name, address
        if key not in self._made:
            storage = storage_on(device, address, self._program.sizes[geometry.storage])
            self._made[key] = geometry.over(storage)
        return self._made[key]


_Results: TypeAlias = tuple[tuple[Placed, ...], tuple[tuple[int, str], ...], tuple[tuple[int, Result], ...]]
