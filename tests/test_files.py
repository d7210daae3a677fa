"""Is a file of the cache there whole or not at all?"""

import errno
import os
from pathlib import Path

import pytest

from outgrow.files import cache_folder, write_to_cache


def test_a_file_is_written_with_its_folders(tmp_path: Path) -> None:
    """And written over."""
    file = tmp_path / "a" / "b.txt"
    write_to_cache(file, "one")
    write_to_cache(file, "two")
    assert file.read_text() == "two"
    assert list(file.parent.iterdir()) == [file]


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that cannot be written is no reason to stop a training."""
    file = tmp_path / "b.txt"
    write_to_cache(file, "one")

    def full(_self: Path, _target: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "replace", full)
    write_to_cache(file, "two")
    assert file.read_text() == "one"
    assert list(tmp_path.iterdir()) == [file]


def test_a_folder_that_cannot_be_made_is_done_without(tmp_path: Path) -> None:
    """Here a file is in its place."""
    (tmp_path / "a").write_text("")
    write_to_cache(tmp_path / "a" / "b.txt", "one")
    assert (tmp_path / "a").read_text() == ""


def test_the_cache_folder_is_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """XDG_CACHE_HOME counts."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder("plans") == tmp_path / "outgrow" / "plans"


def test_a_relative_cache_folder_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be another one in each folder that a process goes to, and XDG says to ignore it."""
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder("plans") == tmp_path / ".cache" / "outgrow" / "plans"


def test_a_user_without_a_home_has_a_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that runs as a user who has no entry."""

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    assert cache_folder("plans") == Path("/.cache/outgrow/plans")
