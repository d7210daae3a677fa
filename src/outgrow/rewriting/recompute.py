"""The law of recomputation: a storage may be built again from what made it."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from outgrow.ir.graph import Op, Value, result_values
from outgrow.operators.effects import quiet
from outgrow.plan import Recompute
from outgrow.rewriting.draft import Draft, Place
from outgrow.rewriting.rule import flight, is_away, reading, require, require_none, required_place, returning


def recompute(draft: Draft, decision: Recompute) -> None:
    """Build a storage again directly before an op, by repeating the writes that made its version.

    rewrite:
        storage x input 8
        storage a 8
        storage b 8
        storage c 8
        value %x: x@0 f32[2]
        %a: a@0 f32[2] = aten.relu.default(%x)
        %b: b@0 f32[2] = aten.exp.default(%a)
        %c: c@0 f32[2] = aten.add.Tensor(%b, %a)
        return %c
    with:
        Recompute(storage="a", before="add")
    provided:
        every write that made the version is by a repeatable op, what these ops read is on the device, and still of
        the version that they read, and the storage is not in flight. Batch normalisation is repeated without its
        running statistics.
    because:
        a repeated op reads the same bytes, so it writes the same bits.
    ->
        storage x input 8
        storage a 8
        storage b 8
        storage c 8
        storage a$1 8
        value %x: x@0 f32[2]
        %a: a@0 f32[2] = aten.relu.default(%x)
        %b: b@0 f32[2] = aten.exp.default(%a)
        relu$1: %a$1: a$1@0 f32[2] = aten.relu.default(%x) origin relu
        %c: c@0 f32[2] = aten.add.Tensor(%b, %a$1)
        return %c
    """
    storage = decision.storage
    before = required_place(draft, decision.before)
    require(storage in draft.storages, f"the graph has no storage {storage}")
    chain = [draft.op(place) for place in draft.writers(storage, before)]
    require_none(why_not(draft, storage, chain, before))
    later = [place for place in draft.touching(storage) if not draft.precedes(place, before)]
    moved = any(not isinstance(draft.item(place), Op) for place in later)
    require(not moved, f"{storage} is moved by a transfer later")
    suffix = _repeat(draft, chain, before)
    _redirect(draft, later, storage, suffix)


def why_not(draft: Draft, storage: str, chain: Sequence[Op], before: Place) -> str | None:
    """Return why `chain`, the ops that wrote `storage`, cannot rebuild it at a place, or None if it can."""
    if not chain or draft.storages[storage].is_persistent:
        return f"{storage} is not made by this step"
    in_flight = flight(draft, storage, before)
    if in_flight is not None:
        return in_flight
    repeated = [quiet(op) for op in chain]
    made = {value.storage for op in repeated for value in _results(draft, op) if value.version == 0}
    for op in repeated:
        written = {*(value.storage for value in _results(draft, op)), *op.writes}
        if any(draft.storages[name].is_persistent for name in written) or not made.issuperset(written):
            return f"{op.name} cannot be repeated"
    for op in repeated:
        for name in op.operands:
            value = draft.values[name]
            if value.storage not in made and draft.version(value.storage, before) != value.version:
                return f"{value.storage} has been overwritten since {op.name} read it"
            if value.storage in made and value.storage != storage and value.version != 0:
                return f"{op.name} reads a later version of {value.storage}"
            if value.storage not in made and is_away(draft, value.storage, before):
                return f"{value.storage}, which {op.name} reads, is away"
    return None


def _results(draft: Draft, op: Op) -> list[Value]:
    return [draft.values[name] for name in result_values(op)]


def _repeat(draft: Draft, chain: Sequence[Op], before: Place) -> str:
    """Repeat a chain at a place, and return the suffix of the ops, storages and values that this makes."""
    repeated = [quiet(op) for op in chain]
    made = tuple(dict.fromkeys(value.storage for op in repeated for value in _results(draft, op)))
    suffix = unused_suffix(
        [op.name for op in repeated], made, lambda name: draft.place_of(name) is not None, draft.storages.__contains__
    )
    own = dict.fromkeys(name for op in repeated for name in (*op.operands, *result_values(op)))
    names = {name: name + suffix for name in own if draft.values[name].storage in made}
    for name in made:
        draft.storages[name + suffix] = replace(draft.storages[name], name=name + suffix)
    for name in names:
        draft.add_value(_moved(draft.values[name], suffix))
    for op in repeated:
        draft.insert_before(before, _again(returning(reading(op, names), names), suffix))
    return suffix


def _again(op: Op, suffix: str) -> Op:
    """Return the repetition of an op, all of whose writes go to the copies."""
    return replace(op, name=op.name + suffix, origin=op.captured, writes=tuple(name + suffix for name in op.writes))


def unused_suffix(
    ops: Sequence[str], storages: Sequence[str], has_op: Callable[[str], bool], has_storage: Callable[[str], bool]
) -> str:
    """Return the suffix of copies of some ops and storages, by their names: the first of $1, $2, ... not in use."""
    number = 1
    while any(has_op(f"{name}${number}") for name in ops) or any(has_storage(f"{name}${number}") for name in storages):
        number += 1
    return f"${number}"


def _moved(value: Value, suffix: str) -> Value:
    return replace(value, name=value.name + suffix, storage=value.storage + suffix)


def _redirect(draft: Draft, later: Sequence[Place], storage: str, suffix: str) -> None:
    """Let the ops at these places, and the results of the step, use the copy of `storage`."""
    ops = [draft.op(place) for place in later]
    used = [name for op in ops for name in (*op.operands, *result_values(op))] + [*draft.results]
    names = {name: name + suffix for name in used if draft.values[name].storage == storage}
    for name in names:
        draft.add_value(_moved(draft.values[name], suffix))
    for place, op in zip(later, ops, strict=True):
        writes = tuple(name + suffix if name == storage else name for name in op.writes)
        draft.replace(place, replace(returning(reading(op, names), names), writes=writes))
    draft.results = tuple(names.get(name, name) for name in draft.results)
