"""How does C++ of ours come into the process? It is compiled when it is first needed, and kept in the cache folder.

A source is compiled against torch's headers, which takes seconds, once for each text, torch and kind of machine. If
there is no compiler, or a header is missing, the caller decides what to do, or it is remarked (`load_or_remark`).
"""

import ctypes
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias

import torch

from outgrow.files import cache_folder
from outgrow.remarks import remark

_BUILD_SECONDS = 120
_MOST_TOLD = 2000

Functions: TypeAlias = Mapping[str, tuple[Any, ...]]
"""The types of a function's result (None: it has none) and of its arguments, by its name."""


@dataclass(frozen=True, slots=True)
class Source:
    """A C++ file, the headers beside it that it includes, folders of others' headers, and libraries of torch's."""

    path: Path
    headers: tuple[Path, ...] = ()
    include_folders: tuple[Path, ...] = ()
    libraries: tuple[str, ...] = ("c10",)


def load(source: Source, kind: type[ctypes.CDLL] = ctypes.CDLL) -> ctypes.CDLL:
    """Return the library of a source, from the cache folder if it is there.

    With `ctypes.PyDLL` its functions are called without giving up the interpreter's lock, which suits short ones.

    Raises:
        OSError: there is no compiler, or the library does not load.
        subprocess.SubprocessError: the compiler failed.
    """
    text = b"".join(path.read_bytes() for path in (source.path, *source.headers))
    options = [*_flags(source), *source.libraries]  # whichever compiler it is: a library kept serves without one
    key = text + f"{torch.__version__} {platform.machine()} {options}".encode()
    return load_from(cache_folder(source.path.stem) / f"{sha256(key).hexdigest()[:16]}.so", source, kind)


def load_or_remark(
    source: Callable[[], Source], functions: Functions, missing: str, kind: type[ctypes.CDLL] = ctypes.CDLL
) -> ctypes.CDLL | None:
    """Return the library of a source, with these functions; None, and a remark on what is missing, if it has none."""
    try:
        library = load(source(), kind)
    except (OSError, subprocess.SubprocessError) as error:
        remark(f"{missing} It was said: {_told(error)}")
        return None
    for name, (result, *arguments) in functions.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def load_from(path: Path, source: Source, kind: type[ctypes.CDLL] = ctypes.CDLL) -> ctypes.CDLL:
    """Return the library at `path`, compiled if it is not there, or does not load: it may be of another machine.

    Where nothing can be kept, it is compiled for this process alone.
    """
    if path.exists():
        try:
            return kind(str(path), use_errno=True)
        except OSError:
            with suppress(OSError):
                path.unlink(missing_ok=True)
    beside = _folder_beside(path)
    with beside or tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / path.name
        subprocess.run(command(source, made), check=True, capture_output=True, timeout=_BUILD_SECONDS)
        library = kind(str(made), use_errno=True)
        if beside is not None:
            made.replace(path)  # it appears whole or not at all
        return library


def command(source: Source, made: Path) -> list[str]:
    """Return the command that compiles a source to a library.

    Raises:
        FileNotFoundError: there is no compiler.
    """
    found = compiler()
    if found is None:
        raise FileNotFoundError("no C++ compiler")
    return [
        *shlex.split(found),
        *_flags(source),
        str(source.path),
        "-o",
        str(made),
        *(f"-l{name}" for name in source.libraries),
    ]


def compiler() -> str | None:
    """Return the C++ compiler of this machine, if it has one; it may be a command of several words, in `CXX`."""
    return os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")


def _flags(source: Source) -> list[str]:
    root = Path(torch.__file__).parent
    flags = ["-std=c++20", "-O2", "-fPIC", "-shared", f"-L{root / 'lib'}"]
    flags += [f"-I{folder}" for folder in (root / "include", *source.include_folders)]
    return [*flags, f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]


def _told(error: OSError | subprocess.SubprocessError) -> str:
    """Return what a compiler, or the loader, said when a library could not be made, at most some lines of it."""
    said = error.stderr if isinstance(error, subprocess.CalledProcessError) else None
    text = said.decode(errors="replace") if isinstance(said, bytes) else str(error)
    return text.strip()[-_MOST_TOLD:]


def _folder_beside(path: Path) -> "tempfile.TemporaryDirectory[str] | None":
    """Return a folder beside `path`, in which it can be made; None if no file can be made there."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryDirectory(dir=path.parent)
    except OSError:
        return None
