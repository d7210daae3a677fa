"""Blocks share no byte at any instruction, whether they lie in pages that are stitched or in one piece."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outgrow.planning.addresses.addresses import overlap
from outgrow.planning.addresses.blocks import Block, Part, live_peak_bytes
from outgrow.planning.addresses.placement import place
from outgrow.planning.addresses.stitched import stitched

PAGE, ALIGNMENT, INSTRUCTIONS = 64, 4, 12


@st.composite
def blocks(draw: st.DrawFn, unit: int = 1) -> Block:
    """A block of up to five pages; of some a part is dropped for a while, or comes back later than the others."""
    size = draw(st.integers(1, 5 * PAGE // unit))
    begin = draw(st.integers(0, INSTRUCTIONS - 1))
    end = draw(st.integers(begin + 1, INSTRUCTIONS))
    parts = [Part(0, unit * size, begin, end)]
    if draw(st.booleans()) and size > 1 and end - begin > 1:
        cut = draw(st.integers(1, size - 1))
        away, back = sorted((draw(st.integers(begin, end)), draw(st.integers(begin, end))))
        low, high = unit * cut, unit * size
        parts = [Part(0, low, begin, end), Part(low, high, begin, away), Part(low, high, back, end)]
    return Block("", tuple(part for part in parts if part.begin < part.end))


several = st.lists(blocks(), max_size=12).map(
    lambda made: [replace(item, label=str(at)) for at, item in enumerate(made)]
)


@given(several)
def test_stitched_blocks_share_no_byte(made: list[Block]) -> None:
    found = stitched(made, page_bytes=PAGE, alignment_bytes=ALIGNMENT)
    assert overlap(made, found.addresses, found.count * PAGE, found.pages, PAGE) is None
    assert all(address % ALIGNMENT == 0 for seen in found.addresses for address in seen)
    assert found.count * PAGE >= live_peak_bytes(made)


@given(st.lists(blocks(unit=PAGE), max_size=12))
def test_whole_pages_leave_no_holes(whole: list[Block]) -> None:
    """Blocks of whole pages, also what comes back of them, need as many as are held at once, wherever these are."""
    assert stitched(whole, page_bytes=PAGE, alignment_bytes=ALIGNMENT).count * PAGE == live_peak_bytes(whole)


def test_rests_share_pages() -> None:
    """Of blocks that live as long two rests share a page, with what is small between them."""
    size = PAGE + PAGE // 4
    made = [Block(str(at), (Part(0, size if at < 4 else PAGE // 2, 0, 9),)) for at in range(6)]
    assert stitched(made, page_bytes=PAGE, alignment_bytes=ALIGNMENT).count * PAGE == live_peak_bytes(made)


def test_what_comes_back_later_lends_its_pages() -> None:
    """Pages of a part that is away serve others for as long as they last, and are there when it comes back."""
    parts = (Part(0, PAGE, 0, 9), Part(PAGE, 3 * PAGE, 0, 2), Part(PAGE, 3 * PAGE, 6, 9))
    others = [Block("b", (Part(0, 2 * PAGE, 2, 4),)), Block("c", (Part(0, 2 * PAGE, 4, 6),))]
    made = [Block("a", parts), *others]
    found = stitched(made, page_bytes=PAGE, alignment_bytes=ALIGNMENT)
    assert found.count == 3
    assert overlap(made, found.addresses, 3 * PAGE, found.pages, PAGE) is None


def test_what_comes_back_lies_elsewhere_where_its_pages_are_taken() -> None:
    """Of two parts that leave, one after the other, each comes back to the pages that the other has left."""
    parts = (Part(0, PAGE, 0, 9), Part(PAGE, 2 * PAGE, 0, 2), Part(PAGE, 2 * PAGE, 4, 9))
    other = (Part(0, PAGE, 0, 9), Part(PAGE, 2 * PAGE, 0, 4), Part(PAGE, 2 * PAGE, 6, 9))
    made = [Block("a", parts), Block("b", other), Block("c", (Part(0, PAGE, 2, 6),))]
    found = stitched(made, page_bytes=PAGE, alignment_bytes=ALIGNMENT)
    assert found.count * PAGE == live_peak_bytes(made)
    assert overlap(made, found.addresses, found.count * PAGE, found.pages, PAGE) is None
    born, left, back = found.addresses[0]
    assert born == left != back


@given(several, st.data())
def test_what_stayed_is_not_left_behind(made: list[Block], data: st.DataObject) -> None:
    """A block is not seen elsewhere when a part comes back, unless what stayed of it is there too."""
    found = stitched(made, page_bytes=PAGE, alignment_bytes=ALIGNMENT)
    apart = [number for number, block in enumerate(made) if len(block.parts) == 3]
    if not apart:
        return
    number = data.draw(st.sampled_from(apart))
    wrong, end = list(found.addresses), len(found.pages) * PAGE
    wrong[number] = (*wrong[number][:2], end)
    pages = (*found.pages, *range(found.count, found.count + 6))
    label, begin = made[number].label, made[number].parts[2].begin
    assert overlap(made, wrong, (found.count + 6) * PAGE, pages, PAGE) == f"{label} moves at instruction {begin}"


@settings(deadline=None)
@given(several, st.data())
def test_a_wrong_address_is_seen(made: list[Block], data: st.DataObject) -> None:
    """Two blocks of a placement that are held together are found where one is moved onto the other."""
    placed = place(made, alignment_bytes=ALIGNMENT, rounds=0)
    pairs = [(one, other) for one in made for other in made if one is not other and _meet(one, other)]
    if not pairs:
        return
    one, other = data.draw(st.sampled_from(pairs))
    addresses = [(address,) * len(block.parts) for block, address in zip(made, placed.addresses, strict=True)]
    assert overlap(made, addresses, placed.arena_bytes) is None
    addresses[int(one.label)] = (addresses[int(other.label)][0],) * len(one.parts)
    assert overlap(made, addresses, placed.arena_bytes) is not None


def _meet(one: Block, other: Block) -> bool:
    return one.parts[0].begin < other.parts[0].end and other.parts[0].begin < one.parts[0].end


@pytest.mark.parametrize(
    ("address", "pages", "arena", "fault"),
    [
        (PAGE, (0, 0), PAGE, "b meets a at instruction 1"),
        (2 * PAGE, (0, 1), 2 * PAGE, "b leaves the window at 1"),
        (PAGE, (0, 1), PAGE, "a page is none of the arena"),
        (PAGE, (1, 0), 2 * PAGE, None),
    ],
)
def test_a_window_is_looked_through(address: int, pages: tuple[int, ...], arena: int, fault: str | None) -> None:
    """What counts is the page that is shown, not the address."""
    made = [Block("a", (Part(0, PAGE, 0, 3),)), Block("b", (Part(0, PAGE, 1, 2),))]
    assert overlap(made, ((0,), (address,)), arena, pages, PAGE) == fault
