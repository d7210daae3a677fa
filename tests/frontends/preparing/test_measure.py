"""What several steps and processes observe is kept for all of them."""

from pathlib import Path

import pytest

from outgrow.analysis.cost import Cost
from outgrow.frontends.preparing import measure
from outgrow.frontends.preparing.measure import CostCache, open_cost_cache


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def in_the_file() -> list[str]:
    """Return what another process would know, in the order in which it was observed."""
    return list(measure._costs_in(open_cost_cache().path))


def observed(*keys: str) -> dict[str, Cost]:
    """Return costs of ops with these keys."""
    return {key: Cost(1.0, 8, 0, measured=True) for key in keys}


def test_steps_of_a_process_have_one_cache() -> None:
    """What one step observes another one knows; a machine has its own."""
    open_cost_cache().add(observed("conv"))
    assert open_cost_cache().known == observed("conv")
    assert not open_cost_cache("another").known


def test_what_another_process_has_written_stays() -> None:
    """Each adds its own."""
    cache, other = open_cost_cache(), CostCache(open_cost_cache().path)
    cache.add(observed("conv"))
    other.add(observed("mm"))
    cache.add(observed("relu"))
    assert sorted(in_the_file()) == ["conv", "mm", "relu"]


def test_the_file_forgets_what_was_not_observed_for_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not grow for ever."""
    monkeypatch.setattr(measure, "_MOST_COSTS", 2)
    cache = open_cost_cache()
    for key in ("conv", "mm", "conv", "relu"):
        cache.add(observed(key))
    assert in_the_file() == ["conv", "relu"]


def test_a_damaged_file_is_written_anew() -> None:
    """It is a cache."""
    path = open_cost_cache().path
    path.parent.mkdir(parents=True)
    path.write_text('{"conv": ')
    CostCache(path).add(observed("mm"))
    assert in_the_file() == ["mm"]
