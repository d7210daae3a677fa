"""How is a step divided among k workers, each of which holds 1/k of every tensor, with the least communication?

    state of a tensor      the dimension along which it is cut, a part for each worker; or whole, where it is small
    strategy of a call     the variable along which it is cut (`operators.strategies`); or whole: all compute all of it
    cost                   bytes that workers receive: what a strategy needs of an operand and its state has elsewhere,
                           and what a state needs of a result and the strategy gives elsewhere
                           (`planning.partition.lacking`)

With k = k1 * k2 * ..., largest factor first, workers are divided k1 ways, then each group of them k2 ways: the later
division divides what one worker of the earlier one does, once for all groups, since they are alike. Each division by
itself is the cheapest (`planning.partition.level`).

An operator that is not described is whole, and named (`Partition.whole`). Source: Tofu (M. Wang, C. Huang, J. Li,
EuroSys 2019, section 5). Instead of its dynamic programme over a coarsened chain the elimination takes the graph as it
is, and a region counts what of it is remote, halos included.
"""

import gc
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod

from outgrow.ir.machine import Machine
from outgrow.operators.catalogue import entry_of
from outgrow.operators.dataflow import GATHERED, Dataflow, Node, Tensor
from outgrow.operators.strategies import Split, strategies
from outgrow.operators.tdl import OperatorCall
from outgrow.planning.partition.footprint import dataflow_peak_bytes
from outgrow.planning.partition.lacking import WHOLE, pieces_of
from outgrow.planning.partition.level import Level, divided_once
from outgrow.planning.partition.options import Terms, used_by_nodes
from outgrow.planning.partition.room import ADDENDS, NO_ROOM, Room, room_of

FINENESS = 16
"""How many of the things that may be held fit is found to 1/16 of their number."""


@dataclass(frozen=True, slots=True)
class Partition:
    """The divisions of a step, one within the other, and the operators of which nothing is known, so they are whole.

    `memory_bytes` are what each worker may take; None: as little as can be.
    """

    levels: tuple[Level, ...]
    whole: tuple[str, ...]
    lasting_bytes_per_worker: int
    peak_bytes_per_worker: int
    in_core_peak_bytes: int
    memory_bytes: float | None = None

    @property
    def workers(self) -> int:
        """The number of workers that the step is divided among."""
        return prod(level.ways for level in self.levels)

    @property
    def is_tight(self) -> bool:
        """Whether workers have to swap: they may take less than they need."""
        return self.memory_bytes is not None and self.memory_bytes < self.peak_bytes_per_worker

    @property
    def communicated_bytes(self) -> float:
        """What all workers receive in a step."""
        return sum(level.communicated_bytes for level in self.levels)


def partition(
    step: Dataflow,
    workers: int,
    fixed: Mapping[str, Sequence[int]] | None = None,
    memory_bytes: float | None = None,
    machine: Machine | None = None,
) -> Partition:
    """Return the cheapest division of a step among workers; raises `ValueError` for less than one.

    The states of tensors that are cut already are `fixed`, division by division. As much is held of what may be held
    (`planning.partition.room`) as fits into the `memory_bytes` of each worker, to receive less; None: as little as can
    be. On a machine, beginning an exchange counts too, as the bytes that could be received meanwhile.
    """
    if workers < 1:
        raise ValueError(f"{workers} workers: give one at least")

    def divided(room: Room) -> Partition:
        return _divided(step, workers, fixed or {}, room, machine)

    if memory_bytes is None:
        return divided(NO_ROOM)
    room = room_of(step)
    best = divided(room)
    if best.peak_bytes_per_worker <= memory_bytes or not room.names:
        return replace(best, memory_bytes=memory_bytes)
    best, fitting, beyond = divided(NO_ROOM), 0, len(room.names)
    while beyond - fitting > 1 + len(room.names) // FINENESS:
        middle = (fitting + beyond) // 2
        found = divided(room.allowing(middle))
        if found.peak_bytes_per_worker <= memory_bytes:
            best, fitting = found, middle
        else:
            beyond = middle
    return replace(best, memory_bytes=memory_bytes)


@contextmanager
def _uncollected() -> Generator[None]:
    """Switch the garbage collector off, if it is on: what a search makes lives until its end."""
    is_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_on:
            gc.enable()


@_uncollected()
def _divided(
    step: Dataflow, workers: int, fixed: Mapping[str, Sequence[int]], room: Room, machine: Machine | None
) -> Partition:
    """Return the cheapest division in which workers may hold what `room` allows."""
    levels: list[Level] = []
    part = _without_gathers(step, room)
    used = used_by_nodes(part)
    for depth, ways in enumerate(factors(workers)):
        given = {name: states[depth] for name, states in fixed.items() if name in part.tensors}
        count = workers // prod(item.ways for item in levels)
        waiting = 0.0 if machine is None else count * machine.waiting_bytes(count)
        level = divided_once(part, used, levels, Terms(ways, given, room, waiting))
        levels.append(level)
        part = _of_one_worker(part, level)
    operators = dict.fromkeys(node.call.operator for node in step.nodes)
    undescribed = tuple(operator for operator in operators if entry_of(operator) is None)
    lasting = sum(tensor.size_bytes for tensor in part.tensors.values() if tensor.lasting)
    received: Mapping[str, float] = levels[-1].received if levels else {}
    peak = dataflow_peak_bytes(part, received)
    found = tuple(_with_gathers(level, step, room) for level in levels)
    return Partition(found, undescribed, lasting, peak, dataflow_peak_bytes(step, {}))


def _without_gathers(step: Dataflow, room: Room) -> Dataflow:
    """Return a step in which parameters that may not be held are used as they are; equal calls are one object."""
    same = dict(_not_held(step, room))
    calls: dict[OperatorCall, OperatorCall] = {}
    nodes: list[Node] = []
    for node in step.nodes:
        if not any(name in same for name in node.results):
            operands = tuple([same.get(name, name) for name in node.operands])
            nodes.append(_with(node, calls.setdefault(node.call, node.call), operands))
    return Dataflow({k: v for k, v in step.tensors.items() if k not in same}, tuple(nodes), step.outputs)


def _with(node: Node, call: OperatorCall, operands: tuple[str, ...]) -> Node:
    if call is node.call and operands == node.operands:
        return node
    return Node(node.name, call, operands, node.results, node.written, node.whole)


def _with_gathers(level: Level, step: Dataflow, room: Room) -> Level:
    """Return a division that also has the results of gathers that are not allowed: cut like their parameters."""
    states, ways_of = dict(level.states), dict(level.strategies)
    calls = {name: node for node in step.nodes for name in node.results}
    for name, parameter in _not_held(step, room):
        states[name], node = states[parameter], calls[name]
        cut = (item for item in strategies(node.call, level.ways) if item.outcomes == (Split(states[name]),))
        ways_of[node.name] = next(cut, None)
    return replace(level, states=states, strategies=ways_of)


def _not_held(step: Dataflow, room: Room) -> Iterator[tuple[str, str]]:
    """Yield the results of gathers that are not allowed, and their parameters."""
    for node in step.nodes:
        (name, *_) = node.results
        if node.call.operator == GATHERED and name is not None and name not in room.held:
            yield name, node.operands[0]


def factors(number: int) -> tuple[int, ...]:
    """Return the prime factors of a number, largest first.

    >>> factors(12), factors(1)
    ((3, 2, 2), ())
    """
    found: list[int] = []
    divisor = 2
    while divisor * divisor <= number:
        while number % divisor == 0:
            found.append(divisor)
            number //= divisor
        divisor += 1
    rest = [number] if number > 1 else []
    return tuple(reversed([*found, *rest]))


# The next division --------------------------------------------------------------------------------------------------


def _of_one_worker(step: Dataflow, level: Level) -> Dataflow:
    """Return what the first worker of a division holds and does, whose parts are no smaller than any other's.

    Equal calls stay one object.
    """
    tensors = {name: _part(tensor, level.states[name], level.ways) for name, tensor in step.tensors.items()}
    calls: dict[tuple[int, int], OperatorCall] = {}
    same: dict[OperatorCall, OperatorCall] = {}
    nodes: list[Node] = []
    for node in step.nodes:
        strategy = level.strategies[node.name]
        key = (id(node.call), id(strategy))
        if key not in calls:
            first = next(iter(pieces_of(node.call, strategy, level.ways)), None)
            call = node.call if first is None else first.call
            calls[key] = same.setdefault(call, call)
        nodes.append(_with(node, calls[key], node.operands))
    return Dataflow(tensors, tuple(nodes))


def _part(tensor: Tensor, state: int, ways: int) -> Tensor:
    if state in (WHOLE, ADDENDS):
        return tensor
    size = -(-tensor.shape[state] // ways)
    shape = (*tensor.shape[:state], size, *tensor.shape[state + 1 :])
    return replace(tensor, shape=shape)
