"""What is the largest batch, volume, length or depth that fits? Plans for one value after the other of one setting.

A value fits if its step has a plan under the budget that is at most `slowdown` times as slow as the same step in core.
Larger values are taken to fit less, so the largest is found by doubling from a first one, then by halving the range.
"""

from collections.abc import Callable
from dataclasses import dataclass

from outgrow.errors import Infeasible, InvalidWorkload
from outgrow.frontends.preparing.ahead import Ahead, How
from outgrow.planning.pareto import slowdown_of
from outgrow.planning.planned import Planned


@dataclass(frozen=True)
class Trial:
    """One value of the setting: what was planned for it, or why there is no plan."""

    value: int
    found: Planned | Infeasible | InvalidWorkload

    def fits(self, slowdown: float) -> bool:
        """Return whether there is a plan that is at most this much slower than in core."""
        return isinstance(self.found, Planned) and slowdown_of(self.found.plan) <= slowdown


def trial(ahead: Ahead, budget_bytes: int, planner: str, value: int) -> Trial:
    """Plan the steps that were captured with this value of the setting."""
    try:
        return Trial(value, ahead.planned(budget_bytes, How(planner, prove=False)))
    except Infeasible as refusal:
        return Trial(value, refusal)


def largest(
    tried: Callable[[int], Trial], first: int, slowdown: float, *, multiple: int = 1, closeness: float = 0.02
) -> Trial | None:
    """Return the largest multiple of `multiple` that fits, found to a share of `closeness` of itself.

    `first` is one. None if not even the smallest multiple fits.

    >>> from types import SimpleNamespace
    >>> found = largest(lambda value: SimpleNamespace(value=value, fits=lambda _: value <= 700), 100, 1.1, closeness=0)
    >>> found.value
    700
    """
    fitting: Trial | None = None
    value = first
    while (found := tried(value)).fits(slowdown):
        fitting, value = found, 2 * value
    above, below = value, fitting.value if fitting else 0
    while above - below > max(multiple, int(closeness * below)):
        middle = (above + below) // 2 // multiple * multiple
        found = tried(middle)
        if found.fits(slowdown):
            fitting, below = found, middle
        else:
            above = middle
    return fitting
