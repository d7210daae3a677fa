"""The laws do what their docstrings state, and refuse where their conditions fail."""

import textwrap
from dataclasses import dataclass

import pytest

from outgrow.errors import NotApplicable
from outgrow.ir.graph import Graph
from outgrow.ir.stand_ins import Leeway, numbered
from outgrow.ir.text import parse_graph, print_graph
from outgrow.ir.verify import verify
from outgrow.operators.in_place import IN_PLACE
from outgrow.plan import ByLayout, ByOperand, Decision, Move, Piece, Recompute, Reuse, Stow, Swap, TakeApart
from outgrow.rewriting.derive import apply_laws
from outgrow.rewriting.laws import LAWS, Law
from tests.verified import verify_derived

_NAMES = {kind.__name__: kind for kind in (*LAWS, Piece)}


@dataclass(frozen=True)
class Statement:
    """The blocks of a law's docstring."""

    left: Graph
    decision: Decision
    right: Graph


def statement_of(law: Law) -> Statement:
    """Read the blocks of a law's docstring."""
    text = textwrap.dedent((law.apply.__doc__ or "").partition("\n")[2])
    left, _, rest = text.partition("rewrite:\n")[2].partition("with:\n")
    decision, _, rest = rest.partition("provided:\n")
    right = rest.partition("->\n")[2]
    return Statement(parse_graph(left), eval(decision.strip(), dict(_NAMES)), parse_graph(right))


@pytest.mark.parametrize("law", LAWS.values(), ids=lambda law: law.name)
def test_a_law_does_what_it_states(law: Law) -> None:
    """Applied to the left side of its docstring, a law gives the right side, and both are valid."""
    statement = statement_of(law)
    verify(statement.left)
    found = apply_laws(statement.left, [statement.decision])
    verify_derived(found, statement.left)
    assert found == statement.right


@pytest.mark.parametrize("law", LAWS.values(), ids=lambda law: law.name)
def test_a_law_states_its_condition_and_reason(law: Law) -> None:
    """Every law says in words under which condition it holds, and why."""
    text = law.apply.__doc__ or ""
    assert all(block in text for block in ("rewrite:", "with:", "provided:", "because:", "->"))


GRAPH = """
storage x input 8
storage w parameter 8
storage g generator 0
storage a 8
storage b 8
storage c 8
storage d 8
value %x: x@0 f32[2]
value %w: w@0 f32[2]
%a: a@0 f32[2] = aten.relu.default(%x)
%b: b@0 f32[2] = aten.neg.default(%a)
dropout: %c: c@0 f32[2] = aten.dropout.default(%b) writes g
%w1: w@1 f32[2] = aten.add_.Tensor(%w, %c)
%d: d@0 f32[2] = aten.mul.Tensor(%a, %c)
exp: %e: e@0 f32[2] = aten.exp.default(%d)
return %e
storage e 8
"""


REFUSED: tuple[tuple[Decision, str], ...] = (
    (Move(("neg",), after="dropout"), "does not precede"),
    (Move(("mul",), after="relu"), "conflicts"),
    (Move(("mul",), after="nothing"), "no op nothing"),
    (Move((), after="neg"), "no op is named"),
    (Reuse("neg"), "used after"),
    (Reuse("relu"), "outlives"),
    (Reuse("dropout"), "no form that writes over"),
    (Recompute("c", before="mul"), "cannot be repeated"),
    (Recompute("x", before="mul"), "not made by this step"),
    (Recompute("nothing", before="mul"), "no storage nothing"),
    (Swap("a", "relu", "neg", (Piece(0, 8, "mul"),), "mul"), "used before"),
    (Swap("a", "neg", "dropout", (Piece(0, 12, "mul"),), "mul"), "12 of 8 bytes"),
    (Swap("a", "neg", "dropout", (), "mul"), "0 of 8 bytes"),
    (Swap("a", "neg", "dropout", (Piece(0, 8, "mul"), Piece(4, 8, "mul")), "mul"), "never or twice"),
    (Swap("a", "neg", "dropout", (Piece(0, 8, "exp"),), "mul"), "outside its gap"),
    (Swap("a", "mul", "dropout", (Piece(0, 8, "mul"),), "mul"), "out of order"),
    (Swap("nothing", "neg", "dropout", (), "mul"), "no storage nothing"),
    (Stow("w", (Piece(0, 8, "nothing"),), "add_", "add_", None), "stow does not apply: the graph has no op nothing."),
    (Stow("e", (Piece(0, 8, "neg"),), None, "exp", None), "nothing of it comes back"),
)


@pytest.mark.parametrize(("decision", "reason"), REFUSED, ids=lambda item: str(item)[:40])
def test_a_law_refuses_where_its_condition_fails(decision: Decision, reason: str) -> None:
    """Where a condition fails, the law raises `NotApplicable` and says which."""
    graph = parse_graph(GRAPH)
    verify(graph)
    with pytest.raises(NotApplicable, match=reason):
        apply_laws(graph, [decision])


@pytest.mark.parametrize("role", ["buffer", "optimizer"])
def test_a_state_that_the_step_makes_is_written_over_nothing(role: str) -> None:
    """What outlives the step keeps a storage of its own, where the step itself makes it: a buffer that is replaced."""
    graph = parse_graph(f"""\
storage x input 8
storage a 8
storage b {role} 8
value %x: x@0 f32[2]
%a: a@0 f32[2] = aten.neg.default(%x)
mul: %b: b@0 f32[2] = aten.mul.Tensor(%a, 0.5)
""")
    verify(graph)
    with pytest.raises(NotApplicable, match="outlives"):
        apply_laws(graph, [Reuse("mul")])


def test_what_a_transfer_moves_is_written_over_nothing() -> None:
    """A result that is swapped keeps its storage; it may be written over an operand first, and be swapped then."""
    graph = parse_graph("""\
storage x input 8
storage a 8
storage b 8
storage c 8
storage d 8
value %x: x@0 f32[2]
%a: a@0 f32[2] = aten.neg.default(%x)
%b: b@0 f32[2] = aten.relu.default(%a)
%c: c@0 f32[2] = aten.exp.default(%x)
%d: d@0 f32[2] = aten.add.Tensor(%b, %c)
return %d
""")
    verify(graph)
    pieces = (Piece(0, 8, "add"),)
    with pytest.raises(NotApplicable, match="b is moved by a transfer"):
        apply_laws(graph, [Swap("b", "relu", "exp", pieces, "add"), Reuse("relu")])
    verify_derived(apply_laws(graph, [Reuse("relu"), Swap("a", "relu", "exp", pieces, "add")]), graph)


def test_an_updated_weight_does_not_serve_a_recomputation() -> None:
    """A storage that was made from a weight is not rebuilt once the weight has been updated."""
    graph = parse_graph(
        """
        storage w parameter 8
        storage a 8
        storage b 8
        value %w: w@0 f32[2]
        %a: a@0 f32[2] = aten.neg.default(%w)
        %w1: w@1 f32[2] = aten.relu_.default(%w)
        %b: b@0 f32[2] = aten.exp.default(%a)
        return %b
        """
    )
    with pytest.raises(NotApplicable, match="overwritten"):
        apply_laws(graph, [Recompute("a", before="exp")])


def test_a_chain_with_a_write_in_place_is_rebuilt_whole() -> None:
    """Rebuilding a version that was written in place repeats every write that made it."""
    graph = parse_graph(
        """
        storage x input 8
        storage a 8
        storage b 8
        storage c 8
        value %x: x@0 f32[2]
        %a: a@0 f32[2] = aten.neg.default(%x)
        %a1: a@1 f32[2] = aten.relu_.default(%a)
        %b: b@0 f32[2] = aten.exp.default(%a1)
        %c: c@0 f32[2] = aten.mul.Tensor(%a1, %b)
        return %c
        """
    )
    found = apply_laws(graph, [Recompute("a", before="mul")])
    verify(found, captured=numbered(graph, Leeway(in_place=IN_PLACE)))
    assert [op.name for op in found.ops] == ["neg", "relu_", "exp", "neg$1", "relu_$1", "mul"]


def test_a_second_gap_needs_no_second_copy_out() -> None:
    """A version that already rests in the tier is dropped again without a copy out."""
    graph = parse_graph(
        """
        storage x input 8
        storage a 8
        storage b 8
        storage c 8
        storage d 8
        storage e 8
        value %x: x@0 f32[2]
        %a: a@0 f32[2] = aten.neg.default(%x)
        %b: b@0 f32[2] = aten.relu.default(%x)
        %c: c@0 f32[2] = aten.exp.default(%a)
        %d: d@0 f32[2] = aten.tanh.default(%x)
        %e: e@0 f32[2] = aten.mul.Tensor(%a, %d)
        return %e
        """
    )
    once = apply_laws(graph, [Swap("a", "neg", "relu", (Piece(0, 8, "exp"),), "exp")])
    twice = apply_laws(once, [Swap("a", None, "tanh", (Piece(0, 4, "tanh"), Piece(4, 8, "mul")), "mul")])
    verify(twice, captured=numbered(graph, Leeway(in_place=IN_PLACE)))
    assert print_graph(twice).count("swap_out") == 1


LAYOUTS = """
storage x input 8
storage a 8
storage b 16
storage c 8
storage d 8
storage e 8
storage f 8
value %x: x@0 f32[2]
value %half: a@0 f32[1]
%a: a@0 f32[2] = aten.neg.default(%x)
%b: b@0 f32[4] = aten.relu.default(%a)
%c: c@0 f32[2]:[0] = aten.tanh.default(%a)
%d: d@0 f32[2], %e: e@0 f32[2] = aten.exp.default(%a)
aten.sigmoid.default(%a)
aten.silu.default(0.5)
%f: f@0 f32[2] = aten.add.Tensor(%a, %half)
return %f
"""


@pytest.mark.parametrize(
    ("op", "reason"),
    [
        ("relu", "a and b differ in size"),
        ("tanh", "a and c differ in layout"),
        ("exp", "a is used after exp"),
        ("sigmoid", "sigmoid has no first result"),
        ("silu", "silu has no tensor as its argument 0"),
        ("add", "add reads a through another view"),
    ],
)
def test_only_a_result_that_fits_exactly_is_written_over_its_operand(op: str, reason: str) -> None:
    """Result and first operand must be of one size and layout, and nothing else may be read of the operand."""
    graph = parse_graph(LAYOUTS)
    verify(graph)
    with pytest.raises(NotApplicable, match=reason):
        apply_laws(graph, [Reuse(op)])


def test_complex_numbers_beside_gaps_are_not_written_over() -> None:
    """Of them a loop with gaps has other last places where it writes over what it reads."""
    text = """
        storage x input 64
        storage a 32
        storage r 32
        value %x: x@0 c64[2,2]
        value %y: x@0 c64[2]:[2]
        %a: a@0 c64[2,2] = aten.neg.default(%x)
        %r: r@0 c64[2,2] = aten.mul.Tensor(%a, %y)
        """
    with pytest.raises(NotApplicable, match="y and r, of complex numbers, differ in layout"):
        apply_laws(parse_graph(text), [Reuse("mul")])
    apply_laws(parse_graph(text.replace("c64[2]:[2]", "c64[2]")), [Reuse("mul")])
    apply_laws(parse_graph(text.replace("c64", "f32")), [Reuse("mul")])


def test_a_quotient_of_complex_numbers_is_not_written_over_an_operand() -> None:
    """The last elements, which fill no register, have other last places there."""
    text = """
        storage x input 40
        storage a 40
        storage r 40
        value %x: x@0 c64[5]
        %a: a@0 c64[5] = aten.neg.default(%x)
        %r: r@0 c64[5] = aten.div.Tensor(%a, %x)
        """
    with pytest.raises(NotApplicable, match="other bits of complex numbers"):
        apply_laws(parse_graph(text), [Reuse("div")])
    apply_laws(parse_graph(text.replace("div", "mul")), [Reuse("mul")])
    apply_laws(parse_graph(text.replace("c64[5]", "f32[10]")), [Reuse("div")])


def test_an_operand_that_is_converted_first_is_not_beside_one_that_is_written_over() -> None:
    """What it becomes is as large as the result, and comes before it: it would get the memory of the result."""
    text = """
        storage m input 4
        storage x input 8
        storage a 8
        storage r 8
        value %m: m@0 bf16[2]
        value %x: x@0 f32[1,2]
        %a: a@0 f32[1,2] = aten.neg.default(%x)
        %r: r@0 f32[1,2] = aten.mul.Tensor(%m, %a)
        """
    with pytest.raises(NotApplicable, match="m, which is converted first, takes as much as r"):
        apply_laws(parse_graph(text), [Reuse("mul", 1)])
    apply_laws(parse_graph(text.replace("4\n", "8\n", 1).replace("bf16", "f32")), [Reuse("mul", 1)])


def test_a_repetition_writes_to_its_copy_what_it_writes_without_returning_it() -> None:
    """As the calls on lists of an optimizer do, which return nothing."""
    captured = parse_graph(
        """
        storage m optimizer 8
        storage p parameter 8
        storage a 8
        value %m: m@0 f32[2]
        value %p: p@0 f32[2]
        value %a1: a@1 f32[2]
        value %a2: a@2 f32[2]
        root: %a: a@0 f32[2] = aten._foreach_sqrt.default([%m])
        divide: aten._foreach_div_.ScalarList([%a], [0.5]) writes a
        add: aten._foreach_add_.Scalar([%a1], 1e-08) writes a
        update: aten._foreach_addcdiv_.ScalarList([%p], [%m], [%a2], [-0.1]) writes p
        """
    )
    graph = apply_laws(captured, [Recompute("a", "update")])
    verify_derived(graph, captured)
    assert [op.writes for op in graph.ops if op.origin] == [(), ("a$1",), ("a$1",)]


def test_a_result_of_the_step_is_not_written_over() -> None:
    """The caller receives what the operand holds."""
    graph = parse_graph(GRAPH.replace("return %e", "return %d, %e"))
    with pytest.raises(NotApplicable, match="d is used after exp"):
        apply_laws(graph, [Reuse("exp")])


def test_a_later_hidden_write_follows_the_result_to_its_new_place() -> None:
    """What writes the result without returning it writes the operand's storage after the rewrite."""
    graph = parse_graph(
        """
        storage x input 8
        storage a 8
        storage b 8
        storage c 8
        value %x: x@0 f32[2]
        value %b1: b@1 f32[2]
        %a: a@0 f32[2] = aten.neg.default(%x)
        %b: b@0 f32[2] = aten.relu.default(%a)
        my.note(%x) writes b
        %c: c@0 f32[2] = aten.exp.default(%b1)
        return %c
        """
    )
    found = apply_laws(graph, [Reuse("relu")])
    verify(found, captured=numbered(graph, Leeway(in_place=IN_PLACE)))
    assert [graph.written(op) for op in graph.ops] == [("a",), ("b",), ("b",), ("c",)]
    assert [found.written(op) for op in found.ops] == [("a",), ("a",), ("a",), ("c",)]


def test_a_chain_that_reads_a_later_version_of_what_it_makes_is_not_repeated() -> None:
    """A neighbour made by the same op has been written by an op outside the chain."""
    graph = parse_graph(
        """
        storage x input 8
        storage a 8
        storage b 8
        storage c 8
        value %x: x@0 f32[2]
        %a: a@0 f32[2], %b: b@0 f32[2] = my.split(%x)
        %b1: b@1 f32[2] = aten.relu_.default(%b)
        %a1: a@1 f32[2] = aten.add_.Tensor(%a, %b1)
        %c: c@0 f32[2] = aten.exp.default(%a1)
        return %c
        """
    )
    with pytest.raises(NotApplicable, match="add_ reads a later version of b"):
        apply_laws(graph, [Recompute("a", before="exp")])


TWO_USES = """
storage x input 8
storage a 8
storage b 8
storage c 8
storage d 8
value %x: x@0 f32[2]
%a: a@0 f32[2] = aten.neg.default(%x)
%b: b@0 f32[2] = aten.relu.default(%x)
%c: c@0 f32[2] = aten.mul.Tensor(%a, %b)
%d: d@0 f32[2] = aten.add.Tensor(%a, %c)
return %d, %b
"""


def test_a_storage_may_be_built_again_twice() -> None:
    """Each repetition has names of its own."""
    graph = parse_graph(TWO_USES)
    found = apply_laws(graph, [Recompute("a", before="add"), Recompute("a", before="mul")])
    verify(found, captured=numbered(graph, Leeway(in_place=IN_PLACE)))
    assert [op.name for op in found.ops] == ["neg", "relu", "neg$2", "mul", "neg$1", "add"]


def test_recomputation_leaves_the_transfers_of_others_alone() -> None:
    """Transfers of another storage, before or after, stay; one of the storage itself would move the wrong bytes."""
    graph = parse_graph(
        """
        storage x input 8
        storage a 8
        storage b 8
        storage c 8
        storage d 8
        storage e 8
        value %x: x@0 f32[2]
        %a: a@0 f32[2] = aten.neg.default(%x)
        %b: b@0 f32[2] = aten.relu.default(%x)
        %c: c@0 f32[2] = aten.mul.Tensor(%a, %b)
        %d: d@0 f32[2] = aten.exp.default(%x)
        %e: e@0 f32[2] = aten.add.Tensor(%b, %d)
        return %c, %e
        """
    )
    swapped = apply_laws(graph, [Swap("b", "mul", "exp", (Piece(0, 8, "add"),), "add")])
    for decision in (Recompute("a", before="mul"), Recompute("d", before="add")):
        found = apply_laws(swapped, [decision])
        verify(found, captured=numbered(graph, Leeway(in_place=IN_PLACE)))
        assert len(found.ops) == len(graph.ops) + 1
    with pytest.raises(NotApplicable, match="b is moved by a transfer later"):
        apply_laws(swapped, [Recompute("b", before="mul")])


BACKWARD = """
storage x input 16
storage w parameter 4
storage n buffer 4
storage i 16
storage g 16
storage a 16
storage b 4
storage c 4
value %x: x@0 f32[1,1,4]
value %w: w@0 f32[1,1,1]
%i: i@0 f32[1,1,4] = aten.neg.default(%x)
%g: g@0 f32[1,1,4] = aten.exp.default(%i)
back: %a: a@0 f32[1,1,4], %b: b@0 f32[1,1,1], _ = aten.convolution_backward.default(%g, %i, %w, None, MASK)
%c: c@0 f32[1,1,4] = aten.add.Tensor(%a, %g)
return %b, %c
""".replace("MASK", "[1], [0], [1], False, [0], 1, [True, True, False]").replace("storage c 4", "storage c 16")


def test_the_input_of_a_convolution_dies_before_its_gradient_is_born() -> None:
    """Taken apart and given what they need alone, no op touches operand and gradient of the input together."""
    graph = parse_graph(BACKWARD)
    decisions = [TakeApart("back"), ByLayout("back.input"), Reuse("add")]
    found = apply_laws(graph, decisions)
    verify_derived(found, graph)
    assert [found.touched(op) for op in found.ops[2:]] == [("g", "i", "w", "b"), ("g", "w", "a"), ("a", "g")]
    assert found.dying_at[2] == ("i",)


def test_a_part_may_be_repeated_and_need_not_be_whole_again() -> None:
    """A gradient is built again by the part that makes it."""
    graph = parse_graph(BACKWARD)
    found = apply_laws(graph, [TakeApart("back"), ByLayout("back.input"), Recompute("a", "add")])
    verify_derived(found, graph)
    assert [op.name for op in found.ops] == ["neg", "exp", "back.weight", "back.input", "back.input$1", "add"]


@pytest.mark.parametrize(
    ("change", "decision", "reason"),
    [
        (("[True, True, False]", "[False, True, False]"), TakeApart("back"), "is one piece"),
        (("", ""), TakeApart("neg"), "is one piece"),
        (("%c: c@0", "back.input: %c: c@0"), TakeApart("back"), "name of a part of back is taken"),
        (("%b: b@0 f32[1,1,1]", "%b: n@1 f32[1,1,1]"), TakeApart("back"), "changes what is there before it"),
        (("storage a 16", "storage a buffer 16"), TakeApart("back"), "changes what is there before it"),
        (("", ""), ByLayout("back"), "reads the content of all its operands"),
        (("%g, %i, %w", "%g, %x, %w"), ByLayout("back"), "reads the content of all its operands"),
    ],
)
def test_parts_and_layouts_have_conditions(change: tuple[str, str], decision: Decision, reason: str) -> None:
    """What is one piece stays whole, and an operand that no op makes is kept."""
    text = BACKWARD.replace(*change) if change[0] else BACKWARD
    if "%x, %w" in text:
        text = text.replace("[True, True, False]", "[True, False, False]").replace("%b: b@0 f32[1,1,1]", "_")
        text = text.replace("return %b, %c", "return %c")
    with pytest.raises(NotApplicable, match=reason):
        apply_laws(parse_graph(text), [decision])


def test_what_is_being_sent_is_not_built_again() -> None:
    """The exchange reads the storage until it has arrived, so no copy can stand for it before that."""
    graph = parse_graph(
        """
        storage x input 8
        storage wire input 16
        storage a 8
        storage there 8
        storage b 8
        storage c 8
        value %x: x@0 f32[2]
        %a: a@0 f32[2] = aten.relu.default(%x)
        exchange: %there: there@0 f32[2] = outgrow.exchange.default(%a) writes wire
        %b: b@0 f32[2] = aten.exp.default(%x)
        arrived: %here: there@1 f32[2] = outgrow.arrived.default(%there, %a)
        %c: c@0 f32[2] = aten.add.Tensor(%a, %b)
        return %c, %here
        """
    )
    with pytest.raises(NotApplicable, match="a is in flight until arrived"):
        apply_laws(graph, [Recompute("a", before="exp")])
    with pytest.raises(NotApplicable, match="a is in flight until arrived"):
        apply_laws(graph, [Swap("a", "exchange", "exp", (Piece(0, 8, "arrived"),), "arrived")])
    verify_derived(apply_laws(graph, [Recompute("a", before="add")]), graph)


def test_what_is_away_does_not_serve_a_recomputation() -> None:
    """A storage is built again only from what is on the device then; once an operand is back, it serves again."""
    graph = parse_graph(
        """
        storage x input 8
        storage a 8
        storage b 8
        storage c 8
        storage d 8
        storage e 8
        value %x: x@0 f32[2]
        %a: a@0 f32[2] = aten.relu.default(%x)
        %b: b@0 f32[2] = aten.neg.default(%a)
        %c: c@0 f32[2] = aten.exp.default(%x)
        mul: %d: d@0 f32[2] = aten.mul.Tensor(%c, %b)
        add: %e: e@0 f32[2] = aten.add.Tensor(%a, %d)
        sub: %f: f@0 f32[2] = aten.sub.Tensor(%b, %e)
        return %f
        storage f 8
        """
    )
    away = Swap("a", "neg", "exp", (Piece(0, 8, "add"),), "add")
    with pytest.raises(NotApplicable, match="a, which neg reads, is away"):
        apply_laws(graph, [away, Recompute("b", before="mul")])
    verify_derived(apply_laws(graph, [away, Recompute("b", before="sub")]), graph)


SIDE_BY_SIDE = """
storage x input 8
storage a 8
storage b 8
storage c 16
storage d 16
value %x: x@0 f32[2]
%a: a@0 f32[2] = aten.neg.default(%x)
%b: b@0 f32[2] = aten.exp.default(%a)
cat: %c: c@0 f32[4] = aten.cat.default([%a, %b])
%c1: c@1 f32[4] = aten.neg_.default(%c)
%d: d@0 f32[4] = aten.exp.default(%c1)
return %d, %c1
"""


def test_what_is_written_over_a_result_that_was_put_together_is_a_later_version() -> None:
    """Each operand that is put there makes a version."""
    graph = parse_graph(SIDE_BY_SIDE)
    found = apply_laws(graph, [ByOperand("cat", (0, 1))])
    verify_derived(found, graph)
    assert [found.values[name].version for name in ("c.0", "c", "c1")] == [0, 1, 2]


def test_a_result_that_was_put_together_is_built_again_operand_by_operand() -> None:
    """Its chain are all turns; in the end it is there as before."""
    text = SIDE_BY_SIDE.replace("%c1: c@1 f32[4] = aten.neg_.default(%c)\n", "").replace("%c1", "%c")
    graph = parse_graph(text.replace("return %d, %c", "%x1: x@1 f32[2] = my.put_.default(%x, %c, %d)"))
    found = apply_laws(graph, [ByOperand("cat", (1, 0)), Recompute("c", "put_")])
    verify_derived(found, graph)
    assert [op.captured for op in found.ops if op.origin] == ["cat.1", "cat.0"]


@pytest.mark.parametrize(
    ("change", "decision", "reason"),
    [
        (("", ""), ByOperand("cat", (0,)), "does not name each of the 2 operands of cat once"),
        (("", ""), ByOperand("cat", (0, 0)), "does not name each of the 2 operands of cat once"),
        (("", ""), ByOperand("cat", (1, 2)), "does not name each of the 2 operands of cat once"),
        (("", ""), ByOperand("exp", (0, 1)), "exp .aten.exp.default. does more than put operands of one type"),
        (("aten.cat.default([%a, %b])", "aten.cat.default([%a, %a], 1)"), ByOperand("cat", (0, 1)), "does more than"),
        (("storage c 16", "storage c buffer 16"), ByOperand("cat", (0, 1)), "cat changes what is there before it"),
        (("%d: d@0", "cat.1: %d: d@0"), ByOperand("cat", (0, 1)), "the name of a turn of cat is taken"),
        (("value %x: x@0 f32[2]", "value %x: x@0 f32[2]\nvalue %c.0: x@0 f32[2]"), ByOperand("cat", (0, 1)), "taken"),
    ],
)
def test_going_by_operand_has_conditions(change: tuple[str, str], decision: ByOperand, reason: str) -> None:
    """The order names every operand once, and there has to be nothing but operands side by side."""
    graph = parse_graph(SIDE_BY_SIDE.replace(*change))
    with pytest.raises(NotApplicable, match=reason):
        apply_laws(graph, [decision])


@pytest.mark.parametrize(("option", "is_right"), [("", True), (", alpha=2.0", False)])
def test_a_sum_is_written_over_an_operand_beside_one_of_other_strides(option: str, is_right: bool) -> None:
    """It rounds once; with a factor it is a product and a sum, which a compiler may take as one."""
    text = f"""
        storage x input 32
        storage a 16
        storage b 16
        value %x: x@0 f32[2,2]
        value %part: x@0 f32[2,2]:[4,1]
        %a: a@0 f32[2,2] = aten.neg.default(%x)
        %b: b@0 f32[2,2] = aten.add.Tensor(%part, %a{option})
        return %b
    """
    graph = parse_graph(text)
    if is_right:
        verify_derived(apply_laws(graph, [Reuse("add", 1)]), graph)
    else:
        with pytest.raises(NotApplicable, match="part and b differ in layout"):
            apply_laws(graph, [Reuse("add", 1)])
