"""Where does outgrow keep what it may need again? In the user's cache folder; whatever is there may be deleted."""

import os
import tempfile
from pathlib import Path


def cache_folder(name: str) -> Path:
    """Return a folder of outgrow's in XDG_CACHE_HOME, or else in ~/.cache; it need not be there yet.

    A user without a home has /, as in containers, and there no file can be made. An XDG_CACHE_HOME that is relative is
    ignored, as its specification demands: it would be another one in each folder that a process goes to.
    """
    chosen = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(chosen) if Path(chosen).is_absolute() else _home() / ".cache") / "outgrow" / name


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:  # neither HOME nor an entry for the user
        return Path("/")


def write_to_cache(path: Path, text: str) -> None:
    """Write a file, whole or not at all; if it cannot be written, that is no error: a cache is made again."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent)
    except OSError:
        return
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
