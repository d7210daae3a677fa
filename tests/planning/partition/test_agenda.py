"""Does every agenda keep what must come before, and does it gain what exchanges beside arithmetic can?"""

from hypothesis import given
from hypothesis import strategies as st

from outgrow.planning.partition.agenda import MOST_FETCHES, Job, agenda


@st.composite
def steps(draw: st.DrawFn) -> tuple[Job, ...]:
    """Jobs that come after some of those before them."""
    jobs: list[Job] = []
    for at in range(draw(st.integers(1, 14))):
        before = draw(st.sets(st.integers(0, at - 1), max_size=3)) if at else set[int]()
        fetched, seconds, handed_on = (draw(st.sampled_from((0.0, 1.0, 2.5))) for _ in range(3))
        jobs.append(Job(tuple(sorted(before)), fetched, seconds, handed_on))
    return tuple(jobs)


@given(steps(), st.integers(1, 20))
def test_each_job_runs_once_after_those_that_must_come_before(jobs: tuple[Job, ...], window: int) -> None:
    """And what it fetches is sent for before it, after what it needs, with few fetches under way."""
    found = agenda(jobs, window)
    assert sorted(found.order) == list(range(len(jobs)))
    place = {job: at for at, job in enumerate(found.order)}
    assert all(place[earlier] < place[at] for at, job in enumerate(jobs) for earlier in job.before)
    sent_for = {other: place[at] for at, others in found.early.items() for other in others}
    assert len(sent_for) == sum(map(len, found.early.values()))
    for other, when in sent_for.items():
        assert jobs[other].fetched
        assert all(place[earlier] < when for earlier in jobs[other].before)
        assert when < place[other]
    for when in range(len(jobs)):
        assert sum(begin <= when < place[other] for other, begin in sent_for.items()) <= MOST_FETCHES


@given(steps(), st.integers(1, 20))
def test_the_seconds_are_between_what_must_be_and_one_after_the_other(jobs: tuple[Job, ...], window: int) -> None:
    """At least those of all arithmetic, and of all that travels; at most both."""
    found = agenda(jobs, window)
    arithmetic, travelling = sum(job.seconds for job in jobs), sum(job.fetched + job.handed_on for job in jobs)
    assert max(arithmetic, travelling) - 1e-9 <= found.seconds <= arithmetic + travelling + 1e-9


@given(steps())
def test_a_window_of_one_is_the_order_of_the_step(jobs: tuple[Job, ...]) -> None:
    """Then nothing is sent for early either."""
    found = agenda(jobs, 1)
    assert found.order == tuple(range(len(jobs)))
    assert not found.early


def test_two_chains_hide_the_exchanges_of_each_other() -> None:
    """Where one waits for its result, the other computes."""
    chains = [Job((at - 1,) if at % 5 else (), 0.0, 1.0, 0.5) for at in range(10)]
    assert agenda(chains, 1).seconds == 10 + 9 * 0.5
    assert agenda(chains, 10).seconds == 10 + 0.5
