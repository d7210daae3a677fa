"""What does a bound see of a step? Moments, slots between them, and what rests over them; `coarsen` draws it.

Storages of the same rests may be taken together (`merged`), which makes an outline smaller and a bound no larger.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import floor, log

_SAME_PRICE = log(1.2)
"""The logarithm of the factor within which prices a byte count as the same."""


@dataclass(frozen=True, slots=True)
class Rest:
    """A storage is not used over the moments `begin` .. `end` - 1; `copy` and `repeat` are what can bring it back.

    A rest that is not `needed` is a tail: nothing asks for the storage in slot `end` but what is built from it.
    """

    storage: str
    size_bytes: int
    begin: int
    end: int
    copy: int | None
    repeat: int | None
    needed: bool


@dataclass(frozen=True, slots=True)
class Copy:
    """A version of a storage in the next tier, the seconds to move all of it, and the slots in which it is of use."""

    out_seconds: float
    in_seconds: float
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Repeat:
    """An op that may run again in slots `begin` .. `end`; `reads` are the rests of each storage that it reads."""

    seconds: float
    begin: int
    end: int
    reads: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Overwrite:
    """At a moment, an op may write over these bytes, which then come back only by repeating; `room` assumes that."""

    moment: int
    size_bytes: int
    rest: int


@dataclass(frozen=True, slots=True)
class State:
    """Bytes that outlive the step and may be stowed: what is not held throughout moves within it.

    What is not held at every moment of `rests` goes out once (`out_seconds` for all), since the step writes it. State
    without `rests`, which only updates use, also comes in once. What is held throughout takes room at every moment.
    """

    size_bytes: int
    in_seconds: float
    out_seconds: float
    rests: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Outline:
    """All that the linear programme sees.

    `arithmetic` has the seconds of the captured ops in each slot, and `is_run` says whether a slot is the run of one
    op and nothing else. `released` has the seconds of ops that may wait and may have run by the end of each slot.
    """

    arithmetic: tuple[float, ...]
    is_run: tuple[bool, ...]
    released: tuple[float, ...]
    room: tuple[int, ...]
    rests: tuple[Rest, ...]
    copies: tuple[Copy, ...]
    repeats: tuple[Repeat, ...]
    overwrites: tuple[Overwrite, ...]
    state: tuple[State, ...]

    @property
    def slots(self) -> int:
        """How many slots there are."""
        return len(self.arithmetic)

    @property
    def variables(self) -> int:
        """About how many variables the linear programme has."""
        resting = sum((2 if rest.needed else 3) * (rest.end - rest.begin) for rest in self.rests)
        others = (*self.copies, *self.repeats)
        return 2 * self.slots + resting + sum(1 + item.end - item.begin for item in others)


def merged(fine: Outline) -> Outline:
    """Return the outline in which storages of the same rests and about the same price a byte are one (F)."""
    by_storage: dict[str, list[Rest]] = {}
    made: dict[int, dict[str, int]] = {}
    for rest in fine.rests:
        if rest.needed:
            by_storage.setdefault(rest.storage, []).append(rest)
            if rest.repeat is not None:
                made.setdefault(rest.repeat, {})[rest.storage] = rest.size_bytes
    shares = {number: fine.repeats[number].seconds / sum(sizes.values()) for number, sizes in made.items()}
    groups: dict[tuple[object, ...], list[list[Rest]]] = {}
    for rests in by_storage.values():
        shape = _shape(fine, rests)
        price = _price(rests, shares)
        bucket = None if price is None or price <= 0 else floor(log(price) / _SAME_PRICE)
        groups.setdefault((shape, bucket), []).append(rests)
    together: list[Rest] = []
    copies: list[Copy] = []
    repeats: list[Repeat] = []
    for members in groups.values():
        _merge(fine, members, shares, together, copies, repeats)
    state = tuple([item for item in fine.state if not item.rests])
    return replace(
        fine, rests=tuple(together), copies=tuple(copies), repeats=tuple(repeats), overwrites=(), state=state
    )


def _shape(fine: Outline, rests: Sequence[Rest]) -> tuple[object, ...]:
    """What merged storages have in common: when they rest, and which rests share a copy begun in which slot."""
    ranks: dict[int | None, int] = {}
    for rest in rests:
        ranks.setdefault(rest.copy, len(ranks))
    begins = [None if rest.copy is None else fine.copies[rest.copy].begin for rest in rests]
    return tuple(
        (rest.begin, rest.end, ranks[rest.copy], begin, rest.repeat is None)
        for rest, begin in zip(rests, begins, strict=True)
    )


def _price(rests: Sequence[Rest], shares: Mapping[int, float]) -> float | None:
    """Seconds for each byte built again, by the cheapest of the ops that do it; None where none does."""
    return min((shares[rest.repeat] for rest in rests if rest.repeat is not None), default=None)


def _merge(
    fine: Outline,
    members: Sequence[Sequence[Rest]],
    shares: Mapping[int, float],
    rests: list[Rest],
    copies: list[Copy],
    repeats: list[Repeat],
) -> None:
    """Add storages of the same rests as one storage, moved and built again at the least price a byte among them."""
    size = sum(member[0].size_bytes for member in members)
    prices = [price for member in members if (price := _price(member, shares)) is not None]
    first, last = min(rest.begin for rest in members[0]), max(rest.end for rest in members[0])
    if prices:
        repeats.append(Repeat(size * min(prices), first, last))
    numbers: dict[int, int] = {}
    for place, rest in enumerate(members[0]):
        if rest.copy is not None and rest.copy not in numbers:
            numbers[rest.copy] = len(copies)
            own = fine.copies[rest.copy]
            ends = max(other.end for other in members[0] if other.copy == rest.copy)
            pairs = [(member[place].size_bytes, member[place].copy) for member in members]
            each = [(bytes_, fine.copies[number]) for bytes_, number in pairs if number is not None]
            out = size * min(copy.out_seconds / bytes_ for bytes_, copy in each)
            back = size * min(copy.in_seconds / bytes_ for bytes_, copy in each)
            copies.append(Copy(out, back, own.begin, ends))
        copy = None if rest.copy is None else numbers[rest.copy]
        repeat = None if rest.repeat is None else len(repeats) - 1
        rests.append(replace(rest, size_bytes=size, copy=copy, repeat=repeat))
