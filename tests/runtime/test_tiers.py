"""A tier gives back the bytes that it got, touches no others, leaves nothing behind, and says what failed."""

import ctypes
import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outgrow.errors import TierFailure
from outgrow.runtime.memory import Block
from outgrow.runtime.tiers import DiskTier, default_offload_dir, offload_folder
from outgrow.units import GIB, MIB
from tests.runtime.memory import bytes_of, filled, open_spill_files, put

_ROOT = Path(__file__).parents[2]
_CANARY = b"\xa5" * 5000

Transfer = Callable[[int, list[memoryview], int], int]


@pytest.fixture
def tier(disk_folder: Path) -> Iterator[DiskTier]:
    """A tier of 32 MiB on a disk."""
    with DiskTier(disk_folder, 32 * MIB) as made:
        yield made


def committed(size: int) -> Block:
    """A block whose bytes are all there."""
    block = Block(size)
    block.commit(0, size)
    return block


# ---- Bytes


def check_round_trip(tier: DiskTier, size: int, source_at: int, target_at: int, offset: int) -> None:
    """Write and read `size` bytes at places `source_at` and `target_at` of a page, and compare all."""
    content, before = filled(size, seed=size % 251), len(_CANARY)
    source = committed(size + 3 * 4096)
    start = source.address + source_at
    put(start, content)
    tier.write(offset, start, size)
    assert bytes_of(start, size) == content
    target = committed(size + 6 * 4096)
    begin = target.address + 8192 + target_at
    put(begin - before, _CANARY + b"\0" * size + _CANARY)
    tier.read(offset, begin, size)
    assert bytes_of(begin - before, size + 2 * before) == _CANARY + content + _CANARY


places = st.sampled_from([0, 0, 1, 64, 512, 4095]) | st.integers(0, 4095)
sizes = st.integers(0, 20_000) | st.sampled_from([4095, 4096, 4097, 65536, MIB, MIB + 1])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(size=sizes, source_at=places, target_at=places, page=st.integers(0, 1000))
def test_bytes_come_back(tier: DiskTier, size: int, source_at: int, target_at: int, page: int) -> None:
    """Whatever the size and the addresses, the same bytes come back, and none beside them change."""
    check_round_trip(tier, size, source_at, target_at, page * 4096)


@pytest.mark.parametrize("size", [16 * MIB, 17 * MIB, 20 * MIB + 77])
@pytest.mark.parametrize("at", [0, 64])
def test_long_copies_come_back(tier: DiskTier, size: int, at: int) -> None:
    """Copies of more than one block, and of more than one bounce buffer, are whole."""
    check_round_trip(tier, size, at, at, 8192)


def test_a_storage_comes_back_in_pieces(tier: DiskTier) -> None:
    """What was written as one is read in pieces that begin on a page, in any order."""
    size = MIB + 100
    content, source, target = filled(size), committed(size), committed(size)
    put(source.address, content)
    tier.write(4096, source.address, size)
    for begin, end in ((8192, 65536), (65536, size), (0, 8192)):
        tier.read(4096 + begin, target.address + begin, end - begin)
    assert bytes_of(target.address, size) == content


def test_neighbours_do_not_harm_each_other(tier: DiskTier) -> None:
    """Extents that touch once their ends are rounded up to a page hold their bytes side by side."""
    block = committed(3 * 5000)
    for at in range(3):
        put(block.address + at * 5000, filled(5000, seed=at))
    for at in (1, 0, 2):
        tier.write(at * 8192, block.address + at * 5000, 5000)
    for at in range(3):
        target = committed(5000)
        tier.read(at * 8192, target.address, 5000)
        assert bytes_of(target.address, 5000) == filled(5000, seed=at)


def test_memory_behind_the_source_is_not_read(tier: DiskTier) -> None:
    """A source that ends with its mapping, in the middle of a page or at its end, can be written."""
    for size in (4096, 8192 + 100):
        block = committed(size)
        put(block.address, filled(size))
        tier.write(0, block.address, size)


@pytest.mark.parametrize(("at", "size", "bounced"), [(0, 8192, 0), (0, 8192 + 10, 10), (64, 8192, 8192)])
def test_only_what_is_not_aligned_is_bounced(
    tier: DiskTier, at: int, size: int, bounced: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole pages move in place, the end of a storage is copied, and all of it if it begins within a page."""
    block, copied, memmove = committed(size + 4096), list[int](), ctypes.memmove

    def noted(target: int, source: int, length: int) -> None:
        copied.append(length)
        memmove(target, source, length)

    monkeypatch.setattr(ctypes, "memmove", noted)
    tier.write(0, block.address + at, size)
    assert sum(copied) == bounced
    tier.read(0, block.address + at, size)
    assert sum(copied) == 2 * bounced


# ---- The file


def test_the_default_folder_is_in_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """XDG_CACHE_HOME counts, and ~/.cache where it is not set."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_offload_dir() == tmp_path / "outgrow" / "spill"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_offload_dir() == tmp_path / ".cache" / "outgrow" / "spill"


def descriptor_of(tier: DiskTier) -> int:
    assert tier._file is not None
    return tier._file.descriptor


def test_the_file_is_private_and_has_no_name(tier: DiskTier) -> None:
    """Its owner alone may read it, no path leads to it, no started program inherits it, no cache holds it."""
    found = os.fstat(descriptor_of(tier))
    assert stat.S_IMODE(found.st_mode) == 0o600
    assert found.st_nlink == 0
    assert list(tier.folder.iterdir()) == []
    assert not os.get_inheritable(descriptor_of(tier))
    assert fcntl.fcntl(descriptor_of(tier), fcntl.F_GETFL) & os.O_DIRECT


def test_the_space_is_taken_at_once(tier: DiskTier) -> None:
    """All blocks of the file are there before anything is written."""
    assert os.fstat(descriptor_of(tier)).st_blocks * 512 >= tier.capacity_bytes == 32 * MIB


def test_a_missing_folder_is_made(disk_folder: Path) -> None:
    """In a folder that is there, for its owner alone; a path that leads nowhere is taken for a slip."""
    folder = disk_folder / "a"
    DiskTier(folder, 1).close()
    assert stat.S_IMODE(folder.stat().st_mode) & 0o077 == 0
    with pytest.raises(TierFailure, match=rf"there is no folder {disk_folder}/b\. Make that"):
        DiskTier(disk_folder / "b" / "c", 1)
    assert not (disk_folder / "b").exists()


def test_the_default_folder_is_made_with_its_parents(disk_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user may have no cache folder yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(disk_folder / "cache"))
    DiskTier(default_offload_dir(), 1).close()
    assert default_offload_dir().is_dir()


def test_a_chosen_folder_is_a_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The home folder may be written as ~; what is no path, or an empty one, is refused."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert offload_folder("~/spill") == offload_folder(Path("~/spill")) == tmp_path / "spill"
    with pytest.raises(TypeError, match=r"offload_dir is 3, not a folder\. Give a path\."):
        offload_folder(3)  # type: ignore[arg-type]
    with pytest.raises(TierFailure, match="offload_dir is empty"):
        offload_folder("")


def test_a_relative_folder_stays_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The process may go to another folder between `outgrow.compile` and the first call."""
    monkeypatch.chdir(tmp_path)
    assert offload_folder("spill") == tmp_path / "spill"


def test_closing_gives_the_space_back(disk_folder: Path) -> None:
    """The descriptor is closed, once, and copies are refused from then on."""
    before = open_spill_files()
    tier = DiskTier(disk_folder, MIB)
    assert open_spill_files() == before + 1
    tier.close()
    tier.close()
    assert open_spill_files() == before
    with pytest.raises(TierFailure, match="is closed"):
        tier.read(0, 0, 0)


def test_a_forgotten_tier_gives_the_space_back(disk_folder: Path) -> None:
    """A tier that nobody closed goes with its last reference."""
    before = open_spill_files()
    tier = DiskTier(disk_folder, MIB)
    del tier
    assert open_spill_files() == before


_KILLED = """
import sys, time
from pathlib import Path
from outgrow.runtime.memory import Block
from outgrow.runtime.tiers import DiskTier
tier = DiskTier(Path(sys.argv[1]), 1 << 20)
block = Block(1 << 20)
block.commit(0, 1 << 20)
tier.write(0, block.address, 1 << 20)
print("written", flush=True)
time.sleep(60)
"""


def test_nothing_is_left_after_a_kill(disk_folder: Path) -> None:
    """SIGKILL leaves the folder empty."""
    command = [sys.executable, "-c", _KILLED, str(disk_folder)]
    environment = {"PYTHONPATH": str(_ROOT / "src")}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "written\n"
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert list(disk_folder.iterdir()) == []


# ---- Refusals


def refusing_open(number: int, *, only_unnamed: bool = False) -> Callable[..., int]:
    """`os.open` that fails for direct I/O, or only for files without a name."""
    real, refused = os.open, os.O_TMPFILE if only_unnamed else os.O_DIRECT

    def open_(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & refused == refused:
            raise OSError(number, os.strerror(number))
        return real(path, flags, mode)

    return open_


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EISDIR])
def test_a_filesystem_without_unnamed_files_will_do(
    disk_folder: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The file is unlinked at once then, and as private, reserved and direct as otherwise."""
    monkeypatch.setattr(os, "open", refusing_open(number, only_unnamed=True))
    with DiskTier(disk_folder, 2 * MIB) as tier:
        check_round_trip(tier, 100_000, 0, 64, 4096)
        test_the_file_is_private_and_has_no_name(tier)


def test_a_file_is_no_folder(disk_folder: Path) -> None:
    """A path to a file, or below one, is refused."""
    file = disk_folder / "file"
    file.write_text("mine")
    for path in (file, file / "below"):
        with pytest.raises(TierFailure, match=r"is not a directory\. Choose a folder on a local disk"):
            DiskTier(path, MIB)
    assert file.read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_refused() -> None:
    """The kernel's own folders take none."""
    with pytest.raises(TierFailure, match=r"/proc/outgrow cannot be made: .*errno"):
        DiskTier(Path("/proc/outgrow"), MIB)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_an_unwritable_folder_is_refused(disk_folder: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """The message says why no file can be made there."""
    monkeypatch.setattr(os, "open", refusing_open(number))
    with pytest.raises(TierFailure, match=f"no file can be made in it: {os.strerror(number)}"):
        DiskTier(disk_folder, MIB)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_refused(disk_folder: Path) -> None:
    """The same with a real folder."""
    disk_folder.chmod(0o500)
    try:
        with pytest.raises(TierFailure, match="Permission denied"):
            DiskTier(disk_folder, MIB)
    finally:
        disk_folder.chmod(0o700)


def test_a_filesystem_without_direct_io_is_refused(disk_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spilled bytes in the page cache would be memory again."""
    monkeypatch.setattr(os, "open", refusing_open(errno.EINVAL))
    with pytest.raises(TierFailure, match=r"no direct I/O \(O_DIRECT\)"):
        DiskTier(disk_folder, MIB)


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no folder that is memory")
def test_a_folder_in_memory_is_refused() -> None:
    """Spilling to tmpfs saves no memory."""
    with pytest.raises(TierFailure, match="/dev/shm lies on tmpfs, which is memory itself"):
        DiskTier(Path("/dev/shm"), MIB)


def test_too_little_space_is_refused_with_both_numbers(disk_folder: Path) -> None:
    """What is needed and what is free stand in the message, and no space is taken."""
    before = open_spill_files()
    with pytest.raises(TierFailure, match=r"1024\.00 TiB of disk are needed in .*, and [0-9.]+ .iB are free"):
        DiskTier(disk_folder, GIB << 20)
    assert open_spill_files() == before


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_space_that_cannot_be_reserved_is_refused(
    disk_folder: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A quota or another program may have it, although the disk has some free."""

    def refuse(_file: int, _offset: int, _size: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(TierFailure, match=rf"could not be reserved: {os.strerror(number)} .* free on the disk"):
        DiskTier(disk_folder, MIB)


def test_a_limit_on_file_sizes_is_told(disk_folder: Path) -> None:
    """RLIMIT_FSIZE makes a refusal, not a dead process."""
    code = (
        "import resource, sys; from pathlib import Path; from outgrow.runtime.tiers import DiskTier\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        "DiskTier(Path(sys.argv[1]), 2 << 20)"
    )
    command = [sys.executable, "-c", code, str(disk_folder)]
    environment = {"PYTHONPATH": str(_ROOT / "src")}
    process = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert "TierFailure: 2.0 MiB of disk are needed" in process.stderr
    assert "File too large" in process.stderr
    assert "files of this process may have 1.0 MiB. Raise that limit (ulimit -f), or the memory" in process.stderr
    assert "free" not in process.stderr


def test_a_filesystem_that_reserves_nothing_is_refused(disk_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a reservation a full disk would be found in the middle of a step."""

    def refuse(_file: int, _offset: int, _size: int) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(TierFailure, match="cannot be reserved: Operation not supported"):
        DiskTier(disk_folder, MIB)


# ---- Faults in a copy


@pytest.mark.parametrize("most", [4096, 5000, 12288, 70_000])
@pytest.mark.parametrize("at", [0, 64])
def test_short_transfers_are_taken_up(tier: DiskTier, monkeypatch: pytest.MonkeyPatch, most: int, at: int) -> None:
    """A kernel that moves a part at a time, even to the middle of a page, moves all in the end."""

    def shortened(real: Transfer) -> Transfer:
        def transfer(file: int, buffers: list[memoryview], offset: int) -> int:
            return min(most, real(file, buffers, offset))

        return transfer

    monkeypatch.setattr(os, "pwritev", shortened(os.pwritev))
    monkeypatch.setattr(os, "preadv", shortened(os.preadv))
    check_round_trip(tier, 300_000, at, at, 4096)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("at", [0, 64])
def test_a_failing_copy_names_what_and_where(
    tier: DiskTier, monkeypatch: pytest.MonkeyPatch, number: int, at: int
) -> None:
    """Direction, bytes, offset, folder, the kernel's words and a remedy stand in the message."""

    def fail(_file: int, _buffers: list[memoryview], _offset: int) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pwritev", fail)
    monkeypatch.setattr(os, "preadv", fail)
    block = committed(16384)
    for copy, verb in ((tier.write, "Writing"), (tier.read, "Reading")):
        with pytest.raises(TierFailure) as found:
            copy(4096, block.address + at, 8192)
        start = f"{verb} 8192 bytes at offset 4096 of the spill file in {tier.folder} failed: "
        assert str(found.value).startswith(f"{start}{os.strerror(number)} (errno {number}). Check the disk. ")
        assert isinstance(found.value.__cause__, OSError)


@pytest.mark.parametrize("moved", [0, 512])
def test_a_copy_that_goes_nowhere_fails(tier: DiskTier, monkeypatch: pytest.MonkeyPatch, moved: int) -> None:
    """The end of the file, or less than a page at a time, is a failure and not an endless loop."""
    monkeypatch.setattr(os, "preadv", lambda _file, _buffers, _offset: moved)
    block = committed(8192)
    with pytest.raises(TierFailure, match=rf"Reading 8192 bytes at offset 0 .* ended after {moved} bytes"):
        tier.read(0, block.address, 8192)


def test_a_truncated_file_is_found(tier: DiskTier) -> None:
    """The same with a real file that has lost its end."""
    block = committed(8192)
    os.truncate(descriptor_of(tier), 4096)
    with pytest.raises(TierFailure, match=r"Reading 4096 bytes at offset 4096 .* ended after 0 bytes"):
        tier.read(0, block.address, 8192)


def test_memory_that_is_not_there_is_a_failure(tier: DiskTier) -> None:
    """A copy to bytes that were never committed is told by the kernel."""
    block = Block(8192)
    with pytest.raises(TierFailure, match="Bad address"):
        tier.read(0, block.address, 8192)


@pytest.mark.parametrize(("offset", "size"), [(100, 10), (32 * MIB, 1), (0, 32 * MIB + 1)])
def test_an_extent_that_cannot_be_is_a_bug(tier: DiskTier, offset: int, size: int) -> None:
    """Offsets lie on a page and extents in the tier, or the planner is wrong."""
    with pytest.raises(AssertionError, match=r"multiple of 4096|not in a tier"):
        tier.write(offset, 0, size)
