"""TFLMS v2 swaps between the ops that are farthest apart, whatever pass they belong to."""

from outgrow.plan import Swap
from outgrow.planning.published.tflms_v2 import tflms_v2
from tests.planning.published.rivals import between, checked
from tests.planning.published.test_tflms_v1 import LONG_GRADIENT
from tests.planning.test_planners import MACHINE, chain, problem_of


def test_every_swapped_tensor_goes_farther_than_every_other() -> None:
    """The threshold is one distance for the whole graph, and the largest that fits: more budget swaps less."""
    graph = chain(12)
    counts: list[int] = []
    for share in (0.2, 0.5, 0.8):
        problem = between(graph, share, MACHINE)
        decisions = tflms_v2(problem)
        checked(problem, decisions)
        swapped = {decision.storage for decision in decisions if isinstance(decision, Swap)}
        assert swapped == {f"a{number}" for number in range(len(swapped))}
        counts.append(len(swapped))
    assert counts == sorted(counts, reverse=True)
    assert len(set(counts)) == 3


def test_what_only_the_backward_pass_holds_is_swapped_too() -> None:
    """No edge is excepted for the pass that it belongs to."""
    problem = problem_of(LONG_GRADIENT, 164)
    decisions = tflms_v2(problem)
    assert [decision.storage for decision in decisions if isinstance(decision, Swap)] == ["g"]
    checked(problem, decisions)
