"""Checkpoints at the borders of segments: memory of about the root of a chain's length for one more forward pass."""

from collections import Counter
from math import isqrt

import pytest

from outgrow.errors import Infeasible
from outgrow.ir.text import parse_graph
from outgrow.plan import Recompute
from outgrow.planning.floor import require_feasible
from outgrow.planning.published.sqrt_checkpoint import sqrt_checkpoint
from outgrow.rewriting.derive import apply_laws
from tests.planning.published.rivals import between, checked
from tests.planning.test_planners import MACHINE, chain, problem_of

SIZE = 256


@pytest.mark.parametrize("length", [9, 25, 64])
def test_a_chain_fits_in_about_two_roots_of_its_length(length: int) -> None:
    """Borders and the inside of one segment are there at once, beside two gradients; no op runs more than twice."""
    problem = problem_of(chain(length, SIZE), (2 * isqrt(length) + 3) * SIZE)
    decisions = sqrt_checkpoint(problem)
    checked(problem, decisions)
    graph = apply_laws(problem.graph, decisions)
    runs = Counter(op.captured for op in graph.ops)
    assert max(runs.values()) == 2
    assert len(graph.ops) < len(problem.graph.ops) + length


def test_a_looser_budget_repeats_less() -> None:
    """Of the numbers of segments that fit, the one with the least work is taken."""
    repeated = [len(sqrt_checkpoint(between(chain(36), share, MACHINE))) for share in (0.4, 0.6, 0.8)]
    assert repeated == sorted(repeated, reverse=True)
    assert repeated[-1] > 0


def test_the_cuts_are_where_few_bytes_cross() -> None:
    """The smallest storage of a chain is at the narrow place: it is kept under every budget, since a cut is there."""
    lines = ["storage x input 4", "value %x: x@0 f32[1]"]
    sizes = [256, 256, 256, 256, 64, 256, 256, 256]
    before = "%x"
    for number, size in enumerate(sizes):
        lines += [f"storage a{number} {size}", f"%a{number}: a{number}@0 f32[{size // 4}] = my.layer({before})"]
        before = f"%a{number}"
    for number in reversed(range(len(sizes))):
        size = sizes[number]
        lines += [
            f"storage g{number} {size}",
            f"%g{number}: g{number}@0 f32[{size // 4}] = my.backward({before}, %a{number})",
        ]
        before = f"%g{number}"
    graph = parse_graph("\n".join([*lines, f"return {before}"]))
    for share in (0.6, 0.7, 0.8, 0.9):
        problem = between(graph, share, MACHINE)
        decisions = sqrt_checkpoint(problem)
        checked(problem, decisions)
        rebuilt = {decision.storage for decision in decisions if isinstance(decision, Recompute)}
        assert rebuilt
        assert "a4" not in rebuilt


def test_where_no_number_of_segments_fits_the_refusal_says_what_would() -> None:
    """At the floor a long chain has no room for checkpoints; with the bytes that the refusal names it has."""
    graph = chain(25, SIZE)
    problem = between(graph, 0.0, MACHINE)
    require_feasible(problem, graph)
    with pytest.raises(Infeasible, match="sqrt_checkpoint finds no plan") as refusal:
        sqrt_checkpoint(problem)
    enough = problem_of(graph, refusal.value.floor_bytes)
    checked(enough, sqrt_checkpoint(enough))
