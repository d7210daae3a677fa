"""What does a graph compute, whatever its versions say? An interpreter over opaque contents.

The content of a storage is a hash of the op that wrote it and of the contents that this op found. Reading
what is not there gives "garbage". Copies take effect either when they begin or when they are waited for: a
graph is safe only if both give the same.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256

from outgrow.ir.graph import Drop, Graph, Op, Ref, SwapIn, SwapOut, Wait, argument_values
from outgrow.ir.text import print_graph

GARBAGE, WORD = "garbage", 4


@dataclass
class _Memory:
    """What the words of storages contain: on the device, in the tier, and in copies that have not ended."""

    device: dict[str, list[str]]
    tier: dict[str, dict[int, str]] = field(default_factory=dict)
    outgoing: dict[str, set[int]] = field(default_factory=dict)
    coming: dict[str, set[int]] = field(default_factory=dict)

    def content(self, storage: str) -> str:
        words = self.device.get(storage, [GARBAGE])
        return words[0] if len(set(words)) == 1 else f"{GARBAGE} {words}"

    def leave(self, storage: str, words: Iterable[int]) -> None:
        there = self.device.get(storage)
        self.tier.setdefault(storage, {}).update({word: there[word] if there else GARBAGE for word in words})

    def arrive(self, storage: str, words: Iterable[int]) -> None:
        if storage in self.device:
            for word in words:
                self.device[storage][word] = self.tier.get(storage, {}).get(word, GARBAGE)


def _words(begin: int, end: int) -> range:
    return range(begin // WORD, -(-end // WORD))


def outcome(graph: Graph, *, late_copies: bool) -> tuple[str, ...]:
    """Return the final contents of persistent storages and results."""
    born = set(graph.born_at)
    memory = _Memory({name: [name] * _count(graph, name) for name in graph.storages if name not in born})
    persistent = sorted(name for name, storage in graph.storages.items() if storage.is_persistent)
    results = [graph.values[name] for name in graph.results]
    kept = {*persistent, *(value.storage for value in results)}
    last = {name: at for at, item in enumerate(graph.instructions) for name in graph.touched(item)}
    for at, item in enumerate(graph.instructions):
        match item:
            case Op():
                _compute(graph, item, memory)
            case SwapOut(storage, begin, end):
                memory.leave(storage, _words(begin, end))
                memory.outgoing.setdefault(storage, set()).update(_words(begin, end))
            case SwapIn(storage, begin, end):
                memory.coming.setdefault(storage, set()).update(_words(begin, end))
                if not late_copies:
                    memory.arrive(storage, _words(begin, end))
            case Wait(storage):
                gone, come = memory.outgoing.pop(storage, set[int]()), memory.coming.pop(storage, set[int]())
                if late_copies:
                    memory.leave(storage, gone)
                memory.arrive(storage, come)
            case Drop(storage, begin, end):
                for word in _words(begin, end) if storage in memory.device else ():
                    memory.device[storage][word] = GARBAGE
        for storage in graph.touched(item):
            if last[storage] == at and storage not in kept:
                memory.device.pop(storage, None)
    final = [f"{name}: {memory.content(name)}" for name in persistent]
    shown = [f"{memory.content(value.storage)} {value.shape}{value.offset}" for value in results]
    return (*final, *shown)


def _count(graph: Graph, storage: str) -> int:
    return max(1, len(_words(0, graph.storages[storage].size_bytes)))


def _compute(graph: Graph, op: Op, memory: _Memory) -> None:
    names = [name for argument in op.arguments for name in argument_values(argument)]
    values = [graph.values[name] for name in names]
    seen = [(memory.content(value.storage), value.shape, value.offset) for value in values]
    literals = [argument for argument in op.arguments if not isinstance(argument, Ref)]
    results = [graph.values[name].storage for name in op.results if name is not None]
    places = [place for place, name in enumerate(op.results) if name is not None]
    for place, storage in (*zip(places, results, strict=True), *((-1, storage) for storage in op.writes)):
        is_born = place >= 0 and graph.values[op.results[place] or ""].version == 0
        before = None if is_born else memory.content(storage)
        found = repr((op.operator, literals, op.keywords, seen, place, before))
        memory.device[storage] = [sha256(found.encode()).hexdigest()[:12]] * _count(graph, storage)


def explain(graph: Graph) -> str:
    """Return the text of a graph with its outcomes, for the message of a failed property."""
    return f"{print_graph(graph)}{outcome(graph, late_copies=False)}\n{outcome(graph, late_copies=True)}"
