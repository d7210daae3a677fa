"""What does a planner that walks over a graph in Python know of it? Its ops, their seconds, live bytes and gaps."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from outgrow.analysis.liveness import Gap, gaps, live_bytes
from outgrow.ir.graph import Graph, Op
from outgrow.planning.arrays import Integers, Reals
from outgrow.planning.floor import require_feasible
from outgrow.planning.problem import Problem


@dataclass(frozen=True)
class Profile:
    """What a schedule needs to know of a graph: its ops, seconds, live bytes and gaps."""

    ops: tuple[Op, ...]
    seconds: Reals
    live: Integers
    gaps: tuple[Gap, ...]

    @cached_property
    def elapsed(self) -> Reals:
        """Seconds of arithmetic before each op."""
        return np.concatenate(([0.0], np.cumsum(self.seconds)))


def captured_profile(problem: Problem) -> Profile:
    """Return the profile of the captured graph. Raises `Infeasible` if the budget is below the floor."""
    require_feasible(problem, problem.graph)
    return profile_of(problem, problem.graph)


def profile_of(problem: Problem, graph: Graph) -> Profile:
    """Return the profile of a graph without transfers."""
    seconds = [problem.seconds_of(op) for op in graph.ops]
    live = live_bytes(graph, problem.workspace)
    found = gaps(graph, minimum_bytes=problem.minimum_bytes)
    loose = tuple(gap for gap in found if gap.storage not in problem.fixed)
    return Profile(graph.ops, np.array(seconds), np.array(live, dtype=np.int64), loose)
