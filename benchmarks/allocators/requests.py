"""What does an allocator hear of a step? One request after the other, as blocks come and go."""

from collections.abc import Iterator, Sequence

from outgrow.planning.addresses.blocks import Block


def comings_and_goings(blocks: Sequence[Block]) -> Iterator[tuple[int, int | None]]:
    """Yield (number of a block, its size) when it comes and (number, None) when it goes, in the order of the graph.

    Blocks that go before an instruction are yielded before those that come. An allocator gives a whole block at once:
    one that comes back in pieces takes all its bytes with the first piece.
    """
    begins: dict[int, list[int]] = {}
    ends: dict[int, list[int]] = {}
    for number, block in enumerate(blocks):
        begins.setdefault(block.begin, []).append(number)
        ends.setdefault(block.end, []).append(number)
    for at in sorted({*begins, *ends}):
        for number in ends.get(at, ()):
            yield number, None
        for number in begins.get(at, ()):
            yield number, blocks[number].size_bytes
