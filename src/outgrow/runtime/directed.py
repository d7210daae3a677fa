"""Where do an operator's results and scratch lie? Where the plan says, by an allocator of torch's that is told.

While a thread is at an instruction, the site of the instruction directs its allocations on one device. Allocation
number k (0, 1, ...) of exactly B bytes lies at address A where the site names (k, B, A). Every other one lies in the
site's scratch range: at the lowest offset, in multiples of 512 bytes, where it fits between those that live (first
fit). What does not fit there, what other threads allocate, and what is allocated outside of a site is served by the
allocator that was there before. Allocations of zero bytes are too, and do not count.

A named place owns nothing: the owner of the memory keeps it. Scratch is given back when a tensor dies, on any thread.

What an operator allocates, and when that dies, is learnt by watching it once (`watched`). How much scratch it needs
follows (`scratch_needed`).

The allocators are written in C++ over torch's own (`directed.h` says how), one for each type of device. The one for
CUDA directs what operators ask for by `allocate`; what Thrust takes by `raw_alloc` is forwarded, and is not watched.
"""

import ctypes
import importlib.util
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import starmap
from pathlib import Path
from typing import TypeVar, final
from weakref import finalize

import torch

from outgrow.runtime import native
from outgrow.units import round_up

T = TypeVar("T")

SLOT_BYTES = 512
"""Scratch is given out in multiples of this."""
_FOLDER = Path(__file__).parent
_MISSING = {
    "cpu": "outgrow finds no C++ compiler that works, so results are copied to their places, and operators take their "
    "scratch beside the arena. Install g++, or name a compiler in the environment variable CXX.",
    "cuda": "outgrow cannot compile its allocator for CUDA, so results are copied to their places, and operators take "
    "their scratch beside the arena. It needs a C++ compiler (install g++, or name one in the environment variable "
    "CXX) and the headers of the CUDA toolkit (e.g. of the package nvidia-cuda-runtime).",
}


class _Assignment(ctypes.Structure):
    _fields_ = (("number", ctypes.c_size_t), ("bytes", ctypes.c_size_t), ("address", ctypes.c_void_p))


class _Entry(ctypes.Structure):
    _fields_ = (
        ("bytes", ctypes.c_size_t),
        ("address", ctypes.c_size_t),
        ("born", ctypes.c_size_t),
        ("died", ctypes.c_size_t),
    )


_ADDRESS, _BYTES, _INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_FUNCTIONS: native.Functions = {
    "directed_install": (None,),
    "directed_table": (_ADDRESS, _INT),
    "directed_site": (_ADDRESS, _ADDRESS, _ADDRESS, _BYTES, ctypes.POINTER(_Assignment), _BYTES),
    "directed_close": (None, _ADDRESS),
    "directed_at": (None, _ADDRESS),
    "directed_strays": (_BYTES, _ADDRESS),
    "directed_watch": (_ADDRESS, _INT),
    "directed_unwatch": (_BYTES,),
    "directed_entries": (None, _ADDRESS, ctypes.POINTER(_Entry)),
    "directed_tables": (_BYTES,),
    "directed_owned": (_BYTES,),
}


@dataclass(frozen=True, slots=True)
class Site:
    """What a plan says of one instruction: its scratch range, and (number, bytes, address) of allocations.

    Allocations with the address 0 are forwarded to the allocator that was there before.
    """

    scratch_address: int
    scratch_bytes: int
    placed: tuple[tuple[int, int, int], ...]


@final
class Directions:
    """The sites of a program, by position (None: everything is forwarded there). They hold while this object lives.

    Each thread is directed by its own calls. The allocator is installed if it is not, or if another now lies over it.
    """

    def __init__(self, device: torch.device, sites: Sequence[Site | None]) -> None:
        library = _ready(device)
        library.directed_install()
        table = library.directed_table(_index(device))
        self._close = finalize(self, library.directed_close, table)
        self._table = table
        self._count_strays: Callable[[int], int] = library.directed_strays
        self._go: Callable[[int | None], None] = library.directed_at
        self._sites = tuple(None if site is None else _added(library, table, site) for site in sites)

    def at(self, position: int) -> bool:
        """From now on, counted from 0, this thread's allocations go where the site at `position` says, if there is one.

        Returns whether there is one.
        """
        site = self._sites[position]
        self._go(site)
        return site is not None

    def off(self) -> None:
        """From now on this thread's allocations are forwarded."""
        self._go(None)

    def strays(self) -> int:
        """Return how many pieces of scratch were still alive when a thread left their site, since the last call.

        Their bytes may have been given out again since. A result that the site does not name is one of them.
        """
        return self._count_strays(self._table)


@dataclass(frozen=True, slots=True)
class Allocation:
    """What a watched call allocated. `born` and `died` are ordinal numbers of births and deaths; None: it lived on."""

    bytes: int
    address: int
    born: int
    died: int | None


def install(device: torch.device) -> bool:
    """Direct this device type's allocations from now on, where a thread is at a site; return whether that is possible.

    May be called again. After another allocator was laid over this one, it has to be called, or `Directions` made.
    """
    library = _library(device.type)
    if library is not None:
        library.directed_install()
    return library is not None


def watched(work: Callable[[], T], device: torch.device) -> tuple[T, tuple[Allocation, ...]]:
    """Return what `work` returns, and what this thread allocated on a device meanwhile, in order.

    All is forwarded meanwhile, whatever site the thread is at. The position of an allocation is the number by which
    a site names it. A result lives on; its address tells which it is.
    """
    library = _ready(device)
    library.directed_install()
    log = library.directed_watch(_index(device))
    assert log is not None, "what is watched watches nothing itself"
    try:
        result = work()
    finally:
        entries = (_Entry * library.directed_unwatch())()
        library.directed_entries(log, entries)
    return result, tuple(Allocation(made.bytes, made.address, made.born, made.died or None) for made in entries)


def scratch_needed(allocations: Sequence[Allocation], results: Collection[int]) -> int:
    """Return the bytes of the least range that holds all but the `results`, which are positions, by first fit."""
    return max((end for _, end in _scratch(allocations, results)), default=0)


def first_fit(taken: Iterable[tuple[int, int]], size_bytes: int) -> int:
    """Return the lowest offset with room for `size_bytes` among ranges that are taken, each (begin, end)."""
    offset = 0
    for begin, end in sorted(taken):
        if begin - offset >= size_bytes:
            break
        offset = end
    return offset


def cuda_headers() -> Path | None:
    """Return the folder of `cuda_runtime_api.h`: of the toolkit that torch would build with, or of a package."""
    compiler = shutil.which("nvcc")
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    toolkit = Path(home) if home else Path(compiler).parents[1] if compiler else Path("/usr/local/cuda")
    packages = importlib.util.find_spec("nvidia")
    roots = [] if packages is None else [Path(root) for root in packages.submodule_search_locations or ()]
    found = [toolkit / "include", *(folder for root in roots for folder in sorted(root.rglob("include")))]
    return next((folder for folder in found if (folder / "cuda_runtime_api.h").exists()), None)


def source(kind: str) -> native.Source:
    """Return the C++ of the allocator for a device type, cpu or cuda.

    Raises:
        FileNotFoundError: there are no headers of CUDA.
    """
    core = _FOLDER / "directed.h"
    if kind == "cpu":
        return native.Source(_FOLDER / "directed_cpu.cpp", (core,))
    folder = cuda_headers()
    if folder is None:
        raise FileNotFoundError("no headers of CUDA")
    own = _FOLDER / "cuda"  # comes last: what it has is used where the toolkit has it not
    headers = (core, own / "crt" / "host_defines.h")
    return native.Source(_FOLDER / "directed_cuda.cpp", headers, (folder, own), ("c10_cuda", "c10"))


def _scratch(allocations: Sequence[Allocation], results: Collection[int]) -> Iterable[tuple[int, int]]:
    """Yield the (begin, end) of each allocation that is no result, as first fit places them in an endless range."""
    scratch = [number for number in range(len(allocations)) if number not in results]
    births = [(allocations[number].born, number) for number in scratch]
    deaths = [(died, number) for number in scratch if (died := allocations[number].died) is not None]
    taken: dict[int, tuple[int, int]] = {}
    for _, number in sorted(births + deaths):
        if number in taken:
            del taken[number]
            continue
        size = round_up(allocations[number].bytes, SLOT_BYTES)
        begin = first_fit(taken.values(), size)
        taken[number] = begin, begin + size
        yield taken[number]


def _index(device: torch.device) -> int:
    """Return the index that torch's allocator notes for a device."""
    if device.type == "cpu":
        return -1
    return torch.cuda.current_device() if device.index is None else device.index


def _added(library: ctypes.CDLL, table: int, site: Site) -> int:
    assignments = (_Assignment * len(site.placed))(*starmap(_Assignment, site.placed))
    return library.directed_site(table, site.scratch_address, site.scratch_bytes, assignments, len(assignments))


def _ready(device: torch.device) -> ctypes.CDLL:
    library = _library(device.type)
    assert library is not None, "only an allocator that could be installed is used"
    return library


@cache
def _library(kind: str) -> ctypes.CDLL | None:
    """Return the compiled allocator for a device type; None where it cannot be made."""
    # no function of it takes long, or waits for Python
    return native.load_or_remark(partial(source, kind), _FUNCTIONS, _MISSING[kind], ctypes.PyDLL)
