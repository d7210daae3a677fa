"""Steps that are planned however small they are."""

from pathlib import Path

import pytest

from outgrow.frontends import within_budget


@pytest.fixture
def no_room_is_ample(disk_folder: Path, monkeypatch: pytest.MonkeyPatch, plans_found_quickly: None) -> None:  # noqa: ARG001
    """Each step is planned, quickly, and its plans are kept in a folder of the test."""
    monkeypatch.setattr(within_budget, "_ROOMY_BYTES", 1 << 60)
    monkeypatch.setenv("XDG_CACHE_HOME", str(disk_folder / "cache"))
