"""Whose is a line? The user's, unless its file is of Python's own library, of an installed package, or of outgrow."""

import linecache
import os
import site
import sysconfig
from collections.abc import Collection, Iterable
from functools import cache
from itertools import takewhile
from pathlib import Path
from traceback import walk_stack, walk_tb
from types import FrameType, TracebackType

import torch

import outgrow

NO_LINE = "the step"
"""What is named where no line is known."""


def _beginnings(folders: Iterable[str]) -> tuple[str, ...]:
    """Return how the paths of files in some folders begin."""
    return tuple(f"{Path(folder).resolve()}{os.sep}" for folder in folders)


_TORCH, _OUTGROW = _beginnings(torch.__path__), _beginnings(outgrow.__path__)
_PACKAGES = _beginnings((*site.getsitepackages(), site.getusersitepackages()))
_LIBRARIES = (*_TORCH, *_OUTGROW, *_PACKAGES, *_beginnings([sysconfig.get_path("stdlib")]))


@cache
def is_of_a_library(file: str) -> bool:
    """Whether a file of code is Python's own, or of an installed package."""
    return str(Path(file).resolve()).startswith(_LIBRARIES)


@cache
def in_package(file: str) -> str | None:
    """Return the path of a file within the installed packages; None for torch, outgrow, and what is not installed."""
    path = str(Path(file).resolve())
    if path.startswith((*_TORCH, *_OUTGROW)):
        return None
    return next((path.removeprefix(folder) for folder in _PACKAGES if path.startswith(folder)), None)


def past(frame: FrameType | None, files: Collection[str]) -> FrameType | None:
    """Return the innermost of a frame and those that called it whose code is in none of some files."""
    while frame is not None and frame.f_code.co_filename in files:
        frame = frame.f_back
    return frame


def is_raised_by_torch(traceback: TracebackType | None) -> bool:
    """Whether an error was raised by torch's own Python."""
    file = ""
    while traceback is not None:
        file, traceback = traceback.tb_frame.f_code.co_filename, traceback.tb_next
    return str(Path(file).resolve()).startswith(_TORCH)


def where(traceback: TracebackType | None) -> str:
    """Return the user's line, and that of an installed package behind it, other than torch, where it went wrong."""
    frames = reversed([*walk_tb(traceback)])
    behind = takewhile(lambda item: is_of_a_library(item[0].f_code.co_filename), frames)
    others = ((frame, line, in_package(frame.f_code.co_filename)) for frame, line in behind)
    found = next((_at(frame, line, name) for frame, line, name in others if name), None)
    return f"{user_line(traceback) or NO_LINE}{(found and f', in {found}') or ''}"


def user_line(traceback: TracebackType | None) -> str | None:
    """Return file, line and text of the innermost frame outside of torch, outgrow and installed packages."""
    return _innermost(reversed([*walk_tb(traceback)]))


def present_line() -> str | None:
    """Return file, line and text of the innermost such frame that runs now."""
    return _innermost(walk_stack(None))


def _innermost(frames: Iterable[tuple[FrameType, int]]) -> str | None:
    """Return the first of some frames, from the innermost on, that is the user's."""
    for frame, line in frames:
        file = frame.f_code.co_filename
        if not file.startswith("<") and not is_of_a_library(file):
            return _at(frame, line, file)
    return None


def _at(frame: FrameType, line: int, name: str) -> str:
    """Return the name of a file, and number and text of a line in it."""
    text = linecache.getline(frame.f_code.co_filename, line).strip()
    return f"{name}:{line}: `{text}`" if text else f"{name}:{line}"
