"""Which plan has a program within the budget? Where addresses leave holes, one that was made for less memory.

On a device planned addresses leave holes, so a plan that keeps the capacity may have a program that does not. A quick
plan is made for less and less memory until its program fits, then at most two thorough ones for that much; the quick
one serves if none of these has a program that fits and is quicker. If even a quick plan is refused, the step is below
the floor; of a new step, the floor that `Infeasible` names has a plan and a program. On a CPU there are no holes, and
one plan is made.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter

from outgrow.analysis.cost import Cost, costs_of
from outgrow.errors import DeviceFull, Infeasible
from outgrow.frontends.platforms.platform import Platform
from outgrow.frontends.preparing.kept import planned_or_kept
from outgrow.frontends.preparing.overhead import within
from outgrow.frontends.tracing.captured import Captured
from outgrow.ir.machine import Machine
from outgrow.plan import UNLIMITED, Budget
from outgrow.planning.floor import needed_bytes
from outgrow.planning.order.lean import Orders
from outgrow.planning.planned import Planned
from outgrow.planning.problem import Problem
from outgrow.planning.search.boards import ENOUGH
from outgrow.runtime.program import Program
from outgrow.units import format_bytes

_ROOMY, _ROOMY_BYTES = 2, 64 << 20
_HOLES_SHARE = 1 / 256
"""The first plan leaves this share of the capacity to holes, at most of what the step needs in core."""
_LEAST_LESS_SHARE = 1 / 128
"""If its program still needs too much, the next plan gets at least this share of the budget less."""
_THOROUGH = 2
"""How many plans are searched for thoroughly."""
_FLOORS = 8
"""How often a floor that has a plan but no program is raised, at most."""


def is_ample(taken_bytes: int, within_bytes: int, multiple: float = _ROOMY) -> bool:
    """Whether there is room for a multiple of what is taken, at least twice that, and 64 MiB more.

    Then the user's function is called as it is: Python may hold tensors longer than the graph, and the heap may waste
    what it likes.
    """
    return taken_bytes * max(multiple, _ROOMY) + _ROOMY_BYTES <= within_bytes


@dataclass(frozen=True)
class _Fitted:
    """A plan, its program, and how much less memory than the capacity it was made for."""

    planned: Planned
    program: Program
    less_bytes: int

    @property
    def seconds(self) -> float:
        """What the step is predicted to take."""
        return self.planned.plan.predicted.seconds


@dataclass(frozen=True)
class Demand:
    """What is to be planned: a captured step, what is known of costs, what stays on the device, and what is away now.

    `overhead_within` tells the overhead of the process within a budget, in bytes.
    """

    platform: Platform
    machine: Machine
    planner: str
    captured: Captured
    known: Mapping[str, Cost]
    fixed: frozenset[str]
    resting: frozenset[str]
    overhead_within: Callable[[int], int]
    progress: Callable[[str, float], None]

    @cached_property
    def problem(self) -> Problem:
        """The problem of planning the step, without a budget."""
        graph = self.captured.graph
        return Problem(
            graph,
            costs_of(graph, self.machine.device, self.known),
            self.machine,
            Budget(UNLIMITED),
            least_bytes=self.platform.least_bytes(),
            fixed=self.fixed,
            resting=self.resting,
            anchored=self.platform.anchored,
            progress=self.progress,
        )

    @cached_property
    def orders(self) -> Orders:
        """The orders of the step, which all plans share."""
        return Orders(self.problem)

    @cached_property
    def in_core_bytes(self) -> int:
        """What the captured step needs as it is."""
        return needed_bytes(self.problem)

    def capacity_bytes(self, limit_bytes: int) -> int:
        """What the overhead leaves of a budget; 0 if the overhead is larger."""
        return max(0, limit_bytes - self.overhead_within(limit_bytes))


def fitted(demand: Demand, limit_bytes: int, *, is_new: bool, is_thorough: bool) -> tuple[Planned, Program]:
    """Return a plan within a budget, and its program.

    Raises `Infeasible` where there is none; if the step is new, the floor that it names has both.
    """
    if not demand.platform.anchored:
        planned = _planned(demand, limit_bytes, 0, is_quick=not is_thorough)
        planned.require_verified()
        return planned, demand.platform.program(demand.captured, planned)
    try:
        best = _quick(demand, limit_bytes)
    except Infeasible as refusal:
        floor = _floor(demand, refusal.floor_bytes) if is_new else refusal.floor_bytes
        if floor == refusal.floor_bytes:
            raise
        more = f"With the holes between addresses the step needs {format_bytes(floor)}."
        raise refusal.saying(more, floor_bytes=floor) from None
    if is_thorough and best.seconds > best.planned.in_core.seconds * (1 + ENOUGH):
        best = min([best, *_thorough(demand, limit_bytes, best.less_bytes)], key=attrgetter("seconds"))
    best.planned.require_verified()
    return best.planned, best.program


def _floor(demand: Demand, floor_bytes: int) -> int:
    """Return the floor, raised until it has a program; each refusal names the next floor to try.

    If the device itself has too little memory to try the ops of a plan, the floor of that plan is returned.
    """
    for _ in range(_FLOORS):
        try:
            _quick(demand, floor_bytes)
        except Infeasible as refusal:
            floor_bytes = refusal.floor_bytes
        except DeviceFull:
            break
        else:
            break
    return floor_bytes


def _quick(demand: Demand, limit_bytes: int) -> _Fitted:
    """Return a quick plan and its program; the plan gets less memory, step by step, until the program fits.

    Raises `Infeasible` where no plan has a program that fits.
    """
    less = usual = int(min(demand.capacity_bytes(limit_bytes), demand.in_core_bytes) * _HOLES_SHARE)
    while True:
        try:
            planned = _planned(demand, limit_bytes, less, is_quick=True)
        except Infeasible:
            if not usual or less > usual:
                raise
            less = usual = 0
            continue
        program, lacking = _program(demand, limit_bytes, planned)
        if lacking <= 0:
            return _Fitted(planned, program, less)
        less += max(lacking, int(limit_bytes * _LEAST_LESS_SHARE))


def _thorough(demand: Demand, limit_bytes: int, less_bytes: int) -> list[_Fitted]:
    """Return the first of `_THOROUGH` plans whose program fits, if any; each is made for less memory than the last."""
    for _ in range(_THOROUGH):
        try:
            planned = _planned(demand, limit_bytes, less_bytes, is_quick=False)
        except Infeasible:
            break
        program, lacking = _program(demand, limit_bytes, planned)
        if lacking <= 0:
            return [_Fitted(planned, program, less_bytes)]
        less_bytes += max(lacking, int(limit_bytes * _LEAST_LESS_SHARE))
    return []


def _program(demand: Demand, limit_bytes: int, planned: Planned) -> tuple[Program, int]:
    """Return the program of a plan, and the bytes that it needs beyond the capacity."""
    program = demand.platform.program(demand.captured, planned)
    return program, demand.platform.needed_bytes(planned, program) - demand.capacity_bytes(limit_bytes)


def _planned(demand: Demand, limit_bytes: int, less_bytes: int, *, is_quick: bool) -> Planned:
    """Return the plan for what the overhead leaves of the budget, less `less_bytes`."""
    problem = replace(demand.problem, quick=is_quick)
    return within(
        limit_bytes,
        lambda limit: demand.overhead_within(limit) + less_bytes,
        lambda budget: planned_or_kept(replace(problem, budget=budget), demand.planner, demand.orders),
    )
