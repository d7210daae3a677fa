"""Does the verifier refuse exactly the graphs that break an invariant?

Each invariant has minimal broken graphs beside a valid twin, and properties over random graphs compare the
verifier with an interpreter that knows nothing of versions.
"""

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from outgrow.errors import InvalidGraph
from outgrow.ir.graph import Graph, Storage, Value
from outgrow.ir.stand_ins import numbered
from outgrow.ir.text import parse_graph
from outgrow.ir.verify import verify
from tests.graphs import graphs, mutated, swapped
from tests.interpreter import explain, outcome

HEAD = """
    storage w parameter 16
    storage x input 16
    storage g generator 16
    storage y 16
    storage z 16
    value %w: w@0 f32[4]
    value %x: x@0 f32[4]
    value %half: x@0 f32[2]+2
"""
SEND = "%y: y@0 f32[4] = outgrow.exchange.default(%x) writes w\n"
HERE = "%y1: y@1 f32[4] = outgrow.arrived.default(%y, %x)\n"
MAKE_Y = "%y: y@0 f32[4] = aten.relu.default(%x)\n"
USE_Y = "%z: z@0 f32[4] = aten.add.Tensor(%y, %half)\nreturn %z\n"
OUT = "swap_out y\nwait y\ndrop y\n"
BACK = "swap_in y 0:16\nwait y\n"
VALID = HEAD + MAKE_Y + OUT + BACK + USE_Y


def refused(text: str, capacity_bytes: int | None = None) -> InvalidGraph:
    """Return the error with which a graph is refused."""
    with pytest.raises(InvalidGraph) as caught:
        verify(parse_graph(text), capacity_bytes=capacity_bytes)
    assert str(caught.value).startswith(f"invariant {caught.value.invariant}: ")
    return caught.value


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (USE_Y, "%y is not declared|y is not declared"),
        (
            MAKE_Y + "%y1: y@1 f32[4] = relu_(%y)\n" + USE_Y,
            "%y is version 0 of y, which is at version 1 then",
        ),
        ("value %y: y@0 f32[4]\n" + USE_Y + MAKE_Y, "%y is version 0 of y, which is not born then"),
        (MAKE_Y + "%y2: y@2 f32[4] = relu_(%y)\n", "%y2 is version 2 of y, which is at version 1 then"),
        ("%x1: x@0 f32[4] = relu_(%x)\n" + MAKE_Y.replace("y:", "x2:"), "%x2 is version 0 of y|%x1"),
        (MAKE_Y + MAKE_Y, "%y is defined a second time"),
        ("%y: y@0 f32[4], %y: y@0 f32[4] = f()", "%y is defined a second time"),
        ("f: f()\nf: f()", "an op of this name is defined a second time"),
        ("f() writes y\n" + MAKE_Y, "f writes a storage before its birth"),
        ("f() writes nowhere", "nowhere is not declared"),
        ("wait nowhere", "nowhere is not declared"),
        ("f(%nothing)", "nothing is not declared"),
        ("%nothing = f()", "nothing is not declared"),
        ("return %nothing", "%nothing is not declared"),
        ("value %v: nowhere@0 f32[4]", "%v or its storage nowhere is not declared"),
        (
            "value %v: x@0 f32[4]+1",
            "%v leaves its storage x: it begins at element 1 and ends at byte 20 of 16",
        ),
        ("value %v: x@0 f64[3]", "%v leaves its storage x"),
        ("value %v: x@0 f32[2]:[1,1]", "%v has not one stride for each dimension"),
        ("value %v: x@0 u8[4]+-1", "%v leaves its storage x: it begins at element -1"),
    ],
)
def test_invariant_1_every_value_is_of_the_present_version(body: str, reason: str) -> None:
    """Unknown names, stale and future versions, second definitions and views out of bounds are refused."""
    error = refused(HEAD + body)
    assert error.invariant == 1
    assert any(each in str(error) for each in reason.split("|"))


def test_invariant_1_records_are_filed_under_their_names() -> None:
    """A value or a storage under another's key is refused."""
    value = Value("b", "s", 0, "float32", (), ())
    for graph in (
        Graph({"s": Storage("s", 4)}, {"a": value}, ()),
        Graph({"s": Storage("t", 4)}, {"b": value}, ()),
    ):
        with pytest.raises(InvalidGraph) as caught:
            verify(graph)
        assert caught.value.invariant == 1


@pytest.mark.parametrize(
    "body",
    [
        MAKE_Y + OUT + BACK + USE_Y,
        MAKE_Y + USE_Y,
        MAKE_Y + "wait y\n" + USE_Y,
        MAKE_Y + "swap_out y\nnegate(%y)\nwait y\ndrop y\nswap_in y 8:16\nwait y\nswap_in y 0:8\nwait y\n" + USE_Y,
        MAKE_Y + OUT + BACK + "drop y\n" + BACK + USE_Y,
        MAKE_Y + "%y1: y@1 f32[4], _ = f(%y) writes g, y\n",
        "%y: y@0 f32[4], %t: y@0 f32[2,2] = f(%x)\ng(%y, %t)",
        "swap_out w\nwait w\nnegate(%w)\n",
    ],
)
def test_what_keeps_the_invariants_is_accepted(body: str) -> None:
    """The valid twins: swaps with all their waits, reads during a copy out, aliases of one version."""
    verify(parse_graph(HEAD + body))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (MAKE_Y + OUT + USE_Y, "add needs y, which is dropped: 0 of its 16 bytes are back"),
        (MAKE_Y + OUT + "swap_in y 0:16\n" + USE_Y, "16 of its 16 bytes are back, with a copy in flight"),
        (MAKE_Y + OUT + "swap_in y 0:12\nwait y\n" + USE_Y, "12 of its 16 bytes are back"),
        (MAKE_Y + OUT + "swap_out y\n", "swap_out needs y, which is dropped"),
        ("swap_out y\n" + MAKE_Y, "swap_out needs y, which is not born yet"),
        (MAKE_Y + OUT + "drop y\n", "drop needs y, which is dropped"),
        (MAKE_Y + OUT + "%y1: y@1 f32[4] = relu_(%x)\n", "relu_ needs y, which is dropped"),
    ],
)
def test_invariant_2_ops_find_their_storages_on_the_device(body: str, reason: str) -> None:
    """A storage that is unborn, dropped, or back only in part or in flight cannot be used."""
    error = refused(HEAD + body)
    assert error.invariant == 2
    assert reason in str(error)


def test_invariant_3_bytes_and_workspace_stay_within_the_capacity() -> None:
    """Persistent storages, here 48 bytes, count throughout, y and z from birth to last use."""
    graph = parse_graph(HEAD + MAKE_Y + USE_Y)
    verify(graph, capacity_bytes=80)
    verify(graph, capacity_bytes=84, workspace={"add": 4})
    with pytest.raises(InvalidGraph, match=r"8 bytes .* are held when the step begins, which is 1 over"):
        verify(parse_graph("storage w parameter 8\nvalue %w: w@0 f32[2]"), capacity_bytes=7)
    with pytest.raises(InvalidGraph, match=r"80 bytes .* 1 over the capacity of 79") as caught:
        verify(graph, capacity_bytes=79)
    assert (caught.value.invariant, caught.value.position) == (3, 1)
    with pytest.raises(InvalidGraph, match="4 of them as workspace"):
        verify(graph, capacity_bytes=83, workspace={"add": 4})


def test_invariant_3_a_dropped_storage_makes_room_until_it_is_reserved_again() -> None:
    """A drop frees bytes, a swap_in takes the bytes of its piece at once, a last use frees what is there."""
    other = "%z: z@0 f32[4] = exp(%x)\nnegate(%z)\n"
    text = HEAD + MAKE_Y + OUT + other + BACK + "negate_again(%y)"
    verify(parse_graph(text), capacity_bytes=64)
    assert refused(HEAD + MAKE_Y + other + "negate_again(%y)", capacity_bytes=79).invariant == 3
    early = HEAD + MAKE_Y + OUT + "swap_in y 0:4\n" + other + "swap_in y 4:16\nwait y\nnegate_again(%y)"
    verify(parse_graph(early), capacity_bytes=68)
    assert refused(early, capacity_bytes=67).invariant == 3


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (MAKE_Y + "swap_out y\ndrop y\n" + BACK + USE_Y, "y is dropped while a copy of it is in flight"),
        (MAKE_Y + "swap_out y\n%y1: y@1 f32[4] = relu_(%y)\nwait y", "y is written by relu_ while a copy"),
        ("swap_out g\nrand() writes g\nwait g", "g is written by rand while a copy"),
        (MAKE_Y + "swap_out y\n" + USE_Y, "y is freed by its last use while a copy"),
        (MAKE_Y + OUT + "swap_in y 0:16\n", "y is freed by its last use while a copy"),
        (MAKE_Y + OUT + "swap_in y 0:16\ndrop y\nwait y", "y is dropped while a copy"),
        (SEND + OUT + BACK + HERE, "y is dropped while a copy"),
        (SEND + OUT.replace("y", "x") + BACK.replace("y", "x") + HERE, "x is dropped while a copy"),
        (SEND + "%x1: x@1 f32[4] = relu_(%x)\nreturn %y", "x is written by relu_ while a copy"),
        (SEND, "y is freed by its last use while a copy"),
        (SEND + HERE + HERE.replace("y@1", "y@2").replace("y1", "y2").replace("(%y", "(%y1"), "waits for no exchange"),
        (SEND + HERE.replace("%x)", "%half)"), "waits for no exchange"),
        (SEND + HERE.replace(", %x)", ")"), "waits for no exchange"),
        (SEND.replace("(%x)", "()") + HERE, "sends nothing"),
    ],
)
def test_invariant_4_a_copy_in_flight_keeps_its_bytes(body: str, reason: str) -> None:
    """No drop, write or last use comes between the start of a copy and the wait for it."""
    error = refused(HEAD + body)
    assert error.invariant == 4
    assert reason in str(error)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (MAKE_Y + "drop y\n", "y is dropped, but the tier has no copy of its present version"),
        (
            MAKE_Y + "swap_out y\nwait y\n%y1: y@1 f32[4] = relu_(%y)\ndrop y\n",
            "no copy of its present version",
        ),
        (MAKE_Y + "swap_in y 0:16\nwait y\n", "y is swapped in but was not dropped"),
        (MAKE_Y + OUT + "swap_in y 0:20\nwait y\n", "0:20 are not bytes of y, which has 16"),
        (MAKE_Y + OUT + "swap_in y 4:4\nwait y\n", "4:4 are not bytes of y"),
        (
            MAKE_Y + OUT + "swap_in y 0:8\nswap_in y 4:16\nwait y\n",
            "some of the bytes 4:16 of y are swapped in",
        ),
        ("swap_out w\nwait w\ndrop w\n", "the step ends with w away from its home, device"),
        ("swap_out w\n", "the step ends with w with a copy in flight"),
        (MAKE_Y + OUT + "return %y", "the step ends with y away from its home"),
        (
            MAKE_Y + "%y1: y@1 f32[4] = relu_(%y)\nreturn %y",
            "%y is version 0 of y, which is at version 1 then",
        ),
    ],
)
def test_invariant_5_nothing_is_lost(body: str, reason: str) -> None:
    """Drops need a tier copy, swap-ins bring back dropped bytes once, and what stays ends at home."""
    error = refused(HEAD + body)
    assert error.invariant == 5
    assert reason in str(error)


def test_invariant_5_a_storage_whose_home_is_a_tier_is_fetched_and_put_back() -> None:
    """It starts without device bytes, is swapped in before use, and ends in the tier."""
    head = "storage m optimizer 16 at tier\nstorage b input 8\nvalue %m: m@0 f32[4]\n"
    fetch, update = "swap_in m 0:16\nwait m\n", "%m1: m@1 f32[4] = relu_(%m)\n"
    verify(parse_graph(head), capacity_bytes=8)
    verify(parse_graph(head + fetch + update + "swap_out m\nwait m\ndrop m"), capacity_bytes=24)
    assert refused(head + update).invariant == 2
    assert refused(head + fetch + update).invariant == 5
    assert refused(head + fetch + update + "swap_out m\nwait m").invariant == 5
    assert refused(head + fetch).invariant == 5


# ---- properties


@given(graphs())
def test_random_captured_graphs_are_valid(graph: Graph) -> None:
    """A captured graph keeps all invariants, and is equivalent to itself."""
    verify(graph, captured=numbered(graph))
    total = sum(storage.size_bytes for storage in graph.storages.values())
    verify(graph, capacity_bytes=total)


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), graphs())
def test_what_is_accepted_computes_the_captured_step(data: st.DataObject, graph: Graph) -> None:
    """Whatever is done to a graph, if it is accepted, it computes the same, be copies early or late."""
    rewritten = data.draw(swapped(graph))
    for _ in range(data.draw(st.integers(0, 2))):
        rewritten = data.draw(mutated(rewritten))
    try:
        verify(rewritten, captured=numbered(graph))
    except InvalidGraph as error:
        assert error.invariant in range(1, 7)
        return
    note(f"{explain(graph)}\n{explain(rewritten)}")
    expected = outcome(graph, late_copies=False)
    assert outcome(rewritten, late_copies=False) == expected
    assert outcome(rewritten, late_copies=True) == expected


@given(st.data(), graphs())
def test_a_swap_with_all_its_waits_is_accepted_in_any_gap(data: st.DataObject, graph: Graph) -> None:
    """Storages may leave the device in order over any gap between two uses in which no op touches them."""
    verify(data.draw(swapped(graph)), captured=numbered(graph))
