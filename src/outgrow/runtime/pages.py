"""Which memory can be shown at any address? Pages that a driver gives, in windows that show them in any order.

A page may be shown in many windows, and more than once in one: what is written through one address is read through all.
On a GPU that holds from one kernel, or copy, to the next that is behind it (CUDA C++ Programming Guide, "Virtual
Aliasing Support"), which is the order in which a planned step uses its bytes (`runtime.flights`).

Nothing is mapped while a step runs: its window is made before. What a window takes of memory are entries of tables.
"""

import ctypes
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from typing import Protocol, final
from weakref import finalize

import torch

from outgrow.remarks import remark

_TAKEN: Counter[str] = Counter()
"""Bytes of all pages of this process, by the name of the device."""


class Mapper(Protocol):
    """What a driver does with pages of one size, and with ranges of addresses that are multiples of it."""

    page_bytes: int

    def take(self, number: int) -> list[int]:
        """Take `number` pages and return their names. Raises `MemoryError`, and takes none, where there are fewer."""
        ...

    def give_back(self, pages: Sequence[int]) -> None:
        """Give pages back; where they are still shown, they stay."""
        ...

    def reserve(self, size_bytes: int) -> int:
        """Return the begin of `size_bytes` of addresses that nobody uses. Raises `MemoryError`."""
        ...

    def show(self, address: int, pages: Sequence[int]) -> None:
        """Show pages, one after the other, from a reserved address on.

        Raises `MemoryError` where tables find no room; where it fails none is shown, and the addresses are free.
        """
        ...

    def free(self, address: int, size_bytes: int) -> None:
        """Let a reserved range, in which pages are shown, be no more; the device has done with it."""
        ...

    def settle(self) -> None:
        """Let the host wait until the device has done what it was given."""
        ...


@final
class Pages:
    """Some pages of a device, and the windows in which they are shown. They are given back with this object."""

    def __init__(self, mapper: Mapper, device: torch.device) -> None:
        self.page_bytes = mapper.page_bytes
        self._mapper, self._device = mapper, str(device)
        self._pages: list[int] = []
        self._windows: dict[int, int] = {}
        finalize(self, _dropped, mapper, self._device, self._pages, self._windows).atexit = False

    @property
    def size_bytes(self) -> int:
        """The bytes that are taken."""
        return len(self._pages) * self.page_bytes

    def have(self, size_bytes: int) -> None:
        """Have at least `size_bytes`. Raises `MemoryError`, and takes none then."""
        missing = -(-(size_bytes - self.size_bytes) // self.page_bytes)
        if missing > 0:
            self._pages += self._mapper.take(missing)
            _TAKEN[self._device] += missing * self.page_bytes

    def show(self, pages: Sequence[int]) -> int:
        """Return where a window begins that shows pages, by their numbers from 0 on, one after the other.

        Without pages there is no window, and 0 is returned. Raises `MemoryError`, and shows none then.
        """
        if not pages:
            return 0
        size = len(pages) * self.page_bytes
        address = self._mapper.reserve(size)
        self._mapper.show(address, [self._pages[page] for page in pages])
        self._windows[address] = size
        return address

    def hide(self, address: int) -> None:
        """Remove a window, once the device has done with it."""
        if address:
            self._mapper.settle()
            self._mapper.free(address, self._windows.pop(address))

    def are_shown(self, address: int) -> bool:
        """Whether an address is in a window."""
        return any(begin <= address < begin + size for begin, size in self._windows.items())

    def close(self) -> None:
        """Give all pages and windows back; this object may take others."""
        _closed(self._mapper, self._device, self._pages, self._windows)


@final
class Unread:
    """Memory of a device whose contents nobody looks at: one page, shown over and over.

    Where there are no pages it is a single byte, beyond which nobody may read.
    """

    def __init__(self, pages: Pages | None, device: torch.device) -> None:
        self._pages = pages
        self._byte = torch.zeros(1, dtype=torch.uint8, device=device) if pages is None else None
        self._known: dict[int, int] = {}

    def address(self, size_bytes: int) -> int:
        """Return where `size_bytes` of such memory begin; they are there for as long as this object.

        Raises `MemoryError`.
        """
        size = 1 << max(0, size_bytes - 1).bit_length()
        if size not in self._known:
            self._known[size] = self._made(size)
        return self._known[size]

    def _made(self, size_bytes: int) -> int:
        if self._byte is not None:
            return self._byte.data_ptr()
        assert self._pages is not None, "there is a byte where there are no pages"
        self._pages.have(1)
        return self._pages.show([0] * -(-size_bytes // self._pages.page_bytes))


def taken_bytes(device: torch.device) -> int:
    """Return the bytes of all pages of a device that this process has taken."""
    return _TAKEN[str(device)]


def _dropped(mapper: Mapper, device: str, pages: list[int], windows: dict[int, int]) -> None:
    """Give back what nobody holds any more; a device that has failed takes nothing back before its process ends."""
    with suppress(RuntimeError):
        _closed(mapper, device, pages, windows)


def _closed(mapper: Mapper, device: str, pages: list[int], windows: dict[int, int]) -> None:
    if windows:
        mapper.settle()
    for address, size in windows.items():
        mapper.free(address, size)
    mapper.give_back(pages)
    _TAKEN[device] -= len(pages) * mapper.page_bytes
    windows.clear()
    pages.clear()


# CUDA ---------------------------------------------------------------------------------------------------------------


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Properties(ctypes.Structure):
    """CUmemAllocationProp of cuda.h."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class _Access(ctypes.Structure):
    """CUmemAccessDesc of cuda.h."""

    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


_PINNED = _ON_DEVICE = 1
_READ_AND_WRITE = 3
_CAN_MAP, _READS_PAGES, _REACHES_LOCKED = 102, 88, 91
_OUT_OF_MEMORY = 2
_ADDRESS, _SIZE, _FLAGS = ctypes.c_uint64, ctypes.c_size_t, ctypes.c_uint64
_FUNCTIONS: dict[str, tuple[object, ...]] = {
    "cuDeviceGetAttribute": (ctypes.POINTER(ctypes.c_int), ctypes.c_int, ctypes.c_int),
    "cuMemGetAllocationGranularity": (ctypes.POINTER(_SIZE), ctypes.POINTER(_Properties), ctypes.c_int),
    "cuMemCreate": (ctypes.POINTER(ctypes.c_uint64), _SIZE, ctypes.POINTER(_Properties), _FLAGS),
    "cuMemRelease": (ctypes.c_uint64,),
    "cuMemAddressReserve": (ctypes.POINTER(_ADDRESS), _SIZE, _SIZE, _ADDRESS, _FLAGS),
    "cuMemAddressFree": (_ADDRESS, _SIZE),
    "cuMemMap": (_ADDRESS, _SIZE, _SIZE, ctypes.c_uint64, _FLAGS),
    "cuMemSetAccess": (_ADDRESS, _SIZE, ctypes.POINTER(_Access), _SIZE),
    "cuMemUnmap": (_ADDRESS, _SIZE),
}


class CudaMapper:
    """Pages of a GPU, of the driver's smallest size, which is 2 MiB.

    What torch lets this process take of the GPU (`set_per_process_memory_fraction`) is kept: pages count, beside what
    its allocator has reserved.
    """

    def __init__(self, torch_device: torch.device) -> None:
        self._device = torch_device
        self._driver = _driver()
        place = _Location(_ON_DEVICE, torch_device.index)
        self._properties = _Properties(_PINNED, 0, place)
        self._access = _Access(place, _READ_AND_WRITE)
        size = _SIZE()
        self._call("cuMemGetAllocationGranularity", ctypes.byref(size), ctypes.byref(self._properties), 0)
        self.page_bytes = size.value

    def take(self, number: int) -> list[int]:
        allowed = torch.cuda.get_per_process_memory_fraction(self._device)
        _, total = torch.cuda.mem_get_info(self._device)
        taken = torch.cuda.memory_reserved(self._device) + taken_bytes(self._device)
        if taken + number * self.page_bytes > allowed * total:
            raise MemoryError
        pages: list[int] = []
        page = ctypes.c_uint64()
        try:
            for _ in range(number):
                self._call("cuMemCreate", ctypes.byref(page), self.page_bytes, ctypes.byref(self._properties), 0)
                pages.append(page.value)
        except (MemoryError, RuntimeError):
            self.give_back(pages)
            raise
        return pages

    def give_back(self, pages: Sequence[int]) -> None:
        for page in pages:
            self._call("cuMemRelease", page)

    def reserve(self, size_bytes: int) -> int:
        address = _ADDRESS()
        self._call("cuMemAddressReserve", ctypes.byref(address), size_bytes, 0, 0, 0)
        return address.value

    def show(self, address: int, pages: Sequence[int]) -> None:
        size, mapped = self.page_bytes, 0
        try:
            for page in pages:
                self._call("cuMemMap", address + mapped * size, size, 0, page, 0)
                mapped += 1
            self._call("cuMemSetAccess", address, len(pages) * size, ctypes.byref(self._access), 1)
        except (MemoryError, RuntimeError):
            for at in range(mapped):
                self._call("cuMemUnmap", address + at * size, size)
            self._call("cuMemAddressFree", address, len(pages) * size)
            raise

    def free(self, address: int, size_bytes: int) -> None:
        try:
            self._call("cuMemUnmap", address, size_bytes)
        except RuntimeError:  # pages were mapped one by one, and so every driver unmaps them
            for begin in range(address, address + size_bytes, self.page_bytes):
                self._call("cuMemUnmap", begin, self.page_bytes)
        self._call("cuMemAddressFree", address, size_bytes)

    def settle(self) -> None:
        torch.cuda.synchronize(self._device)

    def _call(self, name: str, *arguments: object) -> None:
        status = self._driver[name](*arguments)
        if status == _OUT_OF_MEMORY:
            raise MemoryError(f"{self._device} has no memory left for {name}")
        if status:
            raise RuntimeError(f"{name} of the CUDA driver fails with error {status}")


def cuda_pages(torch_device: torch.device) -> Pages | None:
    """Return pages of a GPU, none yet; None where its driver cannot map them, or does not let this process do it."""
    if not _has(torch_device, _CAN_MAP):
        return None
    try:
        mapper = CudaMapper(torch_device)
        _try(mapper)
    except (MemoryError, RuntimeError) as error:
        remark(f"{torch_device} has no pages for outgrow, so its arena is one piece, with holes: {error}")
        return None
    return Pages(mapper, torch_device)


def _try(mapper: CudaMapper) -> None:
    """Show a page once: some containers forbid what the driver says that it can do.

    Raises `RuntimeError`, and `MemoryError` where there are no addresses left, or no room for tables.
    """
    try:
        pages = mapper.take(1)
    except MemoryError:  # others have it all; whoever wants pages later is told
        return
    try:
        address = mapper.reserve(mapper.page_bytes)
        mapper.show(address, pages)
        mapper.free(address, mapper.page_bytes)
    finally:
        mapper.give_back(pages)


def reads_pages(torch_device: torch.device) -> bool:
    """Whether a GPU reads pages of the host that are not locked."""
    return _has(torch_device, _READS_PAGES)


def reaches_locked(torch_device: torch.device) -> bool:
    """Whether kernels of a device reach locked memory of the host at the host's addresses."""
    return torch_device.type != "cuda" or _has(torch_device, _REACHES_LOCKED)


def _has(torch_device: torch.device, attribute: int) -> bool:
    found = ctypes.c_int()
    try:
        failed = _driver()["cuDeviceGetAttribute"](ctypes.byref(found), attribute, torch_device.index)
    except OSError:
        return False
    return not failed and bool(found.value)


@cache
def _driver() -> dict[str, Callable[..., int]]:
    library = ctypes.CDLL("nvcuda.dll" if hasattr(ctypes, "WinDLL") else "libcuda.so.1")
    found: dict[str, Callable[..., int]] = {}
    for name, types in _FUNCTIONS.items():
        function = getattr(library, name)
        function.argtypes, function.restype = types, ctypes.c_int
        found[name] = function
    library.cuInit(0)  # unless torch has; who fails here fails again where the driver is asked
    return found
