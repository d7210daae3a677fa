"""Which tensors does an operator change without saying so in its schema?

An ATen schema marks the arguments that an operator writes, `Tensor(a!) self`. Batch normalisation is older
than these marks: in training it updates its running statistics in silence. The table lists such arguments by
position.

A repetition must not update them a second time. Where only training writes them, the statistics of the batch alone
decide what the operator returns then, so a repetition leaves the running ones out (`QUIET`): the same kernel gives the
same bits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from outgrow.ir.graph import Graph, Op, leaving_out


@dataclass(frozen=True, slots=True)
class HiddenWrites:
    """Positions of the arguments that are written: always, or only if the argument at `only_if` is true."""

    arguments: tuple[int, ...]
    only_if: int | None = None


HIDDEN_WRITES: Mapping[str, HiddenWrites] = {
    "aten.native_batch_norm.default": HiddenWrites((3, 4), only_if=5),
    "aten.cudnn_batch_norm.default": HiddenWrites((3, 4), only_if=5),
    "aten.miopen_batch_norm.default": HiddenWrites((3, 4), only_if=5),
    "aten.batch_norm_update_stats.default": HiddenWrites((1, 2)),
    "aten.batch_norm_gather_stats.default": HiddenWrites((3, 4)),
    "aten.batch_norm_gather_stats_with_counts.default": HiddenWrites((3, 4)),
}

QUIET: Mapping[str, tuple[int, ...]] = {
    name: writes.arguments for name, writes in HIDDEN_WRITES.items() if writes.only_if is not None
}
"""Positions of the arguments that such an operator writes and that may be left out, with equal results."""


def quiet(op: Op) -> Op:
    """Return the form of `op` that a repetition runs: without its hidden writes, where it has such a form."""
    return leaving_out(op, QUIET[op.operator]) if op.writes and op.operator in QUIET else op


def is_repeatable(graph: Graph, op: Op) -> bool:
    """Return whether `op` may run again: all that its repetition writes are storages of this step."""
    return not any(graph.storages[name].is_persistent for name in graph.written(quiet(op)))


def hidden_writes(operator: str, arguments: Sequence[object]) -> tuple[int, ...]:
    """Return the positions of the arguments that this call writes although its schema does not say so.

    >>> hidden_writes("aten.relu.default", ())
    ()
    """
    entry = HIDDEN_WRITES.get(operator)
    if entry is None or (entry.only_if is not None and not arguments[entry.only_if]):
        return ()
    return tuple(at for at in entry.arguments if arguments[at] is not None)
