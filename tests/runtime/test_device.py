"""A GPU has a name for what it is and how its libraries choose kernels; a device that is full is asked twice."""

import subprocess
import sys
from threading import Thread

import pytest
import torch

from outgrow.errors import DeviceFull, InvalidQuantity
from outgrow.remarks import Remark
from outgrow.runtime.device import Cuda, given_room
from tests.runtime.stand_in import StandIn

SET = """
import torch
from outgrow.runtime.device import library_settings

backends, found = torch.backends, [library_settings()]
"""
OLDER = ("backends.cuda.matmul.allow_tf32 = True", "backends.cudnn.allow_tf32 = False")
BY_NAME = (
    "backends.cudnn.conv.fp32_precision = 'ieee'",
    "backends.cudnn.rnn.fp32_precision = 'ieee'",
    "backends.fp32_precision = 'tf32'",
    "backends.cuda.matmul.fp32_precision = 'ieee'",
    "backends.cudnn.enabled = False",
)


def test_a_name_follows_settings_however_they_are_set() -> None:
    """They can be read after each setting, though torch raises where older getters meet those that are set by name."""
    for settings in (OLDER + BY_NAME[:2], BY_NAME[2:]):  # of a whole process, so of another one
        lines = [f"{setting}; found.append(library_settings())" for setting in settings]
        script = "\n".join([SET, *lines, "print(*found)"])
        said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
        names = said.split()
        assert len(set(names)) == len(settings) + 1, names


@pytest.mark.parametrize("attempts", [1, 2, 3])
def test_a_device_gives_back_before_it_is_full(attempts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What finds no room is tried once more after that, and then the error says what is needed."""
    done: list[str] = []

    def take() -> int:
        done.append("take")
        if done.count("take") < attempts:
            raise MemoryError
        return 7

    device = StandIn()
    monkeypatch.setattr(device, "give_back", lambda: done.append("give back"))
    if attempts == 3:
        with pytest.raises(DeviceFull, match="are needed"):
            given_room(device, 8 << 10, take)
    else:
        assert given_room(device, 8 << 10, take) == 7
    assert done == ["take", "give back", "take"][: 3 if attempts > 1 else 1]


@pytest.mark.parametrize(
    ("share", "said"), [(1.0, r"taken by this process\. "), (0.25, r"process, which may take 2\.0")]
)
def test_what_torch_leaves_to_others_is_told(share: float, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device may have room that this process is not to take."""
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr("outgrow.runtime.device.CudaStreams", lambda _device: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (7 << 30, 8 << 30))
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda _device: share)
    monkeypatch.setattr(Cuda, "taken_bytes", lambda _self: 1 << 30)
    with pytest.raises(DeviceFull, match=said):
        raise Cuda(torch.device("cuda", 0)).full(3 << 30)


def _gpu_with(allocator: str, reserved_bytes: int, monkeypatch: pytest.MonkeyPatch) -> Cuda:
    """Return a GPU whose allocator has this name and has reserved so much."""
    counters = {"reserved_bytes": {"all": {"current": reserved_bytes}}}
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr("outgrow.runtime.device.CudaStreams", lambda _device: None)
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: allocator)
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda _device: counters)
    monkeypatch.setattr(torch, "empty", lambda *_sizes, **_how: torch.zeros(1))
    return Cuda(torch.device("cuda", 0))


def test_an_allocator_that_counts_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It tells no budget how much is taken, and raises where it is asked."""
    with pytest.raises(InvalidQuantity, match=r"the one in its place \(pluggable\) counts nothing"):
        _gpu_with("pluggable", 0, monkeypatch).require_counted()


def test_memory_that_is_not_counted_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch caches nothing it counts nothing; where it does, nothing is said."""
    with pytest.warns(Remark, match="PYTORCH_NO_CUDA_MEMORY_CACHING"):
        _gpu_with("native", 0, monkeypatch).require_counted()
    for allocator in ("native", "cudaMallocAsync"):
        _gpu_with(allocator, 2 << 20, monkeypatch).require_counted()


@pytest.mark.cuda
def test_each_thread_has_workspaces_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that has the number of one that ended; they are made once, and anew after they were given back."""
    device, made = Cuda(), list[str]()
    product = torch.mm

    def counted(*operands: torch.Tensor) -> torch.Tensor:
        made.append("product")
        return product(*operands)

    monkeypatch.setattr(torch, "mm", counted)
    for _ in range(3):
        thread = Thread(target=device.settle_libraries)
        thread.start()
        thread.join()
    assert len(made) == 3
    device.give_back_all()
    for _ in range(2):
        device.settle_libraries()
    assert len(made) == 4
    device.give_back_all()
    device.settle_libraries()
    assert len(made) == 5
