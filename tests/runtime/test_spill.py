"""Extents of a spill file overlap nowhere and come back, and a storage that rests in one is the storage itself."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outgrow.errors import TierFailure
from outgrow.remarks import Remark
from outgrow.runtime import arena
from outgrow.runtime.medium import BelowHost, InHost, Medium, OnDisk
from outgrow.runtime.pool import HostPool
from outgrow.runtime.resting import (
    Extent,
    Quota,
    SpillFile,
    come_home,
    extent_of,
    forget,
    is_exchangeable,
    resident_bytes,
)
from outgrow.runtime.spill import Spill
from outgrow.units import MIB
from tests.runtime.memory import open_spill_files
from tests.runtime.stand_in import StandIn, Threads

needs_arena = pytest.mark.skipif(not arena.is_available(), reason="storages change places by compiled code")


def overlap(one: Extent, other: Extent) -> bool:
    """Whether two extents have a byte in common."""
    return one.offset < other.offset + other.size_bytes and other.offset < one.offset + one.size_bytes


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.tuples(st.integers(1, 40_000), st.booleans()), min_size=1, max_size=30))
def test_extents_overlap_nowhere_and_come_back(disk_folder: Path, sizes: list[tuple[int, bool]]) -> None:
    """Whatever is taken and given back, what is held lies apart, and what is free is used again."""
    file = SpillFile(OnDisk(disk_folder))
    held: list[Extent] = []
    most = now = 0
    for size, goes in sizes:
        held.append(file.take(size))
        now += -(-size // 4096) * 4096
        most = max(most, now)
        assert not any(overlap(held[-1], other) for other in held[:-1])
        if goes:
            now -= -(-held[0].size_bytes // 4096) * 4096
            del held[0]
    capacity = file.tier.capacity_bytes
    assert capacity >= most
    held.clear()
    assert file.take(capacity).offset == 0, "all that was given back is one free range"
    assert file.tier.capacity_bytes == capacity


def test_the_disk_budget_is_kept(disk_folder: Path) -> None:
    """Beyond the budget nothing is reserved, and the refusal says how much is needed."""
    spill = Spill(OnDisk(disk_folder), Quota(4 * MIB))
    spill.reserve(2 * MIB, 2 * MIB)
    with pytest.raises(TierFailure, match=r"needs 5.0 MiB .* disk budget is 4.0 MiB"):
        spill.reserve(2 * MIB, 3 * MIB)
    spill.close()


def test_files_share_a_disk_budget(disk_folder: Path) -> None:
    """What one step has on the disk is lacking for the next one, until it is closed."""
    quota = Quota(4 * MIB)
    one, other = Spill(OnDisk(disk_folder), quota), Spill(OnDisk(disk_folder), quota)
    one.reserve(3 * MIB, 0)
    with pytest.raises(TierFailure, match=r"needs 2.0 MiB .* beside 3.0 MiB .* disk budget is 4.0 MiB"):
        other.reserve(2 * MIB, 0)
    one.close()
    other.reserve(2 * MIB, 0)
    other.close()


@needs_arena
def test_a_disk_budget_ends_with_its_step(disk_folder: Path) -> None:
    """What rests in the file of a step that is gone is gone on with, within the budget of the next one."""
    gone, tensor = Spill(OnDisk(disk_folder), Quota(2 * MIB)), torch.zeros(MIB, dtype=torch.uint8)
    gone.reserve(0, MIB)
    gone.sent({"t": tensor.untyped_storage()})
    del gone
    spill = Spill(OnDisk(disk_folder), Quota(4 * MIB))
    spill.adopt([tensor])
    spill.reserve(3 * MIB, 0)
    with pytest.raises(TierFailure, match=r"disk budget is 4.0 MiB"):
        spill.reserve(4 * MIB, 0)
    spill.close()


def test_what_is_given_back_meanwhile_waits(disk_folder: Path) -> None:
    """An extent may end while another one is taken, as garbage does: the space is free afterwards, and whole."""
    file = SpillFile(OnDisk(disk_folder))
    held = [file.take(4096) for _ in range(4)]
    with file._taking:  # somebody takes an extent just now
        held.clear()
    capacity = file.tier.capacity_bytes
    assert file.take(capacity).offset == 0
    assert file.tier.capacity_bytes == capacity


@needs_arena
def test_a_storage_that_rests_can_be_read_and_written(disk_folder: Path) -> None:
    """All tensors over it, views made before among them, show the same bytes wherever it lies."""
    spill = Spill(OnDisk(disk_folder))
    tensor = torch.arange(1 << 20, dtype=torch.float32)
    view, storage = tensor[1000:2000], tensor.untyped_storage()
    spill.reserve(0, storage.nbytes())
    extents = spill.arrange({"t": storage}, {"t"}, {})
    assert extent_of(storage) is extents["t"]
    assert resident_bytes([tensor.untyped_storage()]) == 0
    assert torch.equal(view, torch.arange(1000, 2000, dtype=torch.float32))
    view.add_(1)
    forget(storage)
    assert spill.arrange({"t": storage}, {"t"}, {})["t"] is extents["t"], "it is there already"
    come_home(storage)
    assert extent_of(storage) is None
    assert resident_bytes([tensor.untyped_storage()]) == storage.nbytes()
    assert torch.equal(tensor[1000:2000], torch.arange(1001, 2001, dtype=torch.float32))
    spill.close()


def below_host(folder: Path) -> BelowHost:
    """A file below the host's memory, beside a device that is new."""
    device = StandIn()
    return BelowHost(folder, torch.device("cpu"), device.streams, device.more_streams, device.lock)


@needs_arena
@pytest.mark.parametrize("medium", [OnDisk, below_host])
def test_a_disk_that_fails_when_a_storage_comes_home_is_named(
    medium: Callable[[Path], Medium], disk_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read as in a step, so the error is one; the storage rests on, and comes home once the disk is well."""
    spill = Spill(medium(disk_folder))
    tensor = torch.full((3 << 20,), 3.0)
    storage = tensor.untyped_storage()
    spill.reserve(0, storage.nbytes())
    extents = spill.arrange({"t": storage}, {"t"}, {})

    def failing(*_call: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as broken:
        broken.setattr(os, "preadv", failing)
        with pytest.raises(TierFailure, match=str(disk_folder)):
            come_home(storage)
    assert extent_of(storage) is extents["t"]
    come_home(storage)
    assert extent_of(storage) is None
    assert bool((tensor == 3).all())
    spill.close()


@needs_arena
def test_a_storage_that_rests_outlives_its_file(disk_folder: Path) -> None:
    """A closed spill file goes when the last storage that rests in it does."""
    files, spill = open_spill_files(), Spill(OnDisk(disk_folder))
    tensor = torch.full((1 << 20,), 7.0)
    spill.reserve(0, tensor.untyped_storage().nbytes())
    spill.arrange({"t": tensor.untyped_storage()}, {"t"}, {})
    spill.close()
    assert open_spill_files() == files + 1
    assert bool((tensor == 7).all())
    other = Spill(OnDisk(disk_folder))
    other.reserve(0, tensor.untyped_storage().nbytes())
    assert other.arrange({"t": tensor.untyped_storage()}, {"t"}, {})["t"].file is other.file
    assert bool((tensor == 7).all())
    del tensor
    other.close()
    assert open_spill_files() == files


@needs_arena
def test_storages_lie_in_their_order(disk_folder: Path) -> None:
    """As they come, in every process: those that rest first, then those that may leave."""
    spill, names = Spill(OnDisk(disk_folder)), [f"layer{number}.weight" for number in range(16)]
    storages = {name: torch.zeros(4096, dtype=torch.uint8).untyped_storage() for name in names}
    spill.reserve(0, 16 * 4096)
    found = spill.arrange(storages, frozenset(names[1::2]), dict.fromkeys(names[::2], 4096))
    assert [found[name].offset // 4096 for name in names[1::2] + names[::2]] == [*range(16)]
    spill.close()


@needs_arena
def test_steps_of_one_device_go_on_with_one_tier(disk_folder: Path) -> None:
    """Each step has streams of its own, and a tier is none of theirs; that of another folder is another one."""

    def spills(folder: Path) -> tuple[Spill, Spill]:
        device = StandIn()
        return Spill(InHost(device.torch_device, device.streams, device.lock)), Spill(below_host(folder))

    tensor = torch.full((1 << 10,), 7.0)
    storage = tensor.untyped_storage()
    for one, other, elsewhere in zip(spills(disk_folder), spills(disk_folder), spills(disk_folder.parent), strict=True):
        one.reserve(0, storage.nbytes())
        one.sent({"t": storage})
        for spill in (other, elsewhere):
            spill.adopt([tensor])
        assert other.file is one.file
        assert (elsewhere.file is one.file) is isinstance(one.medium, InHost)
        one.close()


def test_what_would_rest_out_of_reach_is_refused_before_the_step() -> None:
    """In the middle of one its bytes would have nowhere to go."""
    spill = Spill(InHost(torch.device("cpu"), Threads(), lambda _address, _size: "it does not want to"))
    with pytest.warns(Remark, match="it does not want to"):
        spill.reserve(0, 4096)
    assert spill.arrange({}, (), {}) == {}
    with pytest.raises(TierFailure, match="the driver did not lock"):
        spill.arrange({}, (), {"t": 4096})


@needs_arena
def test_what_rests_gathers_where_free_room_is_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scratch is one piece; a host budget leaves no room for another one, and there is enough between what rests.

    A forked process has none of that memory, and moves nothing.
    """
    device = StandIn()
    spill = Spill(InHost(device.torch_device, device.streams, device.lock), Quota(10 * MIB))
    spill.quota.hold(file := SpillFile(spill.medium))
    spill.file = file
    tensors = {name: torch.full((2 * MIB,), at, dtype=torch.uint8) for at, name in enumerate("abcd")}
    storages = {name: tensor.untyped_storage() for name, tensor in tensors.items()}
    spill.reserve(0, 8 * MIB)
    spill.sent(storages)
    come_home(storages["b"])
    come_home(storages["d"])
    with pytest.raises(TierFailure, match="budget"):
        spill.reserve(4 * MIB, 0)
    with monkeypatch.context() as forked:
        forked.setattr(HostPool, "is_inherited", True)
        spill.gather(storages.values())
    with pytest.raises(TierFailure, match="budget"):
        spill.reserve(4 * MIB, 0)
    spill.gather(storages.values())
    spill.reserve(4 * MIB, 0)
    extents = {name: extent_of(storage) for name, storage in storages.items()}
    offsets = {name: extent.offset for name, extent in extents.items() if extent is not None}
    first = file.tier.seam_bytes
    assert offsets == {"a": first, "c": first + 2 * MIB}
    assert spill.scratch_offset == first + 4 * MIB
    assert file.size_bytes == 8 * MIB
    assert [tensor.unique().tolist() for tensor in tensors.values()] == [[0], [1], [2], [3]]
    spill.close()


@needs_arena
def test_what_others_see_is_not_exchangeable() -> None:
    """Memory of which NumPy knows the address, or that processes share, stays where it is."""
    mine, seen, shared = torch.ones(1 << 20), torch.ones(1 << 20), torch.ones(1 << 20).share_memory_()
    seen.numpy()
    assert is_exchangeable(mine.untyped_storage())
    assert not is_exchangeable(seen.untyped_storage())
    assert not is_exchangeable(shared.untyped_storage())
