"""What does each worker of a division hold, need and make of every tensor, and what do workers send each other?

All of it is boxes in the coordinates of the whole tensor. A worker has one digit for each division, the first division
first, and what it does follows from its digits: it takes one piece of a call, of that piece one piece again, and so on.

    spread      what each worker has of a tensor, and whether others have other parts of it, the same, or addends
    moves       from which workers, and which parts, each receives what it needs

If several workers have the same, the one serves whose digits there equal the receiver's: the nearest, and only one.
Pieces of groups may differ in size, so each is cut anew, along the variable that was chosen for the largest. Where that
is impossible, the workers of the group all do the same.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from itertools import product
from typing import TypeAlias

from outgrow.operators.catalogue import entry_of
from outgrow.operators.dataflow import Dataflow, Node, Tensor
from outgrow.operators.regions import Range, Region, volume, whole, within
from outgrow.operators.strategies import Outcome, Partial, Split, chunks, pieces, strategies
from outgrow.operators.tdl import OperatorCall, Reducer, Shape
from outgrow.planning.partition.lacking import WHOLE, read
from outgrow.planning.partition.partition import Partition, factors
from outgrow.planning.partition.room import ADDED, ADDENDS

Digits: TypeAlias = tuple[int, ...]


class Standing(StrEnum):
    """Whether workers of a division have different parts of a tensor, or all of them the same."""

    APART = "apart"
    ALIKE = "alike"


Kind: TypeAlias = Standing | Reducer


@dataclass(frozen=True, slots=True)
class Spread:
    """The box of each worker; by worker and division, whether others have other parts, the same, or addends."""

    boxes: tuple[Region, ...]
    kinds: tuple[tuple[Kind, ...], ...]


@dataclass(frozen=True, slots=True)
class Part:
    """A box that comes from a worker. Boxes of later turns are reduced with those of earlier ones."""

    worker: int
    box: Region
    turn: int


@dataclass(frozen=True, slots=True)
class Task:
    """What a worker runs for a node: a call on a box of each operand; where a box reaches beyond it, it is `fill`.

    Operands in `zeros` are taken as zeros. What the call gives is divided by `divisor`; once all is put together, the
    first result named by `quotient` is divided by the second.
    """

    call: OperatorCall
    needed: Mapping[int, Region]
    zeros: tuple[int, ...]
    fill: float
    divisor: int
    quotient: tuple[int, int] | None
    made: tuple[Region | None, ...]
    kinds: tuple[tuple[Kind, ...], ...]
    operand_kinds: Mapping[int, tuple[Kind, ...]]


Moves: TypeAlias = tuple[tuple[Part, ...], ...]
"""For each worker, the parts that it receives, its own included."""


@dataclass(frozen=True)
class Shares:
    """A divided step, worker by worker."""

    step: Dataflow
    partition: Partition

    def states(self, name: str) -> tuple[int, ...]:
        """Return how a tensor is cut, division by division."""
        return tuple(level.states[name] for level in self.partition.levels)

    def held(self, name: str) -> Spread:
        """Return what each worker has of a tensor between calls."""
        return held(self.step.tensors[name].shape, self.states(name), self.partition.workers)

    def tasks(self, node: Node) -> tuple[Task, ...]:
        """Return what each worker does for a node."""
        chosen = tuple(level.strategies[node.name] for level in self.partition.levels)
        return tasks(node.call, tuple(None if item is None else item.cut for item in chosen), self.partition.workers)

    def source(self, node: Node, position: int) -> int:
        """Return the first position at which the node has the same operand and workers need the same of it."""
        own = self._needed(node, position)
        same = (at for at, name in enumerate(node.operands[:position]) if name == node.operands[position])
        return next((at for at in same if self._needed(node, at) == own), position)

    def fetched(self, node: Node, position: int) -> Moves:
        """Return how each worker comes to what it needs of an operand."""
        adds = tuple(level.adds(node.name) for level in self.partition.levels)
        own = with_addends(self.held(node.operands[position]), adds, self.partition.workers)
        return moves(own, self._needed(node, position), self.partition.workers)

    def _needed(self, node: Node, position: int) -> tuple[Region | None, ...]:
        shape = node.call.operands[position].shape
        return tuple(
            None if position in task.zeros or position not in task.needed else within(task.needed[position], shape)
            for task in self.tasks(node)
        )

    def made(self, node: Node, number: int) -> Spread:
        """Return what each worker has of a result when it has run its call."""
        parts = [(task.made[number], task.kinds[number]) for task in self.tasks(node)]
        return Spread(tuple(box for box, _ in parts if box is not None), tuple(kinds for _, kinds in parts))

    def rewritten(self, node: Node, position: int) -> Spread:
        """Return what each worker has of an operand that the node has written."""
        shape = node.call.operands[position].shape
        tasks_of = self.tasks(node)
        boxes = tuple(within(task.needed.get(position, whole(shape)), shape) for task in tasks_of)
        return Spread(boxes, tuple(task.operand_kinds[position] for task in tasks_of))

    def handed_on(self, name: str, made: Spread) -> Moves:
        """Return how each worker comes to what it holds of a tensor, from what they made."""
        stay = tuple(state == ADDENDS for state in self.states(name))
        workers = self.partition.workers
        return moves(with_addends(made, stay, workers), self.held(name).boxes, workers)

    def received_bytes(self) -> tuple[int, ...]:
        """Return the bytes that each worker receives in a step."""
        nodes = self.step.nodes
        return tuple(self._received(moved for node in nodes for moved in (*self._coming(node), *self._going(node))))

    def received_for(self, node: Node) -> tuple[int, int]:
        """Return the most bytes that any worker receives of a node's operands, and of its results."""
        return max(self._received(self._coming(node))), max(self._received(self._going(node)))

    def _received(self, moved: Iterable[tuple[Tensor, Moves]]) -> list[int]:
        """Return the bytes that each worker receives from others in some moves."""
        found = [0] * self.partition.workers
        for tensor, moves_of in moved:
            for worker, parts in enumerate(moves_of):
                others = (volume(part.box) for part in parts if part.worker != worker)
                found[worker] += tensor.item_bytes * sum(others)
        return found

    def _coming(self, node: Node) -> Iterator[tuple[Tensor, Moves]]:
        """Yield the operands of a node, and how workers come to what they need of them."""
        for position, name in enumerate(node.operands):
            if self.source(node, position) == position:
                yield self.step.tensors[name], self.fetched(node, position)

    def _going(self, node: Node) -> Iterator[tuple[Tensor, Moves]]:
        """Yield what a node makes or writes, and how workers come to what they hold of it."""
        tensors = self.step.tensors
        for number, name in enumerate(node.results):
            if name is not None:
                yield tensors[name], self.handed_on(name, self.made(node, number))
        for position in node.written:
            name = node.operands[position]
            yield tensors[name], self.handed_on(name, self.rewritten(node, position))


@cache
def digits(workers: int) -> tuple[Digits, ...]:
    """Return the digits of each worker, a digit for each prime factor of their number.

    >>> digits(4)
    ((0, 0), (0, 1), (1, 0), (1, 1))
    """
    return tuple(product(*(range(ways) for ways in factors(workers))))


@cache
def held(shape: Shape, states: tuple[int, ...], workers: int) -> Spread:
    """Return what each worker has of a tensor with these states, division by division.

    >>> [box[0] for box in held((6,), (0, 0), 4).boxes]
    [(0, 2), (2, 3), (3, 5), (5, 6)]
    """
    kinds = tuple(_KINDS.get(state, Standing.APART) for state in states)
    boxes: list[Region] = []
    for own in digits(workers):
        box = [(0, size) for size in shape]
        for state, ways, digit in zip(states, factors(workers), own, strict=True):
            if state not in _KINDS:
                box[state] = _inside(box[state], chunks(box[state][1] - box[state][0], ways)[digit])
        boxes.append(tuple(box))
    return Spread(tuple(boxes), (kinds,) * workers)


_KINDS: Mapping[int, Kind] = {WHOLE: Standing.ALIKE, ADDENDS: Reducer.SUM}
"""The kind of what workers have of a tensor in a state in which it is not cut."""


def with_addends(spread: Spread, stay: tuple[bool, ...], workers: int) -> Spread:
    """Return what each worker has if, at the divisions in `stay`, it goes on with its own addend.

    Where a group had too little to cut, its workers all did the same: the first has the addend, the others have none.
    """
    if not any(stay):
        return spread
    boxes: list[Region] = []
    kinds: list[tuple[Kind, ...]] = []
    for box, found, own in zip(spread.boxes, spread.kinds, digits(workers), strict=True):
        repeats = any(at and kind is Standing.ALIKE and digit for at, kind, digit in zip(stay, found, own, strict=True))
        boxes.append(tuple((begin, begin) for begin, _ in box) if repeats else box)
        kinds.append(tuple(Standing.ALIKE if at else kind for at, kind in zip(stay, found, strict=True)))
    return Spread(tuple(boxes), tuple(kinds))


def _inside(outer: Range, inner: Range) -> Range:
    return (outer[0] + inner[0], outer[0] + inner[1])


@cache
def tasks(call: OperatorCall, cuts: tuple[str | None, ...], workers: int) -> tuple[Task, ...]:
    """Return what each worker does for a call that is cut along these variables, division by division."""
    return tuple(_task(call, cuts, tuple(zip(factors(workers), own, strict=True))) for own in digits(workers))


def _task(call: OperatorCall, cuts: Sequence[str | None], places: Sequence[tuple[int, int]]) -> Task:
    """Return what the worker at these `places` does: for each division, into how many ways it cuts, and the digit."""
    present = call
    needed: dict[int, Region] = {}
    boxes: dict[int, Region] = {item.position: whole(item.shape) for item in call.operands}
    made = [None if shape is None else whole(shape) for shape in call.shapes]
    kinds: list[tuple[Kind, ...]] = [() for _ in call.shapes]
    operand_kinds: dict[int, tuple[Kind, ...]] = dict.fromkeys(boxes, ())
    zeros: tuple[int, ...] = ()
    fill, divisor, quotient = 0.0, 1, None
    for cut, (ways, digit) in zip(cuts, places, strict=True):
        strategy = next((item for item in strategies(present, ways) if item.cut == cut), None)
        if strategy is None:
            kind = Reducer.SUM if cut == ADDED.cut else Standing.ALIKE
            kinds = [(*found, kind) for found in kinds]
            operand_kinds = {position: (*found, kind) for position, found in operand_kinds.items()}
            continue
        found = pieces(present, strategy, ways)
        piece, entry = found[digit], entry_of(present.operator)
        assert entry is not None, "a strategy is one of a described call"
        for position, region in piece.regions.items():
            boxes[position] = tuple(_inside(one, other) for one, other in zip(boxes[position], region, strict=True))
            needed[position] = boxes[position]
        for position, standing in operand_kinds.items():
            is_cut = len({item.regions.get(position) for item in found}) > 1
            operand_kinds[position] = (*standing, Standing.APART if is_cut else Standing.ALIKE)
        made = [_made(box, outcome, piece.bounds) for box, outcome in zip(made, strategy.outcomes, strict=True)]
        kinds = [(*standing, _kind(outcome)) for standing, outcome in zip(kinds, strategy.outcomes, strict=True)]
        zeros, fill, divisor = (*zeros, *piece.zeros), piece.fill, divisor * piece.divisor
        quotient = quotient or entry.quotient(present)
        present = piece.call
    if present is call:
        needed = {position: boxes[position] for position in read(call)}
    return Task(present, needed, zeros, fill, divisor, quotient, tuple(made), tuple(kinds), operand_kinds)


def _made(box: Region | None, outcome: Outcome, bounds: Range) -> Region | None:
    if box is None or not isinstance(outcome, Split):
        return box
    return (*box[: outcome.dim], _inside(box[outcome.dim], bounds), *box[outcome.dim + 1 :])


def _kind(outcome: Outcome) -> Kind:
    match outcome:
        case Split():
            return Standing.APART
        case Partial(by):
            return by
        case _:
            return Standing.ALIKE


@cache
def moves(spread: Spread, wanted: tuple[Region | None, ...], workers: int) -> Moves:
    """Return from whom each worker receives the box of a spread tensor that it wants (None: it wants nothing)."""
    return tuple(_received(spread, box, worker, digits(workers)) for worker, box in enumerate(wanted))


def _received(spread: Spread, wanted: Region | None, receiver: int, all_digits: Sequence[Digits]) -> tuple[Part, ...]:
    if wanted is None:
        return ()
    found: dict[Digits, list[tuple[int, Region]]] = {}
    for worker, (box, kinds) in enumerate(zip(spread.boxes, spread.kinds, strict=True)):
        both = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(box, wanted, strict=True))
        places = tuple(zip(kinds, all_digits[worker], all_digits[receiver], strict=True))
        serves = all(kind != Standing.ALIKE or theirs == ours for kind, theirs, ours in places)
        if serves and all(begin < end for begin, end in both):
            turn = tuple(theirs if isinstance(kind, Reducer) else 0 for kind, theirs, _ in places)
            found.setdefault(turn, []).append((worker, both))
    turns = sorted(found)
    return tuple(Part(worker, box, at) for at, turn in enumerate(turns) for worker, box in found[turn])
