"""Sequences in arrays are those of the graphs that the laws derive from them."""

from dataclasses import replace

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outgrow.analysis.liveness import Gap, gaps, lifetimes, live_bytes
from outgrow.ir.graph import Graph
from outgrow.ir.stand_ins import Leeway, numbered
from outgrow.ir.text import parse_graph
from outgrow.ir.verify import verify
from outgrow.operators.effects import QUIET
from outgrow.operators.in_place import IN_PLACE
from outgrow.plan import Recompute
from outgrow.planning.free.free import free_rewrites
from outgrow.planning.leaving import leaving
from outgrow.planning.search.decisions import named
from outgrow.planning.search.residence import Residence, residence
from outgrow.planning.search.sequence import DISCARD, KEEP, REBUILD, sequence_of
from outgrow.planning.search.space import space_of
from outgrow.planning.search.tables import tables_of
from outgrow.rewriting.derive import apply_laws
from tests.graphs import graphs
from tests.planning.test_planners import chain, problem_of


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(graph=graphs(max_ops=14), minimum_bytes=st.sampled_from((4, 512)), anchored=st.booleans(), data=st.data())
def test_a_sequence_is_what_the_laws_derive(
    graph: Graph, minimum_bytes: int, anchored: bool, data: st.DataObject
) -> None:
    """For any policy the decisions give a valid graph with the ops, live bytes and gaps of the arrays."""
    problem = replace(problem_of(graph, 1 << 40, minimum_bytes=minimum_bytes), anchored=anchored)
    rewritten = free_rewrites(problem).graph
    space = space_of(problem, rewritten)
    tables = space.tables
    count = len(tables.use_at)
    choices = data.draw(st.lists(st.sampled_from((KEEP, REBUILD, DISCARD)), min_size=count, max_size=count))
    policy = np.array(choices, dtype=np.int8)
    sequence = sequence_of(tables, policy)
    if sequence.culprit >= 0:
        assert choices.count(KEEP) < len(choices)
        return
    there = Residence.of(residence(tables, sequence, policy))
    names = named(space, sequence, there.over)
    derived = apply_laws(rewritten, names.decisions)
    verify(derived, captured=numbered(graph, Leeway(in_place=IN_PLACE, quiet=QUIET)))
    assert [op.name for op in derived.ops] == list(names.ops)
    leaves = leaving(problem, derived) & set(rewritten.storages)
    stowed = {space.names[at] for at, rest in enumerate(tables.stow_rest) if rest >= 0 and choices[rest] != KEEP}
    held = live_bytes(derived, problem.workspace)
    if anchored:  # what outlives the step and is not stowed has its room from the beginning, and stays in it
        staying = derived.outliving
        leaves -= staying - stowed
        for name in staying - stowed:
            for at in range(lifetimes(derived)[name].birth):
                held[at] += derived.storages[name].size_bytes
    assert there.live.tolist() == held
    expected = [
        # what is stowed has a copy of its first version
        (
            gap.begin,
            gap.end,
            gap.storage,
            gap.dirty and (gap.storage not in stowed or _is_new(derived, gap)),
            gap.size_bytes,
        )
        for gap in gaps(derived, minimum_bytes=minimum_bytes, leaving=leaves)
    ]
    found = [
        (int(begin), int(end), names.instances[one], bool(dirty), int(size))
        for one, begin, end, size, dirty, _ in zip(*there.gaps, strict=True)
        if begin >= 0 and end < len(names.ops)
    ]
    assert sorted(found) == expected


def _is_new(graph: Graph, gap: Gap) -> bool:
    """Whether the step has written the version that rests, or made it."""
    return gap.storage in graph.born_at or any(gap.storage in written for written in graph.written_at[: gap.begin + 1])


def policy_of(graph: Graph, **rests: int) -> tuple[list[str], list[str]]:
    """The ops that repeat others, and the storages rebuilt, if these storages are given up before their last use."""
    space = space_of(problem_of(graph, 1 << 40), graph)
    tables = space.tables
    policy = np.full(len(tables.use_at), KEEP, dtype=np.int8)
    for name, choice in rests.items():
        storage = space.names.index(name)
        policy[tables.use_start[storage + 1] - 2] = choice
    sequence = sequence_of(tables, policy)
    names = named(space, sequence, Residence.of(residence(tables, sequence, policy)).over)
    return [name for name in names.ops if "$" in name], [
        decision.storage for decision in names.decisions if isinstance(decision, Recompute)
    ]


def test_what_a_chain_needs_is_built_again_first() -> None:
    """Where the operand of a chain was given up as well, it comes before the chain that reads it."""
    repeated, rebuilt = policy_of(chain(4), a1=DISCARD, a2=DISCARD)
    assert len(repeated) == 3
    assert rebuilt == ["a1", "a2", "a1"]


def test_a_rebuilt_storage_that_is_kept_is_built_once() -> None:
    """Kept to the end of its rest, the operand serves its own next use too."""
    repeated, rebuilt = policy_of(chain(4), a1=REBUILD, a2=DISCARD)
    assert len(repeated) == 2
    assert rebuilt == ["a2", "a1"]


def test_a_step_that_draws_numbers_is_not_repeated() -> None:
    """A random result that was given up cannot be built again, and the sequence says which."""
    graph = parse_graph(
        """
        storage x input 8
        storage r generator 0
        storage a 8
        storage b 8
        storage c 8
        value %x: x@0 f32[2]
        %a: a@0 f32[2] = aten.rand.default(%x) writes r
        %b: b@0 f32[2] = aten.exp.default(%x)
        %c: c@0 f32[2] = aten.add.Tensor(%a, %b)
        return %c
        """
    )
    tables = tables_of(problem_of(graph, 1 << 40), graph)
    sequence = sequence_of(tables, np.full(len(tables.use_at), DISCARD, dtype=np.int8))
    assert tuple(graph.storages)[sequence.culprit] == "a"


def test_a_result_of_the_step_is_not_written_over_what_may_leave() -> None:
    """The storage would have to stay with the result, so that its gap before that would not be there."""
    graph = parse_graph(
        """
        storage x input 8
        storage a 8
        storage b 8
        storage c 8
        storage d 8
        value %x: x@0 f32[2]
        %a: a@0 f32[2] = aten.relu.default(%x)
        %b: b@0 f32[2] = aten.relu.default(%x)
        %c: c@0 f32[2] = aten.relu.default(%b)
        %d: d@0 f32[2] = aten.relu.default(%a)
        return %d
        """
    )
    tables = tables_of(problem_of(graph, 1 << 40), graph)
    policy = np.full(len(tables.use_at), KEEP, dtype=np.int8)
    sequence = sequence_of(tables, policy)
    found = Residence.of(residence(tables, sequence, policy))
    assert found.over.tolist() == [0, 0, 1, 0]
    assert [(tuple(graph.storages)[one], begin, end) for one, begin, end in zip(*found.gaps[:3], strict=True)] == [
        ("a", 0, 3)
    ]
