"""The largest value that fits is found between one that does and one that does not."""

from dataclasses import dataclass

import pytest

from outgrow.errors import Infeasible
from outgrow.frontends.preparing.largest import Trial, largest

REFUSED = Infeasible("not planned", floor_bytes=0, culprit="")


@dataclass(frozen=True)
class Limited(Trial):
    """A trial that fits up to a limit."""

    limit: int = 0

    def fits(self, slowdown: float) -> bool:
        """Return whether the value is within the limit, at any slowdown."""
        del slowdown
        return self.value <= self.limit


@pytest.mark.parametrize("limit", [1, 2, 3, 63, 64, 65, 1000])
@pytest.mark.parametrize("first", [1, 64])
def test_the_largest_value_that_fits_is_found(limit: int, first: int) -> None:
    """Wherever the search begins, below or above the limit."""
    tried: list[int] = []

    def trial(value: int) -> Limited:
        tried.append(value)
        return Limited(value, REFUSED, limit=limit)

    found = largest(trial, first, 1.1, closeness=0)
    assert found is not None
    assert found.value == limit
    assert len(tried) <= 24


def test_only_multiples_are_tried() -> None:
    """The largest of them that fits is found, from below and from above."""
    for first in (8, 800):
        found = largest(
            lambda value: Limited(value, REFUSED, limit=100 + value % 8), first, 1.1, multiple=8, closeness=0
        )
        assert found is not None
        assert found.value == 96


def test_nothing_fits() -> None:
    """Where not even 1 fits there is no largest value."""
    assert largest(lambda value: Limited(value, REFUSED, limit=0), 8, 1.1) is None
