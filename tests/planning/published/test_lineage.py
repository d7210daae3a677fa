"""A lineage is what has to be repeated, and the law agrees with what is said of it."""

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from outgrow.analysis.liveness import live_bytes
from outgrow.ir.graph import Graph
from outgrow.ir.text import parse_graph
from outgrow.plan import Recompute
from outgrow.planning.published.lineage import lineage_of, rebuild_all
from outgrow.planning.published.repetition import live_bytes_with
from outgrow.rewriting.draft import Draft
from outgrow.rewriting.recompute import why_not
from tests.graphs import graphs
from tests.planning.test_planners import chain, problem_of


def test_the_lineage_of_a_storage_goes_back_to_what_is_at_hand() -> None:
    """What has died in between is built again as well, oldest first."""
    lineage = lineage_of(problem_of(chain(5), 1))
    assert lineage.of("a3", 9, lambda name: name in {"a0", "x"}) == ("a1", "a2", "a3")
    assert lineage.of("a3", 9, lambda name: name == "a2") == ("a3",)
    assert lineage.of("x", 9, lambda _: True) is None


def test_a_storage_that_was_overwritten_is_no_source() -> None:
    """Its bytes at that version are gone, so what was made of them cannot be built again."""
    graph = parse_graph(
        """
        storage x input 8
        storage a 8
        storage b 8
        storage c 8
        value %x: x@0 f32[2]
        %a: a@0 f32[2] = my.one(%x)
        %b: b@0 f32[2] = my.two(%a)
        %a1: a@1 f32[2] = aten.relu_.default(%a)
        %c: c@0 f32[2] = my.three(%a1, %b)
        return %c
        """
    )
    lineage = lineage_of(problem_of(graph, 1))
    assert lineage.sources("b", 2) == ("a",)
    assert lineage.sources("b", 3) is None
    assert lineage.sources("a", 3) == ("x",)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(graph=graphs(max_ops=10))
def test_the_law_admits_what_has_sources(graph: Graph) -> None:
    """For every storage, before every op."""
    lineage = lineage_of(problem_of(graph, 1))
    draft = Draft(graph)
    for step, op in enumerate(graph.ops):
        place = draft.place_of(op.name)
        assert place is not None
        for name in graph.storages:
            writers = [draft.op(writer) for writer in draft.writers(name, place)]
            is_admitted = why_not(draft, name, writers, place) is None
            assert (lineage.sources(name, step) is not None) == is_admitted


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(graph=graphs(max_ops=12), data=st.data())
def test_the_bytes_of_a_repetition_are_those_after_the_law(graph: Graph, data: st.DataObject) -> None:
    """What is counted without rewriting is what liveness finds in the rewritten graph."""
    assume(graph.ops)
    problem = problem_of(graph, 1)
    lineage = lineage_of(problem)
    kept = {graph.values[name].storage for name in graph.results}
    rebuilt: dict[int, tuple[str, ...]] = {}
    for step, op in enumerate(graph.ops):
        names = [
            name
            for name in graph.reads(op)
            if name not in kept and step > 0 and lineage.sources(name, step) is not None and data.draw(st.booleans())
        ]
        if names:
            rebuilt[step] = lineage.oldest_first(names)
    rewritten, decisions = rebuild_all(graph, rebuilt)
    ops, counted = live_bytes_with(problem, lineage, rebuilt)
    assert counted == live_bytes(rewritten, problem.workspace)
    assert [op.captured for op in ops] == [op.captured for op in rewritten.ops]
    assert len(decisions) == sum(len(names) for names in rebuilt.values())


@pytest.mark.parametrize("step", [5, 7])
def test_a_chain_is_repeated_in_one_piece(step: int) -> None:
    """The decisions name the youngest storage first, each older one before the op that was repeated last."""
    graph = chain(5)
    _, decisions = rebuild_all(graph, {step: ("a1", "a2")} if step == 7 else {step: ("a2",)})
    assert decisions[0] == Recompute("a2", graph.ops[step].name)
    if step == 7:
        assert decisions[1] == Recompute("a1", f"{graph.ops[2].name}$1")
