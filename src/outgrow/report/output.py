"""Where do results go? Into files that are complete or not there: written beside their place, then renamed.

Whether a place can be written is asked before the work that makes its content.
"""

import io
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TextIO

STDOUT = Path("-")
"""The path that means the standard output."""
_results: list[TextIO] = []
"""The standard output, while it is for results alone."""
_UNSPEAKABLE = "backslashreplace"
"""How the names of files that are not valid text are written."""


def speak_plainly() -> None:
    """Let the standard streams write what their encoding lacks as escapes; one that is closed swallows all."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - it lives as long as the process
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_UNSPEAKABLE)


def unwritable(path: Path) -> str | None:
    """Return why a file cannot be written at `path`, or None if it can."""
    folder = path.parent
    try:
        if path.is_dir():
            return f"{path} is a folder"
        if not folder.is_dir():
            return f"the folder {folder} does not exist" if not folder.exists() else f"{folder} is not a folder"
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        return f"no file can be made in {folder}: {error.strerror}"
    return None


@contextmanager
def stdout_for_results() -> Iterator[None]:
    """Let what is printed within this context, be it by the user's code, go to the standard error, but for results."""
    _results.append(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _results.pop()


def write_data(path: Path | None, data: object) -> None:
    """Write data as a JSON file, if a file is asked for. Raises `OSError` if the disk refuses."""
    if path is not None:
        write_atomically(path, f"{json.dumps(data, indent=2)}\n")


def write_atomically(path: Path, text: str) -> None:
    """Write a text file at once: a reader sees the old content, or all of the new. `STDOUT` is simply written to.

    Raises `OSError`, which names the file, if the disk refuses.
    """
    if path == STDOUT:
        print_now(_results[-1] if _results else sys.stdout, text)
        return
    try:
        _write_file(path, text)
    except OSError as error:  # that of a full disk names none
        raise OSError(error.errno, error.strerror, str(path)) from error


def print_now(stream: TextIO, text: str) -> None:
    """Write to a standard stream, and let nothing wait in it. Raises `OSError`, which names it."""
    try:
        stream.write(text)
        stream.flush()
    except OSError as error:
        raise OSError(error.errno, error.strerror, stream.name) from error


def _write_file(path: Path, text: str) -> None:
    if path.exists() and not path.is_file():  # a pipe or /dev/stdout has nothing to rename over
        path.write_text(text, encoding="utf-8", errors=_UNSPEAKABLE)
        return
    path = path.resolve()  # through a link, not over it
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors=_UNSPEAKABLE) as file:
            file.write(text)
        Path(name).chmod(0o666 & ~_umask())
        Path(name).replace(path)
    finally:
        Path(name).unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
