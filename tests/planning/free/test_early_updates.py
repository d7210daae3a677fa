"""Updates run as soon as their gradients are there, whatever an optimizer counts and computes beside them."""

from dataclasses import replace

from outgrow.ir.text import parse_graph
from outgrow.planning.free.early_updates import early_updates
from outgrow.rewriting.derive import apply_laws
from tests.planning.test_planners import problem_of
from tests.verified import verify_derived

COUNTED = parse_graph(
    """
    storage v parameter 8
    storage w parameter 8
    storage v.step optimizer 4
    storage w.step optimizer 4
    storage dw 8
    storage dv 8
    storage rate 0
    storage v.count 0
    storage v.size 0
    storage w.count 0
    storage w.size 0
    value %v: v@0 f32[2]
    value %w: w@0 f32[2]
    value %v.step: v.step@0 f32[1]
    value %w.step: w.step@0 f32[1]
    of_w: %dw: dw@0 f32[2] = my.backward(%w)
    of_v: %dv: dv@0 f32[2] = my.backward(%v)
    v.counts: %v.step1: v.step@1 f32[1] = my.add(%v.step)
    rates: %rate: rate@0 f64[0] = operator.neg(0.1)
    v.reads: %v.count: v.count@0 f64[0] = my.item(%v.step1)
    v.sizes: %v.size: v.size@0 f64[0] = operator.mul(%rate, %v.count)
    v.moves: %v1: v@1 f32[2] = my.add(%v, %dv, %v.size)
    w.counts: %w.step1: w.step@1 f32[1] = my.add(%w.step)
    w.reads: %w.count: w.count@0 f64[0] = my.item(%w.step1)
    w.sizes: %w.size: w.size@0 f64[0] = operator.mul(%rate, %w.count)
    w.moves: %w1: w@1 f32[2] = my.add(%w, %dw, %w.size)
    """
)


def test_an_update_takes_its_count_of_steps_along() -> None:
    """What follows from a count that the step raises goes with its parameter; what all share goes before them."""
    early, moves = early_updates(problem_of(COUNTED, 1 << 20), COUNTED)
    of_w = ["w.counts", "w.reads", "w.sizes", "w.moves"]
    of_v = ["v.counts", "v.reads", "v.sizes", "v.moves"]
    assert [op.name for op in early.ops] == ["of_w", "rates", *of_w, "of_v", *of_v]
    verify_derived(early, COUNTED)
    assert apply_laws(COUNTED, moves).ops == early.ops


def test_thousands_of_updates_that_hang_together_are_seen_at_once() -> None:
    """All read one count of steps, and each is compared with few of those before it."""
    count = 8000
    lines = ["storage c optimizer 4", "value %c: c@0 f32[1]", "%c1: c@1 f32[1] = my.add(%c)"]
    for at in range(count):
        lines += [f"storage w{at} parameter 8", f"value %w{at}: w{at}@0 f32[2]"]
        lines.append(f"%n{at}: w{at}@1 f32[2] = my.add(%w{at}, %c1)")
    graph = parse_graph("\n".join(lines))
    problem = replace(problem_of(graph, 1 << 20), minimum_bytes=0)
    assert early_updates(problem, graph) == (graph, ())
