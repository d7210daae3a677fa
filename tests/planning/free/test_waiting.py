"""Gradients of weights wait where that asks for less, and the bound knows that they may."""

from dataclasses import replace

from outgrow.analysis.cost import Cost
from outgrow.ir.graph import Graph
from outgrow.ir.machine import Device, LinkRates, Machine
from outgrow.ir.text import parse_graph
from outgrow.plan import Budget, Move, TakeApart
from outgrow.planning.bound.bound import bound_seconds
from outgrow.planning.free.free import free_rewrites
from outgrow.planning.planner import planned
from outgrow.planning.problem import Problem
from outgrow.rewriting.derive import apply_laws
from outgrow.simulation import replay
from tests.verified import verify_derived

MACHINE = Machine("toy", Device("toy", 1e9, 1e9), LinkRates(1e4, 1e4))
BLOCKS = 3
BRANCH = """
    %c{at}: c{at}@0 f32[1,1,4,4] = aten.convolution.default(%y{at}, %w{at}, None, [1,1], [0,0], [1,1], False, [0,0], 1)
"""
NEXT = """
    %y{next}: y{next}@0 f32[1,8,4,4] = my.widen(%c{at}, %y{at})
"""
BACKWARD = """
    %d{at}: d{at}@0 f32[1,1,4,4] = my.narrow(%g{next})
    convolution_backward_{at}: %i{at}: i{at}@0 f32[1,8,4,4], %v{at}: v{at}@0 f32[1,8,1,1], _ = \
aten.convolution_backward.default(%d{at}, %y{at}, %w{at}, [0], [1,1], [0,0], [1,1], False, [0,0], 1, [True,True,False])
    add_{at}: %s{at}: s{at}@0 f32[1,8,4,4] = aten.add.Tensor(%i{at}, %g{next})
    back_{at}: %g{at}: g{at}@0 f32[1,8,4,4] = aten.threshold_backward.default(%s{at}, %y{at}, 0)
"""


def residual() -> Graph:
    """Residual blocks: each convolution's input is used again when the gradient of both branches is complete."""
    wide = [f"{name}{at}" for name in "yisg" for at in range(BLOCKS + 1) if (name, at) not in (("i", 3), ("s", 3))]
    lines = ["storage x input 4", "value %x: x@0 f32[1]"]
    lines += [f"storage {name} 512" for name in wide]
    for at in range(BLOCKS):
        lines += [f"storage {name}{at} 64" for name in "cd"]
        lines += [f"storage v{at} 32", f"storage w{at} parameter 32", f"value %w{at}: w{at}@0 f32[1,8,1,1]"]
    lines.append("%y0: y0@0 f32[1,8,4,4] = my.begin(%x)")
    for at in range(BLOCKS):
        lines += [(BRANCH + NEXT).format(at=at, next=at + 1)]
    lines.append(f"%g{BLOCKS}: g{BLOCKS}@0 f32[1,8,4,4] = my.loss(%y{BLOCKS})")
    lines += [BACKWARD.format(at=at, next=at + 1) for at in reversed(range(BLOCKS))]
    for at in range(BLOCKS):
        lines.append(f"%n{at}: w{at}@1 f32[1,8,1,1] = my.update(%w{at}, %v{at})")
    return parse_graph("\n".join(lines))


def problem_of(graph: Graph) -> Problem:
    """Every op takes a second, a part of a convolution's backward half of one."""
    costs = {op.name: Cost(1.0) for op in graph.ops}
    costs |= {f"{name}.{part}": Cost(0.5) for name in list(costs) for part in ("weight", "input")}
    return Problem(graph, costs, MACHINE, Budget(1 << 30), minimum_bytes=64, piece_bytes=256)


def test_gradients_of_weights_wait_for_the_next_use_of_their_input() -> None:
    """What completes the gradient of the input goes first, and the result is the same step with a lower floor."""
    problem = problem_of(residual())
    graph, decisions, _ = free_rewrites(problem)
    apart = [decision.op for decision in decisions if isinstance(decision, TakeApart)]
    assert apart == [f"convolution_backward_{at}" for at in reversed(range(BLOCKS))]
    moved = [decision.ops for decision in decisions if isinstance(decision, Move)]
    for at in range(BLOCKS):
        assert (f"convolution_backward_{at}.input", f"add_{at}") in moved
    verify_derived(graph, problem.graph)
    names = [op.name for op in graph.ops]
    for at in range(BLOCKS):
        assert names.index(f"add_{at}") < names.index(f"convolution_backward_{at}.weight") < names.index(f"back_{at}")


def test_no_plan_beats_the_bound_by_waiting() -> None:
    """From the floor to the peak in core, the bound stays below the step in which gradients wait."""
    problem = problem_of(residual())
    graph, decisions, _ = free_rewrites(problem)
    in_core = replay(graph, problem.costs, MACHINE)
    for part in range(5):
        budget = replace(problem, budget=Budget(1600 + (in_core.peak_bytes - 1600) * part // 4))
        plan = planned(budget).plan
        assert plan.bound_seconds <= plan.predicted.seconds * (1 + 1e-9)
        assert replay(apply_laws(problem.graph, plan.decisions), problem.costs, MACHINE).peak_bytes <= (
            budget.budget.limit_bytes
        )
    assert bound_seconds(replace(problem, budget=Budget(in_core.peak_bytes))) <= in_core.seconds
    assert decisions
