"""What may stand for a captured op, and give the same bits? What is known of operators, and what it means for a graph.

An operator may have a `Form` that writes over an operand. An op that only brings storages into being may be replaced by
its `parts`, or by the turns of its operands; two ops by the one to which they are `joined`. What takes the place of ops
so has names of its own, and is checked as a captured op is: `Numbered` has for each the call that is expected.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from outgrow.ir.accesses import Access, accesses_of
from outgrow.ir.contents import Content, NumberedCall, as_captured, number
from outgrow.ir.graph import Graph, Op, Value


class Form(NamedTuple):
    """An operator that computes what another one does, and writes its first result over an operand."""

    operator: str
    operand: int = 0
    """The place of the argument that is written over."""
    strided: bool = False
    """Whether other operands of the result's shape may have another layout, where no option is given."""
    real: bool = False
    """Whether it has other bits of complex numbers."""


Forms: TypeAlias = Mapping[str, Sequence[Form]]
"""The forms that may stand for an operator, by its name."""
Layouts: TypeAlias = Callable[[Op], Sequence[int]]
Parts: TypeAlias = Callable[[Op], Sequence[Op]]
Turns: TypeAlias = Callable[[Op, Mapping[str, Value]], Sequence[tuple[Op, Op]]]
Joint: TypeAlias = Callable[[Op, Op, Mapping[str, Value]], Op | None]

_NO_FORMS: Forms = MappingProxyType({})
_NO_POSITIONS: Mapping[str, Sequence[int]] = MappingProxyType({})


def _nothing(_op: Op) -> tuple[()]:
    return ()


def _no_turns(_op: Op, _values: Mapping[str, Value]) -> tuple[()]:
    return ()


def _never(_first: Op, _second: Op, _values: Mapping[str, Value]) -> None:
    return None


class Leeway(NamedTuple):
    """What an op may do otherwise than the captured one and give the same bits; what is not given allows nothing.

    What is known of operators stands above this layer, so it comes as tables, and where the answer depends on the
    arguments of an op, or on the values that it reads, as functions. `ir.equivalence` says what each of them allows.
    """

    in_place: Forms = _NO_FORMS
    """The forms that may stand for a captured operator."""
    quiet: Mapping[str, Sequence[int]] = _NO_POSITIONS
    """The places of the arguments of an operator that a repetition may leave out."""
    layouts: Layouts = _nothing
    """Gives the places of the arguments of an op of which the layout alone matters."""
    parts: Parts = _nothing
    """Gives the ops that together may stand for an op."""
    in_turn: Turns = _no_turns
    """Gives for each operand of an op the op that begins its result with it, and the one that puts it into the result
    so far."""
    joined: Joint = _never
    """Gives the op that may stand for two, of which the second reads what the first makes."""


_NO_LEEWAY = Leeway()


class Turn(NamedTuple):
    """The turn of operand `number` of `whole`, a captured op that has `operands`: the call that begins, or goes on."""

    whole: NumberedCall
    number: int
    operands: int
    begins: NumberedCall
    goes_on: NumberedCall

    def content(self, before: Content | None) -> Content:
        """Return what the result holds after this turn: the operands that are there, or all of them."""
        name, there = self.whole.op.name, 1 << self.number
        if isinstance(before, tuple) and before[0] == name:
            there |= before[1]
        return name, 0 if there + 1 == 1 << self.operands else there

    def expected(self, call: NumberedCall) -> NumberedCall:
        """Return the call that this one should be: that which goes on, where something is there and this is not."""
        name, (made,) = self.whole.op.name, self.whole.access.written
        before = call.before.get(call.access.reads[0].storage) if call.access.reads else None
        if isinstance(before, tuple) and before[0] == name and before[1] and not before[1] >> self.number & 1:
            return self.goes_on._replace(before={**self.goes_on.before, made: before})
        return self.begins


class Numbered(NamedTuple):
    """A captured graph by contents, which other graphs are compared with."""

    graph: Graph
    leeway: Leeway
    """What the ops of those graphs may do otherwise."""
    calls: dict[str, NumberedCall]
    """The captured ops, and what may stand for them, by name; of a turn, that which begins."""
    others: dict[str, tuple[tuple[str, ...], ...]]
    """For each op that others may stand for, the ways: the names of its parts, of its turns, or of what it is joined to
    with another."""
    wholes: dict[str, str]
    """The captured op that writes what a part, or a joint op, writes, by the name of the latter."""
    turns: dict[str, Turn]
    """The turns, by the name of their op."""
    end: dict[str, Content]
    """The content of every storage at the end."""

    def content(self, op: Op, place: int, before: Content | None) -> Content:
        """Return what an op that is captured, repeated or stands in writes at a place."""
        turn = self.turns.get(op.captured)
        return (self.wholes.get(op.captured, op.captured), place) if turn is None else turn.content(before)

    def expected(self, call: NumberedCall) -> NumberedCall | None:
        """Return the call that this one should be, by its name; None if nothing is called so."""
        turn = self.turns.get(call.op.captured)
        return self.calls.get(call.op.captured) if turn is None else turn.expected(call)


def numbered(captured: Graph, leeway: Leeway = _NO_LEEWAY) -> Numbered:
    """Return a captured graph by contents, to compare many graphs with that leeway; it must keep invariant 1."""
    calls, end = number(captured, accesses_of(captured), as_captured)
    parted = _parted(captured, calls, leeway.parts)
    turns = _in_turn(captured, calls, leeway.in_turn)
    joint = _joined(captured, calls, leeway.joined)
    others = {whole: [tuple(part.op.name for part in own)] for whole, own in parted.items()}
    for whole, own in turns.items():
        others.setdefault(whole, []).append(tuple(turn.begins.op.name for turn in own))
    for (first, second), call in joint.items():
        for name in (first, second):
            others.setdefault(name, []).append((call.op.name,))
    return Numbered(
        captured,
        leeway,
        {call.op.name: call for own in (calls, *parted.values(), joint.values()) for call in own}
        | {turn.begins.op.name: turn.begins for own in turns.values() for turn in own},
        {name: tuple(ways) for name, ways in others.items()},
        {part.op.name: whole for whole, own in parted.items() for part in own}
        | {call.op.name: second for (_, second), call in joint.items()},
        {turn.begins.op.name: turn for own in turns.values() for turn in own},
        end,
    )


def is_repeatable(captured: Graph, call: NumberedCall) -> bool:
    """Whether a captured call writes nothing that outlives the step."""
    return not any(captured.storages[name].is_persistent for name in call.access.written)


def _may_be_replaced(captured: Graph, call: NumberedCall, others: Iterable[str]) -> bool:
    """Whether ops of other names may stand for a call: it only brings into being what does not outlive the step."""
    is_born = not any(name in call.before for name in call.access.written) and not call.op.writes
    return is_born and is_repeatable(captured, call) and not any(name in captured.op_positions for name in others)


def _parted(captured: Graph, calls: Sequence[NumberedCall], parts: Parts) -> dict[str, tuple[NumberedCall, ...]]:
    """Return the calls that are parts of each call that may be taken apart, by its name."""
    found: dict[str, tuple[NumberedCall, ...]] = {}
    for call in calls:
        own = parts(call.op)
        if own and _may_be_replaced(captured, call, [part.name for part in own]):
            found[call.op.name] = tuple(_part(call, part) for part in own)
    return found


def _in_turn(captured: Graph, calls: Sequence[NumberedCall], in_turn: Turns) -> dict[str, tuple[Turn, ...]]:
    """Return the turns of the operands of each call that may go by operand, by its name."""
    found: dict[str, tuple[Turn, ...]] = {}
    for call in calls:
        own = in_turn(call.op, captured.values)
        if own and _may_be_replaced(captured, call, [begins.name for begins, _ in own]):
            found[call.op.name] = tuple(
                Turn(call, at, len(own), _turn(call, captured, begins), _turn(call, captured, goes_on))
                for at, (begins, goes_on) in enumerate(own)
            )
    return found


def _turn(call: NumberedCall, captured: Graph, turn: Op) -> NumberedCall:
    """Return the call of a turn; what the result holds before it, if it reads that, is not known yet."""
    reads = tuple([captured.values[name] for name in turn.references])
    touched = tuple(dict.fromkeys([*(value.storage for value in reads), *call.access.written]))
    before = {name: call.before[name] for name in touched if name in call.before}
    return NumberedCall(call.at, turn, Access(reads, call.access.results, call.access.written, touched), before)


def _joined(captured: Graph, calls: Sequence[NumberedCall], joined: Joint) -> dict[tuple[str, str], NumberedCall]:
    """Return the call that may stand for two, by the names of both."""
    makers = {value.name: call for call in calls for value in call.access.results}
    pairs: list[tuple[NumberedCall, NumberedCall, Op]] = []
    for second in calls:
        first = makers.get(second.access.reads[0].name) if second.access.reads else None
        one = first and joined(first.op, second.op, captured.values)
        if first and one:
            pairs.append((first, second, one))
    if not pairs:
        return {}
    users = Counter(storage for call in calls for storage in call.access.touched)
    found: dict[tuple[str, str], NumberedCall] = {}
    for first, second, one in pairs:
        (made,) = first.access.written
        is_between = users[made] == 2 and made not in captured.outliving and made not in first.before
        if is_between and _may_be_replaced(captured, second, [one.name]):
            found[first.op.name, second.op.name] = _one(first, second, made, one)
    return found


def _one(first: NumberedCall, second: NumberedCall, made: str, one: Op) -> NumberedCall:
    """Return the call of the op that stands for two: it reads what both read, but for what the first `made`."""
    values = {value.name: value for value in (*first.access.reads, *second.access.reads)}
    before = {name: content for name, content in {**first.before, **second.before}.items() if name != made}
    reads = tuple([values[name] for name in one.references])
    touched = tuple(dict.fromkeys([*(value.storage for value in reads), *second.access.written]))
    return NumberedCall(second.at, one, Access(reads, second.access.results, second.access.written, touched), before)


def _part(call: NumberedCall, part: Op) -> NumberedCall:
    """Return the call of a part: the same operands, and the results that it has."""
    results = tuple([value for value in call.access.results if value.name in part.results])
    written = tuple(dict.fromkeys([value.storage for value in results]))
    touched = tuple(dict.fromkeys([*(value.storage for value in call.access.reads), *written]))
    return NumberedCall(
        call.at, part, call.access._replace(results=results, written=written, touched=touched), call.before
    )
