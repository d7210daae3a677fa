"""For every graph and budget a published planner gives a valid plan within the budget, or says that it has none."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from outgrow.errors import Infeasible
from outgrow.ir.graph import Graph
from outgrow.ir.machine import Machine
from outgrow.plan import Budget
from outgrow.planning.floor import floor_of
from tests.graphs import graphs
from tests.planning.published.rivals import between, checked, decided
from tests.planning.test_planners import HALF_DUPLEX, MACHINE, chain, problem_of

SWAPPING = ("tflms_v1", "tflms_v2", "meng", "capuchin")
RIVALS = (*SWAPPING, "sqrt_checkpoint")


@pytest.mark.parametrize("rival", RIVALS)
@pytest.mark.parametrize("machine", [MACHINE, HALF_DUPLEX], ids=["duplex", "half duplex"])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(graph=graphs(max_ops=14), share=st.floats(0, 1), minimum_bytes=st.sampled_from((4, 512, 2048)))
def test_a_plan_is_valid_and_within_the_budget(
    rival: str, machine: Machine, graph: Graph, share: float, minimum_bytes: int
) -> None:
    """Whatever a rival decides derives, verifies and fits; Capuchin has a plan wherever the floor allows one."""
    assume(graph.ops)
    problem = between(graph, share, machine, minimum_bytes)
    try:
        decisions = decided(problem, rival)
    except Infeasible as refusal:
        assert rival != "capuchin"
        assert refusal.floor_bytes > problem.budget.limit_bytes
        return
    checked(problem, decisions)


@pytest.mark.parametrize("rival", RIVALS)
def test_a_step_that_fits_is_left_alone(rival: str) -> None:
    """Where the captured step fits, nothing is decided."""
    assert decided(between(chain(6), 1.0, MACHINE), rival) == ()


@pytest.mark.parametrize("rival", RIVALS)
def test_below_the_floor_the_refusal_names_the_floor(rival: str) -> None:
    """One byte below the floor no rival plans."""
    graph = chain(6)
    problem = replace(problem_of(graph, 1), fixed=graph.outliving)
    floor, _ = floor_of(problem, graph)
    with pytest.raises(Infeasible) as refusal:
        decided(replace(problem, budget=Budget(floor - 1)), rival)
    assert refusal.value.floor_bytes == floor


@pytest.mark.parametrize("rival", SWAPPING)
@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.9])
def test_on_a_chain_the_swapping_rivals_plan_from_the_floor_up(rival: str, share: float) -> None:
    """All that a chain keeps are maps between its passes, which each of the four swaps."""
    problem = between(chain(12), share, MACHINE)
    decisions = decided(problem, rival)
    assert decisions
    checked(problem, decisions)


@pytest.mark.parametrize("rival", RIVALS)
def test_planning_is_deterministic(rival: str) -> None:
    """The same problem gives the same decisions."""
    problem = between(chain(9), 0.6, MACHINE)
    assert decided(problem, rival) == decided(problem, rival)
