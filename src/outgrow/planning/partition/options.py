"""What is there to choose from where a step is divided once? States of tensors, ways to run nodes, and what they cost.

Equal calls of the step are one object, so what is known of nodes that are alike is found once, by identity. Equal
tables are one array.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from math import prod

from outgrow.operators.dataflow import Dataflow, Tensor
from outgrow.operators.strategies import Strategy, chunks
from outgrow.operators.tdl import Shape
from outgrow.planning.partition.elimination import Bucket, Table
from outgrow.planning.partition.lacking import WHOLE, Use, lacking, strategies_of
from outgrow.planning.partition.room import ADDENDS, Room

SMALL_BYTES = 64 << 10
"""A tensor of at most this size may be whole."""
MOST_STATES = 1 << 8
"""The best way to run a node is found beforehand if its tensors have at most this many combinations of states."""


@dataclass(frozen=True, slots=True)
class Terms:
    """On what terms a step is divided: into how many, the states of tensors that are cut already, what may be held.

    Beginning an exchange costs as much as `waiting_bytes` more to receive.
    """

    ways: int
    fixed: Mapping[str, int]
    room: Room
    waiting_bytes: float


@dataclass(frozen=True, slots=True)
class Used:
    """The tensors of a node, each once; those that other nodes use too; by operand and result, the tensor's number."""

    tensors: tuple[str, ...]
    shared: tuple[str, ...]
    numbers: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Options:
    """The ways to run nodes that are alike, and of each of their tensors a table: a row for each way, a column a state.

    The entries are the bytes that workers lack, in `costs` with the cost of beginning an exchange. `best` finds the
    best way for given states of the tensors that other nodes use too, the other tensors being as suits it; `least` is
    what it costs for all these states, None where they are too many.
    """

    ways: tuple[Strategy | None, ...]
    lacking: tuple[Table, ...]
    costs: tuple[Table, ...]
    best: Bucket
    least: Table | None


def used_by_nodes(step: Dataflow) -> dict[str, Used]:
    """Return what each node uses."""
    tensors = {node.name: tuple(dict.fromkeys(node.tensors)) for node in step.nodes}
    uses = Counter(chain.from_iterable(tensors.values()))
    found: dict[str, Used] = {}
    for node in step.nodes:
        names = tensors[node.name]
        numbers = tuple([None if name is None else names.index(name) for name in (*node.operands, *node.results)])
        found[node.name] = Used(names, tuple([name for name in names if uses[name] > 1]), numbers)
    return found


def states_of(tensor: Tensor, ways: int, room: Room) -> tuple[int, ...]:
    """Return the states that a tensor may have: cut along any dimension that is large enough.

    It may be whole if it is small, or belongs to a parameter that is held. A sum may also be left as its addends.
    """
    if tensor.whole:
        return (WHOLE,)
    dims = _dims(tensor.shape, ways)
    may_be_whole = not dims or tensor.name in room.held or tensor.size_bytes <= SMALL_BYTES
    return (*dims, *((WHOLE,) if may_be_whole else ()), *((ADDENDS,) if tensor.name in room.sums else ()))


@cache
def _dims(shape: Shape, ways: int) -> tuple[int, ...]:
    """Return the dimensions along which each worker has a part."""
    return tuple(dim for dim, size in enumerate(shape) if all(begin < end for begin, end in chunks(size, ways)))


def options_of_nodes(
    step: Dataflow,
    used: Mapping[str, Used],
    states: Mapping[str, tuple[int, ...]],
    addends: Mapping[str, tuple[int, ...]],
    terms: Terms,
) -> dict[str, Options]:
    """Return what there is to choose from for each node, of whose operands and results some are sums of `addends`.

    Nodes that are alike have the same options.
    """
    places = {name: (tensor.shape, tensor.item_bytes, states[name]) for name, tensor in step.tensors.items()}
    numbered: dict[object, int] = {}
    kind = {name: numbered.setdefault(place, len(numbered)) for name, place in places.items()}
    known: dict[object, Options] = {}
    same: dict[object, Table] = {}
    found: dict[str, Options] = {}
    for node in step.nodes:
        own, present, adds = used[node.name], addends.get(node.name), node.name in terms.room.adding
        is_shared = tuple([name in own.shared for name in own.tensors])
        key = (id(node.call), own.numbers, is_shared, present, node.whole, adds, *[kind[name] for name in own.tensors])
        if key not in known:
            use = Use(terms.ways, node.whole, adds)
            all_places = tuple(places[name] for name in own.tensors)
            tables = lacking(node.call, own.numbers, present or (1,) * len(own.numbers), all_places, use)
            known[key] = _options(strategies_of(node.call, use), tables, is_shared, terms.waiting_bytes, same)
        found[node.name] = known[key]
    return found


def _options(
    ways: tuple[Strategy | None, ...],
    tables: Sequence[Table],
    is_shared: Sequence[bool],
    waiting_bytes: float,
    same: dict[object, Table],
) -> Options:
    """Return options of which equal tables are one array."""

    def one(table: Table) -> Table:
        return same.setdefault((table.shape, table.tobytes()), table)

    costs = tuple(one(table + waiting_bytes * (table > 0) if waiting_bytes else table) for table in tables)
    shared = [table for table, others in zip(costs, is_shared, strict=True) if others]
    own = [one(table.min(axis=1)) for table, others in zip(costs, is_shared, strict=True) if not others]
    best = Bucket((*(((axis,), table) for axis, table in enumerate(shared)), *(((), table) for table in own)))
    sizes = [table.shape[1] for table in shared]
    least = one(best.least(sizes)) if prod(sizes) <= MOST_STATES else None
    return Options(ways, tuple(tables), costs, best, least)
