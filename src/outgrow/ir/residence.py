"""Are the bytes where they are needed, and do they fit? Invariants 2 to 5 of `ir.verify`.

Every storage has a place: which of its bytes are on the device, and which of its present version in the tier; which
go out or come in just now. Each instruction asks something of the places of its storages, and changes them. Invariant
3 is a second pass, which adds and takes away bytes.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from outgrow.errors import InvalidGraph
from outgrow.ir.flight import ARRIVED, EXCHANGE
from outgrow.ir.graph import DEVICE, Drop, Graph, Op, Storage, SwapIn, SwapOut, Wait
from outgrow.ir.ranges import Ranges, covers, joined, meets, size_of, without
from outgrow.ir.steps import Step, births
from outgrow.units import format_bytes


@dataclass(slots=True)
class _Place:
    """Where the bytes of the present version of a storage are; what is `away` was dropped and not yet asked back."""

    size_bytes: int
    is_born: bool = False
    away: Ranges = ()
    in_tier: Ranges = ()
    going_out: Ranges = ()
    coming_in: Ranges = ()
    lent: int = 0

    @property
    def all_bytes(self) -> Ranges:
        return joined((), 0, self.size_bytes)

    @property
    def in_flight(self) -> bool:
        return bool(self.going_out or self.coming_in) or self.lent > 0

    def has(self, begin: int, end: int) -> bool:
        """Whether bytes begin:end are on the device."""
        return self.is_born and not meets(self.away, begin, end) and not meets(self.coming_in, begin, end)


def check_residence(graph: Graph, steps: list[Step]) -> None:
    """Raise `InvalidGraph` unless `graph` keeps invariants 2, 4 and 5; it must keep invariant 1."""
    places = {name: _Place(storage.size_bytes) for name, storage in graph.storages.items()}
    for storage in _inputs(graph, steps):
        place = places[storage.name]
        place.is_born = True
        if storage.home != DEVICE:
            place.away = place.in_tier = place.all_bytes
    last_uses = _last_uses(graph, steps)
    begun: dict[str, str] = {}
    for at, item in enumerate(graph.instructions):
        match item:
            case Op(name, operator):
                if operator == ARRIVED:
                    _return(name, steps[at], places, begun, at)
                _run(name, steps[at], places, at)
                if operator == EXCHANGE:
                    _lend(name, steps[at], places, begun, at)
            case SwapOut(storage, begin, end):
                _require_on_device(places, item, "swap_out", at)
                places[storage].going_out = joined(places[storage].going_out, begin, end)
            case SwapIn(storage):
                _swap_in(item, places[storage], at)
            case Wait(storage):
                _land(places[storage])
            case Drop():
                _drop(item, places, at)
        _require_landed(places, last_uses[at], "freed by its last use", at)
    _check_end(graph, places)


def _inputs(graph: Graph, steps: list[Step]) -> list[Storage]:
    born = births(steps)
    return [storage for name, storage in graph.storages.items() if name not in born]


def _kept(graph: Graph) -> dict[str, None]:
    """The storages that must be there when the step ends."""
    persistent = [name for name, storage in graph.storages.items() if storage.is_persistent]
    return dict.fromkeys(persistent + [graph.values[name].storage for name in graph.results])


def _last_uses(graph: Graph, steps: list[Step]) -> list[list[str]]:
    """Return the storages that each instruction frees, since none after it touches them."""
    freed: list[list[str]] = [[] for _ in steps]
    kept = _kept(graph)
    for name, at in {name: at for at, step in enumerate(steps) for name in step.touched}.items():
        if name not in kept:
            freed[at].append(name)
    return freed


# ---- 2, 4, 5: what each instruction asks of the places, and how it changes them


def _run(op: str, step: Step, places: dict[str, _Place], at: int) -> None:
    for value in step.results:
        if value.version == 0:
            places[value.storage].is_born = True
    for name in step.touched:
        if not places[name].has(0, places[name].size_bytes):
            raise _missing(name, places[name], op, at)
    _require_landed(places, step.written, f"written by {op}", at)
    for name in step.written:
        places[name].in_tier = ()


def _lend(op: str, step: Step, places: dict[str, _Place], begun: dict[str, str], at: int) -> None:
    """Begin an exchange: what it sends and what it receives are in flight."""
    if not step.reads or len(step.results) != 1:
        raise InvalidGraph(f"{op} sends nothing, or receives nothing", invariant=4, position=at)
    sent, there = step.reads[0], step.results[0]
    begun[there.name] = sent.name
    for value in (sent, there):
        places[value.storage].lent += 1


def _return(op: str, step: Step, places: dict[str, _Place], begun: dict[str, str], at: int) -> None:
    """End an exchange, given what it receives and what it sends."""
    there, *others = step.reads
    if [begun.pop(there.name, None)] != [value.name for value in others]:
        raise InvalidGraph(f"{op} waits for no exchange of what it is given", invariant=4, position=at)
    for value in step.reads:
        places[value.storage].lent -= 1


def _swap_in(item: SwapIn, place: _Place, at: int) -> None:
    begin, end = item.begin, item.end
    _require_bytes(place, item, at)
    if not place.away and not place.coming_in:
        raise InvalidGraph(f"{item.storage} is swapped in but was not dropped", invariant=5, position=at)
    if not covers(place.away, begin, end):
        message = f"some of the bytes {begin}:{end} of {item.storage} are swapped in already, or were not dropped"
        raise InvalidGraph(message, invariant=5, position=at)
    place.away = without(place.away, begin, end)
    place.coming_in = joined(place.coming_in, begin, end)


def _land(place: _Place) -> None:
    """End the copies in flight: the tier holds what went out, the device what came back."""
    for begin, end in place.going_out:
        place.in_tier = joined(place.in_tier, begin, end)
    place.going_out = place.coming_in = ()


def _drop(item: Drop, places: dict[str, _Place], at: int) -> None:
    place = places[item.storage]
    _require_landed(places, (item.storage,), "dropped", at)
    _require_on_device(places, item, "drop", at)
    if not covers(place.in_tier, item.begin, item.end):
        message = f"{item.storage} is dropped, but the tier has no copy of its present version"
        raise InvalidGraph(message, invariant=5, position=at)
    place.away = joined(place.away, item.begin, item.end)


def _require_bytes(place: _Place, item: SwapOut | SwapIn | Drop, at: int) -> None:
    if not 0 <= item.begin < item.end <= place.size_bytes:
        message = f"{item.begin}:{item.end} are not bytes of {item.storage}, which has {place.size_bytes}"
        raise InvalidGraph(message, invariant=5, position=at)


def _require_on_device(places: dict[str, _Place], item: SwapOut | Drop, user: str, at: int) -> None:
    place = places[item.storage]
    _require_bytes(place, item, at)
    if not place.has(item.begin, item.end):
        raise _missing(item.storage, place, user, at)


def _missing(name: str, place: _Place, user: str, at: int) -> InvalidGraph:
    back = place.size_bytes - size_of(place.away)
    flight = ", with a copy in flight" if place.coming_in else ""
    state = f"dropped: {back} of its {place.size_bytes} bytes are back{flight}"
    message = f"{user} needs {name}, which is {state if place.is_born else 'not born yet'}"
    return InvalidGraph(message, invariant=2, position=at)


def _require_landed(places: dict[str, _Place], names: Iterable[str], fate: str, at: int) -> None:
    for name in names:
        if places[name].in_flight:
            message = f"{name} is {fate} while a copy of it is in flight: wait for it first"
            raise InvalidGraph(message, invariant=4, position=at)


def _check_end(graph: Graph, places: dict[str, _Place]) -> None:
    for name in _kept(graph):
        place, home = places[name], graph.storages[name].home
        is_home = place.has(0, place.size_bytes) if home == DEVICE else place.in_tier == place.all_bytes
        if place.in_flight or not is_home:
            problem = "with a copy in flight" if place.in_flight else f"away from its home, {home}"
            raise InvalidGraph(f"the step ends with {name} {problem}", invariant=5)


# ---- 3: capacity


def check_capacity(graph: Graph, steps: list[Step], capacity_bytes: int, workspace: Callable[[Op], int]) -> None:
    """Raise `InvalidGraph` unless `graph` keeps invariant 3; it must keep the others.

    A storage that no instruction touches is held to the end.
    """
    held = dict.fromkeys(graph.storages, 0)
    for storage in _inputs(graph, steps):
        if storage.home == DEVICE:
            held[storage.name] = storage.size_bytes
    total = sum(held.values())
    last_uses = _last_uses(graph, steps)
    for at, (item, step) in enumerate(zip(graph.instructions, steps, strict=True)):
        workspace_bytes = 0
        match item:
            case Op():
                born = [value.storage for value in step.results if value.version == 0]
                changes = {name: graph.storages[name].size_bytes for name in born}
                workspace_bytes = workspace(item)
            case SwapIn(storage, begin, end):
                changes = {storage: end - begin}
            case Drop(storage, begin, end):
                changes = {storage: begin - end}
            case _:
                changes = {}
        for name, change in changes.items():
            held[name] += change
            total += change
        needed = total + workspace_bytes
        if needed > capacity_bytes:
            excess = f"{needed - capacity_bytes} over the capacity of {capacity_bytes}"
            held_here = f"{needed} bytes ({format_bytes(needed)}), {workspace_bytes} of them as workspace"
            message = f"{held_here}, are held here, which is {excess}"
            raise InvalidGraph(message, invariant=3, position=at)
        for name in last_uses[at]:
            total -= held[name]
