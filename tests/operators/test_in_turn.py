"""Which ops go by operand, and where each operand lies in the result."""

import pytest

from outgrow.ir.text import parse_graph
from outgrow.operators.in_turn import in_turn, operand_of

HEAD = """
storage a input 24
storage b input 48
storage h input 12
storage n input 0
storage y 96
value %a: a@0 f32[2,3]
value %a1: a@0 f32[1,6]
value %b: b@0 f32[2,6]
value %h: h@0 bf16[2,3]
value %n: n@0 f32[0]
"""


@pytest.mark.parametrize(
    ("call", "shape", "found"),
    [
        ("cat.default([%a, %b], 1)", "[2,9]", [("a", 1, 0), ("b", 1, 3)]),
        ("cat.default([%b, %a], -1)", "[2,9]", [("b", 1, 0), ("a", 1, 6)]),
        ("cat.default([%a, %a, %a])", "[6,3]", [("a", 0, 0), ("a", 0, 2), ("a", 0, 4)]),
        ("stack.default([%a, %a])", "[2,2,3]", [("a", 0, 0), ("a", 0, 1)]),
        ("stack.default([%a, %a], -1)", "[2,3,2]", [("a", 2, 0), ("a", 2, 1)]),
    ],
)
def test_operands_have_places(call: str, shape: str, found: list[tuple[str, int, int]]) -> None:
    """Each begins behind the ones before it, along the dimension that the op was given."""
    graph = parse_graph(f"{HEAD}%y: y@0 f32{shape} = aten.{call}\nreturn %y")
    turns = in_turn(graph.ops[0], graph.values)
    for at, (begins, goes_on) in enumerate(turns):
        assert begins.name == goes_on.name == f"{graph.ops[0].name}.{at}"
        assert operand_of(begins) == operand_of(goes_on) == found[at][0]
        assert begins.arguments[-2:] == goes_on.arguments[-2:] == found[at][1:]
        assert begins.arguments[1:3] == (graph.values["y"].shape, graph.values["y"].strides)
    assert len(turns) == len(found)


@pytest.mark.parametrize(
    "call",
    [
        "[2,3] = aten.cat.default([%a], 1)",
        "[2,6] = aten.cat.default([%a, %h], 1)",
        "[2,3] = aten.cat.default([%a, %n], 1)",
        "[2,6] = aten.cat.default([%a, %a1], 1)",
        "[2,6] = aten.cat.default([%a, %a], 2)",
        "[2,6] = aten.cat.default([%a, %a], True)",
        "[2,6] = aten.cat.default([%a, %a], 1, 1)",
        "[2,6] = aten.cat.default([%a, 1], 1)",
        "[2,6] = aten.cat.default(%a, 1)",
        "[2,6] = aten.cat.out([%a, %a], 1)",
        "[2,6] = aten.cat.default([%a, %a], 1) writes a",
        "[2,6] = aten.cat.default([%a, %a], dim=1)",
        "[2,2,3] = aten.stack.default([%a, %b])",
    ],
)
def test_anything_else_has_no_turns(call: str) -> None:
    """One operand, operands of other types or shapes, and arguments that are not those of a concatenation."""
    graph = parse_graph(f"{HEAD}%y: y@0 f32{call}\nreturn %y")
    assert in_turn(graph.ops[0], graph.values) == ()


def test_a_repetition_has_no_turns() -> None:
    """What can go by operand is the captured op."""
    graph = parse_graph(f"{HEAD}again: %y: y@0 f32[2,6] = aten.cat.default([%a, %a], 1) origin cat\nreturn %y")
    assert in_turn(graph.ops[0], graph.values) == ()
