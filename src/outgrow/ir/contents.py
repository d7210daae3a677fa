"""What made each byte? Value numbering: bytes are known by the captured op that wrote them, never by where they lie.

    content(storage there from the start) = its name
    content(storage after a write)        = (captured op that wrote it, place among what that op writes)

After Kildall 1973, "A unified approach to global program optimization", https://doi.org/10.1145/512927.512945, with the
names of captured ops in place of hashed expressions.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from outgrow.ir.accesses import Access
from outgrow.ir.graph import Graph, Op, Value

Content: TypeAlias = str | tuple[str, int]
Layout: TypeAlias = tuple[str, tuple[int, ...], tuple[int, ...], int]


class NumberedCall(NamedTuple):
    """An op, and the content before it of each storage that it touches; those born here are missing."""

    at: int
    op: Op
    access: Access
    before: dict[str, Content]


class Write(NamedTuple):
    """One thing that an op writes: a result, or a storage changed without being returned (no layout).

    `first` is the place of the first write to the same storage, `before` what the storage held (None: it is born
    here), and `operands` are the places, among all values that the op reads, of those in the storage.
    """

    layout: Layout | None
    first: int
    before: Content | None
    operands: tuple[int, ...]


def as_captured(op: Op, place: int, _before: Content | None) -> Content:
    """Return what an op writes at a place."""
    return op.captured, place


def number(
    graph: Graph, accesses: list[Access], made: Callable[[Op, int, Content | None], Content]
) -> tuple[list[NumberedCall], dict[str, Content]]:
    """Return every op by contents, and the content of each storage at the end.

    `made` tells what an op writes at a place of a storage, given what that held before.
    """
    contents: dict[str, Content] = {name: name for name in graph.storages if name not in graph.born_at}
    calls: list[NumberedCall] = []
    for at, (op, access) in enumerate(zip(graph.instructions, accesses, strict=True)):
        if isinstance(op, Op):
            before = {name: contents[name] for name in access.touched if name in contents}
            calls.append(NumberedCall(at, op, access, before))
            for storage, place in _first_writes(op, access).items():
                contents[storage] = made(op, place, before.get(storage))
    return calls, contents


def _targets(op: Op, access: Access) -> list[tuple[str, Layout | None] | None]:
    """Return storage and layout of each result and each hidden write of `op`, None for a result not used."""
    values = iter(access.results)
    results = [None if name is None else next(values) for name in op.results]
    returned = [None if value is None else (value.storage, layout_of(value)) for value in results]
    return [*returned, *[(storage, None) for storage in op.writes]]


def _first_writes(op: Op, access: Access) -> dict[str, int]:
    """Return the place of the first write to each storage that `op` writes."""
    if len(op.results) == 1 and not op.writes:
        return dict.fromkeys(access.written, 0)
    firsts: dict[str, int] = {}
    for place, target in enumerate(_targets(op, access)):
        if target is not None:
            firsts.setdefault(target[0], place)
    return firsts


def reads_of(call: NumberedCall) -> list[tuple[Content, Layout]]:
    """Return content and layout of each value that a call reads."""
    return [(call.before[value.storage], layout_of(value)) for value in call.access.reads]


def writes_of(call: NumberedCall) -> list[Write | None]:
    """Return what a call writes, results first; None for a result not used."""
    firsts = _first_writes(call.op, call.access)
    writes: list[Write | None] = []
    for target in _targets(call.op, call.access):
        if target is None:
            writes.append(None)
            continue
        storage, layout = target
        operands = tuple([at for at, value in enumerate(call.access.reads) if value.storage == storage])
        writes.append(Write(layout, firsts[storage], call.before.get(storage), operands))
    return writes


def layout_of(value: Value) -> Layout:
    """Return dtype, shape, strides and offset of a value."""
    return (value.dtype, value.shape, value.strides, value.offset)
