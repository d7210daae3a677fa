"""The backward of a cross entropy runs by rows, over the log-probabilities, wherever these die there."""

from dataclasses import replace

import pytest

from outgrow.analysis.cost import Cost, with_parts
from outgrow.errors import NotApplicable
from outgrow.ir.graph import Graph
from outgrow.ir.text import parse_graph
from outgrow.operators.rows import JOINT_IN_PLACE
from outgrow.plan import Budget, ByLayout, ByRows, Move, Reuse
from outgrow.planning.bound.bound import bound_seconds
from outgrow.planning.floor import floor_of
from outgrow.planning.free.by_rows import run_by_rows
from outgrow.planning.free.free import free_rewrites
from outgrow.planning.planner import planned
from outgrow.planning.problem import Problem
from outgrow.rewriting.derive import apply_laws
from outgrow.simulation import replay
from tests.planning.test_planners import MACHINE, problem_of
from tests.verified import verify_derived

LOSS = """
storage x input 512
storage w parameter 262144
storage t input 1024
storage g 4
storage z 33554432
storage l 33554432
storage s 4
storage n 4
storage a 33554432
storage b 33554432
storage d 512
value %x: x@0 f32[128,1]
value %w: w@0 f32[1,65536]
value %t: t@0 i64[128]
%z: z@0 f32[128,65536] = aten.mm.default(%x, %w)
%l: l@0 f32[128,65536] = aten._log_softmax.default(%z, 1, False)
%s: s@0 f32[], %n: n@0 f32[] = aten.nll_loss_forward.default(%l, %t, None, 1, -100)
%g: g@0 f32[] = aten.ones_like.default(%s)
loss: %a: a@0 f32[128,65536] = aten.nll_loss_backward.default(%g, %l, %t, None, 1, -100, %n)
back: %b: b@0 f32[128,65536] = aten._log_softmax_backward_data.default(%a, %l, 1, :torch.float32)
%d: d@0 f32[128] = aten.sum.dim_IntList(%b, [1])
return %s, %d
"""
LOGITS = 128 * 65536 * 4


def problem(text: str = LOSS, budget_bytes: int = 1 << 30) -> Problem:
    """The problem of a step, in which everything is large."""
    return replace(problem_of(parse_graph(text), budget_bytes), minimum_bytes=256, least_bytes=256)


def test_the_floor_sinks_to_the_logits_and_a_part() -> None:
    """No op holds two tables of logits, but for the rows that go at a time, here a half."""
    found = problem()
    graph, decisions, _ = free_rewrites(found)
    verify_derived(graph, found.graph)
    assert ByRows("loss", "back") in decisions
    assert JOINT_IN_PLACE in [op.operator for op in graph.ops]
    before, after = floor_of(found, found.graph)[0], floor_of(found, graph)[0]
    assert before >= 3 * LOGITS
    assert after < 2.5 * LOGITS


def test_log_probabilities_that_are_read_later_stay() -> None:
    """By rows the result would need memory beside them, and rows of its own."""
    kept = LOSS.replace("return %s, %d", "return %s, %d, %l")
    assert run_by_rows(problem(kept), parse_graph(kept))[1] == ()


def test_an_op_without_a_cost_is_not_run() -> None:
    """It would seem to take no time."""
    found = problem()
    unknown = replace(found, costs={op.name: found.costs[op.name] for op in found.graph.ops})
    assert run_by_rows(unknown, unknown.graph)[1] == ()


@pytest.mark.parametrize("prove", [True, False], ids=["proved", "of the arithmetic"])
def test_no_plan_beats_the_bound_where_the_joint_op_is_quicker(prove: bool) -> None:
    """Measured, it may take less than both; then a plan may take less than the step as captured."""
    found = problem()
    costs = {**found.costs, "back.rows": replace(found.costs["back.rows"], seconds=1e-9)}
    quick = replace(found, costs=costs)
    for budget_bytes in (int(3.2 * LOGITS), int(2.6 * LOGITS)):
        plan = planned(replace(quick, budget=Budget(budget_bytes)), prove=prove).plan
        assert plan.predicted.seconds >= plan.bound_seconds * (1 - 1e-6)
    assert bound_seconds(quick) < bound_seconds(found)


def test_no_plan_beats_the_bound_where_both_ops_need_less_alone() -> None:
    """Of few logits, the rows that go at a time are all of them, and as one they read what each reads by itself."""
    graph = parse_graph(
        """
        storage x input 32
        storage t 32
        storage s 64
        storage l 128
        storage a 128
        storage b 128
        value %x: x@0 f32[4,2]
        %t: t@0 f32[4,2] = my.labels(%x)
        %s: s@0 f32[4,4] = my.other(%x)
        %l: l@0 f32[4,8] = my.logits(%t)
        loss: %a: a@0 f32[4,8] = aten.nll_loss_backward.default(%l, %l, %t, None, 1, -100, %t)
        back: %b: b@0 f32[4,8] = aten._log_softmax_backward_data.default(%a, %l, 1, :torch.float32)
        return %s
        """
    )
    costs = with_parts(graph, {op.name: Cost(1.0, 40 * (op.name == "back")) for op in graph.ops})
    found = Problem(graph, costs, MACHINE, Budget(1), minimum_bytes=32)
    decisions = (ByLayout("loss"), Reuse("back"))
    alone = replay(apply_laws(graph, decisions), costs, MACHINE)
    assert alone.seconds >= bound_seconds(replace(found, budget=Budget(alone.peak_bytes))) * (1 - 1e-6)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("return %s, %d", "return %s, %d, %a"), "a is used otherwise than by back"),
        (("storage a 33554432", "storage a buffer 33554432"), "a is used otherwise than by back"),
        (("sum.dim_IntList(%b", "sum.dim_IntList(%a"), "a is used otherwise than by back"),
        (("storage b 33554432", "storage b buffer 33554432"), "back changes what is there before it"),
        (("%g: g@0", "back.rows: %g: g@0"), "the name back.rows is taken"),
        (("back: %b", "%g2: g@1 f32[] = aten.neg_.default(%g)\nback: %b"), "g is written between loss and back"),
        (("%a, %l, 1,", "%a, %z, 1,"), "no kernel"),
        (("%a, %l, 1,", "%a, %l, 0,"), "no kernel"),
        ((":torch.float32)", ":torch.float16)"), "no kernel"),
        (("%b: b@0 f32[128,65536]", "%b: b@0 f32[128,65536]:[1,128]"), "no kernel"),
        (("%a, %l, 1, :torch.float32)", "%a, %l, 1, :torch.float32, other=1)"), "no kernel"),
        (("aten._log_softmax_backward_data", "aten._softmax_backward_data"), "no kernel"),
    ],
)
def test_rows_have_conditions(change: tuple[str, str], reason: str) -> None:
    """Everything else stays as it is."""
    graph = parse_graph(LOSS.replace(*change))
    assert graph != parse_graph(LOSS)
    with pytest.raises(NotApplicable, match=reason):
        apply_laws(graph, [ByRows("loss", "back")])


def test_what_one_op_reads_may_be_there_later_than_the_first_needs_it() -> None:
    """The op runs in the place of the second; another op between them stays where it is."""
    text = LOSS.replace("back: %b", "between: %e: e@0 f32[] = aten.neg.default(%g)\nback: %b")
    text = text.replace("storage d 512", "storage d 512\nstorage e 4").replace("return %s, %d", "return %s, %d, %e")
    graph = parse_graph(text)
    found = apply_laws(graph, [Move(("loss",), "ones_like"), ByRows("loss", "back")])
    verify_derived(found, graph)
    assert [op.name for op in found.ops][-3:] == ["between", "back.rows", "sum"]


def _names(graph: Graph) -> list[str]:
    return [op.name for op in graph.ops]


def test_a_draft_without_the_first_op_goes_on() -> None:
    """Laws that come after it find what is there."""
    graph = parse_graph(LOSS)
    found = apply_laws(graph, [ByRows("loss", "back"), Move(("sum",), "back.rows")])
    assert _names(found) == [*_names(graph)[:4], "back.rows", "sum"]
    assert "a" not in found.storages
    assert "a" not in found.values
