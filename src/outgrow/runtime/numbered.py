"""What stays the same in every run of a program on a heap? All but where things lie, so it is found out once.

Each value gets a number, which is its place in a table. It is known at every instruction which values are read, made
and let go of, how much is held then, and how much memory may rest beside that.

    constants   arguments that are the same in every run; they have numbers as well, so that one look-up finds them all
    looked at   values that nobody has made since their storage came into being, or came back: views of it
    known       storages that the run has to find by name: they move, outlive the step, have views, or are large

What is freed rests, so memory that is held and memory that rests are no more together than before. Only what comes into
being asks for room, and room is made where that is large, for all the small ones as well that follow it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from operator import itemgetter
from typing import Any, TypeAlias

from outgrow.analysis.cost import Cost
from outgrow.ir.graph import Drop, SwapIn, SwapOut, Wait
from outgrow.runtime import arena
from outgrow.runtime.foreknown import Foreknown, foreknown
from outgrow.runtime.program import Call, Instruction, Item, Program, Result

Gather: TypeAlias = Callable[[Sequence[Any]], tuple[Any, ...]]
"""Returns the arguments of a call from the table."""


@dataclass(frozen=True, slots=True, repr=False)
class Entering:
    """Result number `at` of a call, and its number in the table; `is_known` if the run has to find its storage."""

    at: int
    number: int
    result: Result
    is_known: bool


@dataclass(frozen=True, slots=True, repr=False)
class Numbered:
    """A call of which all arguments are in the table; if `gather` is None, some are in lists and found by name.

    Before it values are `looked_at`. Besides the user's own storages so much is held `before` it that memory that rests
    has to make room for its workspace, and `after` it until room is made next (None: no room has to be made).
    """

    call: Call
    gather: Gather | None
    looked_at: tuple[tuple[int, str], ...]
    entering: tuple[Entering, ...]
    before: int | None
    after: int | None


@dataclass(frozen=True, slots=True, repr=False)
class Arriving:
    """A copy that comes back, and what is held then until room is made next."""

    copy: SwapIn
    after: int


Part: TypeAlias = Numbered | Arriving | SwapOut | Wait | Drop


@dataclass(frozen=True, slots=True, repr=False)
class Numbers:
    """A program with numbers instead of names.

    A run begins with a copy of `table`. By position, `cleared` has the numbers of the values that go once an
    instruction is over, and `released` the known storages. Until room is made first, so much is held `at_first`.
    """

    parts: tuple[Part, ...]
    table: tuple[Any, ...]
    number_of: Mapping[str, int]
    cleared: tuple[tuple[int, ...], ...]
    released: tuple[tuple[str, ...], ...]
    at_first: int
    foreknown: Foreknown


@dataclass(frozen=True, eq=False)
class NumberedProgram(Program):
    """A program that has numbers as well."""

    numbers: Numbers = field(kw_only=True)


def numbered(program: Program, costs: Mapping[str, Cost]) -> NumberedProgram:
    """Return a program with its numbers; its ops have these costs, by name as captured."""
    given = {item.name: getattr(program, item.name) for item in fields(program)}
    return NumberedProgram(**given, numbers=numbers_of(program, costs))


def numbers_of(program: Program, costs: Mapping[str, Cost]) -> Numbers:
    """Return the numbers of a program whose ops have these costs, by name as captured."""
    known, begun, risen = foreknown(program, costs)
    before = [_before(item, costs, held) for item, held in zip(program.instructions, begun, strict=True)]
    at_first, after = _rooms(program.instructions, begun, risen)
    numbering = _Numbering(program)
    drafts = [numbering.draft(at, item) for at, item in enumerate(program.instructions)]
    is_known = numbering.known.__contains__
    parts = [item.part(before[at], after[at], is_known) for at, item in enumerate(drafts)]
    return Numbers(
        parts=tuple(parts),
        table=tuple(numbering.table),
        number_of=numbering.number_of,
        cleared=tuple([item.cleared for item in drafts]),
        released=tuple([tuple(filter(is_known, item.dying)) for item in drafts]),
        at_first=at_first,
        foreknown=known,
    )


def _before(item: Instruction, costs: Mapping[str, Cost], begun: int) -> int | None:
    """Return what is held with the workspace of a call that memory which rests cannot serve."""
    cost = costs.get(item.captured) if isinstance(item, Call) else None
    more = 0 if cost is None else cost.workspace_bytes - cost.served_bytes
    return begun + more if more > 0 else None


def _rooms(
    instructions: Sequence[Instruction], begun: Sequence[int], risen: Sequence[int]
) -> tuple[int, list[int | None]]:
    """Return what is held until room is made first, and after each instruction that makes room until the next one."""
    most, rooms = 0, list[int | None]()
    for at in reversed(range(len(instructions))):
        most = max(most, risen[at])
        item = instructions[at]
        is_large = risen[at] - begun[at] >= arena.LEAST_BYTES
        makes = isinstance(item, SwapIn) or (isinstance(item, Call) and is_large)
        rooms.append(most if makes else None)
        if makes:
            most = 0
    return most, rooms[::-1]


@dataclass(frozen=True, slots=True, repr=False)
class _Draft:
    """What is found out of an instruction while others are still to come."""

    item: Instruction
    gather: Gather | None
    looked_at: tuple[tuple[int, str], ...]
    entering: tuple[tuple[int, int, Result], ...]
    cleared: tuple[int, ...]
    dying: tuple[str, ...]

    def part(self, before: int | None, after: int | None, is_known: Callable[[str], bool]) -> Part:
        """Return the part, now that all storages are told apart that the run has to find."""
        match self.item:
            case Call():
                entering = tuple(
                    [
                        Entering(at, number, result, result.born is not None and is_known(result.born))
                        for at, number, result in self.entering
                    ]
                )
                return Numbered(self.item, self.gather, self.looked_at, entering, before, after)
            case SwapIn():
                assert after is not None, "what comes back asks for room"
                return Arriving(self.item, after)
            case SwapOut() | Wait() | Drop():
                return self.item


class _Numbering:
    """Goes through a program once, and knows which values are there by then."""

    def __init__(self, program: Program) -> None:
        self._program = program
        calls = [item for item in program.instructions if isinstance(item, Call)]
        born = {result.born for call in calls for result in call.results if result is not None}
        moved = {item.storage for item in program.instructions if not isinstance(item, Call)}
        large = {name for name, size in program.sizes.items() if size >= arena.LEAST_BYTES}
        returned = {program.geometry[name].storage for name in program.results}
        self.known = {*moved, *large, *returned, *(program.sizes.keys() - born)}
        self.number_of = dict[str, int]()
        self.table = list[Any]()
        self._there = dict[str, dict[str, None]]()
        """The values in the table, by storage."""

    def draft(self, position: int, item: Instruction) -> _Draft:
        """Go through an instruction, the next one."""
        gather, cleared = None, list[int]()
        looked_at, entering = list[tuple[int, str]](), list[tuple[int, int, Result]]()
        if isinstance(item, Call):
            gather = self._gather(item, looked_at)
            found = ((at, result) for at, result in enumerate(item.results) if result is not None)
            entering += [(at, self._enter(result), result) for at, result in found]
        elif isinstance(item, Drop) and item.end - item.begin == self._program.sizes[item.storage]:
            cleared += self._forget(item.storage)
        dying = tuple(self._program.dies.get(position, ()))
        for storage in dying:
            cleared += self._forget(storage)
        return _Draft(item, gather, tuple(looked_at), tuple(entering), tuple(cleared), dying)

    def _gather(self, call: Call, looked_at: list[tuple[int, str]]) -> Gather | None:
        """Return how the arguments of a call are found, and add the values that are made for it."""

        def look(name: str) -> Item:
            if self._is_made_now(name):
                looked_at.append((self.number_of[name], name))
            return 0

        if call.slots or call.keyword_slots:
            for _, slot in (*call.values, *call.slots, *call.keyword_slots):
                look(slot) if isinstance(slot, str) else slot(look)
            return None
        values = dict(call.values)
        numbers = list[int]()
        for at, constant in enumerate(call.constants):
            if at in values:
                look(values[at])
                numbers.append(self.number_of[values[at]])
            else:
                numbers.append(self._number())
                self.table[-1] = constant
        return _gathering(numbers)

    def _is_made_now(self, name: str) -> bool:
        """Give a value that is read its number; return whether it has to be looked at before."""
        if name not in self.number_of:
            self.number_of[name] = self._number()
        geometry = self._program.geometry[name]
        there = self._there.setdefault(geometry.storage, {})
        if geometry.dtype is None or name in there:
            return False
        there[name] = None
        self.known.add(geometry.storage)
        return True

    def _enter(self, result: Result) -> int:
        """Give a result its number."""
        number = self.number_of[result.value] = self._number()
        if result.geometry.dtype is not None:
            self._there.setdefault(result.geometry.storage, {})[result.value] = None
        return number

    def _number(self) -> int:
        self.table.append(None)
        return len(self.table) - 1

    def _forget(self, storage: str) -> list[int]:
        """Let go of the values of a storage, and return their numbers."""
        return [self.number_of[name] for name in self._there.pop(storage, ())]


def _gathering(numbers: Sequence[int]) -> Gather:
    """Return a function that returns the items of these numbers, however few."""
    if len(numbers) > 1:
        return itemgetter(*numbers)
    if not numbers:
        return lambda _table: ()
    (number,) = numbers
    return lambda table: (table[number],)
