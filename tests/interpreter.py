"""What does a graph compute, whatever its versions say? An interpreter over opaque contents.

The content of a storage is a hash of the op that wrote it and of the contents that this op found. Reading
what is not there gives "garbage". Copies take effect either when they begin or when they are waited for: a
graph is safe only if both give the same.
"""

from dataclasses import dataclass, field
from hashlib import sha256

from outgrow.ir.graph import Drop, Graph, Op, Ref, SwapIn, SwapOut, Wait, argument_values
from outgrow.ir.text import print_graph

GARBAGE = "garbage"


@dataclass
class _Memory:
    device: dict[str, str]
    tier: dict[str, str] = field(default_factory=dict)
    back: dict[str, int] = field(default_factory=dict)
    outgoing: set[str] = field(default_factory=set)


def outcome(graph: Graph, *, late_copies: bool) -> tuple[str, ...]:
    """Return the final contents of persistent storages and results."""
    born = set(graph.born_at)
    memory = _Memory({name: name for name in graph.storages if name not in born})
    persistent = sorted(name for name, storage in graph.storages.items() if storage.is_persistent)
    results = [graph.values[name] for name in graph.results]
    kept = {*persistent, *(value.storage for value in results)}
    last = {name: at for at, item in enumerate(graph.instructions) for name in graph.touched(item)}
    for at, item in enumerate(graph.instructions):
        match item:
            case Op():
                _compute(graph, item, memory)
            case SwapOut(storage):
                memory.tier[storage] = memory.device.get(storage, GARBAGE)
                memory.outgoing.add(storage)
            case SwapIn(storage, begin, end):
                memory.back[storage] = memory.back.get(storage, 0) + end - begin
                if not late_copies:
                    _arrive(graph, storage, memory)
            case Wait(storage):
                if late_copies and storage in memory.outgoing:
                    memory.tier[storage] = memory.device.get(storage, GARBAGE)
                memory.outgoing.discard(storage)
                _arrive(graph, storage, memory)
            case Drop(storage):
                memory.device.pop(storage, None)
                memory.back[storage] = 0
        for storage in graph.touched(item):
            if last[storage] == at and storage not in kept:
                memory.device.pop(storage, None)
    final = [f"{name}: {memory.device.get(name, GARBAGE)}" for name in persistent]
    shown = [f"{memory.device.get(value.storage, GARBAGE)} {value.shape}{value.offset}" for value in results]
    return (*final, *shown)


def _arrive(graph: Graph, storage: str, memory: _Memory) -> None:
    if memory.back.get(storage) == graph.storages[storage].size_bytes:
        memory.device[storage] = memory.tier.get(storage, GARBAGE)
        memory.back[storage] = 0


def _compute(graph: Graph, op: Op, memory: _Memory) -> None:
    names = [name for argument in op.arguments for name in argument_values(argument)]
    values = [graph.values[name] for name in names]
    seen = [(memory.device.get(value.storage, GARBAGE), value.shape, value.offset) for value in values]
    literals = [argument for argument in op.arguments if not isinstance(argument, Ref)]
    results = [graph.values[name].storage for name in op.results if name is not None]
    places = [place for place, name in enumerate(op.results) if name is not None]
    for place, storage in (*zip(places, results, strict=True), *((-1, storage) for storage in op.writes)):
        is_born = place >= 0 and graph.values[op.results[place] or ""].version == 0
        before = None if is_born else memory.device.get(storage, GARBAGE)
        found = repr((op.operator, literals, op.keywords, seen, place, before))
        memory.device[storage] = sha256(found.encode()).hexdigest()[:12]


def explain(graph: Graph) -> str:
    """Return the text of a graph with its outcomes, for the message of a failed property."""
    return f"{print_graph(graph)}{outcome(graph, late_copies=False)}\n{outcome(graph, late_copies=True)}"
