"""Which plans were made before? Their decisions are kept on the disk, so that a job that starts again need not search.

A plan is kept under the fingerprint of its graph, the machine, the planner and the state of the planners' own text.
Decisions alone are kept: they are derived, verified and simulated as if they had just been made. They are made anew

    where they no longer fit the capacity, or move what may not be moved now,
    where there is so much more room, or the costs are so different, that a better plan is to be expected.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from outgrow.errors import NotApplicable
from outgrow.files import cache_folder, write_atomically
from outgrow.ir.text import fingerprint
from outgrow.plan import Decision, Stow, data_of, decision_of
from outgrow.planning.compiled import folder
from outgrow.planning.planner import Planned, planned
from outgrow.planning.problem import Problem

_MORE_ROOM, _OTHER_SECONDS = 0.03, 0.05
"""A plan serves for this share more capacity, and while it is predicted to take as long as ever but for this share."""
_MOST_OF_A_GRAPH, _MOST_FILES = 8, 256


@dataclass(frozen=True, slots=True)
class Kept:
    """Decisions, the capacity in bytes that they were made for, and the seconds that were predicted of them."""

    decisions: tuple[Decision, ...]
    capacity_bytes: int
    seconds: float

    @staticmethod
    def of(data: Mapping[str, Any]) -> "Kept":
        """Return what `data` says; raises `KeyError` or `TypeError` where it says nothing."""
        decisions = tuple(decision_of(item) for item in data["decisions"])
        return Kept(decisions, int(data["capacity_bytes"]), float(data["seconds"]))

    def data(self) -> dict[str, object]:
        """Return it as JSON has it."""
        decisions = [data_of(decision) for decision in self.decisions]
        return {"capacity_bytes": self.capacity_bytes, "seconds": self.seconds, "decisions": decisions}

    def serves(self, problem: Problem) -> bool:
        """Whether it was made for about this capacity, and moves nothing that may not be moved."""
        is_near = self.capacity_bytes <= problem.budget.capacity_bytes * (1 + _MORE_ROOM)
        is_tight = problem.budget.capacity_bytes <= self.capacity_bytes * (1 + _MORE_ROOM)
        stowed = {decision.storage for decision in self.decisions if isinstance(decision, Stow)}
        return is_near and is_tight and not stowed & problem.fixed

    def holds(self, found: Planned, problem: Problem) -> bool:
        """Whether it fits the capacity, and takes as long as was predicted when it was made."""
        predicted = found.plan.predicted
        is_as_ever = abs(predicted.seconds - self.seconds) <= _OTHER_SECONDS * self.seconds
        return predicted.peak_bytes <= problem.budget.capacity_bytes and is_as_ever


def planned_or_kept(problem: Problem, planner: str, *, prove: bool) -> Planned:
    """Return a plan that was kept if one serves; else make one and keep it. Raises `Infeasible` below the floor."""
    file = _file(problem, planner)
    known = _read(file)
    for kept in known:
        found = _again(kept, problem, planner, prove=prove) if kept.serves(problem) else None
        if found is not None:
            return found
    found = planned(problem, planner, prove=prove)
    if found.plan.decisions:
        made = Kept(found.plan.decisions, problem.budget.capacity_bytes, found.plan.predicted.seconds)
        newest = [made, *known][:_MOST_OF_A_GRAPH]
        write_atomically(file, json.dumps([kept.data() for kept in newest]))
        _forget_the_oldest(file.parent)
    return found


def _again(kept: Kept, problem: Problem, planner: str, *, prove: bool) -> Planned | None:
    """Return the plan of decisions that were kept, or None where they do not hold any more."""
    try:
        found = planned(problem, planner, prove=prove, decisions=kept.decisions)
    except NotApplicable:
        return None
    return found if kept.holds(found, problem) else None


def _file(problem: Problem, planner: str) -> Path:
    """Return the file of the plans that some planner made for the graph of a problem."""
    sizes = problem.minimum_bytes, problem.piece_bytes
    key = (fingerprint(problem.graph), problem.machine.name, planner, sizes, folder().name)
    return cache_folder("plans") / f"{sha256(repr(key).encode()).hexdigest()[:24]}.json"


def _read(file: Path) -> list[Kept]:
    """Return the plans of a file, newest first; none where it cannot be read."""
    try:
        return [Kept.of(data) for data in json.loads(file.read_text())]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _forget_the_oldest(plans: Path) -> None:
    files = sorted(plans.glob("*.json"), key=lambda file: file.stat().st_mtime)
    for file in files[:-_MOST_FILES]:
        file.unlink(missing_ok=True)
