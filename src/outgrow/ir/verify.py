"""Is a graph valid? Six invariants: 1 is checked here, 2-5 in `ir.residence`, 6 in `ir.equivalence`.

1. *Versions.* Names are known and unique. Every value that is read is of the version that its storage has
   then; every write makes the next version; the bytes that a value describes lie in its storage.
2. *Residence.* What an op touches is on the device in full, and so are the bytes that a copy out reads: born, and
   not dropped since, or dropped and brought back byte for byte by copies that were waited for.
3. *Capacity.* At every instruction the resident bytes, those reserved by swap_in among them, and the
   workspace of the op stay within the capacity, and so does what is there from the start. A copy out holds no bytes but
   its source, which by 4 stays. Room that a device keeps for results from the start is its arena's to check.
4. *Copies in flight.* Between a swap_out or swap_in and the next wait of its storage, the storage is neither
   dropped nor written, nor freed by its last use. To read it during a copy out is fine. The same holds for what an
   exchange between workers sends and receives, until the op that says it has arrived (`ir.flight`).
5. *Nothing is lost.* A drop needs a tier copy of these bytes of the present version. A swap_in brings back bytes that
   were dropped, each once. Persistent storages and those of results end the step at home, at their last version.
6. *Equivalence* to the captured graph, where one is given.

Storages that no op brings into being are there from the start, at home: on the device, or in the tier that
`home` names, with no device bytes until they are swapped in. The rules of `ir.graph` for residence are
written down here once more, apart from the simulator and from the liveness analysis, so that each finds the
other's mistakes. The first fault is raised as `InvalidGraph`, with its number and the instructions around it.
"""

from collections.abc import Mapping
from types import MappingProxyType

from outgrow.errors import InvalidGraph
from outgrow.ir.accesses import Access, accesses_of
from outgrow.ir.equivalence import check_equivalence
from outgrow.ir.graph import Graph, Op, Role, Value
from outgrow.ir.layout import end_bytes
from outgrow.ir.residence import check_capacity, check_residence
from outgrow.ir.stand_ins import Numbered
from outgrow.ir.text import print_around

_NO_WORKSPACE: Mapping[str, int] = MappingProxyType({})


def verify(
    graph: Graph,
    *,
    capacity_bytes: int | None = None,
    workspace: Mapping[str, int] = _NO_WORKSPACE,
    captured: Numbered | None = None,
) -> None:
    """Raise `InvalidGraph` unless `graph` keeps the invariants of this module.

    Invariant 3 is checked where `capacity_bytes` is given, and 6 where `captured` is: a graph that is itself valid, and
    was `numbered` with the leeway that there may be. `workspace` gives bytes by captured op name.
    """
    try:
        _check_values(graph)
        accesses = accesses_of(graph)
        _check_definitions(graph, accesses)
        _check_versions(graph, accesses)
        check_residence(graph, accesses)
        if capacity_bytes is not None:
            check_capacity(graph, accesses, capacity_bytes, workspace)
        if captured is not None:
            check_equivalence(graph, accesses, captured)
    except InvalidGraph as fault:
        around = "" if fault.position is None else f"\n{print_around(graph, fault.position)}"
        message = f"invariant {fault.invariant}: {fault}{around}"
        raise InvalidGraph(message, invariant=fault.invariant, position=fault.position) from None


def _check_values(graph: Graph) -> None:
    """Check that every value is known by its name and lies in a known storage."""
    for name, value in graph.values.items():
        storage = graph.storages.get(value.storage)
        if value.name != name or storage is None or storage.name != value.storage:
            raise InvalidGraph(f"%{name} or its storage {value.storage} is not declared", invariant=1)
        if len(value.shape) != len(value.strides):
            raise InvalidGraph(f"%{name} has not one stride for each dimension", invariant=1)
        end = end_bytes(value.dtype, value.shape, value.strides, value.offset)
        if value.offset < 0 or (end > storage.size_bytes and storage.role is not Role.SCALAR):
            where = f"begins at element {value.offset} and ends at byte {end} of {storage.size_bytes}"
            raise InvalidGraph(f"%{name} leaves its storage {storage.name}: it {where}", invariant=1)
    for name in graph.results:
        if name not in graph.values:
            raise InvalidGraph(f"the result %{name} is not declared", invariant=1)


def _check_definitions(graph: Graph, accesses: list[Access]) -> None:
    """Check that no two ops share a name, and that every value is the result of one op at most."""
    ops: set[str] = set()
    defined: set[str] = set()
    for at, (item, access) in enumerate(zip(graph.instructions, accesses, strict=True)):
        names = [value.name for value in access.results]
        again = [name for name in names if name in defined or names.count(name) > 1]
        if again or (isinstance(item, Op) and item.name in ops):
            what = f"%{again[0]}" if again else "an op of this name"
            raise InvalidGraph(f"{what} is defined a second time", invariant=1, position=at)
        defined.update(names)
        if isinstance(item, Op):
            ops.add(item.name)


def _check_versions(graph: Graph, accesses: list[Access]) -> None:
    versions = dict.fromkeys(graph.storages, 0) | dict.fromkeys(graph.born_at, -1)
    for at, (item, access) in enumerate(zip(graph.instructions, accesses, strict=True)):
        for value in access.reads:
            _require_present(value, versions, 1, at)
        if isinstance(item, Op) and any(versions[name] < 0 for name in item.writes):
            raise InvalidGraph(f"{item.name} writes a storage before its birth", invariant=1, position=at)
        for name in access.written:
            versions[name] += 1
        for value in access.results:
            _require_present(value, versions, 1, at)
    for name in graph.results:
        _require_present(graph.values[name], versions, 5, None)


def _require_present(value: Value, versions: Mapping[str, int], invariant: int, at: int | None) -> None:
    present = versions[value.storage]
    if value.version != present:
        state = "is not born" if present < 0 else f"is at version {present}"
        message = f"%{value.name} is version {value.version} of {value.storage}, which {state} then"
        raise InvalidGraph(message, invariant=invariant, position=at)
