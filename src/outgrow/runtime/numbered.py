"""What stays the same in every run of a program on a heap? All but where things lie, so it is found out once.

Each value gets a number, which is its place in a table. It is known at every instruction which values are read, made
and let go of, how much is held then, and how much memory may rest beside that.

    constants   arguments that are the same in every run; they have numbers as well, so that one look-up finds them all
    looked at   values that nobody has made since their storage came into being, or came back: views of it, or of
                another value of it that is there, which is quicker
    named       storages that the run has to find by name: they move, outlive the step, have views, or are large

What is large rests when it is freed, so what is held and what rests grow together with whatever comes into being. Room
is made where that is large, or something has come to rest since, for all the small storages that follow.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from torch._ops import OpOverload

from outgrow.analysis.cost import Cost
from outgrow.ir.graph import Drop, SwapIn, SwapOut, Wait
from outgrow.runtime import arena
from outgrow.runtime.foreknown import Foreknown, course_of
from outgrow.runtime.program import Call, Geometry, Instruction, Program, Result, is_nested

Gather: TypeAlias = Callable[[Sequence[Any]], Sequence[Any]]
"""Returns the arguments of a call from the table."""
Find: TypeAlias = Callable[[Sequence[Any]], Any]
"""Returns one argument from the table."""


@dataclass(frozen=True, slots=True, repr=False)
class Entering:
    """Result number `at` of a call, and its number in the table; `is_named` if the run has to find its storage."""

    at: int
    number: int
    result: Result
    is_named: bool


@dataclass(frozen=True, slots=True, repr=False)
class Look:
    """A value that is made as a view of value number `source`; None: of its storage."""

    number: int
    value: str
    geometry: Geometry
    source: int | None


@dataclass(frozen=True, slots=True, repr=False)
class Numbered:
    """A call of `function`, which takes the arguments that `gather` finds in the table, and those found by keyword.

    Before it values are `looked_at`. Memory that rests makes room for so much that is held before it, with the
    workspace that nothing serves, and after it, until room is made next (None: it makes no room). The user's own
    storages do not count.
    """

    call: Call
    function: Callable[..., object]
    gather: Gather
    by_keyword: tuple[tuple[str, Find], ...]
    looked_at: tuple[Look, ...]
    entering: tuple[Entering, ...]
    held_before_bytes: int | None
    held_after_bytes: int | None


@dataclass(frozen=True, slots=True, repr=False)
class Arriving:
    """A copy that comes back, and what is held then until room is made next."""

    copy: SwapIn
    held_after_bytes: int


Part: TypeAlias = Numbered | Arriving | SwapOut | Wait | Drop


@dataclass(frozen=True, slots=True, repr=False)
class Numbers:
    """A program with numbers instead of names.

    A run begins with a copy of `table`. By position, `cleared` has the numbers of the values that go once an
    instruction is over, and `released` the named storages. Until room is made first, so much is held `first_bytes`.
    """

    parts: tuple[Part, ...]
    table: tuple[Any, ...]
    number_of: Mapping[str, int]
    cleared: tuple[tuple[int, ...], ...]
    released: tuple[tuple[str, ...], ...]
    first_bytes: int
    foreknown: Foreknown


_KNOWN: WeakKeyDictionary[Program, Numbers] = WeakKeyDictionary()


def numbers_of(program: Program) -> Numbers:
    """Return the numbers of a program, which are made when they are first asked for."""
    if program not in _KNOWN:
        _KNOWN[program] = _made(program)
    return _KNOWN[program]


def _made(program: Program) -> Numbers:
    course = course_of(program)
    born_bytes = [risen - begun for begun, risen in zip(course.begun_bytes, course.risen_bytes, strict=True)]
    needs = [_Needs.of(item, program.costs, born) for item, born in zip(program.instructions, born_bytes, strict=True)]
    first_bytes, after = _rooms(list(_make_room(needs, course.rested_bytes)), course.risen_bytes)
    numbering = _Numbering(program)
    drafts = [numbering.draft(at, item) for at, item in enumerate(program.instructions)]
    is_named = numbering.named.__contains__
    parts = [
        draft.part(begun + need.beside_bytes if need.beside_bytes else None, most, is_named)
        for draft, need, begun, most in zip(drafts, needs, course.begun_bytes, after, strict=True)
    ]
    return Numbers(
        parts=tuple(parts),
        table=tuple(numbering.table),
        number_of=numbering.number_of,
        cleared=tuple([item.cleared for item in drafts]),
        released=tuple([tuple(filter(is_named, item.dying)) for item in drafts]),
        first_bytes=first_bytes,
        foreknown=course.foreknown,
    )


@dataclass(frozen=True, slots=True)
class _Needs:
    """How much an instruction brings into being, of which or of its workspace something is large (`is_large`).

    Memory that rests cannot serve `beside_bytes` of its workspace.
    """

    born_bytes: int
    is_large: bool
    beside_bytes: int

    @classmethod
    def of(cls, item: Instruction, costs: Mapping[str, Cost], born_bytes: int) -> "_Needs":
        if not isinstance(item, Call):
            return cls(0, isinstance(item, SwapIn), 0)
        cost = costs.get(item.captured, _NOTHING)
        is_large = max(born_bytes, cost.workspace_bytes) >= arena.LEAST_BYTES
        return cls(born_bytes, is_large, max(0, cost.workspace_bytes - cost.served_bytes))


_NOTHING = Cost(0.0)


def _make_room(needs: Sequence[_Needs], rested_bytes: Sequence[int]) -> Iterator[bool]:
    """Yield of each instruction whether it makes room."""
    seen = 0
    for need, rested in zip(needs, rested_bytes, strict=True):
        makes = need.is_large or (need.born_bytes > 0 and rested > seen)
        seen = rested if makes else seen
        yield makes


def _rooms(make_room: Sequence[bool], risen_bytes: Sequence[int]) -> tuple[int, list[int | None]]:
    """Return what is held until room is made first, and after each instruction that makes room until the next one."""
    most, rooms = 0, list[int | None]()
    for makes, risen in zip(reversed(make_room), reversed(risen_bytes), strict=True):
        most = max(most, risen)
        rooms.append(most if makes else None)
        most = 0 if makes else most
    return most, rooms[::-1]


@dataclass(frozen=True, slots=True, repr=False)
class _Draft:
    """What is found out of an instruction while others are still to come."""

    item: Instruction
    gather: Gather
    by_keyword: tuple[tuple[str, Find], ...]
    looked_at: tuple[Look, ...]
    entering: tuple[tuple[int, int, Result], ...]
    cleared: tuple[int, ...]
    dying: tuple[str, ...]

    def part(self, before_bytes: int | None, after_bytes: int | None, is_named: Callable[[str], bool]) -> Part:
        """Return the part, now that all storages are told apart that the run has to find."""
        match self.item:
            case Call():
                entering = tuple(
                    [
                        Entering(at, number, result, result.born is not None and is_named(result.born))
                        for at, number, result in self.entering
                    ]
                )
                return Numbered(
                    self.item,
                    _at_once(self.item.function),
                    self.gather,
                    self.by_keyword,
                    self.looked_at,
                    entering,
                    before_bytes,
                    after_bytes,
                )
            case SwapIn():
                assert after_bytes is not None, "what comes back asks for room"
                return Arriving(self.item, after_bytes)
            case SwapOut() | Wait() | Drop():
                return self.item


def _at_once(function: Callable[..., object]) -> Callable[..., object]:
    """Return what an operator of torch calls itself: a call of Python less."""
    return function._op if isinstance(function, OpOverload) else function  # noqa: SLF001 - it has no other name


class _Numbering:
    """Goes through a program once, and knows which values are there by then."""

    def __init__(self, program: Program) -> None:
        self._program = program
        calls = [item for item in program.instructions if isinstance(item, Call)]
        born = {result.born for call in calls for result in call.results if result is not None}
        moved = {item.storage for item in program.instructions if not isinstance(item, Call)}
        large = {name for name, size in program.sizes.items() if size >= arena.LEAST_BYTES}
        self._returned = frozenset(program.results)
        """What the step returns is nobody's view: the user may write over it."""
        returned = {program.geometry[name].storage for name in program.results}
        written = {item.geometry.storage for call in calls for item in call.results if item and item.born is None}
        self.named = {*moved, *large, *returned, *written, *(program.sizes.keys() - born)}
        self.number_of = dict[str, int]()
        self.table = list[Any]()
        self._there = dict[str, dict[str, None]]()
        """The values in the table, by storage."""

    def draft(self, position: int, item: Instruction) -> _Draft:
        """Go through an instruction, the next one."""
        gather, by_keyword, cleared = _gathering(()), list[tuple[str, Find]](), list[int]()
        looked_at, entering = list[Look](), list[tuple[int, int, Result]]()
        if isinstance(item, Call):
            arguments, keywords = self._given(item, looked_at)
            gather = self._gather(arguments)
            found_by = ((key, item) for key, item in keywords.items() if isinstance(item, _At) or is_nested(item, _At))
            by_keyword += [(key, self._find(item)) for key, item in found_by]
            found = ((at, result) for at, result in enumerate(item.results) if result is not None)
            entering += [(at, self._enter(result), result) for at, result in found]
        elif isinstance(item, Drop) and item.end - item.begin == self._program.sizes[item.storage]:
            cleared += self._forget(item.storage)
        dying = tuple(self._program.dies.get(position, ()))
        for storage in dying:
            cleared += self._forget(storage)
        return _Draft(item, gather, tuple(by_keyword), tuple(looked_at), tuple(entering), tuple(cleared), dying)

    def _given(self, call: Call, looked_at: list[Look]) -> tuple[list[object], Mapping[str, object]]:
        """Return the arguments of a call with places in the table for values, and add those that are made for it."""

        def look(name: str) -> Any:
            made = self._made_now(name)
            if made is not None:
                looked_at.append(made)
            return _At(self.number_of[name])

        return call.given(look)

    def _gather(self, arguments: Sequence[object]) -> Gather:
        """Return how arguments are found in the table, all of them."""
        if not any(is_nested(item, _At) for item in arguments):
            return _gathering([item.number if isinstance(item, _At) else self._number(item) for item in arguments])
        finders = [self._find(item) for item in arguments]
        return lambda table: [find(table) for find in finders]

    def _find(self, argument: object) -> Find:
        """Return how an argument is found in the table."""
        if is_nested(argument, _At):
            gather = self._gather(argument)
            return lambda table: [*gather(table)]
        return itemgetter(argument.number if isinstance(argument, _At) else self._number(argument))

    def _made_now(self, name: str) -> Look | None:
        """Give a value that is read its number; return how it is made before, if it is not there."""
        if name not in self.number_of:
            self.number_of[name] = self._number()
        geometry = self._program.geometry[name]
        there = self._there.setdefault(geometry.storage, {})
        if geometry.dtype is None or name in there:
            return None
        source = None if name in self._returned else self._alike(there, geometry)
        there[name] = None
        self.named.add(geometry.storage)
        return Look(self.number_of[name], name, geometry, source)

    def _alike(self, there: Iterable[str], geometry: Geometry) -> int | None:
        """Return the number of a value of a storage that is there and has elements of the same type."""
        geometries = self._program.geometry
        return next((self.number_of[name] for name in there if geometries[name].dtype is geometry.dtype), None)

    def _enter(self, result: Result) -> int:
        """Give a result its number."""
        number = self.number_of[result.value] = self._number()
        if result.geometry.dtype is not None:
            self._there.setdefault(result.geometry.storage, {})[result.value] = None
        return number

    def _number(self, constant: object = None) -> int:
        self.table.append(constant)
        return len(self.table) - 1

    def _forget(self, storage: str) -> list[int]:
        """Let go of the values of a storage, and return their numbers."""
        return [self.number_of[name] for name in self._there.pop(storage, ())]


@dataclass(frozen=True, slots=True)
class _At:
    """The place of a value in the table."""

    number: int


def _gathering(numbers: Sequence[int]) -> Gather:
    """Return a function that returns the items of these numbers, however few."""
    if len(numbers) > 1:
        return itemgetter(*numbers)
    if not numbers:
        return lambda _table: ()
    (number,) = numbers
    return lambda table: (table[number],)
