"""Up to its limit, and no further, the law lets a chain be repeated."""

from hypothesis import given

from outgrow.analysis.chains import chain_limits
from outgrow.analysis.liveness import write_steps
from outgrow.ir.flight import flights
from outgrow.ir.graph import Graph
from outgrow.rewriting.draft import Draft
from outgrow.rewriting.recompute import why_not
from tests.graphs import graphs


@given(graph=graphs(max_ops=10))
def test_the_limits_are_those_of_the_law(graph: Graph) -> None:
    """For every storage that is never in flight, before every op."""
    limits, writes, draft = chain_limits(graph), write_steps(graph), Draft(graph)
    for step, op in enumerate(graph.ops):
        place = draft.place_of(op.name)
        assert place is not None
        for name in graph.storages.keys() - flights(graph).keys():
            chain = [draft.op(writer) for writer in draft.writers(name, place)]
            count = sum(at < step for at in writes.get(name, ()))
            may_be_repeated = count > 0 and limits[name][count - 1] >= step
            assert may_be_repeated == (why_not(draft, name, chain, place) is None)
