"""Are the bytes where they are needed, and do they fit? Invariants 2 to 5 of `ir.verify`.

Every storage has a residence: which of its bytes are on the device, and which of its present version in the tier; which
go out or come in just now. Each instruction asks something of the residences of its storages, and changes them.
Invariant 3 is a second pass, which adds and takes away bytes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from outgrow.errors import InvalidGraph
from outgrow.ir.accesses import Access
from outgrow.ir.flight import ARRIVED, EXCHANGE
from outgrow.ir.graph import DEVICE, Drop, Graph, Op, Storage, SwapIn, SwapOut, Wait
from outgrow.ir.ranges import Ranges, covers, joined, meets, size_of, without
from outgrow.units import format_bytes


@dataclass(slots=True)
class _Residence:
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
        missing = self.away + self.coming_in  # mostly none
        return self.is_born and not (missing and meets(missing, begin, end))


def check_residence(graph: Graph, accesses: list[Access]) -> None:
    """Raise `InvalidGraph` unless `graph` keeps invariants 2, 4 and 5; it must keep invariant 1."""
    residences = {name: _Residence(storage.size_bytes) for name, storage in graph.storages.items()}
    for storage in _inputs(graph):
        residence = residences[storage.name]
        residence.is_born = True
        if storage.home != DEVICE:
            residence.away = residence.in_tier = residence.all_bytes
    last_uses = _last_uses(graph, accesses)
    begun: dict[str, str] = {}
    for at, item in enumerate(graph.instructions):
        match item:
            case Op(name, operator):
                if operator == ARRIVED:
                    _return(name, accesses[at], residences, begun, at)
                _run(name, accesses[at], residences, at)
                if operator == EXCHANGE:
                    _lend(name, accesses[at], residences, begun, at)
            case SwapOut(storage, begin, end):
                _require_on_device(residences, item, "swap_out", at)
                residences[storage].going_out = joined(residences[storage].going_out, begin, end)
            case SwapIn(storage):
                _swap_in(item, residences[storage], at)
            case Wait(storage):
                _land(residences[storage])
            case Drop():
                _drop(item, residences, at)
        _require_landed(residences, last_uses[at], "freed by its last use", at)
    _check_end(graph, residences)


def _inputs(graph: Graph) -> list[Storage]:
    return [storage for name, storage in graph.storages.items() if name not in graph.born_at]


def _kept(graph: Graph) -> dict[str, None]:
    """The storages that must be there when the step ends."""
    persistent = [name for name, storage in graph.storages.items() if storage.is_persistent]
    return dict.fromkeys(persistent + [graph.values[name].storage for name in graph.results])


def _last_uses(graph: Graph, accesses: list[Access]) -> list[list[str]]:
    """Return the storages that each instruction frees, since none after it touches them."""
    freed: list[list[str]] = [[] for _ in accesses]
    kept = _kept(graph)
    for name, at in {name: at for at, access in enumerate(accesses) for name in access.touched}.items():
        if name not in kept:
            freed[at].append(name)
    return freed


# ---- 2, 4, 5: what each instruction asks of the residences, and how it changes them


def _run(op: str, access: Access, residences: dict[str, _Residence], at: int) -> None:
    for value in access.results:
        if value.version == 0:
            residences[value.storage].is_born = True
    for name in access.touched:
        if not residences[name].has(0, residences[name].size_bytes):
            raise _missing(name, residences[name], op, at)
    _require_landed(residences, access.written, f"written by {op}", at)
    for name in access.written:
        residences[name].in_tier = ()


def _lend(op: str, access: Access, residences: dict[str, _Residence], begun: dict[str, str], at: int) -> None:
    """Begin an exchange: what it sends and what it receives are in flight."""
    if not access.reads or len(access.results) != 1:
        raise InvalidGraph(f"{op} sends nothing, or receives nothing", invariant=4, position=at)
    sent, there = access.reads[0], access.results[0]
    begun[there.name] = sent.name
    for value in (sent, there):
        residences[value.storage].lent += 1


def _return(op: str, access: Access, residences: dict[str, _Residence], begun: dict[str, str], at: int) -> None:
    """End an exchange, given what it receives and what it sends."""
    there, *others = access.reads
    if [begun.pop(there.name, None)] != [value.name for value in others]:
        raise InvalidGraph(f"{op} waits for no exchange of what it is given", invariant=4, position=at)
    for value in access.reads:
        residences[value.storage].lent -= 1


def _swap_in(item: SwapIn, residence: _Residence, at: int) -> None:
    begin, end = item.begin, item.end
    _require_bytes(residence, item, at)
    if not residence.away and not residence.coming_in:
        raise InvalidGraph(f"{item.storage} is swapped in but was not dropped", invariant=5, position=at)
    if not covers(residence.away, begin, end):
        message = f"some of the bytes {begin}:{end} of {item.storage} are swapped in already, or were not dropped"
        raise InvalidGraph(message, invariant=5, position=at)
    residence.away = without(residence.away, begin, end)
    residence.coming_in = joined(residence.coming_in, begin, end)


def _land(residence: _Residence) -> None:
    """End the copies in flight: the tier holds what went out, the device what came back."""
    for begin, end in residence.going_out:
        residence.in_tier = joined(residence.in_tier, begin, end)
    residence.going_out = residence.coming_in = ()


def _drop(item: Drop, residences: dict[str, _Residence], at: int) -> None:
    residence = residences[item.storage]
    _require_landed(residences, (item.storage,), "dropped", at)
    _require_on_device(residences, item, "drop", at)
    if not covers(residence.in_tier, item.begin, item.end):
        message = f"{item.storage} is dropped, but the tier has no copy of its present version"
        raise InvalidGraph(message, invariant=5, position=at)
    residence.away = joined(residence.away, item.begin, item.end)


def _require_bytes(residence: _Residence, item: SwapOut | SwapIn | Drop, at: int) -> None:
    if not 0 <= item.begin < item.end <= residence.size_bytes:
        message = f"{item.begin}:{item.end} are not bytes of {item.storage}, which has {residence.size_bytes}"
        raise InvalidGraph(message, invariant=5, position=at)


def _require_on_device(residences: dict[str, _Residence], item: SwapOut | Drop, user: str, at: int) -> None:
    residence = residences[item.storage]
    _require_bytes(residence, item, at)
    if not residence.has(item.begin, item.end):
        raise _missing(item.storage, residence, user, at)


def _missing(name: str, residence: _Residence, user: str, at: int) -> InvalidGraph:
    back = residence.size_bytes - size_of(residence.away)
    flight = ", with a copy in flight" if residence.coming_in else ""
    state = f"dropped: {back} of its {residence.size_bytes} bytes are back{flight}"
    message = f"{user} needs {name}, which is {state if residence.is_born else 'not born yet'}"
    return InvalidGraph(message, invariant=2, position=at)


def _require_landed(residences: dict[str, _Residence], names: Iterable[str], fate: str, at: int) -> None:
    for name in names:
        if residences[name].in_flight:
            message = f"{name} is {fate} while a copy of it is in flight: wait for it first"
            raise InvalidGraph(message, invariant=4, position=at)


def _check_end(graph: Graph, residences: dict[str, _Residence]) -> None:
    for name in _kept(graph):
        residence, home = residences[name], graph.storages[name].home
        if home == DEVICE:
            is_home = residence.has(0, residence.size_bytes)
        else:
            is_home = residence.away == residence.in_tier == residence.all_bytes
        if residence.in_flight or not is_home:
            problem = "with a copy in flight" if residence.in_flight else f"away from its home, {home}"
            raise InvalidGraph(f"the step ends with {name} {problem}", invariant=5)


# ---- 3: capacity


def check_capacity(graph: Graph, accesses: list[Access], capacity_bytes: int, workspace: Mapping[str, int]) -> None:
    """Raise `InvalidGraph` unless `graph` keeps invariant 3; it must keep the others.

    A storage that no instruction touches is held to the end.
    """
    held = dict.fromkeys(graph.storages, 0)
    for storage in _inputs(graph):
        if storage.home == DEVICE:
            held[storage.name] = storage.size_bytes
    total = sum(held.values())
    _require_room(total, 0, capacity_bytes, None)
    last_uses = _last_uses(graph, accesses)
    for at, (item, access) in enumerate(zip(graph.instructions, accesses, strict=True)):
        workspace_bytes = 0
        match item:
            case Op():
                born = [value.storage for value in access.results if value.version == 0]
                changes = {name: graph.storages[name].size_bytes for name in born}
                workspace_bytes = workspace.get(item.captured, 0)
            case SwapIn(storage, begin, end):
                changes = {storage: end - begin}
            case Drop(storage, begin, end):
                changes = {storage: begin - end}
            case _:
                changes = {}
        for name, change in changes.items():
            held[name] += change
            total += change
        _require_room(total, workspace_bytes, capacity_bytes, at)
        for name in last_uses[at]:
            total -= held[name]


def _require_room(held_bytes: int, workspace_bytes: int, capacity_bytes: int, at: int | None) -> None:
    """Raise `InvalidGraph` unless what is held at an instruction fits; None: before the first one."""
    needed = held_bytes + workspace_bytes
    if needed > capacity_bytes:
        excess = f"{needed - capacity_bytes} over the capacity of {capacity_bytes}"
        held = f"{needed} bytes ({format_bytes(needed)}), {workspace_bytes} of them as workspace"
        where = "here" if at is not None else "when the step begins"
        raise InvalidGraph(f"{held}, are held {where}, which is {excess}", invariant=3, position=at)
