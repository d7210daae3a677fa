"""Does a rewritten graph compute what the captured one computes, to the last bit? Invariant 6 of `ir.verify`.

Bytes are numbered by what made them, never by where they lie (value numbering):

    content(storage there from the start) = its name
    content(storage after a write)        = (captured op that wrote it, place among what that op writes)

Two graphs agree iff
- each captured op occurs once, under its name. Every other op repeats one by its `origin`, and only one that
  writes no persistent storage (the random generator is persistent, so no random number is drawn twice);
- each op has the operator and literals of the captured op, reads equal content in equal layout in the same
  order, and writes results of equal layout: into being where the captured op does, in storages of equal size, and in
  place over the same content and the same operand where the captured op does;
- persistent storages and results end with equal content and layout, whichever memory is their home, and the same
  results share a storage.

By induction over the ops, equal content then means equal bits in both graphs, whatever the order and the
places, because an op with equal inputs gives equal bits.

Where operators are known to give the same bits in another form, a graph has `Leeway`:

A repetition may leave out the arguments that the captured op writes without returning them, where `quiet` has their
places: the op is then expected in that form, which writes nothing that outlives the step.

An op may ask for the layout alone of an operand whose content does not matter to it: `layouts` gives the positions of
such arguments, and the layout has to be the captured one.

A captured op that only brings storages into being may be replaced by its `parts`: ops under names of their own, each
of which writes some of the results. All of them occur, and the captured op itself does not. What a part writes is what
the captured op writes at the same place.

Two captured ops may be replaced by the one that they are `joined` to, under a name of its own, where the second alone
uses the storage that the first brings into being, and that does not outlive the step. It reads what both read, but for
that, and writes what the second writes; of the two, neither occurs then.

The one change of operator is an exact law's: `in_place` maps an operator to forms that write its first result
over one of its leading operands. All operands of the result's shape must have its layout, unless the form is a strided
one, those of as many elements its type, and the op must not read the operand's storage in any other layout. The form
then makes the content that the captured op makes elsewhere.

After value numbering, Kildall 1973, "A unified approach to global program optimization",
https://doi.org/10.1145/512927.512945, with the names of captured ops in place of hashed expressions.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from math import prod
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from outgrow.errors import InvalidGraph
from outgrow.ir.graph import DEVICE, Argument, Graph, Like, Op, Ref, Role, Storage, Value, asking_layouts, leaving_out
from outgrow.ir.steps import Step, steps_of

Content: TypeAlias = str | tuple[str, int]
Layout: TypeAlias = tuple[str, tuple[int, ...], tuple[int, ...], int]
Forms: TypeAlias = Mapping[str, Sequence[tuple[str, int, bool]]]
"""For an operator, the forms that write its first result over an operand: name, place of that operand, and whether
other operands may be strided otherwise."""

_NO_FORMS: Forms = MappingProxyType({})
_NO_POSITIONS: Mapping[str, Sequence[int]] = MappingProxyType({})


def _nothing(_op: Op) -> tuple[()]:
    return ()


def _never(_first: Op, _second: Op, _values: Mapping[str, Value]) -> None:
    return None


class Leeway(NamedTuple):
    """What an op may do otherwise than the captured one and give the same bits; without it, nothing.

    `in_place` maps captured operators to the forms that may stand for them, and `quiet` operators to the places of the
    arguments that a repetition may leave out. `layouts` gives the places of the arguments of an op of which the layout
    alone matters, `parts` the ops that together may stand for an op, and `joined` the op that may stand for two, of
    which the second reads what the first makes.
    """

    in_place: Forms = _NO_FORMS
    quiet: Mapping[str, Sequence[int]] = _NO_POSITIONS
    layouts: Callable[[Op], Sequence[int]] = _nothing
    parts: Callable[[Op], Sequence[Op]] = _nothing
    joined: Callable[[Op, Op, Mapping[str, Value]], Op | None] = _never


class _Call(NamedTuple):
    """An op, and the content before it of each storage that it touches; those born here are missing."""

    at: int
    op: Op
    step: Step
    before: dict[str, Content]


class _Write(NamedTuple):
    """One thing that an op writes: a result, or a storage changed without being returned (no layout).

    `first` is the place of the first write to the same storage, `before` what the storage held (None: it is born
    here), and `operands` are the places, among all values that the op reads, of those in the storage.
    """

    layout: Layout | None
    first: int
    before: Content | None
    operands: tuple[int, ...]


class Numbered(NamedTuple):
    """A captured graph, its ops and what may stand for them by name with what they read, and the leeway of others.

    `others` are, for each op that others may stand for, the names of these: of its parts, or of the one that it is
    joined to with another. `wholes` has the op that writes what one of these writes, and `end` is every storage's
    content at the end.
    """

    graph: Graph
    leeway: Leeway
    calls: dict[str, _Call]
    others: dict[str, tuple[tuple[str, ...], ...]]
    wholes: dict[str, str]
    end: dict[str, Content]


def numbered(captured: Graph, leeway: Leeway) -> Numbered:
    """Return a captured graph by contents, to compare many graphs with that leeway; it must keep invariant 1."""
    calls, end = _number(captured, steps_of(captured), {})
    parted = _parted(captured, calls, leeway.parts)
    joint = _joined(captured, calls, leeway.joined)
    others = {whole: [tuple(part.op.name for part in own)] for whole, own in parted.items()}
    for (first, second), call in joint.items():
        for name in (first, second):
            others.setdefault(name, []).append((call.op.name,))
    return Numbered(
        captured,
        leeway,
        {call.op.name: call for own in (calls, *parted.values(), joint.values()) for call in own},
        {name: tuple(ways) for name, ways in others.items()},
        {part.op.name: whole for whole, own in parted.items() for part in own}
        | {call.op.name: second for (_, second), call in joint.items()},
        end,
    )


def check_equivalence(graph: Graph, steps: list[Step], reference: Numbered) -> None:
    """Raise `InvalidGraph` unless `graph` keeps invariant 6; both graphs must keep invariant 1."""
    captured, leeway = reference.graph, reference.leeway
    calls, end = _number(graph, steps, reference.wholes)
    originals = reference.calls
    for call in calls:
        op = call.op
        original = originals.get(op.captured)
        if original is None or (op.name in originals and op.captured != op.name):
            raise InvalidGraph(f"{op.name} is not an op of the captured graph", invariant=6, position=call.at)
        if op.name != op.captured:
            original = _quieted(original, leeway.quiet.get(original.op.operator, ()))
            if not _is_repeatable(captured, original):
                message = f"{op.name} repeats {op.captured}, which changes what outlives the step"
                raise InvalidGraph(message, invariant=6, position=call.at)
        original = _asking_layouts(original, op, leeway.layouts)
        difference = _difference(call, original, leeway.in_place) or _resized(graph, op, captured, original.op)
        if difference is not None:
            message = f"{op.name} is not the captured {op.captured}: {difference}"
            raise InvalidGraph(message, invariant=6, position=call.at)
    _check_complete(reference, {call.op.name for call in calls})
    _check_end(graph, end, captured, reference.end)


def _check_complete(reference: Numbered, found: Collection[str]) -> None:
    """Check that each captured op occurs, itself, in all its parts, or joined to another."""
    missing: list[str] = []
    for op in reference.graph.ops:
        ways = [[name in found for name in own] for own in reference.others.get(op.name, ())]
        if op.name in found and any(map(any, ways)):
            how = "in parts" if any(len(way) > 1 and any(way) for way in ways) else "joined to another"
            raise InvalidGraph(f"{op.name} occurs itself and {how}", invariant=6)
        if op.name not in found and sum(map(all, ways)) != 1:
            missing.append(op.name)
    if missing:
        raise InvalidGraph(f"captured ops are missing: {', '.join(missing)}", invariant=6)


def _parted(
    captured: Graph, calls: Sequence[_Call], parts: Callable[[Op], Sequence[Op]]
) -> dict[str, tuple[_Call, ...]]:
    """Return the calls that are parts of each call that may be taken apart, by its name."""
    found: dict[str, tuple[_Call, ...]] = {}
    for call in calls:
        own = parts(call.op)
        is_born = not any(name in call.before for name in call.step.written) and not call.op.writes
        is_new = not any(part.name in captured.op_positions for part in own)
        if own and is_born and is_new and _is_repeatable(captured, call):
            found[call.op.name] = tuple(_part(call, part) for part in own)
    return found


def _joined(
    captured: Graph, calls: Sequence[_Call], joined: Callable[[Op, Op, Mapping[str, Value]], Op | None]
) -> dict[tuple[str, str], _Call]:
    """Return the call that may stand for two, by the names of both."""
    makers = {value.name: call for call in calls for value in call.step.results}
    pairs: list[tuple[_Call, _Call, Op]] = []
    for second in calls:
        first = makers.get(second.step.reads[0].name) if second.step.reads else None
        one = first and joined(first.op, second.op, captured.values)
        if first and one and one.name not in captured.op_positions:
            pairs.append((first, second, one))
    if not pairs:
        return {}
    users = Counter(storage for call in calls for storage in call.step.touched)
    found: dict[tuple[str, str], _Call] = {}
    for first, second, one in pairs:
        (made,) = first.step.written
        is_between = users[made] == 2 and made not in captured.outliving and made not in first.before
        is_born = not any(name in second.before for name in second.step.written) and _is_repeatable(captured, second)
        if is_between and is_born:
            found[first.op.name, second.op.name] = _one(first, second, made, one)
    return found


def _one(first: _Call, second: _Call, made: str, one: Op) -> _Call:
    """Return the call of the op that stands for two: it reads what both read, but for what the first `made`."""
    values = {value.name: value for value in (*first.step.reads, *second.step.reads)}
    before = {name: content for name, content in {**first.before, **second.before}.items() if name != made}
    reads = tuple([values[name] for name in one.references])
    touched = tuple(dict.fromkeys([*(value.storage for value in reads), *second.step.written]))
    return _Call(second.at, one, Step(reads, second.step.results, second.step.written, touched), before)


def _part(call: _Call, part: Op) -> _Call:
    """Return the call of a part: the same operands, and the results that it has."""
    results = tuple([value for value in call.step.results if value.name in part.results])
    written = tuple(dict.fromkeys([value.storage for value in results]))
    touched = tuple(dict.fromkeys([*(value.storage for value in call.step.reads), *written]))
    return _Call(call.at, part, call.step._replace(results=results, written=written, touched=touched), call.before)


def _number(graph: Graph, steps: list[Step], wholes: Mapping[str, str]) -> tuple[list[_Call], dict[str, Content]]:
    """Return every op by contents, and the content of each storage at the end; `wholes` has the op of each part."""
    contents: dict[str, Content] = {name: name for name in graph.storages if name not in graph.born_at}
    calls: list[_Call] = []
    for at, (op, step) in enumerate(zip(graph.instructions, steps, strict=True)):
        if isinstance(op, Op):
            before = {name: contents[name] for name in step.touched if name in contents}
            calls.append(_Call(at, op, step, before))
            for storage, place in _first_writes(op, step).items():
                contents[storage] = (wholes.get(op.captured, op.captured), place)
    return calls, contents


def _targets(op: Op, step: Step) -> list[tuple[str, Layout | None] | None]:
    """Return storage and layout of each result and each hidden write of `op`, None for a result not used."""
    values = iter(step.results)
    results = [None if name is None else next(values) for name in op.results]
    returned = [None if value is None else (value.storage, _layout(value)) for value in results]
    return [*returned, *[(storage, None) for storage in op.writes]]


def _first_writes(op: Op, step: Step) -> dict[str, int]:
    """Return the place of the first write to each storage that `op` writes."""
    if len(op.results) == 1 and not op.writes:
        return dict.fromkeys(step.written, 0)
    firsts: dict[str, int] = {}
    for place, target in enumerate(_targets(op, step)):
        if target is not None:
            firsts.setdefault(target[0], place)
    return firsts


def _reads(call: _Call) -> list[tuple[Content, Layout]]:
    return [(call.before[value.storage], _layout(value)) for value in call.step.reads]


def _writes(call: _Call) -> list[_Write | None]:
    firsts = _first_writes(call.op, call.step)
    writes: list[_Write | None] = []
    for target in _targets(call.op, call.step):
        if target is None:
            writes.append(None)
            continue
        storage, layout = target
        operands = tuple([at for at, value in enumerate(call.step.reads) if value.storage == storage])
        writes.append(_Write(layout, firsts[storage], call.before.get(storage), operands))
    return writes


def _layout(value: Value) -> Layout:
    return (value.dtype, value.shape, value.strides, value.offset)


def _is_repeatable(captured: Graph, original: _Call) -> bool:
    return not any(captured.storages[name].is_persistent for name in original.step.written)


def _quieted(original: _Call, positions: Sequence[int]) -> _Call:
    """Return the call without the arguments at `positions`, if they are all that it writes without returning it."""
    arguments = [original.op.arguments[at] for at in positions]
    values = dict(zip(original.op.references, original.step.reads, strict=True))
    left_out = {values[argument.value].storage for argument in arguments if isinstance(argument, Ref)}
    if not original.op.writes or not left_out.issuperset(original.op.writes):
        return original
    op = leaving_out(original.op, positions)
    reads = tuple([values[name] for name in op.references])
    written = tuple([name for name in original.step.written if name not in original.op.writes])
    touched = tuple(dict.fromkeys([*(value.storage for value in reads), *written]))
    before = {name: content for name, content in original.before.items() if name in touched}
    return _Call(original.at, op, Step(reads, original.step.results, written, touched), before)


def _asking_layouts(original: _Call, op: Op, layouts: Callable[[Op], Sequence[int]]) -> _Call:
    """Return the call with only the layout of each argument of which `op` asks only the layout, where that is right."""
    asked = [at for at, argument in enumerate(op.arguments) if isinstance(argument, Like)]
    if not asked:
        return original
    form = asking_layouts(original.op, [at for at in layouts(original.op) if at in asked])
    values = {value.name: value for value in (*original.step.reads, *original.step.layouts)}
    reads = tuple([values[name] for name in form.references])
    asked_of = tuple([values[argument.value] for argument in form.arguments if isinstance(argument, Like)])
    return _Call(original.at, form, original.step._replace(reads=reads, layouts=asked_of), original.before)


def _difference(call: _Call, original: _Call, in_place: Forms) -> str | None:
    """Return in what `call` differs from the captured op, or None if it computes the same bits."""
    op, was = call.op, original.op
    if op is was and call.step == original.step and call.before == original.before:
        return None
    is_replaced = op.operator != was.operator
    form = next((form for form in in_place.get(was.operator, ()) if form[0] == op.operator), None)
    if is_replaced and form is None:
        return f"its operator is {op.operator} instead of {was.operator}"
    if not (_same_form(op.arguments, was.arguments) and _same_form(op.keywords, was.keywords)):
        return "its literals differ"
    for number, (read, expected) in enumerate(zip(_reads(call), _reads(original), strict=True)):
        if read != expected:
            return f"operand {number} is {_described(*read)} instead of {_described(*expected)}"
    if [*map(_layout, call.step.layouts)] != [*map(_layout, original.step.layouts)]:
        return "it asks for another layout"
    writes, expected_writes = _writes(call), _writes(original)
    if len(writes) != len(expected_writes):
        return "it has another number of results or writes"
    pairs = list(enumerate(zip(writes, expected_writes, strict=True)))
    if is_replaced and form is not None:
        _, operand, strided = form
        if not _is_reuse(call, operand, strided, writes[0], expected_writes[0]):
            return f"it does not write its result exactly over operand {operand}"
        del pairs[0]
    for number, (write, expected) in pairs:
        is_unused = write is None and expected is not None and expected.before is None
        if write != expected and not is_unused:
            return f"result or write {number} has another layout or goes elsewhere"
    return None


def _resized(graph: Graph, op: Op, captured: Graph, was: Op) -> str | None:
    """Return which storage `op` brings into being with another size than the captured op, or None."""
    for name, captured_name in zip(op.results, was.results, strict=True):
        if name is None or captured_name is None or graph.values[name].version != 0:
            continue
        storage, expected = _storage(graph, name), _storage(captured, captured_name)
        is_scalar, was_scalar = storage.role is Role.SCALAR, expected.role is Role.SCALAR
        if (storage.size_bytes, is_scalar) != (expected.size_bytes, was_scalar):
            return f"{storage.name} has {storage.size_bytes} bytes instead of {expected.size_bytes}"
    return None


def _storage(graph: Graph, value: str) -> Storage:
    return graph.storages[graph.values[value].storage]


def _same_form(argument: Argument, expected: Argument) -> bool:
    """Return whether two arguments are equal except for the names of values; 1, 1.0 and True differ."""
    if argument is expected:
        return True
    if isinstance(argument, tuple) and isinstance(expected, tuple):
        return len(argument) == len(expected) and all(map(_same_form, argument, expected))
    if isinstance(argument, Ref | Like) and type(argument) is type(expected):
        return True
    return repr(argument) == repr(expected)


def _is_reuse(call: _Call, operand: int, strided: bool, write: _Write | None, expected: _Write | None) -> bool:
    """Return whether the first result goes exactly over an operand, and all operands of its shape have its strides.

    These may be others if the form is `strided`. All that have as many elements are of the result's type.
    """
    leading = call.op.arguments[: operand + 1]
    if write is None or expected is None or expected.before is not None or write.layout is None:
        return False
    if len(leading) <= operand or not all(isinstance(argument, Ref) for argument in leading):
        return False
    layouts = [_layout(value) for value in call.step.reads]
    dtype, shape, strides, _ = write.layout
    is_alike = strided or all(layout[2] == strides for layout in layouts if layout[1] == shape)
    is_alike = is_alike and all(layout[0] == dtype for layout in layouts if prod(layout[1]) == prod(shape))
    is_same = all(layouts[place] == write.layout == expected.layout for place in write.operands)
    return operand in write.operands and is_alike and is_same


def _described(content: Content, layout: Layout) -> str:
    dtype, shape, strides, offset = layout
    source = content if isinstance(content, str) else f"write {content[1]} of {content[0]}"
    return f"{source} as {dtype} {list(shape)}, strides {list(strides)}, offset {offset}"


def _check_end(graph: Graph, end: Mapping[str, Content], captured: Graph, expected_end: Mapping[str, Content]) -> None:
    lasting, expected = _lasting(graph), _lasting(captured)
    if lasting != expected:
        raise InvalidGraph("the storages that outlive the step are not the captured ones", invariant=6)
    for name in expected:
        if end[name] != expected_end[name]:
            raise InvalidGraph(f"{name} does not end with its captured content", invariant=6)
    results = [_seen(graph, name, end) for name in graph.results]
    if results != [_seen(captured, name, expected_end) for name in captured.results]:
        raise InvalidGraph("the results are not those of the captured graph", invariant=6)
    if _shared(graph) != _shared(captured):
        raise InvalidGraph("results share memory otherwise than in the captured graph", invariant=6)


def _lasting(graph: Graph) -> dict[str, Storage]:
    """The storages that outlive the step, without regard to their home."""
    return {name: replace(storage, home=DEVICE) for name, storage in graph.storages.items() if storage.is_persistent}


def _shared(graph: Graph) -> list[int]:
    """Return for each result the first one that lies in its storage."""
    storages = [graph.values[name].storage for name in graph.results]
    first = {storage: at for at, storage in reversed([*enumerate(storages)])}
    return [first[storage] for storage in storages]


def _seen(graph: Graph, name: str, end: Mapping[str, Content]) -> tuple[Content, Layout]:
    value = graph.values[name]
    return end[value.storage], _layout(value)
