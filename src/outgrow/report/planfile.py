"""How is a plan kept in a file? As JSON whose objects are its records; a decision says its `kind`.

`plan_to_data` and `plan_from_data` are exact inverses. The file says in which version of this form it is written.
Another version is an `InvalidPlan` that names both, and a damaged file is one that says what is wrong and where.
Whether a plan belongs to a graph is not asked here but where it is applied (`planning.planner`).
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict

from outgrow.errors import InvalidPlan
from outgrow.plan import (
    Budget,
    ByLayout,
    Decision,
    Estimate,
    Move,
    Piece,
    Plan,
    Recompute,
    Reuse,
    Stow,
    Swap,
    TakeApart,
)
from outgrow.report.fields import Fields

_KINDS: Mapping[type[Decision], str] = {
    Move: "move",
    TakeApart: "take apart",
    ByLayout: "by layout",
    Reuse: "reuse",
    Recompute: "recompute",
    Stow: "stow",
    Swap: "swap",
}

_VERSION = 1
"""Raised when earlier versions could not read a plan that is written now, or would understand it otherwise."""


def plan_to_data(plan: Plan) -> dict[str, object]:
    """Return a plan as JSON data."""
    decisions = [{"kind": _KINDS[type(decision)], **asdict(decision)} for decision in plan.decisions]
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


def plan_from_data(data: object) -> Plan:
    """Return the plan of JSON data; raises `InvalidPlan` where it is damaged."""
    plan = Fields(data, "plan")
    version = plan.integer("version") if "version" in plan.data else 0
    if version != _VERSION:
        raise InvalidPlan(
            f"The plan is written in version {version} of its form, and this outgrow reads version {_VERSION}. "
            "Plan again with this outgrow, or use the one that wrote it."
        )
    budget = plan.fields("budget")
    return Plan(
        planner=plan.text("planner"),
        fingerprint=plan.text("fingerprint"),
        budget=Budget(budget.integer("limit_bytes"), budget.integer("overhead_bytes")),
        decisions=plan.each("decisions", _decision),
        predicted=estimate(plan.fields("predicted")),
        floor_bytes=plan.integer("floor_bytes"),
        floor_op=plan.text("floor_op"),
        in_core=estimate(plan.fields("in_core")),
        bound_seconds=plan.number("bound_seconds"),
        planning_seconds=plan.number("planning_seconds"),
        notes=plan.texts("notes"),
    )


def estimate(fields: Fields) -> Estimate:
    """Return peak and seconds."""
    return Estimate(fields.integer("peak_bytes"), fields.number("seconds"))


def _decision(fields: Fields) -> Decision:
    kind = fields.text("kind")
    if kind not in _READERS:
        raise InvalidPlan(f"{fields.path}.kind is {kind!r}, not one of {', '.join(_READERS)}.")
    return _READERS[kind](fields)


def _swap(fields: Fields) -> Swap:
    return Swap(
        storage=fields.text("storage"),
        after=fields.optional_text("after"),
        dropped=fields.text("dropped"),
        pieces=fields.each("pieces", _piece),
        before=fields.text("before"),
    )


def _stow(fields: Fields) -> Stow:
    return Stow(
        storage=fields.text("storage"),
        pieces=fields.each("pieces", _piece),
        before=fields.optional_text("before"),
        after=fields.optional_text("after"),
        dropped=fields.optional_text("dropped"),
    )


def _piece(fields: Fields) -> Piece:
    return Piece(fields.integer("begin"), fields.integer("end"), fields.text("before"))


_READERS: Mapping[str, Callable[[Fields], Decision]] = {
    "move": lambda fields: Move(fields.texts("ops"), fields.text("after")),
    "take apart": lambda fields: TakeApart(fields.text("op")),
    "by layout": lambda fields: ByLayout(fields.text("op")),
    "reuse": lambda fields: Reuse(fields.text("op"), fields.integer("operand")),
    "recompute": lambda fields: Recompute(fields.text("storage"), fields.text("before")),
    "stow": _stow,
    "swap": _swap,
}
