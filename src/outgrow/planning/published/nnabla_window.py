"""The window scheduler of the NNabla out-of-core paper, as a planner of this package.

Hayakawa and Narihira 2020, "Out-of-core training for extremely large-scale neural networks with adaptive
window-based scheduling", https://arxiv.org/abs/2010.14109. A window slides over the sequence of array uses:
its head is the next use to prefetch for, its tail the next copy out that is waited for.

    for each op f, in order
      A. grow: take uses at the head into the window while the window's bytes stay within the budget; an array that
         is on its way out is kept after all; one that is away is copied in from the beginning of f on
      B. make room for what f itself needs: wait for copies out at the tail, else take back the latest prefetches
      D. retire f: an array of which no use is left in the window is copied out from the end of f on

so nothing is swapped whose next use is already inside the window, and the window is as long as the budget allows.
Departures: storages that outlive the step or are below the problem's minimum size stay on the device; the room
that is left for the window is what these and the workspace of the op leave; an array is freed at its last use, where
the paper's trace has a "clear" event; a prefetch that does not fit at some later op is put off to behind that op
(the paper's stopper) by looking ahead instead of by a restart.
"""

from dataclasses import dataclass, field

from outgrow.analysis.liveness import Gap
from outgrow.plan import Decision, Piece, Swap
from outgrow.planning.arrays import Integers
from outgrow.planning.problem import Problem
from outgrow.planning.published.profile import Profile, captured_profile
from outgrow.planning.published.triggers import promised_bytes


@dataclass(frozen=True)
class _Window:
    """Gaps by the ops that begin and end them, and the bytes that are promised at each op."""

    profile: Profile
    capacity: int
    promised: Integers
    leaving: list[Gap] = field(default_factory=list[Gap])
    away: dict[Gap, int] = field(default_factory=dict[Gap, int])
    returned: dict[Gap, int] = field(default_factory=dict[Gap, int])
    dropped: dict[Gap, int] = field(default_factory=dict[Gap, int])

    def fits(self, gap: Gap, step: int) -> bool:
        """Whether the storage of `gap` fits from `step` until its use, beside what is still leaving."""
        inside = self.promised[step : gap.end]
        others = sum(other.size_bytes for other in self.leaving if other != gap)
        lasting = bool((inside + gap.size_bytes <= self.capacity).all())
        return lasting and int(inside[0]) + others + gap.size_bytes <= self.capacity

    def drop_oldest(self, step: int, spared: Gap | None = None) -> bool:
        """Wait for the oldest copy out and free its bytes; False if there is none to wait for."""
        for gap in self.leaving:
            if gap != spared:
                self.leaving.remove(gap)
                self.dropped[gap] = step
                self.away[gap] = step
                return True
        return False


def nnabla_window(problem: Problem) -> tuple[Decision, ...]:
    """Return the swaps of the window scheduler.

    Raises `Infeasible` if the budget is below the floor.
    """
    profile = captured_profile(problem)
    window = _Window(profile, problem.budget.capacity_bytes, promised_bytes(profile, profile.gaps))
    for step in range(len(profile.ops)):
        _grow(window, step)
        _make_room(window, step)
        window.leaving.extend(gap for gap in profile.gaps if gap.begin == step)
    return _swaps(window)


def _grow(window: _Window, step: int) -> None:
    """A: keep what is leaving and fetch what is away, in the order of the next uses, while there is room."""
    for gap in sorted([*window.leaving, *window.away], key=lambda gap: (gap.end, gap.begin)):
        while gap.end != step and not window.fits(gap, step):
            if not window.drop_oldest(step, spared=gap):
                return
        if gap in window.away:
            del window.away[gap]
            window.returned[gap] = step
        else:
            window.leaving.remove(gap)
        window.promised[step : gap.end] += gap.size_bytes


def _make_room(window: _Window, step: int) -> None:
    """B: wait for copies out at the tail until what the op itself needs has room."""
    while int(window.promised[step]) + sum(gap.size_bytes for gap in window.leaving) > window.capacity:
        has_dropped = window.drop_oldest(step)
        assert has_dropped, "a budget at or above the floor holds what one op needs"


def _swaps(window: _Window) -> tuple[Decision, ...]:
    names = [op.name for op in window.profile.ops]
    swaps: list[Swap] = []
    for gap in sorted(window.returned, key=lambda gap: (gap.begin, gap.end, gap.storage)):
        back = Piece(0, gap.size_bytes, names[window.returned[gap]])
        swaps.append(Swap(gap.storage, names[gap.begin], names[window.dropped[gap]], (back,), names[gap.end]))
    return tuple(swaps)
