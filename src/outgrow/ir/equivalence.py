"""Does a rewritten graph compute what the captured one computes, to the last bit? Invariant 6 of `ir.verify`.

Bytes are numbered by what made them, never by where they lie (`ir.contents`).

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

A captured op that only brings its result into being may go `in_turn`: for each operand one op puts that into the
result, the first of them brings it into being. The content of a result in which some are missing is

    (captured op, the operands that are there, as the sum of 2 ** number)

so that they may go in any order, each once, and nobody else may use what is not all there.

Two captured ops may be replaced by the one that they are `joined` to, under a name of its own, where the second alone
uses the storage that the first brings into being, and that does not outlive the step. It reads what both read, but for
that, and writes what the second writes; of the two, neither occurs then.

The one change of operator is an exact law's: `in_place` maps an operator to forms that write its first result
over one of its leading operands. All operands of the result's shape must have its layout, unless the form is a strided
one without options, those of as many elements its type, and the op must not read the operand's storage in any other
layout. Of complex numbers all operands must go in step with the result, and the form must not be a real one. It then
makes the content that the captured op makes elsewhere.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import prod

from outgrow.errors import InvalidGraph
from outgrow.ir.accesses import Access
from outgrow.ir.contents import Content, Layout, NumberedCall, Write, layout_of, number, reads_of, writes_of
from outgrow.ir.graph import DEVICE, Argument, Graph, Like, Op, Ref, Role, Storage, asking_layouts, leaving_out
from outgrow.ir.layout import goes_in_step
from outgrow.ir.stand_ins import Forms, Layouts, Numbered, is_repeatable


def check_equivalence(graph: Graph, accesses: list[Access], reference: Numbered) -> None:
    """Raise `InvalidGraph` unless `graph` keeps invariant 6; both graphs must keep invariant 1."""
    captured, leeway = reference.graph, reference.leeway
    calls, end = number(graph, accesses, reference.content)
    for call in calls:
        op = call.op
        original = reference.expected(call)
        if original is None or (op.name in reference.calls and op.captured != op.name):
            raise InvalidGraph(f"{op.name} is not an op of the captured graph", invariant=6, position=call.at)
        if op.name != op.captured:
            original = _quieted(original, leeway.quiet.get(original.op.operator, ()))
            if not is_repeatable(captured, original):
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


def _quieted(original: NumberedCall, positions: Sequence[int]) -> NumberedCall:
    """Return the call without the arguments at `positions`, if they are all that it writes without returning it."""
    arguments = [original.op.arguments[at] for at in positions]
    values = dict(zip(original.op.references, original.access.reads, strict=True))
    left_out = {values[argument.value].storage for argument in arguments if isinstance(argument, Ref)}
    if not original.op.writes or not left_out.issuperset(original.op.writes):
        return original
    op = leaving_out(original.op, positions)
    reads = tuple([values[name] for name in op.references])
    written = tuple([name for name in original.access.written if name not in original.op.writes])
    touched = tuple(dict.fromkeys([*(value.storage for value in reads), *written]))
    before = {name: content for name, content in original.before.items() if name in touched}
    return NumberedCall(original.at, op, Access(reads, original.access.results, written, touched), before)


def _asking_layouts(original: NumberedCall, op: Op, layouts: Layouts) -> NumberedCall:
    """Return the call with only the layout of each argument of which `op` asks only the layout, where that is right."""
    asked = [at for at, argument in enumerate(op.arguments) if isinstance(argument, Like)]
    if not asked:
        return original
    form = asking_layouts(original.op, [at for at in layouts(original.op) if at in asked])
    values = {value.name: value for value in (*original.access.reads, *original.access.layouts)}
    reads = tuple([values[name] for name in form.references])
    asked_of = tuple([values[argument.value] for argument in form.arguments if isinstance(argument, Like)])
    return NumberedCall(original.at, form, original.access._replace(reads=reads, layouts=asked_of), original.before)


def _difference(call: NumberedCall, original: NumberedCall, in_place: Forms) -> str | None:
    """Return in what `call` differs from the captured op, or None if it computes the same bits."""
    op, was = call.op, original.op
    if op is was and call.access == original.access and call.before == original.before:
        return None
    is_replaced = op.operator != was.operator
    form = next((form for form in in_place.get(was.operator, ()) if form.operator == op.operator), None)
    if is_replaced and form is None:
        return f"its operator is {op.operator} instead of {was.operator}"
    if not (_same_form(op.arguments, was.arguments) and _same_form(op.keywords, was.keywords)):
        return "its literals differ"
    for place, (read, expected) in enumerate(zip(reads_of(call), reads_of(original), strict=True)):
        if read != expected:
            return f"operand {place} is {_described(*read)} instead of {_described(*expected)}"
    if [*map(layout_of, call.access.layouts)] != [*map(layout_of, original.access.layouts)]:
        return "it asks for another layout"
    writes, expected_writes = writes_of(call), writes_of(original)
    if len(writes) != len(expected_writes):
        return "it has another number of results or writes"
    pairs = list(enumerate(zip(writes, expected_writes, strict=True)))
    if is_replaced and form is not None:
        strided = form.strided and not op.keywords
        is_reuse = _is_reuse(call, form.operand, strided, writes[0], expected_writes[0])
        if not is_reuse or (form.real and _is_complex(writes[0])):
            return f"it does not write its result exactly over operand {form.operand}"
        del pairs[0]
    for place, (write, expected) in pairs:
        is_unused = write is None and expected is not None and expected.before is None
        if write != expected and not is_unused:
            return f"result or write {place} has another layout or goes elsewhere"
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


def _is_reuse(call: NumberedCall, operand: int, strided: bool, write: Write | None, expected: Write | None) -> bool:
    """Return whether the first result goes exactly over an operand, and all operands of its shape have its strides.

    These may be others if the form is `strided`. All that have as many elements are of the result's type. Complex
    numbers go in step.
    """
    leading = call.op.arguments[: operand + 1]
    if write is None or expected is None or expected.before is not None or write.layout is None:
        return False
    if len(leading) <= operand or not all(isinstance(argument, Ref) for argument in leading):
        return False
    layouts = [layout_of(value) for value in call.access.reads]
    dtype, shape, strides, _ = write.layout
    is_alike = strided or all(layout[2] == strides for layout in layouts if layout[1] == shape)
    is_alike = is_alike and all(layout[0] == dtype for layout in layouts if prod(layout[1]) == prod(shape))
    if _is_complex(write):
        is_alike = is_alike and all(goes_in_step(shape, strides, *layout[1:3]) for layout in layouts)
    is_same = all(layouts[place] == write.layout == expected.layout for place in write.operands)
    return operand in write.operands and is_alike and is_same


def _is_complex(write: Write | None) -> bool:
    return write is not None and write.layout is not None and write.layout[0].startswith("complex")


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
    lasting = [(name, storage) for name, storage in graph.storages.items() if storage.is_persistent]
    return {name: storage if storage.home == DEVICE else replace(storage, home=DEVICE) for name, storage in lasting}


def _shared(graph: Graph) -> list[int]:
    """Return for each result the first one that lies in its storage."""
    storages = [graph.values[name].storage for name in graph.results]
    first = {storage: at for at, storage in reversed([*enumerate(storages)])}
    return [first[storage] for storage in storages]


def _seen(graph: Graph, name: str, end: Mapping[str, Content]) -> tuple[Content, Layout]:
    value = graph.values[name]
    return end[value.storage], layout_of(value)
