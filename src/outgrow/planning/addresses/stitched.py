"""In which pages does each block lie? Where pages can be shown in any order, holes between blocks are no loss.

A device's driver maps pages of memory (2 MiB) to addresses, each page to as many as one likes. So a block needs no hole
of its size: pages that are free, wherever they are, are shown side by side. What a step needs is known beforehand, so
everything is mapped once, and nothing while the step runs.

    window   the pages as a program sees them: page k of it shows page `pages[k]` of the memory. First come all pages
             in their order, then each run of pages that do not follow each other there
    rest     what a block takes beyond whole pages. It lies at the begin of a page, behind the block's other pages, or
             at the end of one, before them; so two rests share a page, and small blocks lie where there is room

First rests are given pages, the longest lasting first. A rest takes a page that has room, and that it keeps in use
little longer or not at all. Then all pages that are wanted are placed, in the order of their begins: the shortest run
of free ones that is long enough, or free pages of the shortest runs. So there are no more of them than are wanted at
once.

Of a storage that leaves the device in part, what comes back lies in whichever pages are free then. From there on the
block is seen elsewhere in the window: beside those pages the ones are shown once more in which the rest of it stayed.
No operator sees a storage that is there in part, so none sees it move.

    apart    no byte of the memory is held by two blocks at one instruction; looked over in `planning.addresses`

Stitching pages is the way of GMLake (Guo et al. 2024, https://arxiv.org/abs/2401.08156), there while the step runs.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np

from outgrow.planning.addresses.blocks import Block
from outgrow.planning.arrays import Flags, Integers
from outgrow.units import round_up

Range = tuple[int, int]
"""From a first byte, or instruction, to the one before which it ends."""


@dataclass(frozen=True)
class Stitched:
    """Where each block begins in the window, what page each page of the window shows, and how many pages there are.

    A block has an address for each of its parts, from the begin of that part on.
    """

    addresses: tuple[tuple[int, ...], ...]
    pages: tuple[int, ...]
    count: int


@dataclass(frozen=True, slots=True)
class _Want:
    """Pages that a block needs from `begin` to `end`: `whole` ones, from its page `first` on, and `rest` bytes."""

    begin: int
    end: int
    block: int
    first: int
    whole: int
    rest: int


@dataclass(slots=True)
class _Shelf:
    """A page for rests: when it is in use, and which bytes are taken when, as (low, high, begin, end)."""

    begin: int
    end: int
    items: list[tuple[int, int, int, int]] = field(default_factory=list[tuple[int, int, int, int]])

    def longer_for(self, want: _Want) -> int:
        """Return for how many more instructions the page would be in use if it took the rest of `want`."""
        return max(0, self.begin - want.begin) + max(0, want.end - self.end)

    def room(self, want: _Want, page_bytes: int) -> int | None:
        """Return where in the page there is room; if the block has whole pages too, only at the page's begin or end."""
        end, size = 0, want.rest
        beside = sorted(item[:2] for item in self.items if item[2] < want.end and want.begin < item[3])
        for low, high in (*beside, (page_bytes, page_bytes)):
            if low - end >= size:
                if not want.whole or end == 0:
                    return end
                if low == page_bytes:
                    return page_bytes - size
            end = max(end, high)
        return None

    def take(self, low: int, want: _Want) -> None:
        """Give a rest its bytes."""
        self.begin, self.end = min(self.begin, want.begin), max(self.end, want.end)
        self.items.append((low, low + want.rest, want.begin, want.end))


@dataclass
class _Memory:
    """The instruction from which on each page is free."""

    until: Integers = field(default_factory=lambda: np.zeros(0, np.int64))

    def take(self, number: int, begin: int, end: int) -> list[int]:
        """Take `number` pages from `begin` to `end`; calls come in the order of `begin`.

        They are in one run if one is long enough, else of the shortest runs; then new ones.
        """
        found = _tightest(self.until <= begin, number)
        count = len(self.until)
        found += range(count, count + number - len(found))
        self.until = np.append(self.until, np.zeros(max(0, found[-1] + 1 - count), np.int64))
        self.until[found] = end
        return sorted(found)


def _tightest(is_free: Flags, number: int) -> list[int]:
    """Return `number` free pages, or all there are: of the shortest run that is long enough, else of the shortest."""
    edges = np.flatnonzero(np.diff(is_free, prepend=False, append=False))
    begins, lengths = edges[::2], edges[1::2] - edges[::2]
    fitting = np.flatnonzero(lengths >= number)
    if len(fitting):
        first = int(begins[fitting[np.argmin(lengths[fitting])]])
        return list(range(first, first + number))
    shortest = np.argsort(lengths, kind="stable")
    return [int(page) for at in shortest for page in range(begins[at], begins[at] + lengths[at])][:number]


def stitched(blocks: Sequence[Block], *, page_bytes: int, alignment_bytes: int) -> Stitched:
    """Return pages for all blocks; a block that does not begin with a page begins at a multiple of the alignment."""
    wants = [want for at, block in enumerate(blocks) for want in _wants(at, block, page_bytes, alignment_bytes)]
    shelves, places = _shelved([want for want in wants if want.rest], page_bytes)
    memory = _Memory()
    stays: list[dict[int, list[_Stay]]] = [{} for _ in blocks]
    shelf_pages = [0] * len(shelves)
    whole = ((want.begin, -want.whole, want.end, 0, at) for at, want in enumerate(wants) if want.whole)
    begun = ((shelf.begin, -1, shelf.end, 1, at) for at, shelf in enumerate(shelves))
    for begin, less, end, is_shelf, at in sorted([*whole, *begun]):
        pages = memory.take(-less, begin, end)
        if is_shelf:
            (shelf_pages[at],) = pages
        else:
            for number, page in enumerate(pages, wants[at].first):
                stays[wants[at].block].setdefault(number, []).append((end, page))
    window = _Window(list(range(len(memory.until))))
    addresses: list[tuple[int, ...]] = []
    for at, block in enumerate(blocks):
        runs = [_seen(stays[at], part.begin) for part in block.parts]
        low = 0
        if at in places:
            shelf, low = places[at]
            is_behind = bool(stays[at]) and not low
            runs = [[*run, shelf_pages[shelf]] if is_behind else [shelf_pages[shelf], *run] for run in runs]
        addresses.append(tuple(window.begin_of(run) * page_bytes + low for run in runs))
    return Stitched(tuple(addresses), tuple(window.pages), len(memory.until))


_Stay = tuple[int, int]
"""The instruction before which a page of a block is given up, and the page of the memory that it is until then."""


def _seen(stays: Mapping[int, Sequence[_Stay]], position: int) -> list[int]:
    """Return the pages of a block as it is seen from an instruction on, each where it is, or will be next."""
    return [
        next((page for end, page in stays.get(number, ()) if position < end), 0)
        for number in range(1 + max(stays, default=-1))
    ]


@dataclass
class _Window:
    """The pages that a window shows, first all in their order, and where in it each run of pages begins."""

    pages: list[int]
    _begins: dict[tuple[int, ...], int] = field(default_factory=dict[tuple[int, ...], int])

    def begin_of(self, run: Sequence[int]) -> int:
        """Return where a run of pages is shown."""
        key = tuple(run)
        if key not in self._begins:
            follows = not key or key == tuple(range(key[0], key[0] + len(key)))
            self._begins[key] = next(iter(key), 0) if follows else len(self.pages)
            self.pages.extend(() if follows else key)
        return self._begins[key]


def _shelved(wants: Iterable[_Want], page_bytes: int) -> tuple[list[_Shelf], dict[int, tuple[int, int]]]:
    """Return the pages for rests; and by block, the number of the page with its rest, and where in it the rest lies."""
    shelves: list[_Shelf] = []
    places: dict[int, tuple[int, int]] = {}
    for want in sorted(wants, key=lambda want: (want.begin - want.end, not want.whole, -want.rest, want.block)):
        best: tuple[int, int, int] | None = None
        for at, shelf in enumerate(shelves):
            longer = shelf.longer_for(want)
            if best is None or longer < best[0]:
                low = shelf.room(want, page_bytes)
                if low is not None:
                    best = longer, at, low
                    if not longer:
                        break
        if best is None or best[0] > want.end - want.begin:
            best = 0, len(shelves), 0
            shelves.append(_Shelf(want.begin, want.end))
        _, at, low = best
        shelves[at].take(low, want)
        places[want.block] = at, low
    return shelves, places


def _wants(number: int, block: Block, page_bytes: int, alignment_bytes: int) -> Iterator[_Want]:
    """Yield what a block needs; where some of its bytes come or go before others, all of its pages are its own."""
    if len({(part.begin, part.end) for part in block.parts}) == 1:
        whole, rest = divmod(block.size_bytes, page_bytes)
        yield _Want(block.begin, block.end, number, 0, whole, round_up(rest, alignment_bytes))
        return
    held: list[list[Range]] = [[] for _ in range(-(-block.size_bytes // page_bytes))]
    for part in sorted(block.parts, key=lambda part: part.begin):
        for ranges in held[part.low // page_bytes : -(-part.high // page_bytes)]:
            if ranges and part.begin <= ranges[-1][1]:
                ranges[-1] = ranges[-1][0], max(ranges[-1][1], part.end)
            else:
                ranges.append((part.begin, part.end))
    first = 0
    for times, group in groupby(held):
        count = len(list(group))
        for begin, end in times:
            yield _Want(begin, end, number, first, count, 0)
        first += count
