"""Is a plan read as it was written, and is damage named?"""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outgrow.errors import InvalidPlan
from outgrow.plan import Budget, Estimate, Piece, Plan, Reuse, Swap
from outgrow.report.planfile import plan_from_json, plan_to_data
from outgrow.rewriting.laws import LAWS

NAMES = st.text(min_size=1, max_size=8)
SIZES = st.integers(0, 1 << 50)
SECONDS = st.floats(0, 1e6)
ESTIMATES = st.builds(Estimate, SIZES, SECONDS)
DECISIONS = st.one_of(*map(st.from_type, LAWS))
PLANS = st.builds(
    Plan,
    planner=NAMES,
    fingerprint=NAMES,
    budget=st.builds(Budget, SIZES, SIZES),
    decisions=st.lists(DECISIONS, max_size=4).map(tuple),
    predicted=ESTIMATES,
    floor_bytes=SIZES,
    floor_op=NAMES,
    in_core=ESTIMATES,
    bound_seconds=SECONDS,
    planning_seconds=SECONDS,
    notes=st.lists(NAMES, max_size=2).map(tuple),
)
SWAP = Swap("a", "f", "g", (Piece(0, 64, "h"),), "h")
PLAN = Plan("search", "0123", Budget(128), (SWAP, Reuse("g")), Estimate(96, 1.5), 64, "g", Estimate(256, 1.0), 1.0)


@given(plan=PLANS)
def test_reading_is_the_inverse_of_writing(plan: Plan) -> None:
    """Every plan, of decisions of all kinds with names of any letters, comes back equal."""
    assert plan_from_json(json.dumps(plan_to_data(plan))) == plan


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        (("version",), 2, "written in version 2 of its form, and this outgrow reads version 1. Plan again"),
        (("version",), "new", 'plan.version is "new", not an integer'),
        (("planner",), 3, "plan.planner is 3, not a string"),
        (("planner",), None, "plan.planner is null, not a string"),
        (("budget",), [], r"plan.budget is \[\], not an object"),
        (("budget", "limit_bytes"), "8GiB", 'plan.budget.limit_bytes is "8GiB", not an integer'),
        (("floor_bytes",), True, "plan.floor_bytes is true, not an integer"),
        (
            ("floor_bytes",),
            10**400,
            r"plan.floor_bytes is 1000000000000000000000000000000000000\.\.\., not an integer of at most 512",
        ),
        (("predicted", "seconds"), "soon", 'plan.predicted.seconds is "soon", not a number'),
        (("decisions", 0, "kind"), "swop", r"plan.decisions\[0\].kind is 'swop', not one of move, take apart"),
        (("decisions", 0, "pieces", 0, "end"), 1.5, r"decisions\[0\].pieces\[0\].end is 1.5, not an integer"),
        (("decisions", 1), "reuse", r'plan.decisions\[1\] is "reuse", not an object'),
        (("notes",), [1], r"plan.notes\[0\] is 1, not a string"),
    ],
)
def test_a_wrong_field_is_named_with_its_path(path: tuple[str | int, ...], value: object, reason: str) -> None:
    """The refusal says where in the file the damage is and what stands there."""
    data = json.loads(json.dumps(plan_to_data(PLAN)))
    place = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(InvalidPlan, match=reason):
        plan_from_json(json.dumps(data))


def test_a_plan_without_a_version_is_an_old_one() -> None:
    """Before the first version, files did not say any."""
    data = json.loads(json.dumps(plan_to_data(PLAN)))
    del data["version"]
    with pytest.raises(InvalidPlan, match="written in version 0 of its form, and this outgrow reads version 1"):
        plan_from_json(json.dumps(data))


def test_a_missing_field_is_named() -> None:
    """What is not there is named as well."""
    data = json.loads(json.dumps(plan_to_data(PLAN)))
    del data["decisions"][0]["before"]
    with pytest.raises(InvalidPlan, match=r"plan.decisions\[0\] has no 'before'"):
        plan_from_json(json.dumps(data))


@pytest.mark.parametrize("text", ["[" * 100_000, f"[{'1' * 5000}]"], ids=["deep", "long"])
def test_a_file_that_python_cannot_read_is_refused(text: str) -> None:
    """Lists in lists without end, or a number of thousands of digits."""
    with pytest.raises(InvalidPlan, match="The plan cannot be read"):
        plan_from_json(text)


def test_a_truncated_file_is_no_json() -> None:
    """The refusal says in which line the text ends."""
    with pytest.raises(InvalidPlan, match=r"The plan is not JSON: .* in line \d+, column \d+"):
        plan_from_json(json.dumps(plan_to_data(PLAN), indent=2)[:100])
