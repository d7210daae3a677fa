"""Where does a storage that is swapped back in live? In a `Block`: reserved at once, taken piece by piece.

A block is an anonymous private mapping. Making it reserves addresses that nobody may touch: no RAM, and
nothing that RLIMIT_DATA counts. `commit` makes a range of bytes readable and writable, and from then on they
count. So pieces of a storage come back into their final place one after the other, and each takes memory when
its copy begins.

A block starts at a multiple of 2 MiB and asks for huge pages: direct I/O reaches it without a bounce copy, at
the rate of the disk. In the moment when its last user dies it goes on to the arena if all of it was committed, and
back to the kernel otherwise, past the heap and its caches.

`lend` and `take_back` do the same to a part of a storage that stays where it is. `room_for` is for what comes back
whole, as most storages do: a tensor of the arena.

`unread` gives addresses to tensors that are asked for their layout alone.
"""

import ctypes
import errno
import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from weakref import finalize, ref

import torch

from outgrow.runtime import arena
from outgrow.units import format_bytes, round_up

PAGE_BYTES = mmap.PAGESIZE
HUGE_PAGE_BYTES = 2 << 20

_MAP_FIXED, _MAP_NORESERVE = 0x10, 0x4000
_PROT_NONE, _READ_AND_WRITE = 0, mmap.PROT_READ | mmap.PROT_WRITE
_BUFFER_IS_WRITABLE = 0x200
_FAILED = ctypes.c_void_p(-1).value
"""What `mmap` returns where there is nothing to return."""

_libc = ctypes.CDLL(None, use_errno=True)
_mmap = _libc.mmap
_mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_mmap.restype = ctypes.c_void_p
_munmap = _libc.munmap
_munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_mprotect = _libc.mprotect
_mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_madvise = _libc.madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_memoryview_at = ctypes.pythonapi.PyMemoryView_FromMemory
_memoryview_at.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)
_memoryview_at.restype = ctypes.py_object


@dataclass(frozen=True)
class _Reserved:
    """The addresses of a block, and which of its bytes have been committed."""

    address: int
    size_bytes: int
    committed: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    def give_back(self) -> None:
        """Leave the memory to the arena if all of it was committed, else to the kernel."""
        is_whole = sum(end - begin for begin, end in self.committed) == self.size_bytes
        if is_whole and arena.is_installed():
            arena.adopt(self.address, self.size_bytes)
        else:
            _munmap(self.address, round_up(self.size_bytes, PAGE_BYTES))


class Block:
    """`size_bytes` of address space for one storage, starting at `address`; nothing of it is usable before `commit`.

    The block and every storage made from it hold the memory; when the last of them dies, it is free at once.
    """

    def __init__(self, size_bytes: int) -> None:
        assert size_bytes > 0, f"a block holds bytes, not {size_bytes}"
        self.size_bytes = size_bytes
        self.address = _reserve(round_up(size_bytes, PAGE_BYTES))
        self._reserved = _Reserved(self.address, size_bytes)
        self._bytes = bytes_at(self.address, size_bytes)
        finalize(self._bytes, self._reserved.give_back).atexit = False

    def commit(self, begin: int, end: int) -> None:
        """Make bytes begin:end, rounded out to whole pages, readable and writable; what they hold is undefined.

        Committing bytes twice does no harm. Raises `MemoryError` if the process may not have as many.
        """
        assert 0 <= begin <= end <= self.size_bytes, f"{begin}:{end} are not bytes of a block of {self.size_bytes}"
        if any(other <= begin and end <= done for other, done in self._reserved.committed):
            return
        is_new = all(end <= other or done <= begin for other, done in self._reserved.committed)
        if is_new and begin % arena.CHUNK_BYTES == 0 and arena.is_installed():
            is_done = arena.fill(self.address + begin, end - begin)
        else:
            is_done = make_usable(self.address + begin, end - begin)
        if not is_done:
            raise _refusal(f"{format_bytes(end - begin)} of a block of {format_bytes(self.size_bytes)}")
        if is_new:
            self._reserved.committed.append((begin, end))

    def storage(self) -> torch.UntypedStorage:
        """Return a storage over the whole block, without a copy. Only its committed bytes may be touched."""
        return torch.frombuffer(self._bytes, dtype=torch.uint8).untyped_storage()


def room_for(size_bytes: int) -> torch.UntypedStorage:
    """Return a storage for bytes that come back all at once: where memory of its size rests, or a block of its own.

    Raises `MemoryError`, or torch's own error, if the process may not have as many.
    """
    if size_bytes >= arena.LEAST_BYTES and arena.is_installed():
        return torch.empty(size_bytes, dtype=torch.uint8).untyped_storage()
    block = Block(size_bytes)
    block.commit(0, size_bytes)
    return block.storage()


def lend(address: int, size_bytes: int) -> None:
    """Give up the memory of bytes whose addresses stay: whole chunks to the arena, other pages to the kernel.

    Nobody may touch them until they are taken back.
    """
    if _in_chunks(address, size_bytes) and arena.lend(address, size_bytes):
        return
    first, last = round_up(address, PAGE_BYTES), (address + size_bytes) // PAGE_BYTES * PAGE_BYTES
    if first < last:
        _madvise(first, last - first, mmap.MADV_DONTNEED)


def take_back(address: int, size_bytes: int) -> None:
    """Let bytes that were lent be touched again: whole chunks have the arena's resting memory, other pages their own.

    What they hold is undefined. Raises `MemoryError` if the process may not have as many.
    """
    is_done = arena.fill if _in_chunks(address, size_bytes) else make_usable
    if not is_done(address, size_bytes):
        raise _refusal(format_bytes(size_bytes))


def make_usable(address: int, size_bytes: int) -> bool:
    """Let bytes, rounded out to whole pages, be read and written, lent or not; return whether that could be done."""
    first = address // PAGE_BYTES * PAGE_BYTES
    length = round_up(address + size_bytes, PAGE_BYTES) - first
    return _mprotect(first, length, _READ_AND_WRITE) == 0


def _in_chunks(address: int, size_bytes: int) -> bool:
    return (address | size_bytes) % arena.CHUNK_BYTES == 0 and arena.is_installed()


def unread(size_bytes: int) -> torch.UntypedStorage:
    """Return a storage that takes no memory, for tensors whose content does not matter.

    Who reads it finds zeros, which the kernel keeps in one page for all; who writes it, crashes.
    """
    length = round_up(max(size_bytes, 1), PAGE_BYTES)
    address = _reserve(length)
    if _mprotect(address, length, mmap.PROT_READ) != 0:
        raise _refusal(f"to make {format_bytes(length)} of address space readable")
    return owned(bytes_at(address, length), _munmap, address, length).untyped_storage()


def fresh(size_bytes: int) -> tuple[torch.Tensor, list[Callable[[], None]]]:
    """Return memory of a mapping of its own, uint8[size_bytes], and a list: its functions are called before the end.

    A process that is forked off has no part in it: pages that a device knows must not move.
    """
    address = _map(size_bytes, _READ_AND_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, format_bytes(size_bytes))
    _madvise(address, size_bytes, mmap.MADV_DONTFORK)
    ends = list[Callable[[], None]]()
    return owned(bytes_at(address, size_bytes), _end, address, size_bytes, os.getpid(), ends), ends


def _end(address: int, size_bytes: int, process: int, ends: list[Callable[[], None]]) -> None:
    if os.getpid() != process:
        return
    for end in ends:
        end()
    _munmap(address, size_bytes)


def mapped(descriptor: int, offset: int, size_bytes: int, keep: object) -> torch.UntypedStorage:
    """Return a storage whose bytes are those of a file from `offset` on, a multiple of the page size.

    They take memory only when touched, and the kernel takes it back when it needs it. `keep` lives as long as they do.
    A process that is forked off reads them, too, and keeps for itself what it writes; of the rest it sees what the file
    holds by then, so it must read before this one changes the file.
    """
    what = f"to map {format_bytes(size_bytes)} of a file"
    address = _map(size_bytes, _READ_AND_WRITE, mmap.MAP_SHARED, what, descriptor, offset)
    content = bytes_at(address, size_bytes)
    _mapped[address] = _Mapped(descriptor, offset, ref(content))
    return owned(content, _unmap, address, size_bytes, keep).untyped_storage()


def give_back(storage: torch.UntypedStorage) -> None:
    """Give back the memory of a mapped storage; what is touched again comes from the file.

    A process that was forked off goes on holding what it inherited: what it has written is nowhere else.
    """
    if storage.data_ptr() in _mapped:
        _madvise(storage.data_ptr(), storage.nbytes(), mmap.MADV_DONTNEED)


def give_back_mapped() -> None:
    """Give back the memory of all that is mapped, as `give_back` does, whoever touched it and whosever it is."""
    for address, item in _mapped.copy().items():
        content = item.content()  # held, so that nothing else can come to lie at the address meanwhile
        if content is not None:
            _madvise(address, content.nbytes, mmap.MADV_DONTNEED)


def _unmap(address: int, size_bytes: int, _keep: object) -> None:
    _mapped.pop(address, None)
    _munmap(address, size_bytes)


@dataclass(frozen=True, slots=True)
class _Mapped:
    """Bytes of a file from `offset` on that are mapped as `content`."""

    descriptor: int
    offset: int
    content: ref[memoryview]


_mapped: dict[int, _Mapped] = {}
"""What this process has mapped of files, by address.

Garbage collection may remove from it at any allocation, so only a copy, which allocates nothing midway, is walked.
"""


def _keep_apart() -> None:
    """In a process that was forked off: map the same bytes so that they can be written without changing the file."""
    for address, item in _mapped.copy().items():
        content = item.content()
        if content is not None:
            flags = mmap.MAP_PRIVATE | _MAP_FIXED
            _mmap(address, content.nbytes, _READ_AND_WRITE, flags, item.descriptor, item.offset)
    _mapped.clear()


os.register_at_fork(after_in_child=_keep_apart)


def bytes_at(address: int, size_bytes: int) -> memoryview:
    """Return a writable view of raw memory. It owns nothing: whoever uses it keeps the memory alive."""
    return _memoryview_at(address, size_bytes, _BUFFER_IS_WRITABLE)


def owned(content: memoryview, release: Callable[..., object], *arguments: object) -> torch.Tensor:
    """Return raw memory, uint8[size_bytes]; once nobody uses it any more, `release` is called with the arguments."""
    finalize(content, release, *arguments).atexit = False
    return torch.frombuffer(content, dtype=torch.uint8)


def bytes_on(device: torch.device, address: int, size_bytes: int) -> torch.Tensor:
    """Return bytes of a device's memory, uint8[size_bytes]. They own nothing: whoever uses them keeps them alive."""
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage_on(device, address, size_bytes))


def storage_on(device: torch.device, address: int, size_bytes: int) -> torch.UntypedStorage:
    """Return a storage over memory of a device. It owns nothing: whoever uses it keeps the memory alive."""
    made: object = torch._C._construct_storage_from_data_pointer(address, device, size_bytes)  # noqa: SLF001
    assert isinstance(made, torch.UntypedStorage), "torch makes storages without a type"
    return made


def _reserve(size_bytes: int) -> int:
    """Reserve address space that starts at a multiple of 2 MiB: reserve more, and give the ends back."""
    reserved_bytes = size_bytes + HUGE_PAGE_BYTES
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    found = _map(reserved_bytes, _PROT_NONE, flags, f"{format_bytes(reserved_bytes)} of address space")
    address = round_up(found, HUGE_PAGE_BYTES)
    before, behind = address - found, found + reserved_bytes - address - size_bytes
    if before:
        _munmap(found, before)
    if behind:
        _munmap(address + size_bytes, behind)
    _madvise(address, size_bytes, mmap.MADV_HUGEPAGE)  # A kernel without huge pages refuses; small ones do.
    return address


def _map(size_bytes: int, protection: int, flags: int, what: str, descriptor: int = -1, offset: int = 0) -> int:
    """Return where a new mapping begins. Raises `MemoryError`, which says `what` the kernel has refused.

    Its limits of addresses (`ulimit -v`) and of mappings (`vm.max_map_count`) count what rests, which makes way.
    """
    address = _mmap(None, size_bytes, protection, flags, descriptor, offset)
    if address == _FAILED:
        arena.keep_at_most(0)
        address = _mmap(None, size_bytes, protection, flags, descriptor, offset)
    if address == _FAILED:
        raise _refusal(what)
    return address


def _refusal(what: str) -> MemoryError:
    number = ctypes.get_errno()
    limits = "Raise the limit of the process (ulimit -d, ulimit -v) or lower the memory budget."
    remedy = limits if number == errno.ENOMEM else "Lower the memory budget."
    return MemoryError(f"The kernel refused {what}: {os.strerror(number)}. {remedy}")
