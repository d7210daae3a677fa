"""A step turns where only a backward pass goes on."""

from outgrow.ir.text import parse_graph
from outgrow.planning.published.phases import maps, turn_of
from outgrow.planning.published.profile import profile_of
from tests.planning.test_planners import chain, problem_of

STORAGES = """
    storage x input 8
    storage w parameter 8
    storage a 8
    storage loss 4
    storage seed 4
    storage g gradient 8
    value %x: x@0 f32[2]
    value %w: w@0 f32[2]
"""


def test_a_step_turns_at_the_seed_of_its_backward_pass() -> None:
    """The first op after the loss makes a one in its shape, and no later op is asked."""
    graph = parse_graph(
        f"""{STORAGES}
        %a: a@0 f32[2] = aten.mul.Tensor(%x, %w)
        %loss: loss@0 f32[] = aten.mean.default(%a)
        %seed: seed@0 f32[] = aten.ones_like.default(%loss)
        %g: g@0 f32[2] = aten.mul.Tensor(%x, %seed)
        return %g
        """
    )
    assert turn_of(graph) == 2


def test_a_step_turns_at_its_first_gradient_if_nothing_else_tells() -> None:
    """Without a seed and without an operator that is named backward, the gradient of a parameter tells."""
    graph = parse_graph(
        f"""{STORAGES}
        %a: a@0 f32[2] = aten.mul.Tensor(%x, %w)
        %loss: loss@0 f32[] = aten.mean.default(%a)
        %g: g@0 f32[2] = aten.mul.Tensor(%x, %loss)
        return %g
        """
    )
    assert turn_of(graph) == 2


def test_without_a_backward_pass_the_turn_follows_the_most_live_bytes() -> None:
    """Such a step has a rising and a falling half as well."""
    graph = parse_graph(
        """
        storage x input 8
        storage a 8
        storage b 8
        storage c 8
        value %x: x@0 f32[2]
        %a: a@0 f32[2] = my.one(%x)
        %b: b@0 f32[2] = my.two(%x)
        %c: c@0 f32[2] = my.three(%a, %b)
        """
    )
    assert turn_of(graph) == 3


def test_the_maps_of_a_chain_rest_until_the_backward_pass() -> None:
    """Each but the last, which is read at once, has one gap, and the oldest comes first."""
    graph = chain(5)
    profile = profile_of(problem_of(graph, 1), graph)
    found = maps(profile, graph, turn_of(graph))
    assert {name: [(gap.begin, gap.end) for gap in gaps] for name, gaps in found.items()} == {
        "a0": [(1, 9)],
        "a1": [(2, 8)],
        "a2": [(3, 7)],
        "a3": [(4, 6)],
    }
