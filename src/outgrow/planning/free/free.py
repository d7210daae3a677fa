"""What can be had for nothing? Rewrites that free memory and repeat or move nothing.

What no op uses may rest elsewhere (`resting`). Updates move forward (`early_updates`), large ops are taken apart
(`apart`), some run as one by rows (`by_rows`), concatenations go by operand (`by_operand`), operands of which only the
layout matters are let go, gradients of weights wait (`waiting`), then dying operands are written over (`reuse`): all of
them, or where that raises the floor those that do not have to stay longer for it. Each rewrite is undone if it raises
the floor.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from outgrow.ir.graph import Graph
from outgrow.operators.layouts import layout_only
from outgrow.plan import ByLayout, Decision
from outgrow.planning.floor import floor_of
from outgrow.planning.free.admitted import admitted
from outgrow.planning.free.apart import all_apart, taken_apart
from outgrow.planning.free.by_operand import all_in_turn, put_in_turn
from outgrow.planning.free.by_rows import either_way, run_by_rows
from outgrow.planning.free.early_updates import early_updates
from outgrow.planning.free.resting import put_to_rest
from outgrow.planning.free.reuse import loose_reuses, reuses
from outgrow.planning.free.waiting import waiting_weights
from outgrow.planning.problem import Problem

Rewrite: TypeAlias = Callable[[Problem, Graph], tuple[Graph, tuple[Decision, ...]]]


class Freed(NamedTuple):
    """The graph of a problem after all that is to be had for nothing, the decisions for that, and the floor then."""

    graph: Graph
    decisions: tuple[Decision, ...]
    floor_bytes: int


def free_rewrites(problem: Problem) -> Freed:
    """Return the graph after all free rewrites, whose floor is not above the captured graph's, and the decisions."""
    return with_reuses(problem, without_reuses(problem))


def without_reuses(problem: Problem) -> Freed:
    """Return the graph after all free rewrites but re-use, and the decisions."""
    graph, decisions = put_to_rest(problem, problem.graph)
    freed = Freed(graph, decisions, floor_of(problem, graph)[0])
    each = (early_updates, taken_apart, run_by_rows, put_in_turn, layouts_asked, waiting_weights)
    return _rewritten(problem, freed, [(rewrite,) for rewrite in each])


def with_reuses(problem: Problem, freed: Freed) -> Freed:
    """Return the graph in which dying operands are written over, too, and the decisions."""
    return _rewritten(problem, freed, [(reuses, loose_reuses)])


def _rewritten(problem: Problem, freed: Freed, choices: Iterable[Iterable[Rewrite]]) -> Freed:
    """Return a graph after the first rewrite of each choice that does not raise the floor, and the decisions."""
    for choice in choices:
        for rewrite in choice:
            graph, made = rewrite(problem, freed.graph)
            if not made:
                break
            floor, _ = floor_of(problem, graph)
            if floor <= freed.floor_bytes:
                freed = Freed(graph, (*freed.decisions, *made), floor)
                break
    return freed


def layouts_asked(_problem: Problem, graph: Graph) -> tuple[Graph, tuple[ByLayout, ...]]:
    """Return the graph in which no op reads an operand of which only the layout matters, and the decisions."""
    return admitted(graph, ([ByLayout(op.name)] for op in graph.ops if layout_only(op)))


def loosest(problem: Problem) -> Problem:
    """Return the problem whose ops ask for least: in parts, by operand, and without operands of which only the layout
    matters; two that can run as one ask for no more than in either way.

    Whatever a plan does with an op, the plan that does the same with its parts is as quick and needs no more.
    """
    apart, costs = either_way(problem, all_apart(problem, problem.graph))
    graph, _ = layouts_asked(problem, all_in_turn(problem, apart))
    return replace(problem, graph=graph, costs=costs)
