"""Does the verifier tell a rewritten step that computes the captured bits from one that may not?"""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from outgrow.errors import InvalidGraph
from outgrow.ir.graph import Graph, Op, Ref, Value
from outgrow.ir.stand_ins import Form, Leeway, numbered
from outgrow.ir.text import parse_graph
from outgrow.ir.verify import verify

OVER = Leeway(
    in_place={
        "aten.relu.default": (Form("aten.relu_.default"),),
        "aten.sub.Tensor": (Form("aten.sub_.Tensor"),),
        "aten.mul.Tensor": (Form("aten.mul_.Tensor", strided=True),),
        "aten.div.Tensor": (Form("aten.div_.Tensor", strided=True, real=True),),
        "my.norm_backward.default": (
            Form("over0.my.norm_backward.default"),
            Form("over1.my.norm_backward.default", operand=1),
        ),
    }
)

CAPTURED = """
storage w parameter 16
storage x input 16
storage s buffer 16
storage g generator 16
storage a 16
storage b 16
storage c 16
storage d 32
storage e 16
storage spare 16
value %w: w@0 f32[4]
value %x: x@0 f32[4]
%a: a@0 f32[4] = aten.exp.default(%x)
%b: b@0 f32[4] = aten.relu.default(%a)
%c: c@0 f32[4], _ = my.norm(%b, [1, 2.0], eps=1e-05) writes s
%d: d@0 f32[4] = my.rand(%w) writes g
%c1: c@1 f32[4] = aten.add_.Tensor(%c, %d)
%e: e@0 f32[4], %u: spare@0 f32[4] = my.split(%c1, %x)
return %e
"""
EXP, RELU = "%a: a@0 f32[4] = aten.exp", "%b: b@0 f32[4] = aten.relu"
SPLIT = "%e: e@0 f32[4], %u: spare@0 f32[4] = my.split(%c1, %x)"
RAND_AGAIN = "again: %a2: a2@0 f32[4] = my.rand(%w) writes g origin rand\n"
EXP_AGAIN = "again: %a2: a2@0 f32[4] = aten.exp.default(%x) origin exp\n"


def edited(*changes: tuple[str, str], text: str = CAPTURED) -> str:
    """Return the text with changes made, each of which must be possible."""
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return text


def refusal(text: str, captured: str = CAPTURED) -> str:
    """Return the words with which a graph is refused because of invariant 6."""
    with pytest.raises(InvalidGraph) as caught:
        verify(parse_graph(text), captured=numbered(parse_graph(captured), OVER))
    assert caught.value.invariant == 6
    return str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        (),
        (("storage a 16", "storage q 16"), ("a@0", "q@0"), ("%a", "%q")),
        (
            ("storage d", "storage a2 16\nstorage d"),
            (RELU, EXP_AGAIN + RELU),
            ("default(%a)", "default(%a2)"),
        ),
        ((RELU + ".", "relu: %b: a@1 f32[4] = aten.relu_."),),
        (("%e: e@0 f32[4], %u: spare@0 f32[4]", "%e: e@0 f32[4], _"),),
        (
            ("%d: d@0 f32[4] = my.rand(%w) writes g\n", ""),
            (EXP, "%d: d@0 f32[4] = my.rand(%w) writes g\n" + EXP),
        ),
    ],
    ids=["unchanged", "renamed", "repeated", "re-used", "result unused", "reordered"],
)
def test_the_same_content_in_other_places_is_accepted(changes: tuple[tuple[str, str], ...]) -> None:
    """Other names and orders, repetitions of pure ops, exact re-use and unused results keep every bit."""
    verify(parse_graph(edited(*changes)), captured=numbered(parse_graph(CAPTURED), OVER))


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (RELU, "f()\n" + RELU, "f is not an op of the captured graph"),
        (RELU, "relu: %b: b@0 f32[4] = aten.relu.default(%a) origin exp\n#", "relu is not an op"),
        ("%e: e@0", RAND_AGAIN + "%e: e@0", "changes what outlives"),
        (SPLIT + "\nreturn %e", "return %c1", "are missing: split"),
        (RELU, "relu: %b: b@0 f32[4] = aten.exp", "its operator is aten.exp.default instead"),
        ("[1, 2.0]", "[True, 2.0]", "its literals differ"),
        ("[1, 2.0]", "[1, 2]", "its literals differ"),
        ("[1, 2.0]", "[1]", "its literals differ"),
        ("eps=1e-05", "eps=1e-06", "its literals differ"),
        ("eps=1e-05", "%b", "its literals differ"),
        ("relu.default(%a)", "relu.default(%x)", "operand 0 is x as float32 [4], strides [1]"),
        ("my.split(%c1, %x)", "my.split(%x, %c1)", "operand 0 is x"),
        ("%d)", "%d2)\nvalue %d2: d@0 f32[4]+4", "strides [1], offset 4 instead of"),
        ("%b: b@0 f32[4]", "%b: b@0 f32[2,2]", "result or write 0 has another layout or goes elsewhere"),
        ("%c1: c@1", "%c1: d@1", "result or write 0 has another layout or goes elsewhere"),
        ("%c: c@0 f32[4], _", "%c: c@0 f32[4]", "it has another number of results or writes"),
        ("%c: c@0 f32[4], _", "%c: c@0 f32[4], %o: a2@0 f32[4]", "result or write 1 has another layout"),
        ("writes s", "writes g", "result or write 2 has another layout or goes elsewhere"),
        ("return %e", "return %u", "the results are not those of the captured graph"),
        ("return %e", "return %e, %e", "the results are not those of the captured graph"),
        ("storage s buffer", "storage v buffer 4\nstorage s buffer", "the storages that outlive the step"),
    ],
)  # fmt: skip
def test_another_computation_is_refused(old: str, new: str, reason: str) -> None:
    """Other ops, operators, literals, operands, layouts, writes or results are found, and named."""
    text = edited(("storage d", "storage a2 16\nstorage d"), (old, new))
    assert reason in refusal(text)


def test_a_storage_of_another_size_is_refused() -> None:
    """One that is larger than its values has bytes that the capacity counts."""
    text = "storage a 32\nstorage w parameter 4\n%a: a@0 f32[4] = f()\nreturn %a"
    assert "a has 16 bytes instead of 32" in refusal(text.replace("a 32", "a 16"), text)
    assert "a has 0 bytes instead of 32" in refusal(text.replace("a 32", "a scalar 0"), text)


def test_results_share_memory_as_captured() -> None:
    """Who writes to one of two results that share memory sees it in the other one."""
    captured = "storage a 16\n%a: a@0 f32[4] = f()\nvalue %v: a@0 f32[2]\nreturn %a, %v"
    text = "storage a 16\nstorage b 16\n%a: a@0 f32[4] = f()\nagain: %b: b@0 f32[4] = f() origin f\n"
    assert "share memory otherwise" in refusal(f"{text}value %v: b@0 f32[2]\nreturn %a, %v", captured)


def test_a_write_onto_another_operand_is_refused() -> None:
    """An op that overwrites its operand may not be said to overwrite another storage of equal content."""
    norm = "%c: c@0 f32[4], _ = my.norm(%b, [1, 2.0], eps=1e-05) writes s"
    captured = edited((norm, "%c: c@0 f32[4] = my.clone(%w)"))
    text = edited(
        ("storage d", "storage c2 16\nstorage d"),
        ("%c1: c@1", "again: %c2: c2@0 f32[4] = my.clone(%w) origin clone\n%c1: c2@1"),
        text=captured,
    )
    assert "goes elsewhere" in refusal(text, captured)


def test_hidden_writes_keep_their_order() -> None:
    """Which of two storages an op changes first counts, since the op changes them in different ways."""
    head = "storage w parameter 4\nstorage v parameter 4\n"
    assert "goes elsewhere" in refusal(head + "a: f() writes v, w", head + "a: f() writes w, v")


def test_a_persistent_storage_ends_with_its_captured_content() -> None:
    """Storages may be exchanged only where they end with the step."""
    head = "storage w parameter 4\nstorage y 4\n"
    captured = head + "%w: w@0 f32[1] = f()\n%y: y@0 f32[1] = g()\n"
    text = head + "%w: y@0 f32[1] = f()\n%y: w@0 f32[1] = g()\n"
    assert "w does not end with its captured content" in refusal(text, captured)


@pytest.mark.parametrize(
    ("captured", "rewritten"),
    [
        ("%z: z@0 f32[4] = aten.sub.Tensor(%y, %x)", "%z: y@1 f32[2,2] = aten.sub_.Tensor(%y, %x)"),
        ("%z: z@0 f32[4] = aten.sub.Tensor(%y, %t)", "%z: y@1 f32[4] = aten.sub_.Tensor(%y, %t)"),
        ("%z: z@0 f32[4] = aten.sub.Tensor(%t, %x)", "%z: y@1 f32[4] = aten.sub_.Tensor(%t, %x)"),
        ("%z: z@0 f32[4] = aten.sub.Tensor(%y, %h)", "%z: y@1 f32[4] = aten.sub_.Tensor(%y, %h)"),
        ("%z: z@0 f32[4] = aten.sub.Tensor(%y, %x)", "%z: x@1 f32[4] = aten.sub_.Tensor(%y, %x)"),
        ("%z: z@0 f32[4] = aten.sub.Tensor([%y], %x)", "%z: y@1 f32[4] = aten.sub_.Tensor([%y], %x)"),
        ("%z: z@0 f32[4] = aten.sub.Tensor(%y, %x)", "_ = aten.sub_.Tensor(%y, %x)"),
        ("%z: y@1 f32[4] = aten.sub.Tensor(%y, %x)", "%z: y@1 f32[4] = aten.sub_.Tensor(%y, %x)"),
    ],
    ids=["layout", "other view", "view", "other type", "other operand", "first argument", "unused", "no birth"],
)
def test_reuse_in_place_must_be_exact(captured: str, rewritten: str) -> None:
    """The result must go exactly over the first operand, which is read in no other layout."""
    head = (
        "storage x 16\nstorage y 16\nstorage z 16\n%x: x@0 f32[4] = f()\n%y: y@0 f32[4] = g()\n"
        "value %t: y@0 f32[4]:[0]\nstorage h input 8\nvalue %h: h@0 bf16[1,4]\n"
    )
    assert "exactly over operand 0" in refusal(f"{head}sub: {rewritten}", head + captured)


def test_reuse_in_place_may_read_the_operand_twice_in_one_layout() -> None:
    """X - x may be written over x, because each element depends on its own place alone."""
    head = "storage y 16\nstorage z 16\n%y: y@0 f32[4] = g()\n"
    captured = head + "%z: z@0 f32[4] = aten.sub.Tensor(%y, %y)\nreturn %z"
    text = head + "sub: %z: y@1 f32[4] = aten.sub_.Tensor(%y, %y)\nreturn %z"
    verify(parse_graph(text), captured=numbered(parse_graph(captured), OVER))


@pytest.mark.parametrize(
    ("other", "is_right"),
    [
        ("x@0 f32[2,2]:[4,1]", True),
        ("x@0 f32[2,2]:[0,0]", True),
        ("x@0 bf16[2,2]", False),
        ("y@0 f32[2,2]:[1,2]", False),
    ],
    ids=["of a larger one", "spread", "other type", "other view"],
)
def test_a_strided_form_may_read_other_layouts(other: str, is_right: bool) -> None:
    """Of another storage alone, and of the result's type, while the operand written over lies as the result does."""
    head = "storage x input 32\nstorage y 16\nstorage z 16\n%y: y@0 f32[2,2] = g()\n" + f"value %x: {other}\n"
    captured = head + "%z: z@0 f32[2,2] = aten.mul.Tensor(%y, %x)\nreturn %z"
    text = head + "mul: %z: y@1 f32[2,2] = aten.mul_.Tensor(%y, %x)\nreturn %z"
    if is_right:
        verify(parse_graph(text), captured=numbered(parse_graph(captured), OVER))
    else:
        assert "exactly over operand 0" in refusal(text, captured)
    assert "exactly over operand 0" in refusal(text.replace("%x)", "%x, n=2)"), captured.replace("%x)", "%x, n=2)"))


@pytest.mark.parametrize(
    ("other", "is_right"),
    [
        ("x@0 c64[2,2]", True),
        ("x@0 c64[2]", True),
        ("x@0 c64[]", True),
        ("x@0 c64[2,2]:[1,2]", False),
        ("x@0 c64[2]:[2]", False),
    ],
    ids=["alike", "repeated", "one", "transposed", "every second"],
)
def test_complex_numbers_are_written_over_where_all_go_in_step(other: str, is_right: bool) -> None:
    """Loops with gaps have other last places where they write over what they read."""
    head = "storage x input 32\nstorage y 32\nstorage z 32\n%y: y@0 c64[2,2] = g()\n" + f"value %x: {other}\n"
    captured = head + "%z: z@0 c64[2,2] = aten.mul.Tensor(%y, %x)\nreturn %z"
    text = head + "mul: %z: y@1 c64[2,2] = aten.mul_.Tensor(%y, %x)\nreturn %z"
    if is_right:
        verify(parse_graph(text), captured=numbered(parse_graph(captured), OVER))
    else:
        assert "exactly over operand 0" in refusal(text, captured)


def test_a_form_for_real_numbers_writes_over_no_complex_ones() -> None:
    """A quotient has other last places there."""
    head = "storage x input 16\nstorage y 16\nstorage z 16\nvalue %x: x@0 f32[4]\n%y: y@0 f32[4] = g()\n"
    captured = head + "%z: z@0 f32[4] = aten.div.Tensor(%y, %x)\nreturn %z"
    text = head + "div: %z: y@1 f32[4] = aten.div_.Tensor(%y, %x)\nreturn %z"
    verify(parse_graph(text), captured=numbered(parse_graph(captured), OVER))
    text, captured = (item.replace("f32[4]", "c64[2]") for item in (text, captured))
    assert "exactly over operand 0" in refusal(text, captured)


@pytest.mark.parametrize("operand", [0, 1])
def test_the_first_of_several_results_may_be_written_over_either_operand(operand: int) -> None:
    """The other results stay where they are; an operand in another layout than the result's is refused."""
    head = "storage x 16\nstorage y 16\nstorage z 16\nstorage w 4\n%x: x@0 f32[2,2] = f()\n%y: y@0 f32[2,2] = g()\n"
    call = "norm_backward.default(%x, %y)\nreturn %z, %w"
    captured = f"{head}%z: z@0 f32[2,2], %w: w@0 f32[1] = my.{call}"
    text = f"{head}norm_backward: %z: {'xy'[operand]}@1 f32[2,2], %w: w@0 f32[1] = over{operand}.my.{call}"
    verify(parse_graph(text), captured=numbered(parse_graph(captured), OVER))
    other = (f"%{'yx'[operand]}: {'yx'[operand]}@0 f32[2,2]", f"%{'yx'[operand]}: {'yx'[operand]}@0 f32[2,2]:[1,2]")
    assert f"exactly over operand {operand}" in refusal(edited(other, text=text), edited(other, text=captured))
    assert "another layout or goes elsewhere" in refusal(text.replace("w@0 f32[1]", "w@0 f32[1,1]"), captured)


def test_an_operator_is_replaced_only_by_its_in_place_form() -> None:
    """Without a law for it, the in-place operator is another operator."""
    text = parse_graph(edited((RELU + ".", "relu: %b: a@1 f32[4] = aten.relu_.")))
    with pytest.raises(InvalidGraph, match="its operator is aten"):
        verify(text, captured=numbered(parse_graph(CAPTURED)))


def test_a_result_in_place_cannot_be_left_unused() -> None:
    """An op that overwrites its operand does so whether its result is named or not."""
    head = "storage y 4\n%y: y@0 f32[1] = f()\n"
    captured = head + "%y1: y@1 f32[1] = my.relu_.default(%y)"
    assert "result or write 0" in refusal(head + "_ = my.relu_.default(%y)", captured)


def test_results_share_a_storage_where_the_captured_ones_do() -> None:
    """Two results that are one storage stay one."""
    head = "storage y 4\nstorage z 4\n%y: y@0 f32[1], "
    text, captured = head + "%t: z@0 f32[1] = f()", head + "%t: y@0 f32[1] = f()"
    assert "result or write 1" in refusal(text, captured)


def test_an_unchanged_op_is_refused_where_its_operand_holds_something_else() -> None:
    """What counts is the content of a storage, not the name of the value that is read."""
    captured = parse_graph(CAPTURED)
    storages = {**captured.storages, "b2": replace(captured.storages["b"], name="b2")}
    moved = replace(captured.values["b"], name="b2", storage="b2")
    other = replace(captured.values["b"], name="again")
    relu = replace(captured.ops[1], results=("b2",))
    again = replace(captured.ops[0], name="again", origin="exp", results=("again",))
    instructions = (captured.ops[0], relu, again, *captured.ops[2:])
    values = {**captured.values, "b2": moved, "again": other}
    rewritten = Graph(storages, values, instructions, captured.results)
    with pytest.raises(InvalidGraph, match=r"operand 0 is write 0 of exp .* instead of write 0 of relu"):
        verify(rewritten, captured=numbered(captured))


POOLED = """
storage x input 16
storage a 16
storage g 8
storage b 16
value %x: x@0 f32[4]
%a: a@0 f32[4] = aten.neg.default(%x)
%g: g@0 f32[2] = aten.exp.default(%a)
%b: b@0 f32[4] = my.pool(%g, %a, 2)
return %b
"""


def _pooling(op: Op) -> tuple[int, ...]:
    return (1,) if op.operator == "my.pool" else ()


POOLING = Leeway(layouts=_pooling)


def test_a_listed_operand_may_be_given_by_its_layout() -> None:
    """The layout has to be the captured one, whichever value has it."""
    captured = parse_graph(POOLED)
    verify(parse_graph(edited(("%g, %a", "%g, like %a"), text=POOLED)), captured=numbered(captured, POOLING))
    verify(parse_graph(edited(("%g, %a", "%g, like %x"), text=POOLED)), captured=numbered(captured, POOLING))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ((("%g, %a", "%g, like %g"),), "it asks for another layout"),
        ((("%g, %a", "like %g, %a"),), "its literals differ"),
        ((("exp.default(%a)", "exp.default(like %a)"),), "its literals differ"),
    ],
)
def test_only_a_listed_operand_is_given_by_its_layout(changes: tuple[tuple[str, str], ...], reason: str) -> None:
    """Other operands are read, and a layout is not another one."""
    with pytest.raises(InvalidGraph, match=reason):
        verify(parse_graph(edited(*changes, text=POOLED)), captured=numbered(parse_graph(POOLED), POOLING))


def test_a_layout_is_that_of_a_declared_value() -> None:
    """A name that the graph does not declare is refused by invariant 1."""
    with pytest.raises(InvalidGraph, match="nothing is not declared") as caught:
        verify(parse_graph(edited(("%g, %a", "%g, like %nothing"), text=POOLED)))
    assert caught.value.invariant == 1


WHOLE = """
storage x input 16
storage a 16
storage b 16
storage c 16
value %x: x@0 f32[4]
both: %a: a@0 f32[4], %b: b@0 f32[4] = my.both(%x, [True, True])
%c: c@0 f32[4] = aten.add.Tensor(%a, %b)
return %c
"""
BOTH = "both: %a: a@0 f32[4], %b: b@0 f32[4] = my.both(%x, [True, True])\n"
FIRST = "both.0: %a: a@0 f32[4], _ = my.both(%x, [True, False])\n"
SECOND = "both.1: _, %b: b@0 f32[4] = my.both(%x, [False, True])\n"
AGAIN = "again: %a2: a2@0 f32[4], _ = my.both(%x, [True, False]) origin both.0\n"
EXCHANGED = (
    "both.0: _, %b: b@0 f32[4] = my.both(%x, [True, False])\nboth.1: %a: a@0 f32[4], _ = my.both(%x, [False, True])\n"
)


def _both(op: Op) -> tuple[Op, ...]:
    if op.operator != "my.both" or op.arguments[1] != (True, True):
        return ()
    first = replace(op, name=f"{op.name}.0", arguments=(Ref("x"), (True, False)), results=(op.results[0], None))
    second = replace(op, name=f"{op.name}.1", arguments=(Ref("x"), (False, True)), results=(None, op.results[1]))
    return first, second


PARTED = Leeway(parts=_both)


@pytest.mark.parametrize(
    "changes",
    [
        ((BOTH, FIRST + SECOND),),
        ((BOTH, SECOND + FIRST),),
        ((BOTH, FIRST + SECOND + AGAIN), ("Tensor(%a,", "Tensor(%a2,"), ("storage c", "storage a2 16\nstorage c")),
    ],
    ids=["in order", "the other way round", "one repeated"],
)
def test_all_parts_stand_for_an_op(changes: tuple[tuple[str, str], ...]) -> None:
    """The parts of an op write what the op writes, and a part may be repeated."""
    verify(parse_graph(edited(*changes, text=WHOLE)), captured=numbered(parse_graph(WHOLE), PARTED))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (((BOTH, FIRST), ("%a, %b)", "%a, %a)")), "not the captured add"),
        (((BOTH, FIRST), ("%c: c@0 f32[4] = aten.add.Tensor(%a, %b)\n", ""), ("%c", "%a")), "ops are missing: both"),
        (
            ((BOTH, BOTH + FIRST.replace("%a: a@", "%a2: a2@")), ("storage c", "storage a2 16\nstorage c")),
            "both occurs itself and in parts",
        ),
        (((BOTH, FIRST + SECOND.replace("[False, True]", "[True, True]")),), "its literals differ"),
        (((BOTH, FIRST + SECOND.replace("both.1", "both.2")),), "both.2 is not an op of the captured graph"),
        (((BOTH, EXCHANGED),), "result or write 1 has another layout or goes elsewhere"),
    ],
    ids=["another operand", "one missing", "twice", "another mask", "another name", "results exchanged"],
)
def test_parts_that_are_not_those_of_the_op_are_refused(changes: tuple[tuple[str, str], ...], reason: str) -> None:
    """Each part occurs once, with its own results and literals, and not beside the op itself."""
    with pytest.raises(InvalidGraph, match=reason):
        verify(parse_graph(edited(*changes, text=WHOLE)), captured=numbered(parse_graph(WHOLE), PARTED))


def test_an_op_that_writes_in_place_has_no_parts() -> None:
    """Only what brings storages into being and nothing else may be taken apart."""
    text = WHOLE.replace("%b: b@0", "%b: b@1").replace("both:", "%b0: b@0 f32[4] = my.fill()\nboth:", 1)
    parted = text.replace(BOTH.replace("b@0", "b@1"), (FIRST + SECOND).replace("b@0", "b@1"))
    assert parted != text
    with pytest.raises(InvalidGraph, match="is not an op of the captured graph"):
        verify(parse_graph(parted), captured=numbered(parse_graph(text), PARTED))


def _turns(op: Op, _values: Mapping[str, Value]) -> tuple[tuple[Op, Op], ...]:
    if op.operator != "my.cat":
        return ()
    return tuple(
        (
            replace(op, name=f"{op.name}.{at}", operator="my.begin", arguments=(argument, at)),
            replace(op, name=f"{op.name}.{at}", operator="my.put", arguments=(Ref("d"), argument, at)),
        )
        for at, argument in enumerate(op.arguments)
    )


ASIDE = """
storage a input 8
storage b input 8
storage c input 8
storage d 24
storage e 24
value %a: a@0 f32[2]
value %b: b@0 f32[2]
value %c: c@0 f32[2]
cat: %d: d@0 f32[6] = my.cat(%a, %b, %c)
%e: e@0 f32[6] = aten.exp.default(%d)
return %e
"""
CAT = "cat: %d: d@0 f32[6] = my.cat(%a, %b, %c)\n"
BEGIN_B = "cat.1: %d1: d@0 f32[6] = my.begin(%b, 1)\n"
PUT_A = "cat.0: %d2: d@1 f32[6] = my.put(%d1, %a, 0)\n"
PUT_C = "cat.2: %d: d@2 f32[6] = my.put(%d2, %c, 2)\n"
IN_TURN = Leeway(in_turn=_turns)
CAT_AGAIN = """
cat.1$1: %f1: f@0 f32[6] = my.begin(%b, 1) origin cat.1
cat.2$1: %f2: f@1 f32[6] = my.put(%f1, %c, 2) origin cat.2
cat.0$1: %f: f@2 f32[6] = my.put(%f2, %a, 0) origin cat.0
"""


@pytest.mark.parametrize(
    "changes",
    [
        ((CAT, BEGIN_B + PUT_A + PUT_C),),
        ((CAT, "cat.2: %d1: d@0 f32[6] = my.begin(%c, 2)\n" + PUT_A + "cat.1: %d: d@2 f32[6] = my.put(%d2, %b, 1)\n"),),
        (
            (CAT, BEGIN_B + PUT_A + PUT_C + CAT_AGAIN),
            ("default(%d)", "default(%f)"),
            ("storage e", "storage f 24\nstorage e"),
        ),
    ],
    ids=["one order", "another", "again in another"],
)
def test_turns_stand_for_an_op_in_any_order(changes: tuple[tuple[str, str], ...]) -> None:
    """All operands are there in the end, each put where the op puts it."""
    verify(parse_graph(edited(*changes, text=ASIDE)), captured=numbered(parse_graph(ASIDE), IN_TURN))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (((CAT, BEGIN_B + PUT_A), ("%d)", "%d2)")), "operand 0 is write 3 of cat"),
        (((CAT, BEGIN_B + PUT_A.replace("%d2", "%d")),), "operand 0 is write 3 of cat"),
        (((CAT, BEGIN_B + PUT_A.replace("%a, 0", "%b, 0") + PUT_C),), "operand 1 is b as"),
        (((CAT, BEGIN_B + PUT_A.replace("%a, 0", "%a, 2") + PUT_C),), "its literals differ"),
        (((CAT, BEGIN_B + PUT_A + PUT_C.replace("cat.2", "cat.3")),), "cat.3 is not an op of the captured graph"),
        (
            (
                (CAT, BEGIN_B + PUT_A + PUT_C + CAT.replace("d@0", "f@0").replace("%d", "%f")),
                ("storage e", "storage f 24\nstorage e"),
            ),
            "cat occurs itself and in parts",
        ),
        (
            (
                (CAT, BEGIN_B + PUT_A + PUT_C + "twice: %d4: d@3 f32[6] = my.put(%d, %a, 0) origin cat.0\n"),
                ("default(%d)", "default(%d4)"),
            ),
            "its operator is my.put instead of my.begin",
        ),
        (((CAT, BEGIN_B + PUT_A + PUT_C), ("storage d 24", "storage d 32")), "d has 32 bytes instead of 24"),
        (((CAT, BEGIN_B.replace("f32[6]", "f32[3,2]") + PUT_A + PUT_C),), "result or write 0 has another layout"),
        (((CAT, CAT), ("%e: e@0", "cat.0: %e: e@0")), "cat.0 is not the captured cat.0"),
    ],
    ids=[
        "one missing", "one missing, under the name of all", "another operand", "another place", "another name",
        "beside the op", "twice", "larger", "another layout", "the name of a turn",
    ],
)  # fmt: skip
def test_turns_that_are_not_those_of_the_op_are_refused(changes: tuple[tuple[str, str], ...], reason: str) -> None:
    """Each turn occurs once, with its own operand and literals, and nobody reads what is not all there."""
    with pytest.raises(InvalidGraph, match=reason):
        verify(parse_graph(edited(*changes, text=ASIDE)), captured=numbered(parse_graph(ASIDE), IN_TURN))


@pytest.mark.parametrize(
    "change", [("storage d 24", "storage d buffer 24"), ("%e: e@0", "cat.1: %e: e@0")], ids=["persistent", "taken name"]
)
def test_an_op_without_turns_of_its_own_goes_at_once(change: tuple[str, str]) -> None:
    """What outlives the step is not begun, and a name stands for one op."""
    captured = edited(change, text=ASIDE)
    with pytest.raises(InvalidGraph):
        verify(
            parse_graph(edited((CAT, BEGIN_B + PUT_A + PUT_C), text=captured)),
            captured=numbered(parse_graph(captured), IN_TURN),
        )


PAIR = """
storage x input 16
storage y input 16
storage a 16
storage b 16
value %x: x@0 f32[4]
value %y: y@0 f32[4]
one: %a: a@0 f32[4] = my.one(%x)
two: %b: b@0 f32[4] = my.two(%a, %y)
return %b
"""
ONE = "one: %a: a@0 f32[4] = my.one(%x)\n"
TWO = "two: %b: b@0 f32[4] = my.two(%a, %y)\n"
IN_PLACE = TWO.replace("b@0", "y@1")
JOINT = "both: %b: b@0 f32[4] = my.joint(%x, %y)\n"
JOINED_IN_PLACE = JOINT.replace("b@0", "y@1")


def _joint(first: Op, second: Op, _values: object) -> Op | None:
    if (first.operator, second.operator) != ("my.one", "my.two"):
        return None
    return replace(second, name="both", operator="my.joint", arguments=(*first.arguments, *second.arguments[1:]))


JOINED = Leeway(joined=_joint)
UNKNOWN = "both is not an op of the captured graph"


def test_one_op_stands_for_two() -> None:
    """What the first makes is not there any more, and what outlives the step has the content of the second's result."""
    found = edited((ONE + TWO, JOINT), ("storage a 16\n", ""), text=PAIR)
    verify(parse_graph(found), captured=numbered(parse_graph(PAIR), JOINED))


@pytest.mark.parametrize(
    ("captured", "changes", "reason"),
    [
        ((), ((TWO, JOINT),), "one occurs itself and joined to another"),
        ((), ((ONE + TWO, JOINT.replace("%x, %y", "%y, %x")), ("storage a 16\n", "")), "operand 0 is y"),
        ((("return %b", "return %b, %a"),), ((ONE + TWO, ONE + JOINT), ("%b, %a", "%b")), UNKNOWN),
        ((("storage a 16", "storage a buffer 16"),), ((ONE + TWO, ONE + JOINT),), UNKNOWN),
        ((("two: %b: b@0", "two: %b: y@1"), ("storage b 16\n", "")), ((IN_PLACE, JOINED_IN_PLACE),), UNKNOWN),
    ],
    ids=["one is there", "operands exchanged", "a result", "outlives the step", "writes in place"],
)  # fmt: skip
def test_one_op_that_is_not_two_is_refused(
    captured: tuple[tuple[str, str], ...], changes: tuple[tuple[str, str], ...], reason: str
) -> None:
    """Neither of the two occurs beside it, it reads what they read, and nobody else asks for what the first makes."""
    text = edited(*captured, text=PAIR)
    with pytest.raises(InvalidGraph, match=reason):
        verify(parse_graph(edited(*changes, text=text)), captured=numbered(parse_graph(text), JOINED))
