"""Blocks of memory alone, as in a process that has no arena."""

import pytest

from outgrow.runtime import arena


@pytest.fixture(autouse=True)
def without_arena(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks take memory of the kernel and give it back, whether or not another test has installed the arena."""
    monkeypatch.setattr(arena, "_installed", [])
