"""Rules that are tried together give what they give one by one."""

from dataclasses import replace
from functools import reduce

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outgrow.analysis.liveness import peak_bytes
from outgrow.ir.graph import Graph
from outgrow.plan import Budget
from outgrow.planning.floor import floor_of
from outgrow.planning.free.free import free_rewrites
from outgrow.planning.search.annealing import HEADROOMS, LEADS, Trial, beats, best_of, conditions_of, tried
from outgrow.planning.search.choice import FARTHEST, PARTLY, WIDEST, SwapRule
from outgrow.planning.search.sequence import DISCARD, KEEP, REBUILD
from outgrow.planning.search.space import space_of
from tests.graphs import graphs
from tests.planning.test_planners import problem_of

RULES = st.builds(
    SwapRule, st.sampled_from((FARTHEST, PARTLY, WIDEST)), st.sampled_from(HEADROOMS), st.sampled_from(LEADS)
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    graph=graphs(max_ops=14),
    share=st.floats(0.0, 1.0),
    rules=st.lists(RULES, min_size=1, max_size=6),
    data=st.data(),
)
def test_the_best_of_some_rules_is_the_best_of_their_trials(
    graph: Graph, share: float, rules: list[SwapRule], data: st.DataObject
) -> None:
    """Also where another policy is to be beaten, and where nothing fits: then less is beyond the capacity."""
    ample = problem_of(graph, 1 << 40, minimum_bytes=4)
    rewritten = free_rewrites(ample).graph
    floor, peak = floor_of(ample, rewritten)[0], peak_bytes(graph, ample.workspace)
    problem = replace(ample, budget=Budget(floor + int(share * (peak - floor))))
    conditions = conditions_of(space := space_of(problem, rewritten))
    count = len(space.start)
    choices = st.lists(st.sampled_from((KEEP, REBUILD, DISCARD)), min_size=count, max_size=count)
    other, policy = (np.array(data.draw(choices), dtype=np.int8) for _ in range(2))
    best = tried(conditions, other, SwapRule())

    def better(best: Trial, trial: Trial) -> Trial:
        return trial if beats(trial, best, 0.0) else best

    expected = reduce(better, (tried(conditions, policy, rule) for rule in rules), best)
    found = best_of(conditions, policy, rules, best)
    assert (found.rule, found.seconds, found.excess_bytes) == (
        expected.rule,
        expected.seconds,
        expected.excess_bytes,
    )
    assert (found.policy == expected.policy).all()
