"""Pages that are shown at several addresses are one memory; they are counted, and given back."""

import ctypes
from collections.abc import Callable

import pytest
import torch

from outgrow.runtime.memory import bytes_on
from outgrow.runtime.pages import _FUNCTIONS, CudaMapper, Pages, Unread, cuda_pages, taken_bytes
from tests.runtime.stand_in import HostMapper

PAGE = 1 << 12
DEVICE = torch.device("meta")
"""Counts apart from other tests."""


def read(address: int) -> int:
    return ctypes.c_ubyte.from_address(address).value


def test_a_page_is_seen_wherever_it_is_shown() -> None:
    pages = Pages(HostMapper(PAGE), DEVICE)
    pages.have(3 * PAGE)
    one, other = pages.show((0, 1, 2)), pages.show((2, 0, 2))
    ctypes.memset(one, 7, PAGE)
    ctypes.memset(other, 9, PAGE)
    assert [read(one + at * PAGE) for at in range(3)] == [7, 255, 9]
    assert [read(other + at * PAGE) for at in range(3)] == [9, 7, 9]
    pages.hide(one)
    assert not pages.are_shown(one)
    assert pages.are_shown(other + 3 * PAGE - 1)
    assert not pages.are_shown(other + 3 * PAGE)
    pages.close()


def test_a_window_of_no_pages_is_nowhere() -> None:
    pages = Pages(HostMapper(PAGE), DEVICE)
    assert pages.show(()) == 0
    assert not pages.are_shown(0)
    pages.hide(0)
    pages.close()


def test_pages_are_counted() -> None:
    """They are taken as they are needed, kept, and given back, with the object at the latest."""
    mapper = HostMapper(PAGE)
    pages = Pages(mapper, DEVICE)
    for asked, taken in ((0, 0), (PAGE + 1, 2), (PAGE, 2), (3 * PAGE, 3)):
        pages.have(asked)
        assert pages.size_bytes == taken_bytes(DEVICE) == mapper.taken * PAGE == taken * PAGE
    pages.close()
    assert pages.size_bytes == taken_bytes(DEVICE) == mapper.taken == 0
    pages.have(PAGE)
    pages.show((0, 0))
    del pages
    assert taken_bytes(DEVICE) == mapper.taken == 0


def test_what_is_not_there_is_not_taken() -> None:
    """Where there are not as many pages, those that were there before stay."""
    pages = Pages(HostMapper(PAGE, most_bytes=4 * PAGE), DEVICE)
    pages.have(2 * PAGE)
    with pytest.raises(MemoryError):
        pages.have(5 * PAGE)
    assert pages.size_bytes == taken_bytes(DEVICE) == 2 * PAGE
    pages.have(4 * PAGE)
    pages.close()


def test_memory_that_nobody_looks_at_can_be_read() -> None:
    """It takes a page, however much is asked for, and lies where it lay before."""
    mapper = HostMapper(PAGE)
    unread = Unread(Pages(mapper, DEVICE), torch.device("cpu"))
    address = unread.address(5 * PAGE + 1)
    assert {read(address + at) for at in range(0, 8 * PAGE, 64)}
    assert unread.address(6 * PAGE) == address
    assert unread.address(1) != address
    assert mapper.taken == 1


def test_a_driver_may_unmap_only_what_was_mapped_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it refuses a whole window, pages are unmapped one by one, and the addresses are free all the same."""
    calls: list[tuple[object, ...]] = []

    def told(name: str) -> Callable[..., int]:
        def call(*arguments: object) -> int:
            calls.append((name, *arguments))
            return int(name == "cuMemUnmap" and arguments[1] != PAGE)

        return call

    monkeypatch.setattr("outgrow.runtime.pages._driver", lambda: {name: told(name) for name in _FUNCTIONS})
    mapper = CudaMapper(torch.device("cuda", 0))
    mapper.page_bytes = PAGE
    calls.clear()
    mapper.free(8 * PAGE, 2 * PAGE)
    unmapped = [("cuMemUnmap", at * PAGE, PAGE) for at in (8, 9)]
    assert calls == [("cuMemUnmap", 8 * PAGE, 2 * PAGE), *unmapped, ("cuMemAddressFree", 8 * PAGE, 2 * PAGE)]


@pytest.mark.parametrize(("status", "error"), [(2, MemoryError), (700, RuntimeError)])
def test_a_window_that_the_driver_does_not_show_is_none(
    monkeypatch: pytest.MonkeyPatch, status: int, error: type[Exception]
) -> None:
    """What was mapped of it is unmapped, and nothing of it is left to hide or close."""
    calls: list[tuple[object, ...]] = []

    def told(name: str) -> Callable[..., int]:
        def call(*arguments: object) -> int:
            calls.append((name, *arguments))
            return status * (name == "cuMemMap" and arguments[3] == 4)

        return call

    monkeypatch.setattr("outgrow.runtime.pages._driver", lambda: {name: told(name) for name in _FUNCTIONS})
    mapper = CudaMapper(torch.device("cuda", 0))
    mapper.page_bytes = PAGE
    monkeypatch.setattr(mapper, "reserve", lambda _size: 8 * PAGE)
    pages = Pages(mapper, DEVICE)
    pages._pages += [3, 4]
    calls.clear()
    with pytest.raises(error):
        pages.show((0, 1))
    assert calls[-2:] == [("cuMemUnmap", 8 * PAGE, PAGE), ("cuMemAddressFree", 8 * PAGE, 2 * PAGE)]
    assert not pages.are_shown(8 * PAGE)
    pages._pages.clear()


@pytest.mark.parametrize(("forbidden", "reason"), [(800, "of the CUDA driver fails with error 800"), (2, "")])
def test_a_driver_that_forbids_pages_is_told_of(monkeypatch: pytest.MonkeyPatch, forbidden: int, reason: str) -> None:
    """It says that it can map them, and in a container it may not, or it has no room: the arena is one piece then."""
    calls: list[str] = []

    def told(name: str) -> Callable[..., int]:
        def call(*arguments: object) -> int:
            calls.append(name)
            if name == "cuDeviceGetAttribute":
                arguments[0]._obj.value = 1  # pyright: ignore[reportAttributeAccessIssue]
            return forbidden * (name == "cuMemSetAccess")

        return call

    monkeypatch.setattr("outgrow.runtime.pages._driver", lambda: {name: told(name) for name in _FUNCTIONS})
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda _device: 1.0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (1 << 30, 1 << 30))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _device: 0)
    with pytest.warns(match=f"cuda:0 has no pages for outgrow.*cuMemSetAccess {reason}".rstrip()):
        assert cuda_pages(torch.device("cuda", 0)) is None
    assert calls[-4:] == ["cuMemSetAccess", "cuMemUnmap", "cuMemAddressFree", "cuMemRelease"]


@pytest.mark.parametrize(("status", "error"), [(2, MemoryError), (999, RuntimeError)])
def test_pages_of_which_the_driver_gives_only_some_are_given_back(
    monkeypatch: pytest.MonkeyPatch, status: int, error: type[Exception]
) -> None:
    """Whatever it says of the others, nobody would give those back that it gave."""
    calls: list[str] = []

    def told(name: str) -> Callable[..., int]:
        def call(*_arguments: object) -> int:
            calls.append(name)
            return status * (calls.count("cuMemCreate") == 3 and name == "cuMemCreate")

        return call

    monkeypatch.setattr("outgrow.runtime.pages._driver", lambda: {name: told(name) for name in _FUNCTIONS})
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda _device: 1.0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (1 << 30, 1 << 30))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _device: 0)
    mapper = CudaMapper(torch.device("cuda", 0))
    mapper.page_bytes = PAGE
    with pytest.raises(error):
        mapper.take(4)
    assert calls[-2:] == ["cuMemRelease", "cuMemRelease"]


@pytest.mark.cuda
def test_pages_of_a_gpu_are_seen_wherever_they_are_shown() -> None:
    """Kernels and copies read through one address what others wrote through another; the driver has less meanwhile."""
    gpu = torch.device("cuda", 0)
    pages = cuda_pages(gpu)
    assert pages is not None
    size = pages.page_bytes
    pages.have(size)  # the driver may keep the first one that it gave
    pages.close()
    free, _ = torch.cuda.mem_get_info(gpu)
    pages.have(3 * size)
    assert taken_bytes(gpu) == 3 * size
    assert torch.cuda.mem_get_info(gpu)[0] <= free - 3 * size
    one = bytes_on(gpu, pages.show((0, 1, 2)), 3 * size)
    other = bytes_on(gpu, pages.show((2, 0, 2)), 3 * size)
    for at in range(3):
        one[at * size : (at + 1) * size].fill_(at)
    assert [page.unique().tolist() for page in other.cpu().view(3, size)] == [[2], [0], [2]]
    other[:size].copy_(torch.full((size,), 7, dtype=torch.uint8))
    assert (one[2 * size :] + other[2 * size :]).unique().tolist() == [14]
    pages.close()
    assert taken_bytes(gpu) == 0


@pytest.mark.cuda
def test_a_share_of_a_gpu_is_kept() -> None:
    """Pages count where torch was told to leave some of the memory to others."""
    gpu = torch.device("cuda", 0)
    pages = cuda_pages(gpu)
    assert pages is not None
    _, total = torch.cuda.mem_get_info(gpu)
    taken = torch.cuda.memory_reserved(gpu) + taken_bytes(gpu)
    torch.cuda.set_per_process_memory_fraction((taken + 3 * pages.page_bytes) / total, gpu)
    try:
        pages.have(2 * pages.page_bytes)
        with pytest.raises(MemoryError):
            pages.have(4 * pages.page_bytes)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, gpu)
        pages.close()
