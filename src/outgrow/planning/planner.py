"""From a problem to a plan: run a planner, derive its graph, and write down what is predicted."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from outgrow.ir.text import fingerprint
from outgrow.plan import Decision, Estimate, Plan
from outgrow.planning.bound import bound_seconds
from outgrow.planning.floor import floor_of
from outgrow.planning.free import free_rewrites
from outgrow.planning.names import PLANNER_NAMES
from outgrow.planning.problem import Problem
from outgrow.planning.published.capuchin import capuchin
from outgrow.planning.published.meng import meng
from outgrow.planning.published.nnabla_window import nnabla_window
from outgrow.planning.published.olla import olla
from outgrow.planning.published.serenity import serenity
from outgrow.planning.published.sqrt_checkpoint import sqrt_checkpoint
from outgrow.planning.published.tflms_v1 import tflms_v1
from outgrow.planning.published.tflms_v2 import tflms_v2
from outgrow.planning.search import search
from outgrow.rewriting.derive import apply_laws
from outgrow.simulation import replay

_FUNCTIONS = (search, nnabla_window, tflms_v1, tflms_v2, meng, capuchin, sqrt_checkpoint, serenity, olla)
PLANNERS: Mapping[str, Callable[[Problem], tuple[Decision, ...]]] = dict(zip(PLANNER_NAMES, _FUNCTIONS, strict=True))
"""Every planner by name: from a problem to the decisions, in the order in which they are applied."""


def make_plan(problem: Problem, planner: str = "search", *, prove: bool = True) -> Plan:
    """Return the plan of the named planner, with the bound of `planning.bound`; without `prove`, the arithmetic.

    The time that the bound takes is not counted as planning: no planner needs it.
    Raises `Infeasible` if the budget is below the floor, `KeyError` for an unknown planner.
    """
    begin = time.perf_counter()
    notes: list[str] = []
    decisions = PLANNERS[planner](replace(problem, remark=notes.append))
    graph = apply_laws(problem.graph, decisions)
    expected = replay(graph, problem.costs, problem.machine)
    in_core = replay(problem.graph, problem.costs, problem.machine)
    floor, culprit = floor_of(problem, free_rewrites(problem)[0])
    planning_seconds = time.perf_counter() - begin
    return Plan(
        planner=planner,
        fingerprint=fingerprint(problem.graph),
        budget=problem.budget,
        decisions=decisions,
        predicted=Estimate(expected.peak_bytes, expected.seconds),
        floor_bytes=floor + problem.budget.overhead_bytes,
        floor_op=culprit.name if culprit else "",
        in_core=Estimate(in_core.peak_bytes, in_core.seconds),
        bound_seconds=bound_seconds(problem) if prove else in_core.seconds,
        planning_seconds=planning_seconds,
        notes=tuple(notes),
    )
