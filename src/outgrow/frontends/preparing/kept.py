"""Which plans were made before? Their decisions are kept on the disk, so that a job that starts again need not search.

A plan is kept under the fingerprint of its graph, the machine, the planner and the source text of the planners. Only
the decisions of a kept plan are used: they are derived, verified and simulated as if they had just been made. They are
made anew

    where they no longer fit the capacity, or move what may not be moved now,
    where the room or the costs are so different that a better plan is to be expected.
"""

import json
from hashlib import sha256
from pathlib import Path

from outgrow.errors import InvalidPlan, NotApplicable
from outgrow.files import cache_folder, write_to_cache
from outgrow.ir.text import fingerprint
from outgrow.plan import Plan, Stow, Swap
from outgrow.planning.compiled import folder
from outgrow.planning.order.lean import Orders
from outgrow.planning.planned import Planned
from outgrow.planning.planner import planned
from outgrow.planning.problem import Problem
from outgrow.report.planfile import plan_from_json, plan_to_data

_MORE_ROOM, _OTHER_SECONDS = 0.03, 0.05
"""A plan serves while capacity and peak in core differ from its own by at most 3 %, and the seconds by at most 5 %."""
_MOST_OF_A_GRAPH, _MOST_FILES = 8, 256


def planned_or_kept(problem: Problem, planner: str, orders: Orders) -> Planned:
    """Return a plan that was kept if one serves; else make one and keep it. One that shall be quick is made anew.

    Its bound is the arithmetic alone. Raises `Infeasible` below the floor.
    """
    if problem.quick:
        return planned(problem, planner, prove=False, orders=orders)
    file = _file(problem, planner)
    known = _read(file)
    for plan in known:
        found = _again(plan, problem, orders) if serves(plan, problem) else None
        if found is not None:
            return found
    found = planned(problem, planner, prove=False, orders=orders)
    if not found.plan.is_empty:
        newest = [found.plan, *known][:_MOST_OF_A_GRAPH]
        write_to_cache(file, "".join(f"{json.dumps(plan_to_data(plan))}\n" for plan in newest))
        _forget_the_oldest(file.parent)
    return found


def serves(plan: Plan, problem: Problem) -> bool:
    """Whether a plan was made for about the capacity of a problem, and moves nothing that has to stay."""
    moved = {decision.storage for decision in plan.decisions if isinstance(decision, Stow | Swap)}
    return _is_about(plan.budget.capacity_bytes, problem.budget.capacity_bytes) and not moved & problem.fixed


def _is_about(one: int, other: int) -> bool:
    return max(one, other) <= min(one, other) * (1 + _MORE_ROOM)


def _again(plan: Plan, problem: Problem, orders: Orders) -> Planned | None:
    """Return what the decisions of a plan make of a problem; None if they do not fit, or peak or seconds changed."""
    try:
        found = planned(problem, plan.planner, prove=False, earlier=plan, orders=orders)
    except (InvalidPlan, NotApplicable):
        return None
    before, now = plan.predicted.seconds, found.plan.predicted
    is_as_ever = abs(now.seconds - before) <= _OTHER_SECONDS * before
    is_as_ever &= _is_about(plan.in_core.peak_bytes, found.plan.in_core.peak_bytes)
    return found if is_as_ever and now.peak_bytes <= problem.budget.capacity_bytes else None


def _file(problem: Problem, planner: str) -> Path:
    """Return the file of the plans that some planner made for the graph of a problem, a line each."""
    rules = problem.minimum_bytes, problem.piece_bytes, problem.anchored
    machine = problem.machine.name, problem.machine.tier_bytes
    key = (fingerprint(problem.graph), machine, planner, rules, folder().name)
    return cache_folder("plans") / f"{sha256(repr(key).encode()).hexdigest()[:24]}.jsonl"


def _read(file: Path) -> list[Plan]:
    """Return the plans of a file, newest first; none where it cannot be read."""
    try:
        return [plan_from_json(line) for line in file.read_text().splitlines()]
    except (OSError, ValueError, InvalidPlan):
        return []


def _forget_the_oldest(plans: Path) -> None:
    try:
        files = sorted(plans.glob("*.jsonl"), key=lambda file: file.stat().st_mtime)
        for file in files[:-_MOST_FILES]:
            file.unlink(missing_ok=True)
    except OSError:  # another process forgets the same ones
        return
