"""Pages that are shown at several addresses are one memory; they are counted, and given back."""

import ctypes

import pytest
import torch

from outgrow.runtime.pages import Pages, taken_bytes
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
