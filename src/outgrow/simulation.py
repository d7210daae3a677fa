"""What will happen when a graph runs on a machine? Replay it on three lanes: compute, out, in.

    an op       begins when the clock says so, takes its seconds (more, where it stalls: `operators.stalls`), and moves
                the clock
    swap_out s  begins on the out lane when the lane is free, at the earliest now; the clock does not move
    swap_in s   reserves its bytes now and begins on the in lane when that is free
    wait s      moves the clock to the end of the last copy of s in flight
    drop s      frees the device bytes of s now

Each lane works first in, first out. On a half-duplex link both lanes share one time. A copy of what sinks to the tier
below (`analysis.sinking`) takes a turn on the link to the device and one on the link below, and ends with the later of
the two. A storage comes into memory at the beginning of the op that brings it into being and leaves it at the end of
its last use; the workspace of an op is held while it runs. `ir.verify` states the same rules independently, and checks
them for every order in which events may happen, while one order is simulated here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from outgrow.analysis.cost import Cost
from outgrow.analysis.sinking import sunk
from outgrow.analysis.timeline import Event, Lane, Span, Trace
from outgrow.ir.graph import DEVICE, Drop, Graph, Op, Storage, SwapIn, SwapOut, Wait
from outgrow.ir.machine import LinkRates, Machine
from outgrow.operators.stalls import slowdown

FREE = Cost(0.0)


def replay(graph: Graph, costs: Mapping[str, Cost], machine: Machine) -> Trace:
    """Return what happens when `graph` runs on `machine`; `costs` are by captured op name."""
    clock = _Clock(machine.link, machine.below, sunk(graph, machine))
    for name, storage in graph.storages.items():
        if name not in graph.born_at:
            clock.rest(name, storage)
    for at, item in enumerate(graph.instructions):
        match item:
            case Op():
                born = [graph.storages[name] for name in graph.born(item)]
                clock.run(item.name, costs.get(item.captured, FREE), slowdown(graph.values, item), born)
            case SwapOut(storage, begin, end):
                clock.copy_out(storage, end - begin)
            case SwapIn(storage, begin, end):
                clock.copy_in(storage, end - begin)
            case Wait(storage):
                clock.wait(storage)
            case Drop(storage, begin, end):
                clock.drop(storage, end - begin)
        for name in graph.dying_at.get(at, ()):
            clock.forget(name)
    return Trace(clock.now, tuple(clock.spans), tuple(clock.events))


def _free_lanes() -> dict[Lane, float]:
    return {Lane.OUT: 0.0, Lane.IN: 0.0}


@dataclass
class _Clock:
    """The time, the lanes and the memory while a graph is replayed."""

    link: LinkRates
    below: LinkRates | None = None
    sunk: frozenset[str] = frozenset()
    now: float = 0.0
    lane_free: dict[Lane, float] = field(default_factory=_free_lanes)
    below_free: dict[Lane, float] = field(default_factory=_free_lanes)
    in_flight: dict[str, float] = field(default_factory=dict[str, float])
    held: dict[str, int] = field(default_factory=dict[str, int])
    resting: dict[str, int] = field(default_factory=dict[str, int])
    spans: list[Span] = field(default_factory=list[Span])
    events: list[Event] = field(default_factory=list[Event])

    def hold(self, size_bytes: int) -> None:
        if size_bytes:
            self.events.append(Event(self.now, size_bytes))

    def rest(self, name: str, storage: Storage) -> None:
        """A storage is there when the step begins, at home."""
        if storage.home == DEVICE:
            self.held[name] = storage.size_bytes
            self.hold(storage.size_bytes)
        else:
            self.resting[name] = storage.size_bytes
            self.events.append(Event(self.now, 0, storage.size_bytes))

    def run(self, name: str, cost: Cost, slowdown: float, born: Sequence[Storage]) -> None:
        begin = self.now
        self.held |= {storage.name: storage.size_bytes for storage in born}
        self.hold(sum([storage.size_bytes for storage in born]) + cost.workspace_bytes)
        self.now += cost.seconds * slowdown
        self.hold(-cost.workspace_bytes)
        self.spans.append(Span(Lane.COMPUTE, name, begin, self.now))

    def copy_out(self, storage: str, size_bytes: int) -> None:
        more = size_bytes - self.resting.get(storage, 0)
        if more > 0:
            self.resting[storage] = size_bytes
            self.events.append(Event(self.now, 0, more))
        self._copy(Lane.OUT, storage, size_bytes)

    def copy_in(self, storage: str, size_bytes: int) -> None:
        self.held[storage] = self.held.get(storage, 0) + size_bytes
        self.hold(size_bytes)
        self._copy(Lane.IN, storage, size_bytes)

    def drop(self, storage: str, size_bytes: int) -> None:
        self.held[storage] -= size_bytes
        self.hold(-size_bytes)

    def _copy(self, lane: Lane, storage: str, size_bytes: int) -> None:
        begin, end = self._take_turn(self.link, self.lane_free, lane, size_bytes)
        if storage in self.sunk and self.below is not None:
            begin, there = self._take_turn(self.below, self.below_free, lane, size_bytes)
            end = max(end, there)
        self.in_flight[storage] = max(end, self.in_flight.get(storage, end))
        self.spans.append(Span(lane, storage, begin, end, size_bytes))

    def _take_turn(self, link: LinkRates, free: dict[Lane, float], lane: Lane, size_bytes: int) -> tuple[float, float]:
        """Occupy a lane of a link for a copy, as soon as it is free; return when the copy begins and ends."""
        begin = max(self.now, free[lane])
        end = begin + (link.out_seconds(size_bytes) if lane is Lane.OUT else link.in_seconds(size_bytes))
        for busy in free if link.half_duplex else (lane,):
            free[busy] = end
        return begin, end

    def wait(self, storage: str) -> None:
        self.now = max(self.now, self.in_flight.pop(storage, self.now))

    def forget(self, storage: str) -> None:
        self.events.append(Event(self.now, -self.held.pop(storage, 0), -self.resting.pop(storage, 0)))
