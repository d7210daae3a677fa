"""A block takes addresses at once, memory when it is committed, and nothing once its last user is gone."""

import ctypes
import gc
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from outgrow.runtime.memory import HUGE_PAGE_BYTES, PAGE_BYTES, Block, bytes_at, give_back_mapped, mapped, unread
from outgrow.runtime.process import process_bytes
from outgrow.runtime.program import Geometry
from outgrow.units import GIB, MIB
from tests.runtime.memory import COUNTER_SLACK_BYTES, bytes_of, is_mapped, touch

_ROOT = Path(__file__).parents[2]


def test_what_is_not_read_takes_no_memory_and_reads_as_zeros() -> None:
    """Even after a kernel has read all of it, and it goes with the last tensor over it."""
    before = process_bytes()
    storage = unread(256 * MIB)
    address = storage.data_ptr()
    tensor = Geometry("x", torch.float32, (8 * MIB,), (8,), 3).over(storage)
    assert tensor.count_nonzero() == 0
    assert abs(process_bytes() - before) < COUNTER_SLACK_BYTES
    del storage, tensor
    assert not is_mapped(address)


def test_a_reservation_takes_no_memory() -> None:
    """A block larger than the memory of most machines costs nothing before it is committed."""
    before = process_bytes()
    block = Block(512 * GIB)
    assert abs(process_bytes() - before) < COUNTER_SLACK_BYTES
    del block


@pytest.mark.parametrize("size", [1, PAGE_BYTES, HUGE_PAGE_BYTES + 1, 5 * HUGE_PAGE_BYTES])
def test_a_block_begins_on_a_huge_page_and_holds_its_bytes(size: int) -> None:
    """Its first and last bytes are there, and nothing lies behind its last page."""
    block = Block(size)
    block.commit(0, size)
    touch(block, 0, size)
    assert block.address % HUGE_PAGE_BYTES == 0
    assert bytes_of(block.address, size) == b"\1" * size


def test_fresh_memory_is_zero() -> None:
    """What another block held before is not seen in memory of the kernel."""
    first = Block(4 * MIB)
    first.commit(0, 4 * MIB)
    touch(first, 0, 4 * MIB)
    del first
    second = Block(4 * MIB)
    second.commit(0, 4 * MIB)
    assert not any(bytes_of(second.address, 4 * MIB))


def test_memory_is_taken_piece_by_piece() -> None:
    """Each committed and touched piece adds its bytes to the process, in any order."""
    piece = 16 * MIB
    block = Block(4 * piece)
    before = process_bytes()
    for taken, begin in enumerate((2 * piece, 0, 3 * piece, piece), start=1):
        block.commit(begin, begin + piece)
        touch(block, begin, begin + piece)
        assert abs(process_bytes() - before - taken * piece) < COUNTER_SLACK_BYTES


def test_committing_twice_keeps_the_bytes() -> None:
    """Pieces whose ends share a page do not harm each other."""
    block = Block(3 * PAGE_BYTES)
    block.commit(0, PAGE_BYTES + 10)
    touch(block, 0, PAGE_BYTES + 10)
    block.commit(PAGE_BYTES + 10, 3 * PAGE_BYTES)
    block.commit(0, 3 * PAGE_BYTES)
    assert bytes_of(block.address, PAGE_BYTES + 11) == b"\1" * (PAGE_BYTES + 10) + b"\0"


def test_a_piece_across_pages_is_committed_in_full() -> None:
    """Two bytes on two pages can both be used."""
    block = Block(3 * PAGE_BYTES)
    block.commit(PAGE_BYTES - 1, PAGE_BYTES + 1)
    touch(block, PAGE_BYTES - 1, PAGE_BYTES + 1)
    assert bytes_of(block.address, 2 * PAGE_BYTES).count(1) == 2


def test_a_small_block_takes_few_addresses() -> None:
    """What is reserved to find an aligned place is given back, but for the block's own pages."""
    before = address_space_bytes()
    blocks = [Block(PAGE_BYTES) for _ in range(64)]
    assert address_space_bytes() - before < len(blocks) * HUGE_PAGE_BYTES // 4


def address_space_bytes() -> int:
    lines = Path("/proc/self/maps").read_text().splitlines()
    spans = [[int(number, 16) for number in line.split()[0].split("-")] for line in lines]
    return sum(end - begin for begin, end in spans)


def test_a_storage_is_the_block_itself() -> None:
    """What is written to the memory is read in the tensor, and the other way round."""
    block = Block(4 * PAGE_BYTES)
    block.commit(0, 4 * PAGE_BYTES)
    storage = block.storage()
    tensor = Geometry("x", torch.float32, (4, 8), (8, 1), 16).over(storage)
    tensor.fill_(2.0)
    assert storage.data_ptr() == block.address
    assert storage.nbytes() == 4 * PAGE_BYTES
    assert tensor.data_ptr() == block.address + 64
    assert list(bytes_at(block.address + 64, 128).cast("f")) == [2.0] * 32


def test_the_last_tensor_keeps_the_memory() -> None:
    """A view lives on when block and storage are gone, and takes the memory with it when it dies."""
    block = Block(2 * MIB)
    block.commit(0, 2 * MIB)
    address = block.address
    storage = block.storage()
    tensor = Geometry("x", torch.uint8, (2 * MIB,), (1,), 0).over(storage)
    tensor.fill_(5)
    del block, storage
    assert is_mapped(address)
    assert int(tensor.sum(dtype=torch.int64)) == 5 * 2 * MIB
    del tensor
    assert not is_mapped(address)


def test_memory_goes_back_at_once() -> None:
    """No collector and no cache stands between the death of a storage and the process's memory."""
    before = process_bytes()
    block = Block(64 * MIB)
    block.commit(0, 64 * MIB)
    touch(block, 0, 64 * MIB)
    storage = block.storage()
    del block
    assert process_bytes() - before > 64 * MIB - COUNTER_SLACK_BYTES
    del storage
    assert process_bytes() - before < COUNTER_SLACK_BYTES


def test_a_block_without_storage_is_unmapped_with_it() -> None:
    """A block goes with its last reference, reserved addresses and all."""
    block = Block(2 * MIB)
    address = block.address
    assert is_mapped(address)
    del block
    assert not is_mapped(address)


_UNDER_A_LIMIT = """
import resource
from pathlib import Path
from outgrow.runtime.memory import Block
from outgrow.units import MIB
status = Path("/proc/self/status").read_text().splitlines()
data = int(next(line.split()[1] for line in status if line.startswith("VmData:"))) << 10
resource.setrlimit(resource.RLIMIT_DATA, (data + 96 * MIB, data + 96 * MIB))
block = Block(1024 * MIB)
block.commit(0, 64 * MIB)
try:
    block.commit(64 * MIB, 1024 * MIB)
except MemoryError as refusal:
    print(refusal)
block.commit(960 * MIB, 976 * MIB)
del block
again = Block(64 * MIB)
again.commit(0, 64 * MIB)
"""


def test_a_limit_on_data_counts_committed_bytes_alone() -> None:
    """Under RLIMIT_DATA a reservation is free, a piece counts, and one too large is refused without harm."""
    printed = _run(_UNDER_A_LIMIT)
    assert "The kernel refused 960.0 MiB of a block of 1.00 GiB: Cannot allocate memory" in printed
    assert "lower the memory budget" in printed


def _run(code: str) -> str:
    """Return what `code` prints in an interpreter of its own."""
    path = f"{_ROOT / 'src'}:{_ROOT}"
    environment = {"PYTHONPATH": path, "THP_MEM_ALLOC_ENABLE": "0"}
    process = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment)
    return process.stdout


def test_an_impossible_reservation_is_refused() -> None:
    """More addresses than a processor has are a `MemoryError` that says how many were asked for."""
    with pytest.raises(MemoryError, match="of address space: Cannot allocate memory"):
        Block(1 << 60)


def test_raw_bytes_can_be_written() -> None:
    """A view of raw memory writes through."""
    buffer = ctypes.create_string_buffer(8)
    bytes_at(ctypes.addressof(buffer), 8)[2:4] = b"ab"
    assert buffer.raw == b"\0\0ab\0\0\0\0"


def test_what_is_mapped_may_become_garbage_while_its_memory_is_given_back() -> None:
    before = gc.get_threshold()
    with tempfile.TemporaryFile() as file:
        file.truncate(PAGE_BYTES)
        try:
            for threshold in range(1, 51):  # so that a collection begins at another place each time
                held = [mapped(file.fileno(), 0, PAGE_BYTES, None) for _ in range(50)]
                gc.set_threshold(0)
                for _ in range(5):
                    _in_a_cycle(mapped(file.fileno(), 0, PAGE_BYTES, None))
                gc.set_threshold(threshold)
                give_back_mapped()
                assert bytes_of(held[0].data_ptr(), 1) == b"\0", "the file holds zeros"
        finally:
            gc.set_threshold(*before)


def _in_a_cycle(item: object) -> None:
    cycle: list[object] = [item]
    cycle.append(cycle)
