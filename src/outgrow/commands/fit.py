"""What does `outgrow fit` do? It answers what users ask first: how large a batch fits, and how little memory is enough.

Both answers are predictions: no step of the workload is run, and its model takes no memory.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

from outgrow.commands.job import Job, Prospect
from outgrow.errors import Infeasible, InvalidWorkload
from outgrow.frontends.preparing.largest import Trial, largest, trial
from outgrow.ir.graph import Graph
from outgrow.planning.order.lean import Orders
from outgrow.planning.pareto import curve, range_of, slowdown_of, smallest_budget
from outgrow.planning.planned import Planned
from outgrow.report.columns import aligned
from outgrow.report.curve import curve_picture
from outgrow.report.output import write_atomically, write_data
from outgrow.report.progress import Narrator
from outgrow.report.summary import summary_of
from outgrow.units import format_bytes

_EQUAL = 3
"""So many values that give a step of the same size say that this does not depend on the setting."""
_POINTS = 12
"""Budgets from the floor to the peak in core in the table and the picture."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What to look for: the largest value of the setting `vary` (None: the smallest budget) at this slowdown.

    Values are multiples of `multiple`.
    """

    vary: str | None
    slowdown: float
    multiple: int


def fit(job: Job, wish: Wish, narrator: Narrator) -> None:
    """Tell the largest value of a setting that fits the budget, or the smallest budget and what memory buys."""
    prospect = Prospect.of(job)
    if wish.vary is None:
        _smallest(job, wish, prospect, narrator)
    else:
        _largest(job, wish.vary, wish, prospect, narrator)
    prospect.tell_remark(narrator)


def _largest(job: Job, name: str, wish: Wish, prospect: Prospect, narrator: Narrator) -> None:
    trials: list[Trial] = []
    slowdown, multiple = wish.slowdown, wish.multiple

    def tried(value: int) -> Trial:
        narrator.stage(f"{name} {value}")
        try:
            found = trial(prospect.ahead({**job.settings, name: value}), job.limit_bytes, job.planner, value)
        except InvalidWorkload as fault:
            if not trials:
                raise
            found = Trial(value, fault)
        trials.append(found)
        narrator.say(f"{name} {value}: {_outcome(found, slowdown)}")
        if _is_without_influence(trials[-_EQUAL:]):
            values = ", ".join(str(item.value) for item in trials[-_EQUAL:])
            raise InvalidWorkload(
                f"With {name} {values} the step is the same in size: --vary needs a setting that this depends on."
            )
        return found

    first = job.settings.get(name, multiple)
    if not isinstance(first, int) or first < 1 or first % multiple:
        wanted = f"a multiple of {multiple}" if multiple > 1 else "a whole number of 1 or more"
        raise InvalidWorkload(f"--set {name}={first} is where the search begins: give {wanted}.")
    best = largest(tried, first, slowdown, multiple=multiple)
    budget = format_bytes(job.limit_bytes)
    found = [_trial_data(item, job.workload) for item in trials]
    value = None if best is None else best.value
    write_data(job.outputs.json, {"vary": name, "slowdown": slowdown, "largest": value, "trials": found})
    if best is None:
        last = trials[-1].found
        refusal = last if isinstance(last, Infeasible) else None
        why = "Its plan is slower: raise --slowdown or --memory-budget." if isinstance(last, Planned) else last
        raise Infeasible(
            f"Not even {name} {multiple} fits {budget} at {slowdown:g} times the seconds in core. {why}",
            floor_bytes=refusal.floor_bytes if refusal else 0,
            culprit=refusal.culprit if refusal else "",
        )
    narrator.say(f"\nThe largest {name} that fits {budget} at {slowdown:g} times the seconds in core: {best.value}")


def _is_without_influence(trials: Sequence[Trial]) -> bool:
    """Whether values that were doubled each time gave the same operators of tensors of the same sizes.

    Numbers among the arguments of operators may differ: a learning rate is one.
    """
    steps = [_measure(item.found.graph) for item in trials if isinstance(item.found, Planned)]
    is_doubled = all(after.value == 2 * before.value for before, after in pairwise(trials))
    return len(steps) == _EQUAL and is_doubled and all(step == steps[0] for step in steps)


def _measure(step: Graph) -> tuple[object, ...]:
    """Return what says how much memory and arithmetic a step is."""
    return step.storages, step.values, [(op.operator, op.references, op.results) for op in step.ops]


def _outcome(trial: Trial, slowdown: float) -> str:
    if isinstance(trial.found, InvalidWorkload):
        return f"is no workload: {trial.found}"
    if isinstance(trial.found, Infeasible):
        return f"does not fit (needs {format_bytes(trial.found.floor_bytes)})"
    plan = trial.found.plan
    outcome = "fits" if trial.fits(slowdown) else "is too slow"
    seconds = f"{slowdown_of(plan):.3f} times the seconds in core"
    return f"{outcome}, {seconds}, {format_bytes(plan.in_core.peak_bytes)} in core"


def _smallest(job: Job, wish: Wish, prospect: Prospect, narrator: Narrator) -> None:
    narrator.stage("capture")
    ahead = prospect.ahead(job.settings)
    orders, floor = Orders(ahead.problem()), ahead.floor_bytes()
    narrator.stage("smallest budget")
    best = smallest_budget(orders, wish.slowdown, planner=job.planner, least_bytes=floor)
    in_core = max(floor, range_of(orders)[1])
    budgets = [floor + (in_core - floor) * part // _POINTS for part in range(_POINTS + 1)]
    points = curve(orders, budgets, planner=job.planner)
    rows = [("budget", "times the seconds in core")]
    rows += [(format_bytes(point.budget_bytes), f"{point.slowdown:.3f}") for point in points]
    narrator.say(aligned(rows, numbers_from=0))
    narrator.say(
        f"\nThe smallest budget at {wish.slowdown:g} times the seconds in core: {format_bytes(best.budget_bytes)}"
    )
    found = {"slowdown": wish.slowdown, "smallest": asdict(best), "curve": [asdict(point) for point in points]}
    write_data(job.outputs.json, found)
    if job.outputs.report is not None:
        write_atomically(job.outputs.report, curve_picture(points))


def _trial_data(trial: Trial, workload: str) -> dict[str, object]:
    if not isinstance(trial.found, Planned):
        return {"value": trial.value, "infeasible": str(trial.found)}
    return {"value": trial.value, **summary_of(trial.found, workload).to_data()}
