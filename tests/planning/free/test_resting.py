"""What no op of a step uses rests in the next tier where a plan needs its room, or where it rests already."""

from dataclasses import replace

import pytest

from outgrow.analysis.sinking import homeless, lasting
from outgrow.errors import Infeasible, NotApplicable
from outgrow.ir.graph import TIER
from outgrow.ir.text import parse_graph
from outgrow.plan import Budget, Piece, Stow
from outgrow.planning.planner import planned
from outgrow.rewriting.derive import apply_laws, verified
from outgrow.simulation import replay
from tests.planning.test_planners import MACHINE, problem_of

GRAPH = parse_graph(
    """
    storage x input 1024
    storage m optimizer 4096
    storage n optimizer 4096
    storage b buffer 4096
    storage y 1024
    storage z 1024
    storage r 1024
    value %x: x@0 f32[256]
    value %m: m@0 f32[1024]
    value %n: n@0 f32[1024]
    value %b: b@0 f32[1024]
    %y: y@0 f32[256] = aten.exp.default(%x)
    %z: z@0 f32[256] = aten.exp.default(%y)
    %r: r@0 f32[256] = aten.mul.Tensor(%y, %z)
    return %r
    """
)
THROUGHOUT = [Stow(name, (), before=None, after=None, dropped=None) for name in "mn"]
PROBLEM = replace(problem_of(GRAPH, 1 << 20), minimum_bytes=512, least_bytes=512, piece_bytes=1024)


def test_it_rests_where_there_is_no_plan_otherwise() -> None:
    """The derivation is verified, and the simulated step has no bytes of it; a buffer is the caller's, and stays."""
    ample = planned(PROBLEM).plan
    assert ample.is_empty
    problem = replace(PROBLEM, budget=Budget(4096 + 3 * 1024 + 512))
    found = planned(problem)
    stows = [decision for decision in found.plan.decisions if isinstance(decision, Stow)]
    assert stows == THROUGHOUT
    graph = verified(GRAPH, found.plan, found.stages, problem.workspace).graph
    assert {name for name, storage in graph.storages.items() if storage.home == TIER} == {"m", "n"}
    assert replay(graph, problem.costs, MACHINE).peak_bytes <= problem.budget.capacity_bytes
    assert found.plan.bound_seconds <= found.plan.predicted.seconds
    assert ample.floor_bytes == found.plan.floor_bytes <= problem.budget.limit_bytes


def test_it_stays_where_another_plan_has_room() -> None:
    """Unless it rests there already; what is used rests as the search finds best."""
    problem = replace(PROBLEM, budget=Budget(3 * 4096 + 3 * 1024 + 512))
    assert not [decision for decision in planned(problem).plan.decisions if isinstance(decision, Stow)]
    found = planned(replace(problem, resting=frozenset("mxy")))
    assert [decision for decision in found.plan.decisions if isinstance(decision, Stow)] == THROUGHOUT[:1]


def test_what_is_fixed_stays() -> None:
    """And the planners of papers, in which all that outlives the step does, name what they need."""
    problem = replace(PROBLEM, budget=Budget(4096 + 3 * 1024 + 512))
    with pytest.raises(Infeasible):
        planned(replace(problem, fixed=frozenset("m")))
    with pytest.raises(Infeasible) as caught:
        planned(problem, "tflms_v2")
    assert caught.value.floor_bytes > 3 * 4096


def test_it_takes_room_of_the_tier() -> None:
    """And goes before others to a tier below, since it is away for the longest time."""
    graph = apply_laws(GRAPH, THROUGHOUT)
    assert lasting(graph) == {"m", "n"}
    assert len(homeless(graph, replace(MACHINE, tier_bytes=4096))) == 1
    assert not homeless(graph, replace(MACHINE, tier_bytes=8192))


def test_what_is_not_used_is_not_copied() -> None:
    """There is no use before or after which a copy could be made."""
    with pytest.raises(NotApplicable, match="m is not used in the step, and not copied"):
        apply_laws(GRAPH, [Stow("m", (Piece(0, 4096, "exp"),), before="exp", after=None, dropped=None)])
    with pytest.raises(NotApplicable, match="y does not outlive the step"):
        apply_laws(GRAPH, [replace(THROUGHOUT[0], storage="y")])
    with pytest.raises(NotApplicable, match="rests in tier already"):
        apply_laws(GRAPH, [THROUGHOUT[0], THROUGHOUT[0]])
