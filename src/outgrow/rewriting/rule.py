"""What is a law? An edit of a draft that carries out a decision, with its condition.

The docstring of every law states, in IR text, `rewrite:` the left side, `->`, the right side, the decision
between them as `with:`, and `provided:` and `because:` in words. The tests parse these blocks and apply the law
to the left side. Where the condition does not hold, the law raises `NotApplicable` with the reason, to which
`derive.carry_out` adds its name, and leaves the draft as it was. A law does not verify the graph: `derive.verified`
does.
"""

from collections.abc import Mapping
from dataclasses import replace

from outgrow.errors import NotApplicable
from outgrow.ir.flight import ARRIVED
from outgrow.ir.graph import DEVICE, Argument, Drop, Op, Ref, SwapIn, Wait
from outgrow.rewriting.draft import Draft, Place


def require(condition: bool, reason: str) -> None:
    """Raise `NotApplicable` with the reason unless the condition holds."""
    if not condition:
        raise NotApplicable(reason)


def require_none(reason: str | None) -> None:
    """Raise `NotApplicable` with the reason why not, if there is one."""
    require(reason is None, reason or "")


def required_place(draft: Draft, op: str) -> Place:
    """Return the place of an op; raise `NotApplicable` if the draft has none of this name."""
    place = draft.place_of(op)
    if place is None:
        raise NotApplicable(f"the graph has no op {op}")
    return place


def renamed(argument: Argument, names: Mapping[str, str]) -> Argument:
    """Return the argument with its values renamed."""
    if isinstance(argument, Ref):
        return Ref(names.get(argument.value, argument.value))
    if isinstance(argument, tuple):
        return tuple(renamed(item, names) for item in argument)
    return argument


def reading(op: Op, names: Mapping[str, str]) -> Op:
    """Return the op with the values that it reads renamed."""
    return replace(
        op,
        arguments=tuple(renamed(argument, names) for argument in op.arguments),
        keywords=tuple((key, renamed(argument, names)) for key, argument in op.keywords),
    )


def returning(op: Op, names: Mapping[str, str]) -> Op:
    """Return the op with its results renamed."""
    return replace(op, results=tuple(name and names.get(name, name) for name in op.results))


def outlives(draft: Draft, storage: str) -> bool:
    """Whether a storage outlives the step: it is persistent or holds a result."""
    is_result = any(draft.values[result].storage == storage for result in draft.results)
    return is_result or draft.storages[storage].is_persistent


def is_away(draft: Draft, storage: str, place: Place) -> bool:
    """Whether bytes of a storage are not on the device directly before a place: dropped, or not waited for since."""
    declared = draft.storages[storage]
    missing = 0 if declared.home == DEVICE or draft.is_born(storage) else declared.size_bytes
    is_coming = False
    for other in draft.transfers(storage):
        if not draft.precedes(other, place):
            break
        match draft.item(other):
            case Drop(_, begin, end):
                missing += end - begin
            case SwapIn(_, begin, end):
                missing -= end - begin
                is_coming = True
            case Wait():
                is_coming = False
            case _:
                pass
    return missing > 0 or is_coming


def flight(draft: Draft, storage: str, place: Place) -> str | None:
    """Say until which op a storage is in flight between workers (`ir.flight`) directly before a place; None if not."""
    for other in draft.touching(storage):
        item = draft.item(other)
        if isinstance(item, Op) and item.operator == ARRIVED and not draft.precedes(other, place):
            there = draft.values[item.references[0]].storage
            if draft.writers(there, place):  # its exchange has begun
                return f"{storage} is in flight until {item.name}"
    return None
