"""What the kernel says of this process follows what the process does."""

import ctypes
import mmap
from pathlib import Path

import pytest

from outgrow.runtime import process
from outgrow.runtime.memory import Block
from outgrow.runtime.process import available_bytes, high_water_bytes, machine_bytes, process_bytes, reset_high_water
from outgrow.units import MIB
from tests.runtime.memory import COUNTER_SLACK_BYTES, touch

_BYTES = 64 * MIB


def test_touched_memory_counts_and_freed_memory_does_not() -> None:
    """The process takes the bytes of a block while it holds them, and no longer."""
    before = process_bytes()
    block = Block(_BYTES)
    block.commit(0, _BYTES)
    touch(block, 0, _BYTES)
    held = process_bytes() - before
    del block
    freed = process_bytes() - before
    assert abs(held - _BYTES) < COUNTER_SLACK_BYTES
    assert abs(freed) < COUNTER_SLACK_BYTES


def test_memory_that_nobody_has_touched_is_not_present() -> None:
    """Of a range of memory those pages are present that were touched."""
    size, third = 3 * MIB, MIB
    untouched = mmap.mmap(-1, size)
    address = ctypes.addressof(ctypes.c_char.from_buffer(untouched))
    assert _present(address, size) == (0, 0)
    untouched[third : 2 * third] = b"\1" * third
    assert _present(address, size)[1] in range(third, size)
    untouched[:] = b"\1" * size
    assert _present(address, size) == (0, size), "Python maps it to be shared"
    assert _present(address + 100, size - 200) == (0, size - 200)
    own = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    own[third : 2 * third] = b"\1" * third
    assert _present(ctypes.addressof(ctypes.c_char.from_buffer(own)), size)[0] in range(third, size)
    own[:] = b"\1" * size
    assert _present(ctypes.addressof(ctypes.c_char.from_buffer(own)), size) == (size, 0)


def test_what_is_read_of_files_counts_until_the_mark_is_reset(tmp_path: Path) -> None:
    """Pages of files go when the kernel needs them; while a step runs, its mark counts those that come."""
    (tmp_path / "data").write_bytes(bytes(_BYTES))
    before = process_bytes()
    with (tmp_path / "data").open("rb") as file:
        data = mmap.mmap(file.fileno(), _BYTES, prot=mmap.PROT_READ)
    reset_high_water()
    assert sum(data[: _BYTES // 2 : mmap.PAGESIZE]) == 0
    assert high_water_bytes() - before > _BYTES // 2 - COUNTER_SLACK_BYTES
    assert process_bytes() - before < COUNTER_SLACK_BYTES
    assert process.counted_bytes() - before > _BYTES // 2 - COUNTER_SLACK_BYTES
    reset_high_water()
    assert high_water_bytes() - before < COUNTER_SLACK_BYTES
    data.close()
    assert high_water_bytes() - before > _BYTES // 2 - COUNTER_SLACK_BYTES, "other memory may have been there by then"


def test_what_is_written_to_a_private_mapping_is_the_process_own(tmp_path: Path) -> None:
    """And what is written to a shared one is everybody's."""
    (tmp_path / "data").write_bytes(bytes(MIB))
    with (tmp_path / "data").open("r+b") as file:
        for flags, is_private in ((mmap.MAP_PRIVATE, True), (mmap.MAP_SHARED, False)):
            data = mmap.mmap(file.fileno(), MIB, flags=flags)
            assert process.is_private(ctypes.addressof(ctypes.c_char.from_buffer(data))) is is_private


def test_the_high_water_remembers_what_was_freed() -> None:
    """The mark stays after the memory is gone."""
    reset_high_water()
    before = process_bytes()
    block = Block(_BYTES)
    block.commit(0, _BYTES)
    touch(block, 0, _BYTES)
    del block
    assert high_water_bytes() - before > _BYTES - COUNTER_SLACK_BYTES


def test_the_high_water_can_be_reset() -> None:
    """After a reset the mark begins from what the process takes then."""
    block = Block(_BYTES)
    block.commit(0, _BYTES)
    touch(block, 0, _BYTES)
    del block
    reset_high_water()
    assert high_water_bytes() - process_bytes() < COUNTER_SLACK_BYTES


def test_the_high_water_is_never_below_what_is_taken() -> None:
    """The mark follows memory as it grows."""
    reset_high_water()
    block = Block(_BYTES)
    block.commit(0, _BYTES)
    for begin in range(0, _BYTES, 16 * MIB):
        touch(block, begin, begin + 16 * MIB)
        assert high_water_bytes() >= process_bytes() - COUNTER_SLACK_BYTES


@pytest.mark.parametrize(
    ("groups", "limit"),
    [("0::/job/step\n", "job/memory.max"), ("4:cpu,memory:/job\n0::/\n", "memory/job/memory.limit_in_bytes")],
)
def test_the_limit_of_a_container_is_what_the_machine_has(
    groups: str, limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit counts, of a group or of one around it; the word `max` is none."""
    (tmp_path / "groups").write_text(groups)
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / limit).parent.mkdir(parents=True)
    (tmp_path / limit).write_text("4194304\n")
    monkeypatch.setattr(process, "_GROUPS", str(tmp_path / "groups"))
    monkeypatch.setattr(process, "_GROUP_ROOT", tmp_path)
    assert machine_bytes() == 4 * MIB


def test_what_is_free_is_within_the_limit_of_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the process took itself is gone from it; pages of files, such as those of libraries, are not."""
    monkeypatch.setattr(process, "_GROUPS", str(tmp_path / "groups"))
    monkeypatch.setattr(process, "_GROUP_ROOT", tmp_path)
    (tmp_path / "groups").write_text("0::/\n")
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
    limit = 2 * resident + _BYTES
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    before = available_bytes()
    assert limit - resident < before < limit
    block = Block(_BYTES)
    block.commit(0, _BYTES)
    touch(block, 0, _BYTES)
    assert available_bytes() <= before - _BYTES + COUNTER_SLACK_BYTES
    (tmp_path / "memory.max").write_text("4096\n")
    assert available_bytes() == 0


@pytest.fixture
def without_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that tells little of a process, has no groups, and lets no mark begin anew."""
    (tmp_path / "status").write_text("Name:\tpython\nVmSize:\t9000 kB\nVmRSS:\t8000 kB\nThreads:\t1\n")
    monkeypatch.setattr(process, "_STATUS", str(tmp_path / "status"))
    monkeypatch.setattr(process, "_CLEAR_REFS", str(tmp_path / "clear_refs"))
    monkeypatch.setattr(process, "_GROUPS", str(tmp_path / "groups"))


@pytest.mark.usefixtures("without_marks")
def test_without_a_mark_there_is_a_refusal_and_no_wrong_number() -> None:
    """It says what is lacking, and what to do."""
    with pytest.raises(OSError, match=r"clear_refs is lacking.* or the model on a GPU"):
        reset_high_water()
    with pytest.raises(OSError, match="VmHWM"):
        high_water_bytes()


@pytest.mark.usefixtures("without_marks")
def test_without_kinds_of_pages_all_are_the_process_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a limit all resident bytes are taken; without groups there is no limit."""
    assert available_bytes() > 0
    assert machine_bytes() > 0
    monkeypatch.setattr(process, "_GROUP_ROOT", tmp_path)
    (tmp_path / "groups").write_text("0::/\n")
    limit = process_bytes() + _BYTES
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    assert abs(available_bytes() - _BYTES) < COUNTER_SLACK_BYTES


def _present(address: int, size_bytes: int) -> tuple[int, int]:
    (found,) = process.present_bytes([(address, size_bytes)])
    return found
