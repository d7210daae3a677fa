"""Meng et al. keep the maps nearest to the loss and bring the others back late enough to hide."""

from outgrow.plan import Swap
from outgrow.planning.published.meng import meng
from outgrow.planning.published.profile import profile_of
from outgrow.simulation import replay
from tests.planning.published.rivals import between, checked
from tests.planning.test_planners import MACHINE, chain


def test_the_maps_nearest_to_the_loss_stay() -> None:
    """Of a chain's maps the youngest are kept: those swapped are all older than those that stay."""
    for share in (0.1, 0.4, 0.7):
        problem = between(chain(12), share, MACHINE)
        decisions = meng(problem)
        checked(problem, decisions)
        swapped = {decision.storage for decision in decisions if isinstance(decision, Swap)}
        assert 0 < len(swapped) < 12
        assert swapped == {f"a{number}" for number in range(len(swapped))}


def test_a_copy_back_begins_at_the_last_op_that_hides_it() -> None:
    """It begins no more than one op earlier than its seconds before the use, and nothing waits for it."""
    problem = between(chain(12), 0.6, MACHINE)
    graph, link = problem.graph, problem.machine.link
    elapsed = profile_of(problem, graph).elapsed
    for swap in meng(problem):
        assert isinstance(swap, Swap)
        (piece,) = swap.pieces
        begin, use = graph.op_positions[piece.before], graph.op_positions[swap.before]
        latest = float(elapsed[use]) - link.in_seconds(piece.end)
        assert float(elapsed[begin]) <= latest < float(elapsed[begin + 1])
    in_core = replay(graph, problem.costs, problem.machine)
    assert checked(problem, meng(problem)) <= in_core.seconds * (1 + 1e-9)
