"""How is a plan kept in a file? As JSON whose objects are its records; a decision says its `kind`.

`plan_to_data` and `plan_from_data` are exact inverses. The file says in which version of this form it is written.
Another version is an `InvalidPlan` that names both, and a damaged file is one that says what is wrong and where.
Whether a plan belongs to a graph is not asked here but where it is applied (`planning.planner`).
"""

import json
from collections.abc import Mapping
from dataclasses import asdict

from outgrow.errors import InvalidPlan
from outgrow.plan import Decision, Plan
from outgrow.report.fields import Fields
from outgrow.rewriting.laws import LAWS

_KINDS: Mapping[str, type[Decision]] = {law.name: kind for kind, law in LAWS.items()}
"""The decisions by what their laws are called."""

_VERSION = 1
"""Raised when earlier versions could not read a plan that is written now, or would understand it otherwise."""


def plan_to_data(plan: Plan) -> dict[str, object]:
    """Return a plan as JSON data."""
    decisions = [{"kind": LAWS[type(decision)].name, **asdict(decision)} for decision in plan.decisions]
    return {"version": _VERSION, **asdict(plan), "decisions": decisions}


def plan_from_json(text: str) -> Plan:
    """Return the plan that was written as `text`; raises `InvalidPlan` where it is damaged."""
    return plan_from_data(parsed(text, "plan"))


def parsed(text: str, what: str) -> object:
    """Return JSON data; raises `InvalidPlan`, naming line and column, for text that is none."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidPlan(
            f"The {what} is not JSON: {error.msg} in line {error.lineno}, column {error.colno}."
        ) from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, lists in lists in lists
        raise InvalidPlan(f"The {what} cannot be read: {error}.") from error


def plan_from_data(data: object) -> Plan:
    """Return the plan of JSON data; raises `InvalidPlan` where it is damaged."""
    plan = Fields(data, "plan")
    version = plan.integer("version") if "version" in plan.data else 0
    if version != _VERSION:
        raise InvalidPlan(
            f"The plan is written in version {version} of its form, and this outgrow reads version {_VERSION}. "
            "Plan again with this outgrow, or use the one that wrote it."
        )
    return plan.record(Plan, decisions=plan.each("decisions", _decision))


def _decision(fields: Fields) -> Decision:
    kind = fields.text("kind")
    if kind not in _KINDS:
        raise InvalidPlan(f"{fields.path}.kind is {kind!r}, not one of {', '.join(_KINDS)}.")
    return fields.record(_KINDS[kind])
