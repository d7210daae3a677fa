"""Where do bytes go that do not fit? Into a file on a local disk that no one else can see, by direct I/O.

The file has no name: it is opened with O_TMPFILE (where a filesystem has no such thing: made, and unlinked at
once), readable by its owner alone. So its space is free again after any death of the process. The space is
reserved when the tier is made: a full disk is found then, and not in the middle of a step.

Direct I/O moves bytes between memory and disk without the processor and without a second copy of them in the
page cache. It asks for addresses, offsets and sizes that are multiples of `ROOM_BYTES`:

    address and size aligned   every byte moves in place, in blocks of 16 MiB
    size not aligned           the last bytes, fewer than 4096, go through a bounce buffer
    address not aligned        all bytes go through the bounce buffer, and the processor copies them

Threads may write and read at once. Each direction has one bounce buffer, made at first need, which serves one copy at
a time: two steps that share a model have two links to its file.
"""

import ctypes
import errno
import fcntl
import os
import resource
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Self

import torch

from outgrow.analysis.sinking import ROOM_BYTES
from outgrow.errors import TierFailure
from outgrow.files import cache_folder
from outgrow.runtime.memory import Block, bytes_at, give_back, mapped, room_for
from outgrow.units import MIB, format_bytes, round_up

_BLOCK_BYTES = 16 * MIB
_BOUNCE_BYTES = MIB

_MEMORY_FILESYSTEMS = ("tmpfs", "ramfs", "devtmpfs", "hugetlbfs")
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_UNNAMED_FILES = (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT)
_CHOOSE = "Choose a folder on a local disk as offload_dir."


def default_offload_dir() -> Path:
    """Return the folder for spill files where none is given: the user's cache folder, then outgrow/spill."""
    return cache_folder("spill")


def offload_folder(chosen: str | Path | None) -> Path:
    """Return the folder for spill files: the one that was chosen, with ~ for the home folder, or the default.

    It stays where it is when the process goes to another folder. Raises `TypeError` for what is no path, and
    `TierFailure` for an empty one.
    """
    if chosen is None:
        return default_offload_dir()
    if not isinstance(chosen, str | os.PathLike):
        raise TypeError(f"offload_dir is {chosen!r}, not a folder. Give a path.")
    if not os.fspath(chosen):
        raise TierFailure(f"offload_dir is empty. {_CHOOSE}")
    path = Path(os.path.expanduser(chosen))  # noqa: PTH111 - `Path.expanduser` fails where there is no such user
    return path.absolute()


@dataclass
class _Direction:
    """What one direction of a tier has of its own: a verb for messages, a bounce buffer if need be."""

    verb: str
    bounce: Block | None = None
    is_bouncing: Lock = field(default_factory=Lock)

    @contextmanager
    def bouncing(self) -> Iterator[int]:
        """Have the bounce buffer, which begins here, for oneself. Raises `MemoryError` if there is none."""
        with self.is_bouncing:
            bounce = self.bounce  # held here: the tier may be closed meanwhile
            if bounce is None:
                bounce = Block(_BOUNCE_BYTES)
                bounce.commit(0, _BOUNCE_BYTES)
                self.bounce = bounce
            yield bounce.address


class DiskTier:
    """`capacity_bytes` of disk in `folder`, which is made if it does not exist and its parent does.

    Extents begin at multiples of `ROOM_BYTES` and do not overlap once their ends are rounded up to it.
    Whatever the disk refuses, at birth or in a copy, is a `TierFailure`.
    """

    seam_bytes = 0
    """When it grows, new bytes follow the old ones without a gap."""
    budget_name = "disk budget"

    def __init__(self, folder: Path, capacity_bytes: int) -> None:
        assert capacity_bytes > 0, f"a tier holds bytes, not {capacity_bytes}"
        self.folder = folder
        self.capacity_bytes = round_up(capacity_bytes, ROOM_BYTES)
        self._out, self._in = _Direction("Writing"), _Direction("Reading")
        self._process = os.getpid()
        _require_disk(folder)
        file = _OpenFile(_open(folder))
        _reserve(file, folder, 0, self.capacity_bytes)
        self._file: _OpenFile | None = file

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def grow(self, capacity_bytes: int) -> None:
        """Take more disk space; what is there stays. Raises `TierFailure` if there is too little."""
        capacity = round_up(capacity_bytes, ROOM_BYTES)
        if capacity > self.capacity_bytes:
            _reserve(self._open_file(), self.folder, self.capacity_bytes, capacity - self.capacity_bytes)
            self.capacity_bytes = capacity

    @property
    def size_bytes(self) -> int:
        """What it takes of the disk."""
        return self.capacity_bytes

    def taken_for(self, size_bytes: int) -> int:
        """Return what `size_bytes` more take of the disk."""
        return size_bytes

    def release(self, take_away: Callable[[int, int], bool]) -> None:
        """Give nothing back: a file is one piece."""

    def require_reached(self, offset: int, size: int) -> None:
        """Do nothing: any bytes of a file can be mapped."""

    def mapped(self, offset: int, size: int, keep: object) -> torch.UntypedStorage:
        """Return a storage over bytes of the tier; they and `keep` live as long as it does, even if the tier closes."""
        file = self._checked(offset, size)
        return mapped(file.descriptor, offset, size, (file, keep))

    def write(self, offset: int, address: int, size: int) -> None:
        """Copy `size` bytes of memory at `address` to `offset`. Memory beyond them is not read."""
        file, way = self._checked(offset, size), self._out
        direct = _direct_bytes(address, size)
        self._move(file, way, offset, address, direct)
        for begin in range(direct, size, _BOUNCE_BYTES):
            length = min(_BOUNCE_BYTES, size - begin)
            with way.bouncing() as bounce:
                ctypes.memmove(bounce, address + begin, length)  # without the GIL, which a memoryview would hold
                self._move(file, way, offset + begin, bounce, round_up(length, ROOM_BYTES))

    def read(self, offset: int, address: int, size: int) -> None:
        """Copy `size` bytes from `offset` to memory at `address`. Memory beyond them is not touched."""
        file, way = self._checked(offset, size), self._in
        direct = _direct_bytes(address, size)
        self._move(file, way, offset, address, direct)
        for begin in range(direct, size, _BOUNCE_BYTES):
            length = min(_BOUNCE_BYTES, size - begin)
            with way.bouncing() as bounce:
                self._move(file, way, offset + begin, bounce, round_up(length, ROOM_BYTES))
                ctypes.memmove(address + begin, bounce, length)

    @property
    def place(self) -> str:
        """Where it is, for messages."""
        return str(self.folder)

    def home(self, offset: int, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        """Return memory with the bytes of a storage that is mapped at `offset` and comes back for good.

        They are read as in a step: through the mapping they would take memory twice, and a disk that fails would end
        the process. Where the file is no more this process's to read, they are.
        """
        room = room_for(storage.nbytes())
        if self._file is None or self.is_inherited:
            ctypes.memmove(room.data_ptr(), storage.data_ptr(), storage.nbytes())
        else:
            self.read(offset, room.data_ptr(), storage.nbytes())
        return room

    def forget(self, storage: torch.UntypedStorage) -> None:
        """Give back the memory that was taken by reading a storage that is mapped here."""
        give_back(storage)

    def close(self) -> None:
        """Give the disk space back: now, or when a copy that still runs has ended. May be called again."""
        self._file = self._out.bounce = self._in.bounce = None

    def _checked(self, offset: int, size: int) -> "_OpenFile":
        assert offset % ROOM_BYTES == 0, f"offset {offset} is not a multiple of {ROOM_BYTES}"
        assert 0 <= offset <= offset + size <= self.capacity_bytes, (
            f"bytes {offset}:{offset + size} are not in a tier of {self.capacity_bytes}"
        )
        return self._open_file()

    @property
    def is_inherited(self) -> bool:
        """Whether this process was forked from the one that made the tier, whose bytes it may read but not change."""
        return os.getpid() != self._process

    def _open_file(self) -> "_OpenFile":
        if self.is_inherited:
            raise TierFailure(
                f"The spill file in {self.folder} belongs to process {self._process}, from which this one was forked. "
                "Compile the step in this process, or start processes by spawn."
            )
        if self._file is None:
            raise TierFailure(f"The spill file in {self.folder} is closed. Make the step anew to go on.")
        return self._file

    def _move(self, file: "_OpenFile", way: _Direction, offset: int, address: int, size: int) -> None:
        """Move aligned bytes, in blocks. A transfer that ends early is taken up at the last aligned byte."""
        transfer = os.pwritev if way is self._out else os.preadv
        done = 0
        while done < size:
            length = min(_BLOCK_BYTES, size - done)
            what = f"{way.verb} {length} bytes at offset {offset + done} of the spill file in {self.folder}"
            try:
                moved = transfer(file.descriptor, [bytes_at(address + done, length)], offset + done)
            except OSError as error:
                raise TierFailure(f"{what} failed: {_reason(error)}. Check the disk. {_CHOOSE}") from error
            if moved < ROOM_BYTES:
                raise TierFailure(f"{what} ended after {moved} bytes. Check the disk. {_CHOOSE}")
            done += moved // ROOM_BYTES * ROOM_BYTES


class _OpenFile:
    """A file by its descriptor, which is closed when its last user lets go of it: never under a running copy."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self.descriptor)


def _direct_bytes(address: int, size: int) -> int:
    """Return how many of the first bytes can move in place."""
    return 0 if address % ROOM_BYTES else size // ROOM_BYTES * ROOM_BYTES


# ---- Making a tier, and the reasons why there is none


def _require_disk(folder: Path) -> None:
    """Make the folder if need be, the default one with its parents. Raises `TierFailure` unless it is one on a disk."""
    is_default = folder == default_offload_dir()
    if not is_default and not folder.parent.exists():
        raise TierFailure(
            f"The offload folder {folder} cannot be made: there is no folder {folder.parent}. "
            "Make that, or choose another one as offload_dir."
        )
    try:
        folder.mkdir(mode=0o700, parents=is_default, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise TierFailure(f"The offload folder {folder} is not a directory. {_CHOOSE}") from error
    except OSError as error:
        raise TierFailure(f"The offload folder {folder} cannot be made: {_reason(error)}. {_CHOOSE}") from error
    filesystem = _filesystem(folder)
    if filesystem in _MEMORY_FILESYSTEMS:
        raise TierFailure(
            f"The offload folder {folder} lies on {filesystem}, which is memory itself: what is swapped out "
            f"would stay in RAM. {_CHOOSE}"
        )


def _filesystem(folder: Path) -> str | None:
    """Return the type of the filesystem that a folder is on; None where the kernel does not tell."""
    device = folder.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return None
    # 25 24 0:23 / /dev/shm rw,relatime [optional fields] - tmpfs tmpfs rw
    types = [line.partition(" - ")[2].split()[0] for line in mounts if line.split()[2] == number]
    return types[0] if types else None


def _open(folder: Path) -> int:
    """Open an unnamed file for direct I/O that is readable by its owner alone, and return its descriptor."""
    flags = os.O_TMPFILE | os.O_EXCL | os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC
    try:
        try:
            return os.open(folder, flags, 0o600)
        except OSError as error:
            if error.errno not in _NO_UNNAMED_FILES:
                raise
            return _open_unlinked(folder)
    except OSError as error:
        if error.errno == errno.EINVAL:
            reason = "its filesystem has no direct I/O (O_DIRECT), and without it spilled bytes stay in RAM"
        else:
            reason = f"no file can be made in it: {_reason(error)}"
        raise TierFailure(f"The offload folder {folder} cannot be used: {reason}. {_CHOOSE}") from error


def _open_unlinked(folder: Path) -> int:
    """As `_open`, for a filesystem without O_TMPFILE: the file has a name for a moment."""
    descriptor, name = tempfile.mkstemp(prefix="outgrow-", dir=folder)
    try:
        Path(name).unlink()
        fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_DIRECT)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _reserve(file: _OpenFile, folder: Path, offset: int, size_bytes: int) -> None:
    """Take disk space for `size_bytes` from `offset` on. Raises `TierFailure` if there is too little."""
    free_bytes = _free_bytes(file)
    wanted = f"{format_bytes(size_bytes)} of disk are needed in {folder}"
    remedy = "Free some space, choose a folder on another disk as offload_dir, or raise the memory budget."
    if size_bytes > free_bytes:
        raise TierFailure(f"{wanted}, and {format_bytes(free_bytes)} are free. {remedy}")
    try:
        os.posix_fallocate(file.descriptor, offset, size_bytes)
    except OSError as error:
        most_bytes = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        if error.errno == errno.EFBIG and 0 <= most_bytes < offset + size_bytes:
            found = f"{_reason(error)}, files of this process may have {format_bytes(most_bytes)}"
            remedy = "Raise that limit (ulimit -f), or the memory budget."
            raise TierFailure(f"{wanted}, and could not be reserved: {found}. {remedy}") from error
        if error.errno in _NO_SPACE:
            found = f"{_reason(error)}, with {format_bytes(_free_bytes(file))} free on the disk"
            raise TierFailure(f"{wanted}, and could not be reserved: {found}. {remedy}") from error
        raise TierFailure(f"{wanted}, and cannot be reserved: {_reason(error)}. {_CHOOSE}") from error


def _free_bytes(file: _OpenFile) -> int:
    found = os.statvfs(file.descriptor)
    return found.f_bavail * found.f_frsize


def _reason(error: OSError) -> str:
    return f"{error.strerror or error} (errno {error.errno})"
