"""How far apart are two ops of a dataflow graph? As many levels as the longest path between them has edges, or more.

    level(op) = 0 if it waits for no other op, else 1 + max of level(earlier) over the ops that it waits for

Edges are the conflicts between ops (`analysis.precedence`). The optimizer's step begins when the backward pass has
ended, as the user's program says: from the first op on that writes a parameter or optimizer state, every op waits
for all before that one.
"""

from dataclasses import dataclass

from outgrow.analysis.precedence import predecessors
from outgrow.analysis.updates import first_update
from outgrow.ir.graph import Graph


@dataclass(frozen=True, slots=True)
class Levels:
    """The level of each op; `ancestors[k]` and `on_level[l]` are sets of steps, one bit a step."""

    of: tuple[int, ...]
    ancestors: tuple[int, ...]
    on_level: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.on_level)

    def latest_ancestor(self, step: int, level: int) -> int | None:
        """Return the last op on `level` that op `step` waits for, directly or not; None if there is none."""
        found = self.ancestors[step] & self.on_level[level]
        return found.bit_length() - 1 if found else None


def levels_of(graph: Graph) -> Levels:
    """Return the levels of a graph without transfers.

    >>> from outgrow.ir.text import parse_graph
    >>> graph = parse_graph('''
    ... storage x input 8
    ... storage a 8
    ... storage b 8
    ... storage c 8
    ... value %x: x@0 f32[2]
    ... %a: a@0 f32[2] = aten.relu.default(%x)
    ... %b: b@0 f32[2] = aten.neg.default(%x)
    ... %c: c@0 f32[2] = aten.add.Tensor(%a, %b)
    ... return %c
    ... ''')
    >>> levels_of(graph).of
    (0, 0, 1)
    """
    update = first_update(graph)
    levels: list[int] = []
    ancestors: list[int] = []
    lowest, all_before = 0, 0
    for step, waits in enumerate(predecessors(graph)):
        if step == update:
            lowest, all_before = max(levels, default=-1) + 1, (1 << step) - 1
        levels.append(max([lowest, *(levels[earlier] + 1 for earlier in waits)]))
        above = all_before
        for earlier in waits:
            above |= ancestors[earlier] | 1 << earlier
        ancestors.append(above)
    on_level = [0] * (max(levels, default=-1) + 1)
    for step, level in enumerate(levels):
        on_level[level] |= 1 << step
    return Levels(tuple(levels), tuple(ancestors), tuple(on_level))
