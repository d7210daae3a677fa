"""The law of swapping: between two uses a storage may rest in the next tier."""

from outgrow.ir.graph import Drop, Graph, Instruction, Op, SwapIn, SwapOut, Wait
from outgrow.plan import Decision, Swap
from outgrow.rewriting.rule import position_of, require, with_instructions


def swap(graph: Graph, decision: Decision) -> Graph:
    """Send a storage to the next tier after one use and bring it back, in pieces, for the next.

    rewrite:
        storage x input 8
        storage a 8
        storage b 8
        storage c 8
        value %x: x@0 f32[2]
        %a: a@0 f32[2] = aten.relu.default(%x)
        %b: b@0 f32[2] = aten.neg.default(%x)
        %c: c@0 f32[2] = aten.add.Tensor(%b, %a)
        return %c
    with:
        Swap(storage="a", after="relu", dropped="neg", pieces=(Piece(0, 8, "neg"),), before="add")
    provided:
        no op between the drop and the next use touches the storage, none writes it while it is copied out,
        the pieces are its bytes, each once, and a storage that is not copied out has a copy of this version.
    because:
        a copy there and back changes no byte, and nothing reads the storage in between.
    ->
        storage x input 8
        storage a 8
        storage b 8
        storage c 8
        value %x: x@0 f32[2]
        %a: a@0 f32[2] = aten.relu.default(%x)
        swap_out a
        wait a
        drop a
        swap_in a 0:8
        %b: b@0 f32[2] = aten.neg.default(%x)
        wait a
        %c: c@0 f32[2] = aten.add.Tensor(%b, %a)
        return %c
    """
    assert isinstance(decision, Swap), "the law of swapping takes a Swap"
    storage = decision.storage
    require(storage in graph.storages, "swap", f"the graph has no storage {storage}")
    dropped = position_of(graph, decision.dropped, "swap")
    before = position_of(graph, decision.before, "swap")
    after = dropped - 1 if decision.after is None else position_of(graph, decision.after, "swap")
    require(
        after < dropped <= before, "swap", f"{decision.after}, {decision.dropped}, {decision.before} are out of order"
    )
    between = [item for item in graph.instructions[after + 1 : before] if storage in graph.touched(item)]
    resting = [item for item in graph.instructions[dropped:before] if storage in graph.touched(item)]
    require(not resting, "swap", f"{storage} is used before {decision.before}")
    require(
        all(storage not in graph.written(item) for item in between),
        "swap",
        f"{storage} is written while it is copied out",
    )
    _require_whole(graph, decision, dropped, before)
    inserted: dict[int, list[Instruction]] = {}
    if decision.after is not None:
        inserted.setdefault(_after_outs(graph, after), []).append(SwapOut(storage))
        inserted.setdefault(_after_drops(graph, dropped), []).append(Wait(storage))
    inserted.setdefault(_after_drops(graph, dropped), []).append(Drop(storage))
    for piece in decision.pieces:
        at = _after_swap_ins(graph, graph.op_positions[piece.before])
        inserted.setdefault(at, []).append(SwapIn(storage, piece.begin, piece.end))
    inserted.setdefault(before, []).append(Wait(storage))
    return with_instructions(graph, _spliced(graph.instructions, inserted))


def _require_whole(graph: Graph, decision: Swap, dropped: int, before: int) -> None:
    """The pieces cover the storage, each byte once, and begin between the drop and the use."""
    reached = 0
    for piece in sorted(decision.pieces, key=lambda piece: piece.begin):
        require(
            piece.begin == reached and piece.end > reached,
            "swap",
            f"bytes {reached} of {decision.storage} come back never or twice",
        )
        at = position_of(graph, piece.before, "swap")
        require(
            dropped <= at <= before,
            "swap",
            f"a piece of {decision.storage} begins outside its gap, before {piece.before}",
        )
        reached = piece.end
    size = graph.storages[decision.storage].size_bytes
    require(reached == size, "swap", f"{reached} of {size} bytes of {decision.storage} come back")


def _block(graph: Graph, op_at: int) -> int:
    """The position of the first transfer of the run of transfers directly before the op at `op_at`."""
    at = op_at
    while at > 0 and not isinstance(graph.instructions[at - 1], Op):
        at -= 1
    return at


def _after_outs(graph: Graph, op_at: int) -> int:
    """Behind the copies out that begin directly after the op at `op_at`."""
    at = op_at + 1
    while at < len(graph.instructions) and isinstance(graph.instructions[at], SwapOut):
        at += 1
    return at


def _after_drops(graph: Graph, op_at: int) -> int:
    """Behind the drops, each with its wait, in the run of transfers before the op at `op_at`."""
    run = range(_block(graph, op_at), op_at)
    drops = [at + 1 for at in run if isinstance(graph.instructions[at], Drop)]
    outs = [at + 1 for at in run if isinstance(graph.instructions[at], SwapOut)]
    return max([run.start, *outs, *drops])


def _after_swap_ins(graph: Graph, op_at: int) -> int:
    """Behind the copies in, in the run of transfers before the op at `op_at`."""
    run = range(_after_drops(graph, op_at), op_at)
    return max([run.start, *(at + 1 for at in run if isinstance(graph.instructions[at], SwapIn))])


def _spliced(instructions: tuple[Instruction, ...], inserted: dict[int, list[Instruction]]) -> tuple[Instruction, ...]:
    spliced: list[Instruction] = []
    for at in range(len(instructions) + 1):
        spliced.extend(inserted.get(at, ()))
        if at < len(instructions):
            spliced.append(instructions[at])
    return tuple(spliced)
