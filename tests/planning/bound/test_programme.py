"""What is asked of the solver is solved, or it is said that there is none."""

import sys

import pytest

from outgrow.planning.bound.programme import Programme, proven_least, solve


def _one() -> Programme:
    programme = Programme()
    x = programme.variable(0.0, 4.0, cost=1.0)
    programme.row([(x, 1.0)], lower=3.0)
    return programme


def test_a_programme_is_solved_and_proved() -> None:
    """Both ways find the least costs."""
    found = solve(_one(), time_limit=10.0, gap=0.0)
    assert found.values is not None
    assert found.values[0] == pytest.approx(3.0)
    assert proven_least(_one()) == pytest.approx(3.0)


def test_a_lacking_solver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install."""
    monkeypatch.setitem(sys.modules, "highspy", None)
    with pytest.raises(ModuleNotFoundError, match="pip install 'highspy"):
        proven_least(_one())
    with pytest.raises(ModuleNotFoundError, match="pip install 'highspy"):
        solve(_one(), time_limit=1.0, gap=0.0)
