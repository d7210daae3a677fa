"""What every published planner has to keep: its plans derive, verify, and stay within the budget."""

from dataclasses import replace

from outgrow.ir.graph import Graph
from outgrow.ir.machine import Device, LinkRates, Machine
from outgrow.plan import Budget, Decision
from outgrow.planning.floor import floor_of
from outgrow.planning.planner import planned
from outgrow.planning.problem import Problem
from outgrow.rewriting.derive import carried_out
from outgrow.simulation import replay
from tests.planning.test_planners import problem_of
from tests.verified import verify_derived

SLOW = Machine("slow", Device("toy", 1e9, 1e9), LinkRates(2.0, 2.0))


def between(graph: Graph, share: float, machine: Machine, minimum_bytes: int = 4) -> Problem:
    """A problem whose budget lies this share of the way from the floor to what the step takes in core."""
    problem = problem_of(graph, 1, machine, minimum_bytes=minimum_bytes)
    problem = replace(problem, fixed=graph.outliving)
    floor, _ = floor_of(problem, graph)
    in_core = replay(graph, problem.costs, machine).peak_bytes
    return replace(problem, budget=Budget(max(1, int(floor + share * max(0, in_core - floor)))))


def decided(problem: Problem, planner: str) -> tuple[Decision, ...]:
    """What a planner decides."""
    return planned(problem, planner, prove=False).plan.decisions


def checked(problem: Problem, decisions: tuple[Decision, ...]) -> float:
    """Carry out and verify these decisions, and return the seconds of its step within the budget."""
    graph = problem.graph
    for stage in carried_out(problem.graph, decisions):
        graph = stage.graph
        verify_derived(graph, problem.graph)
    trace = replay(graph, problem.costs, problem.machine)
    assert trace.peak_bytes <= problem.budget.capacity_bytes
    return trace.seconds
