"""What must stay as it is between a forward pass and its backward pass? What the rest of the program reads then.

Between the two, others may write over an input of a part, or over a result that they were given. Autograd notices this
for the tensors that it keeps itself, by their versions, which each write raises. A part compares the versions of

    inputs     that the rest of the program reads; of those that the part itself writes, such as running statistics,
               only those from which the rest builds something again: other calls of the part write them too, and what
               the captured backward pass reads of them does not matter
    results    that the rest reads, or that share memory: eager would know that one is in the other's history

and the memory of inputs that the captured backward pass reads as they are, which `.data` sets without raising versions:
autograd keeps these tensors themselves, and reads the memory that they have by then. Of views it keeps what they had.

When the part itself writes an input, it also raises the version of the input, since nobody else sees that write. Where
operators of eager mode would not, as those that write running statistics, it counts by itself: autograd may have kept
the input for an eager call.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch.utils._pytree as pytree
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from outgrow.frontends.tracing.captured import Captured, GraphResult
from outgrow.frontends.user.training.sharing import place, raise_versions
from outgrow.ir.graph import Graph, Op, SwapOut, Value

Version: TypeAlias = tuple[int, int]
"""How often a tensor was written: as autograd counts, and beyond that."""
_written_silently = WeakTensorKeyDictionary()
"""How often parts have written a tensor without raising its version."""


@dataclass(frozen=True, slots=True)
class Between:
    """By their numbers: inputs that the part `writes`, of which it raises versions of those that it writes `aloud`, and
    gives those written `over` another history; inputs and results that must stay as they are.

    Of those `whole` the captured backward pass reads all.

    For each addend of the gradient of each input that wants one, `sources` are the gradients that arrive on which it
    depends, and `borrowed` says whether it lies in the memory of an input, or of another view among those before.
    """

    writes: tuple[int, ...]
    aloud: tuple[int, ...]
    over: tuple[int, ...]
    inputs: tuple[int, ...]
    results: tuple[int, ...]
    sources: tuple[tuple[frozenset[int], ...], ...]
    borrowed: tuple[tuple[bool, ...], ...] = ()
    whole: tuple[int, ...] = ()


def between(captured: Captured, derived: Graph, hole: Op | None) -> Between:
    """Return what must stay as it is while a run of a derived graph waits at its hole, if it has one."""
    leaves = captured.batch_leaves
    written = set(captured.written) & leaves.keys()
    writes = tuple(sorted(leaves[name] for name in written))
    aloud = tuple(sorted(leaves[name] for name in leaves.keys() & {*captured.written_aloud}))
    _, _, over = map(tuple, pytree.tree_unflatten(captured.returned.leaves, captured.returned.structure))
    if hole is None:
        return Between(writes, aloud, over, (), (), ())
    read, rebuilt_from = _read_behind(captured.graph, derived, hole)
    inputs = (read - written) | (rebuilt_from & written)
    storages, sources, borrowed = _results(captured, hole)
    kept = [name is not None and (name in read or storages.count(name) > 1) for name in storages]
    return Between(
        writes,
        aloud,
        over,
        tuple(sorted(leaves[name] for name in inputs & leaves.keys())),
        tuple(at for at, is_kept in enumerate(kept) if is_kept),
        sources,
        borrowed,
        tuple(sorted(leaves[name] for name in leaves.keys() & _read_whole(captured.graph, hole))),
    )


def _read_whole(graph: Graph, hole: Op) -> frozenset[str]:
    """Return the inputs that ops behind the hole read as they lie when the step begins, and not in another view."""
    whole: dict[str, str] = {}
    for value in graph.values.values():
        if value.version == 0:
            whole.setdefault(value.storage, value.name)
    read = {name for op in _ops_behind(graph, hole) for name in op.operands}
    return frozenset(storage for storage, name in whole.items() if name in read)


def _read_behind(graph: Graph, derived: Graph, hole: Op) -> tuple[frozenset[str], frozenset[str]]:
    """Return the storages that are read behind the hole, and those of them that repeated ops read."""
    behind = {op.name for op in _ops_behind(graph, hole)}
    rest = derived.instructions[derived.op_positions[hole.name] + 1 :]
    read = {name for item in rest for name in derived.reads(item)}
    read |= {item.storage for item in rest if isinstance(item, SwapOut)}
    repeated = [item for item in rest if isinstance(item, Op) and item.captured not in behind]
    return frozenset(read), frozenset(name for item in repeated for name in derived.reads(item))


def _results(
    captured: Captured, hole: Op
) -> tuple[list[str | None], tuple[tuple[frozenset[int], ...], ...], tuple[tuple[bool, ...], ...]]:
    """Return the storages of the results of a part; for what it returns as gradients, `sources` and `borrowed`."""
    graph, structure = captured.graph, captured.returned.structure
    values = [
        graph.values[graph.results[leaf.number]] if isinstance(leaf, GraphResult) else None
        for leaf in captured.returned.leaves
    ]
    depends = _dependence(graph, hole)
    results, gradients, _ = pytree.tree_unflatten(values, structure)
    sources = [frozenset[int]() if value is None else depends.get(value.storage, frozenset()) for value in values]
    _, depending, _ = pytree.tree_unflatten(sources, structure)
    storages = [None if value is None else value.storage for value in results]
    return storages, tuple(map(tuple, depending)), _borrowed(gradients, captured.slots.keys())


def _borrowed(gradients: Sequence[Sequence[Value]], given: Collection[str]) -> tuple[tuple[bool, ...], ...]:
    """Return which gradients lie in memory that is `given`, or over earlier ones; one that is there twice does not.

    Autograd takes a gradient that nobody else refers to for a leaf's own, also where another view has its memory, and
    adds to it later.
    """
    before: dict[str, list[Value]] = {}
    found: list[tuple[bool, ...]] = []
    for items in gradients:
        row: list[bool] = []
        for item in items:
            others = before.setdefault(item.storage, [])
            row.append(item.storage in given or any(other != item and _overlap(other, item) for other in others))
            others.append(item)
        found.append(tuple(row))
    return tuple(found)


def _overlap(one: Value, other: Value) -> bool:
    """Whether the elements of two views of a storage, and what lies between these, meet."""
    return one.dtype != other.dtype or (one.offset < _end(other) and other.offset < _end(one))


def _end(value: Value) -> int:
    reach = ((size - 1) * stride for size, stride in zip(value.shape, value.strides, strict=True))
    return value.offset + sum(reach) + 1


def _dependence(graph: Graph, hole: Op) -> dict[str, frozenset[int]]:
    """Return, by storage, the results of the hole that it depends on, directly or not."""
    arriving = [name for name in hole.results if name is not None]
    found = {graph.values[name].storage: frozenset((at,)) for at, name in enumerate(arriving)}
    for op in _ops_behind(graph, hole):
        read = frozenset(at for name in graph.reads(op) for at in found.get(name, ()))
        for name in graph.written(op) if read else ():
            found[name] = found.get(name, frozenset()) | read
    return found


def _ops_behind(graph: Graph, hole: Op) -> tuple[Op, ...]:
    """Return the ops of a captured graph behind its hole."""
    return graph.ops[graph.ops.index(hole) + 1 :]


def note_writes(inputs: Sequence[object], found: Between) -> None:
    """Note, once a part has run, which of its inputs it has written."""
    raise_versions(inputs[at] for at in found.aloud)
    for at in set(found.writes).difference(found.aloud):
        _written_silently[inputs[at]] = _silent_writes(inputs[at]) + 1


def versions(tensors: Sequence[object], numbers: Sequence[int]) -> list[Version]:
    """Return the versions of some of the tensors, by their numbers."""
    chosen = [tensors[at] for at in numbers]
    return [(_version(item), _silent_writes(item)) if isinstance(item, Tensor) else (0, 0) for item in chosen]


def places(tensors: Sequence[object], numbers: Sequence[int]) -> list[int]:
    """Return in which memory some of the tensors lie, by their numbers."""
    return [place(item) for at in numbers if isinstance(item := tensors[at], Tensor)]


def _silent_writes(tensor: object) -> int:
    return _written_silently.get(tensor) or 0


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version
