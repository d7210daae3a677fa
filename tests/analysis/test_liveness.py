"""Lifetimes, gaps and live bytes follow their definitions."""

from outgrow.analysis.liveness import Gap, gaps, lifetimes, live_bytes
from outgrow.ir.text import parse_graph

GRAPH = parse_graph(
    """
    storage x input 8
    storage a 16
    storage b 4
    storage c 4
    value %x: x@0 f32[2]
    %a: a@0 f32[4] = my.widen(%x)
    %b: b@0 f32[1] = my.first(%x)
    %a1: a@1 f32[4] = aten.relu_.default(%a)
    again: %d: d@0 f32[1] = my.first(%b)
    %c: c@0 f32[1] = my.last(%a1, %d)
    return %c
    storage d 4
    """
)


def test_a_storage_lives_from_birth_to_last_use() -> None:
    """Inputs live from before the first op, results to the end, all others to their last use."""
    found = lifetimes(GRAPH)
    assert (found["x"].birth, found["x"].death) == (-1, 5)
    assert (found["a"].birth, found["a"].death, found["a"].uses) == (0, 4, (0, 2, 4))
    assert (found["b"].birth, found["b"].death) == (1, 3)
    assert (found["c"].birth, found["c"].death) == (4, 5)


def test_live_bytes_sum_what_lives_at_each_op() -> None:
    """bytes(k) is the sum over live storages, plus the op's workspace."""
    assert live_bytes(GRAPH, {"relu_": 100}) == [24, 28, 128, 32, 32]


def test_a_gap_lies_between_two_uses() -> None:
    """Two uses with an op between them are a gap; after a write the version is new, so the tier has no copy."""
    assert gaps(GRAPH, minimum_bytes=8) == (Gap("a", 16, 0, 2), Gap("a", 16, 2, 4))


def test_a_version_that_rested_before_is_clean() -> None:
    """The second gap of one version is not dirty."""
    graph = parse_graph(
        """
        storage x input 8
        storage a 8
        storage b 8
        storage c 8
        value %x: x@0 f32[2]
        %a: a@0 f32[2] = aten.relu.default(%x)
        %b: b@0 f32[2] = aten.neg.default(%x)
        %c: c@0 f32[2] = aten.exp.default(%a)
        tanh: %d: d@0 f32[2] = aten.tanh.default(%c)
        mul: %e: e@0 f32[2] = aten.mul.Tensor(%a, %d)
        return %b, %e
        storage d 8
        storage e 8
        """
    )
    assert [(gap.begin, gap.end, gap.dirty) for gap in gaps(graph, minimum_bytes=8)] == [(0, 2, True), (2, 4, False)]


def test_what_outlives_the_step_has_no_gaps() -> None:
    """Persistent storages, results and small storages stay on the device."""
    assert all(gap.storage == "a" for gap in gaps(GRAPH, minimum_bytes=5))


def test_what_outlives_the_step_may_leave_between_its_uses_where_it_is_said_to() -> None:
    """A weight rests between its forward and its backward use, and its second gap has the copy of the first."""
    graph = parse_graph(
        """
        storage w parameter 8
        storage a 8
        storage b 8
        storage c 8
        storage d 8
        value %w: w@0 f32[2]
        %a: a@0 f32[2] = my.one(%w)
        %b: b@0 f32[2] = my.two(%a)
        %c: c@0 f32[2] = my.three(%b, %w)
        %d: d@0 f32[2] = my.four(%c)
        five: %w1: w@1 f32[2] = my.five_(%w, %d)
        """
    )
    found = [gap for gap in gaps(graph, minimum_bytes=8, leaving={"w"}) if gap.storage == "w"]
    assert found == [Gap("w", 8, 0, 2, dirty=True), Gap("w", 8, 2, 4, dirty=False)]
    assert not [gap for gap in gaps(graph, minimum_bytes=8) if gap.storage == "w"]


def test_an_input_that_no_op_uses_is_held_to_the_end() -> None:
    """Nothing frees it inside the step, so it counts at every op, as `ir.verify` counts it."""
    graph = parse_graph(
        "storage x input 8\nstorage y gradient 4\nstorage z 8\nvalue %x: x@0 f32[2]\nvalue %y: y@0 f32[1]\n"
        "%z: z@0 f32[2] = aten.exp.default(%x)\nreturn %z"
    )
    assert lifetimes(graph)["y"].death == 1
    assert live_bytes(graph, {}) == [20]
