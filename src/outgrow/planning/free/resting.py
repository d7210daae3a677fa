"""Which storages rest in the next tier throughout a step? Of those that no op uses, the ones that the problem names.

A step of accumulation leaves the optimizer's state alone, and that of one network leaves alone that of another. Where
such state is on the device between steps, another step has used it there, and will again; so it is only sent away where
a step has no plan otherwise. Where it is away already, it stays there.
"""

from dataclasses import replace

from outgrow.ir.graph import Graph
from outgrow.plan import Stow
from outgrow.planning.leaving import idle
from outgrow.planning.problem import Problem


def put_to_rest(problem: Problem, graph: Graph) -> tuple[Graph, tuple[Stow, ...]]:
    """Return the graph without storages that rest throughout, which planners need not see, and the decisions."""
    resting = problem.resting & idle(problem, graph)
    if not resting:
        return graph, ()
    storages = {name: storage for name, storage in graph.storages.items() if name not in resting}
    values = {name: value for name, value in graph.values.items() if value.storage not in resting}
    decisions = [Stow(name, (), before=None, after=None, dropped=None) for name in graph.storages if name in resting]
    return replace(graph, storages=storages, values=values), tuple(decisions)
