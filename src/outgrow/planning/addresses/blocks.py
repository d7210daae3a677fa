"""Which bytes lie side by side, and when? The blocks of a graph: what needs an address each.

    block = one stay of a storage on the device, or the workspace of one op
    part  = bytes low:high of a block, counted from its address, which it holds at the instructions begin:end

A storage that is dropped whole and swapped in again has two stays, and may lie elsewhere in the second; one of which
only a part is dropped has one, since the rest of it stays where it is. Where bytes come back in pieces, each piece is a
part of one block: it holds its bytes from its own swap_in on. Positions count instructions, transfers among them, as
`ir.graph` defines residence.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from outgrow.ir.graph import DEVICE, Drop, Graph, Op, SwapIn


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes `low:high` of a block at the instructions `begin:end`."""

    low: int
    high: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Block:
    """What lies in one piece at one address; `label` is the storage, or the op whose workspace it is."""

    label: str
    parts: tuple[Part, ...]

    @property
    def size_bytes(self) -> int:
        """The bytes from the address to the end of the last part."""
        return max(part.high for part in self.parts)

    @property
    def begin(self) -> int:
        """The first instruction at which the block holds bytes."""
        return min(part.begin for part in self.parts)

    @property
    def end(self) -> int:
        """The instruction before which the last bytes are freed."""
        return max(part.end for part in self.parts)


def blocks_of(graph: Graph, workspace: Mapping[str, int]) -> tuple[Block, ...]:
    """Return the blocks of a graph, with or without transfers, in the order in which they end.

    `workspace` gives bytes by captured op name; what has no bytes is no block.

    >>> from outgrow.ir.text import parse_graph
    >>> graph = parse_graph('''
    ... storage x input 8
    ... storage y 8
    ... value %x: x@0 f32[2]
    ... %y: y@0 f32[2] = aten.relu.default(%x)
    ... return %y
    ... ''')
    >>> [(block.label, block.begin, block.end) for block in blocks_of(graph, {"relu": 4})]
    [('relu', 0, 1), ('x', 0, 1), ('y', 0, 1)]
    """
    count = max(1, len(graph.instructions))
    sizes = {name: storage.size_bytes for name, storage in graph.storages.items()}
    staying: dict[str, list[tuple[int, int, int]]] = {
        name: [(0, storage.size_bytes, 0)]
        for name, storage in graph.storages.items()
        if name not in graph.born_at and storage.home == DEVICE
    }
    ended: dict[str, list[Part]] = {}
    blocks: list[Block] = []
    for at, item in enumerate(graph.instructions):
        match item:
            case Op():
                staying.update({name: [(0, sizes[name], at)] for name in graph.born(item)})
                needed = workspace.get(item.captured, 0)
                blocks += _blocks(item.name, [(0, needed, at)], at + 1)
            case SwapIn(storage, begin, end):
                staying.setdefault(storage, []).append((begin, end, at))
            case Drop(storage, begin, end):
                there = staying.pop(storage)
                gone = [part for part in _cut(there, begin, end) if begin <= part[0] and part[1] <= end]
                left = [part for part in _cut(there, begin, end) if part not in gone]
                if left:
                    staying[storage] = left
                    ended.setdefault(storage, []).extend(_parts(gone, at))
                else:
                    blocks += _blocks(storage, gone, at, ended.pop(storage, ()))
            case _:
                pass
        for name in graph.dying_at.get(at, ()):
            blocks += _blocks(name, staying.pop(name, []), at + 1, ended.pop(name, ()))
    for name, pieces in staying.items():
        blocks += _blocks(name, pieces, count, ended.pop(name, ()))
    return tuple(blocks)


def held_bytes(blocks: Sequence[Block]) -> tuple[tuple[int, int], ...]:
    """Return (instruction, bytes that parts hold from there on) wherever that changes, in order."""
    changes: dict[int, int] = {}
    for block in blocks:
        for part in block.parts:
            changes[part.begin] = changes.get(part.begin, 0) + part.high - part.low
            changes[part.end] = changes.get(part.end, 0) - part.high + part.low
    positions = sorted(changes)
    return tuple(zip(positions, accumulate(changes[at] for at in positions), strict=True))


def live_peak_bytes(blocks: Sequence[Block]) -> int:
    """Return the most bytes that parts hold at one instruction: no arena is smaller."""
    return max((held for _, held in held_bytes(blocks)), default=0)


def _blocks(label: str, pieces: Sequence[tuple[int, int, int]], end: int, ended: Sequence[Part] = ()) -> list[Block]:
    parts = (*ended, *_parts(pieces, end))
    return [Block(label, parts)] if parts else []


def _parts(pieces: Sequence[tuple[int, int, int]], end: int) -> list[Part]:
    return [Part(low, high, begin, end) for low, high, begin in pieces if high > low]


def _cut(pieces: Sequence[tuple[int, int, int]], begin: int, end: int) -> list[tuple[int, int, int]]:
    """The pieces, cut so that none reaches across byte `begin` or byte `end`."""
    for edge in (begin, end):
        pieces = [
            part
            for low, high, since in pieces
            for part in ([(low, edge, since), (edge, high, since)] if low < edge < high else [(low, high, since)])
        ]
    return list(pieces)
