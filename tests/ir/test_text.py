"""Does IR text say exactly what a graph is?"""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outgrow.errors import GraphSyntaxError
from outgrow.ir.graph import (
    Drop,
    Graph,
    Like,
    Op,
    Ref,
    Role,
    Storage,
    SwapIn,
    SwapOut,
    Symbol,
    Value,
    Wait,
)
from outgrow.ir.text import fingerprint, parse_graph, print_around, print_graph
from tests.graphs import graphs, mutated, swapped

EVERYTHING = """\
storage w parameter 64
storage m optimizer 64 at tier
storage g generator 16
storage x input 64
storage y 64
storage z 64
storage lr scalar 0
value %w: w@0 f32[4,4]
value %row: w@0 f32[4]+8
value %wt: w@0 f32[4,4]:[1,4]
value %lr: lr@0 float[]
%y: y@0 bf16[4,4] = aten.mm.default(%w, %wt)
mm_2: %y1: y@1 f32[4,4] = aten.mm.default(%y, %row)
aten.mm.default(%y1)
swap_out y
wait y
drop y
swap_in y 0:64
again: %z: z@0 f32[4,4], _ = my.op(%y1, [1, [-inf, 1e-05]], "a\\n#", %lr, d=:"cuda:0") writes g, m origin mm_2
my.op(None, True, [], key=nan)
my.op(like %y, like=like %"a b")
return %z, %w
"""

NAMES = st.text(min_size=1, max_size=5)
LITERALS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
    | st.text()
    | st.builds(Symbol, NAMES)
    | st.builds(Like, NAMES),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
)


def test_everything_a_graph_can_say_is_printed_as_it_is_parsed() -> None:
    """Normal text, with every kind of statement and argument, is printed back letter by letter."""
    assert print_graph(parse_graph(EVERYTHING)) == EVERYTHING


def test_text_is_parsed_to_the_records_that_it_names() -> None:
    """Dtypes are stored in torch's spelling, and strides default to a dense layout."""
    graph = parse_graph("""
        storage x input 1KiB at host   # a comment
        storage y 64

        %y: y@0 bf16[2,3] = aten.relu.default((1, 2.0,), "#", dim=:even)
        swap_out y
        wait y
        drop y
        swap_in y 0:64
    """)
    assert graph == Graph(
        {"x": Storage("x", 1024, Role.INPUT, "host"), "y": Storage("y", 64)},
        {"y": Value("y", "y", 0, "bfloat16", (2, 3), (3, 1))},
        (
            Op("relu", "aten.relu.default", ((1, 2.0), "#"), (("dim", Symbol("even")),), ("y",)),
            SwapOut("y", 0, 64), Wait("y"), Drop("y", 0, 64), SwapIn("y", 0, 64),
        ),
    )  # fmt: skip


def test_ops_without_a_name_are_numbered_after_their_operator() -> None:
    """A default name is the first of relu, relu_1, ... that no op above has."""
    graph = parse_graph("a.relu.x()\na.relu.x()\nrelu_2: f()\na.relu.x()\nf()\na.relu_.x()")
    assert [op.name for op in graph.ops] == ["relu", "relu_1", "relu_2", "relu_3", "f", "relu_"]


def test_a_keyword_may_be_the_name_of_an_op_or_of_an_operator() -> None:
    """Words such as `wait` are keywords only where a statement begins with them."""
    graph = parse_graph("wait: drop()\nreturn()\nstorage _ 4\n_ = value()\n_, %a = f()")
    assert [(op.name, op.operator) for op in graph.ops][:2] == [("wait", "drop"), ("return", "return")]
    assert [op.results for op in graph.ops][2:] == [(None,), (None, "a")]
    assert parse_graph(print_graph(graph)) == graph


def test_a_result_may_refer_to_a_declared_view() -> None:
    """A result without a view takes the one of its `value` line."""
    short = parse_graph("storage y 4\nvalue %y: y@0 f32[1]\n%y = f()")
    assert short == parse_graph("storage y 4\n%y: y@0 f32[1] = f()")


@given(graphs().flatmap(swapped).flatmap(mutated))
def test_parsing_inverts_printing(graph: Graph) -> None:
    """Every graph, valid or not, is parsed back from its text, and its text is a fixed point."""
    text = print_graph(graph)
    assert parse_graph(text) == graph
    assert print_graph(parse_graph(text)) == text


@given(NAMES, NAMES, NAMES, st.lists(LITERALS, max_size=3), st.lists(st.tuples(NAMES, LITERALS), max_size=2))
def test_any_names_and_literals_survive(
    name: str, storage: str, operator: str, arguments: list[object], keywords: list[tuple[str, object]]
) -> None:
    """Names and literals of any characters are parsed back, with their types."""
    op = Op(name, operator, (Ref(name), *arguments), tuple(keywords), (name, None, storage), (storage,), name)  # type: ignore[arg-type]
    value = Value(name, storage, 3, "float8_e4m3fnuz", (0, 2), (5, -1), -4)
    graph = Graph({storage: Storage(storage, 8, home=name)}, {name: value}, (op, Drop(storage, 0, 4)), (name,))
    parsed = parse_graph(print_graph(graph))
    assert parsed == graph
    assert repr(parsed) == repr(graph)


def test_nan_is_parsed_to_the_one_nan() -> None:
    """A graph with `math.nan` equals its parsed text, because nan is that object."""
    graph = Graph({}, {}, (Op("f", "f", (math.nan,)),))
    assert parse_graph(print_graph(graph)) == graph


@pytest.mark.parametrize(
    ("text", "column", "reason"),
    [
        ("storage", 8, "expected a name, found the end of the line"),
        ("storage x 4\nstorage x 4", 9, "storage x is already declared"),
        ("storage x huge", 11, "'huge' is not a size"),
        ("storage x 4 5", 13, "expected the end of the line, found '5'"),
        ("value x: x@0 f32[1]", 7, "expected a value, such as %x, found 'x'"),
        ("value %x: x@a f32[1]", 13, "expected a whole number, found 'a'"),
        ("value %x: x@0 f32[1 2]", 21, "expected ',', found '2'"),
        ("%x: x@0 f32[1] = f()\n%x: x@1 f32[1] = f()", 14, "%x is already %x: x@0 f32[1]"),
        ("f(", 3, "expected an argument, found the end of the line"),
        ("f(x)", 3, "expected an argument, found 'x'"),
        ('f("x)', 3, "expected an argument, found '\"'"),
        ('f("\\x")', 3, "is not a string as JSON writes it"),
        ("f(a=1, 2)", 8, "a positional argument after a keyword"),
        (": f()", 1, "expected a name, found ':'"),
        ("swap_in x 0-4", 12, "expected ':', found '-4'"),
        ("return %x\nreturn %x", 1, "a second return"),
    ],
)
def test_a_syntax_error_names_its_place(text: str, column: int, reason: str) -> None:
    """What does not follow the grammar is refused with line, column and reason."""
    with pytest.raises(GraphSyntaxError) as caught:
        parse_graph(f"\n{text}")
    assert (caught.value.line, caught.value.column) == (2 + text.count("\n"), column)
    assert str(caught.value).startswith(f"line {caught.value.line}, column {column}: ")
    assert reason in str(caught.value)


def test_the_surroundings_of_an_instruction_mark_it() -> None:
    """Up to ten instructions around a culprit are shown, the culprit marked."""
    graph = parse_graph("f()\n" * 20)
    lines = print_around(graph, 2).splitlines()
    assert lines[2] == ">     2  f()"
    assert len(lines) == 8
    assert len(print_around(graph, 10).splitlines()) == 11
    assert [line for line in lines if line.startswith(">")] == [lines[2]]


def test_a_fingerprint_tells_graphs_apart() -> None:
    """Equal text has an equal fingerprint of 16 digits, and any change of the graph changes it."""
    graph = parse_graph(EVERYTHING)
    assert fingerprint(graph) == fingerprint(parse_graph(print_graph(graph)))
    assert len(fingerprint(graph)) == 16
    assert fingerprint(graph) != fingerprint(replace(graph, results=()))
