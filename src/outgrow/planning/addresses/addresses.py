"""At which address of one arena does each storage of a planned step lie, each time it is on the device?

Blocks (`planning.addresses.blocks`) of what is born or brought back in the step, and of the workspace of its ops, are
placed by `planning.addresses.stitched` where the arena is made of pages, else by `planning.addresses.placement`. What
is on the device from before the step to after it, and results, which outlive it, lie elsewhere: the arena is used anew
in every step.

    arena_bytes    at least the most bytes that blocks hold at one instruction
    (1) apart      parts of two blocks that hold bytes at the same instruction do not share a byte of the arena
    (2) in place   when a part comes back and its block is seen at another address, parts that stayed are seen there too

The addresses are looked over once more, with (1) and (2) written down apart from what found them (`overlap`).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

from outgrow.ir.graph import DEVICE, Graph, Op
from outgrow.plan import Addresses
from outgrow.planning.addresses.blocks import Block, Part, blocks_of
from outgrow.planning.addresses.placement import place
from outgrow.planning.addresses.stitched import stitched

ALIGNMENT_BYTES = 512
"""The alignment of a device's allocator, so that kernels find addresses as they do elsewhere."""
_FEWEST_ROUNDS, _ROUNDS, _PLACED = 150, 1500, 600_000
"""A placement is improved in 150 to 1500 rounds: as many as place 600 000 blocks, which takes a second or two."""
_GOAL = 0.004
"""An arena that is at most this share larger than what it holds is good enough."""


def outside(graph: Graph) -> frozenset[str]:
    """Return the storages of a derived graph that do not lie in the arena."""
    return frozenset(name for name in graph.outliving if graph.storages[name].home == DEVICE)


def addresses_of(
    graph: Graph, scratch: Mapping[str, int], elsewhere: Collection[str], *, page_bytes: int = 0
) -> Addresses:
    """Return the addresses of a derived graph, except of storages `elsewhere`; `scratch` is in bytes by op name.

    With `page_bytes` the arena is made of such pages.

    >>> from outgrow.ir.text import parse_graph
    >>> graph = parse_graph('''
    ... storage x input 8
    ... storage y 600
    ... storage z 8
    ... value %x: x@0 f32[2]
    ... %y: y@0 f32[150] = my.wide(%x)
    ... %z: z@0 f32[2] = my.sum(%y)
    ... return %z
    ... ''')
    >>> addresses_of(graph, {"sum": 64}, outside(graph)).stays
    {0: {'y': 0}}
    >>> addresses_of(graph, {"sum": 64}, outside(graph), page_bytes=512)
    Addresses(arena_bytes=1536, beside=(8, 8), stays={0: {'y': 0}}, scratch={1: (1024, 64)}, pages=(0, 1, 2), \
page_bytes=512)
    """
    storages = [block for block in blocks_of(graph, {}) if block.label not in elsewhere]
    needs = _scratch_blocks(graph, scratch)
    blocks = [*storages, *needs]
    arena_bytes, places, pages = in_pages(blocks, page_bytes) if page_bytes else (*_in_one_piece(blocks), ())
    fault = overlap(blocks, places, arena_bytes, pages, page_bytes)
    assert fault is None, f"the addresses are wrong: {fault}"
    stays: dict[int, dict[str, int]] = {}
    for block, seen in zip(storages, places, strict=False):
        for part, address in zip(block.parts, seen, strict=True):
            stays.setdefault(part.begin, {})[block.label] = address
    return Addresses(
        arena_bytes,
        tuple(graph.storages[name].size_bytes for name in sorted(elsewhere)),
        stays,
        {
            block.begin: (address, block.size_bytes)
            for block, (address,) in zip(needs, places[len(storages) :], strict=True)
        },
        pages,
        page_bytes,
    )


_Seen = tuple[tuple[int, ...], ...]
"""For each block the address at which it is seen from the begin of each of its parts on."""


def in_pages(blocks: Sequence[Block], page_bytes: int) -> tuple[int, _Seen, tuple[int, ...]]:
    """Return the bytes of an arena of pages, the addresses of blocks in its window, and the pages that it shows.

    Blocks lie in one piece, or stitched if that leaves holes; if neither is good enough, whichever takes less.
    """
    piece = place(blocks, alignment_bytes=ALIGNMENT_BYTES, rounds=0)
    enough = int(piece.live_bytes * (1 + _GOAL))
    arena_bytes, places = piece.arena_bytes, _at_rest(blocks, piece.addresses)
    if arena_bytes > enough:
        found = stitched(blocks, page_bytes=page_bytes, alignment_bytes=ALIGNMENT_BYTES)
        if found.count * page_bytes > enough:
            arena_bytes, places = _in_one_piece(blocks)
        if found.count * page_bytes <= arena_bytes:
            return found.count * page_bytes, found.addresses, found.pages
    count = -(-arena_bytes // page_bytes)
    return count * page_bytes, places, tuple(range(count))


def _in_one_piece(blocks: Sequence[Block]) -> tuple[int, _Seen]:
    rounds = max(_FEWEST_ROUNDS, min(_ROUNDS, _PLACED // (1 + len(blocks))))
    placement = place(blocks, alignment_bytes=ALIGNMENT_BYTES, rounds=rounds, goal=_GOAL)
    return placement.arena_bytes, _at_rest(blocks, placement.addresses)


def _at_rest(blocks: Sequence[Block], addresses: Sequence[int]) -> _Seen:
    """Return addresses of blocks that are seen at one each."""
    return tuple((address,) * len(block.parts) for block, address in zip(blocks, addresses, strict=True))


def _scratch_blocks(graph: Graph, scratch: Mapping[str, int]) -> list[Block]:
    ops = ((at, item) for at, item in enumerate(graph.instructions) if isinstance(item, Op))
    needs = ((at, item.name, scratch.get(item.name, 0)) for at, item in ops)
    return [Block(name, (Part(0, size, at, at + 1),)) for at, name, size in needs if size > 0]


def overlap(
    blocks: Sequence[Block],
    addresses: Sequence[Sequence[int]],
    arena_bytes: int,
    pages: Sequence[int] = (),
    page_bytes: int = 0,
) -> str | None:
    """Return what breaks (1) or (2), or leaves the arena; None if nothing does. A part of a block has an address each.

    (1) Page by page (without pages: all at once), whenever a part of a block begins, it is compared with what is held.
    (2) At every address that its block is given while a part is held, its bytes are those that they were.
    """
    if not pages:
        pages, page_bytes = (0,), arena_bytes
    held: dict[int, list[_Held]] = {}
    for block, seen in zip(blocks, addresses, strict=True):
        for part, address in zip(block.parts, seen, strict=True):
            if address + part.low < 0 or address + part.high > len(pages) * page_bytes:
                return f"{block.label} leaves the window at {part.begin}"
        given = {(part.begin, address) for part, address in zip(block.parts, seen, strict=True)}
        for part, address in zip(block.parts, seen, strict=True):
            places = list(_places(part, address, pages, page_bytes))
            for at, other in sorted(given):
                is_held = part.begin <= at < part.end and other != address
                if is_held and [*_places(part, other, pages, page_bytes)] != places:
                    return f"{block.label} moves at instruction {at}"
            for page, low, high in places:
                held.setdefault(page, []).append((part.begin, part.end, low, high, block.label))
    if any(not 0 <= page < arena_bytes // page_bytes for page in held):
        return "a page is none of the arena"
    return next((fault for items in held.values() if (fault := _meeting(items)) is not None), None)


def _places(part: Part, address: int, pages: Sequence[int], page_bytes: int) -> Iterator[tuple[int, int, int]]:
    """Yield (page, first byte in it, end) of a part of a block that is seen at an address."""
    low, high = address + part.low, address + part.high
    while low < high:
        at, begin = divmod(low, page_bytes)
        size = min(high - low, page_bytes - begin)
        yield pages[at], begin, begin + size
        low += size


_Held = tuple[int, int, int, int, str]
"""The first instruction, the one before which it is freed, first byte, end, and whose it is."""


def _meeting(items: list[_Held]) -> str | None:
    now: list[_Held] = []
    for item in sorted(items):
        begin, _, low, high, label = item
        now = [other for other in now if other[1] > begin]
        for _, _, other_low, other_high, other in now:
            if low < other_high and other_low < high:
                return f"{label} meets {other} at instruction {begin}"
        now.append(item)
    return None
