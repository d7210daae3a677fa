"""At which address of one arena does each storage of a planned step lie, each time it is on the device?

Blocks (`planning.blocks`) of what is born or brought back in the step, and of the workspace of its ops, are placed by
`planning.placement`. What is on the device from before the step to after it, and results, which outlive it, lie
elsewhere: the arena is used anew in every step.

    arena_bytes    at least the most bytes that blocks hold at one instruction
    (1) apart      parts of two blocks that hold bytes at the same instruction do not share a byte

The placement is looked over once more, with (1) written down apart from it (`overlap`).
"""

from collections.abc import Collection, Mapping, Sequence
from operator import itemgetter

from outgrow.ir.graph import DEVICE, Graph, Op
from outgrow.plan import Addresses
from outgrow.planning.blocks import Block, Part, blocks_of
from outgrow.planning.placement import Placement, place

ALIGNMENT_BYTES = 512
"""As an allocator of a device aligns, so that kernels find what they find elsewhere."""
_FEWEST_ROUNDS, _ROUNDS, _PLACED = 150, 1500, 600_000
"""How often a placement is improved: so many blocks are placed again, all told, which takes a second or two."""
_GOAL = 0.004
"""An arena that is larger than what it holds by this share is good enough."""


def outside(graph: Graph) -> frozenset[str]:
    """Return the storages of a derived graph that do not lie in the arena."""
    storages = graph.storages.items()
    return frozenset(
        name for name, item in storages if (item.is_persistent or name in graph.kept) and item.home == DEVICE
    )


def addresses_of(graph: Graph, scratch: Mapping[str, int], elsewhere: Collection[str]) -> Addresses:
    """Return the addresses of a derived graph but for the storages `elsewhere`; `scratch` is in bytes by op name.

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
    >>> addresses_of(graph, {"sum": 64}, outside(graph))
    Addresses(arena_bytes=1088, beside=(8, 8), stays={0: {'y': 0}}, scratch={1: (1024, 64)})
    """
    storages = [block for block in blocks_of(graph, {}) if block.label not in elsewhere]
    needs = _scratch_blocks(graph, scratch)
    rounds = max(_FEWEST_ROUNDS, min(_ROUNDS, _PLACED // (1 + len(storages) + len(needs))))
    placement = place([*storages, *needs], alignment_bytes=ALIGNMENT_BYTES, rounds=rounds, goal=_GOAL)
    fault = overlap(placement)
    assert fault is None, f"the placement is wrong: {fault}"
    stays: dict[int, dict[str, int]] = {}
    for block, address in zip(storages, placement.addresses, strict=False):
        for part in block.parts:
            stays.setdefault(part.begin, {})[block.label] = address
    found = zip(needs, placement.addresses[len(storages) :], strict=True)
    return Addresses(
        placement.arena_bytes,
        tuple(graph.storages[name].size_bytes for name in sorted(elsewhere)),
        stays,
        {block.begin: (address, block.size_bytes) for block, address in found},
    )


def _scratch_blocks(graph: Graph, scratch: Mapping[str, int]) -> list[Block]:
    ops = ((at, item) for at, item in enumerate(graph.instructions) if isinstance(item, Op))
    needs = ((at, item.name, scratch.get(item.name, 0)) for at, item in ops)
    return [Block(name, (Part(0, size, at, at + 1),)) for at, name, size in needs if size > 0]


def overlap(placement: Placement) -> str | None:
    """Return two blocks of a placement that hold one byte at the same instruction; None if there are none.

    Instruction by instruction, what is held is kept in the order of addresses: only neighbours can meet.
    """
    begins: dict[int, list[_Held]] = {}
    for block, address in zip(placement.blocks, placement.addresses, strict=True):
        for part in block.parts:
            begins.setdefault(part.begin, []).append((address + part.low, address + part.high, part.end, block.label))
    held: list[_Held] = []
    for at in sorted(begins):
        held = sorted([*(item for item in held if item[2] > at), *begins[at]], key=itemgetter(0, 1))
        fault = _meeting(held)
        if fault is not None:
            return f"{fault} at instruction {at}"
        if held and held[-1][1] > placement.arena_bytes:
            return f"{held[-1][3]} leaves the arena at instruction {at}"
    return None


_Held = tuple[int, int, int, str]
"""First byte, end, the instruction before which it is freed, and whose it is."""


def _meeting(held: Sequence[_Held]) -> str | None:
    end, owner = 0, ""
    for low, high, _, label in held:
        if low < end and low < high:
            return f"{label} at {low} meets {owner} up to {end}"
        if high > end:
            end, owner = high, label
    return None
