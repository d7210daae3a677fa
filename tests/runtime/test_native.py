"""Is a library compiled anew when it would be another one?"""

from pathlib import Path

import pytest

from outgrow.runtime import native
from outgrow.runtime.native import Source


@pytest.mark.skipif(native.compiler() is None, reason="no C++ compiler")
def test_another_folder_of_headers_makes_another_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What headers say is compiled in, though the source has not changed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source = tmp_path / "told.cpp"
    source.write_text('#include "number.h"\nextern "C" int number() { return NUMBER; }\n')
    found: list[int] = []
    for number in (1, 2):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "number.h").write_text(f"#define NUMBER {number}\n")
        found.append(native.load(Source(source, include_folders=(folder,))).number())
    assert found == [1, 2]


def test_a_library_that_is_kept_serves_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which compiler made it is no part of its name."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source = tmp_path / "kept.cpp"
    source.write_text('extern "C" int number() { return 7; }\n')
    if native.compiler() is not None:
        native.load(Source(source))
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert native.compiler() is None
    if list(tmp_path.rglob("*.so")):
        assert native.load(Source(source)).number() == 7
    else:
        with pytest.raises(FileNotFoundError):
            native.load(Source(source))


@pytest.mark.skipif(native.compiler() is None, reason="no C++ compiler")
def test_a_library_that_cannot_be_kept_is_made_for_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here a file is in the place of the cache folder."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    source = tmp_path / "lost.cpp"
    source.write_text('extern "C" int number() { return 7; }\n')
    assert native.load(Source(source)).number() == 7
    assert not list(tmp_path.rglob("*.so"))


@pytest.mark.skipif(native.compiler() is None, reason="no C++ compiler")
def test_a_compiler_may_be_a_command_of_several_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `CXX="ccache g++"` is."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", f"env {native.compiler()}")
    source = tmp_path / "wrapped.cpp"
    source.write_text('extern "C" int number() { return 7; }\n')
    assert native.load(Source(source)).number() == 7
