"""Which graphs do the properties range over? Small random steps, and random mutations of them.

A storage here is a row of float32; sizes of operands need not fit each other, since nothing is computed.
"""

from dataclasses import dataclass, field, replace

from hypothesis import strategies as st

from outgrow.ir.flight import flights, is_in_flight
from outgrow.ir.graph import (
    Argument,
    Drop,
    Graph,
    Instruction,
    Op,
    Ref,
    Role,
    Storage,
    SwapIn,
    SwapOut,
    Symbol,
    Value,
    Wait,
)

LITERALS = st.sampled_from(
    (None, True, False, 0, 1, -3, 0.5, 1e-05, float("inf"), "text", Symbol("torch.float32"), (1, (2, 3)))
)
ELEMENTS = st.integers(1, 1024)


@dataclass
class _Draft:
    """A step while it is drawn: what is declared so far and which values are of their present version."""

    storages: dict[str, Storage] = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict)
    ops: list[Op] = field(default_factory=list)
    present: list[str] = field(default_factory=list)
    under_way: list[tuple[str, str]] = field(default_factory=list)

    def storage(self, role: Role, elements: int) -> str:
        name = f"s{len(self.storages)}"
        self.storages[name] = Storage(name, 4 * elements, role)
        return name

    def value(self, storage: str, version: int, elements: int, offset: int = 0) -> str:
        name = f"v{len(self.values)}"
        self.values[name] = Value(name, storage, version, "float32", (elements,), (1,), offset)
        self.present.append(name)
        return name

    def exchange(self, name: str, wire: str, sent: str, elements: int) -> None:
        """Begin an exchange; what arrives is no operand yet."""
        there = self.value(self.storage(Role.ACTIVATION, elements), 0, elements)
        self.present.remove(there)
        self.ops.append(Op(name, "outgrow.exchange.default", (Ref(sent),), results=(there,), writes=(wire,)))
        self.under_way.append((there, sent))

    def arrive(self, at: int = 0) -> None:
        """End an exchange that is under way."""
        there, sent = self.under_way.pop(at)
        found = self.values[there]
        here = self.value(found.storage, 1, found.shape[0])
        name = f"arrived_{there}"
        self.ops.append(Op(name, "outgrow.arrived.default", (Ref(there), Ref(sent)), results=(here,)))

    def written(self, storage: str) -> None:
        """Forget the values of the version that is overwritten; no exchange sends it any more."""
        for at in reversed(range(len(self.under_way))):
            if self.values[self.under_way[at][1]].storage == storage:
                self.arrive(at)
        self.present = [name for name in self.present if self.values[name].storage != storage]


@st.composite
def graphs(draw: st.DrawFn, max_ops: int = 12) -> Graph:
    """Valid captured graphs: inputs, views, ops with one to three operands, in-place and hidden writes, exchanges.

    Some inputs are gradients of an earlier step, which end with this one, and some no op uses.
    """
    draft = _Draft()
    generator = draft.storage(Role.GENERATOR, 4)
    statistics, wire = draft.storage(Role.BUFFER, draw(ELEMENTS)), draft.storage(Role.INPUT, 4)
    for role in draw(st.lists(st.sampled_from((Role.PARAMETER, Role.INPUT, Role.GRADIENT)), min_size=1, max_size=3)):
        elements = draw(ELEMENTS)
        draft.value(draft.storage(role, elements), 0, elements)
    for number in range(draw(st.integers(1, max_ops))):
        kind = draw(st.sampled_from(("relu", "add", "mm", "split", "relu_", "norm", "rand", "view", "exchange")))
        if draft.under_way and draw(st.booleans()):
            draft.arrive(draw(st.integers(0, len(draft.under_way) - 1)))
        room = max_ops - len(draft.ops) - len(draft.under_way)
        if kind == "exchange" and room > 1:
            draft.exchange(f"{kind}{number}", wire, draw(st.sampled_from(draft.present)), draw(ELEMENTS))
        elif room > 0:
            _draw_op(draw, draft, kind, f"{kind}{number}", generator, statistics)
    while draft.under_way:
        draft.arrive()
    results = draw(st.lists(st.sampled_from(draft.present), max_size=2, unique=True))
    return Graph(draft.storages, draft.values, tuple(draft.ops), tuple(results))


def _draw_op(draw: st.DrawFn, draft: _Draft, kind: str, name: str, generator: str, statistics: str) -> None:
    count = {"add": 2, "mm": 2, "norm": 3}.get(kind, 1)
    operands = [draw(st.sampled_from(draft.present)) for _ in range(count)]
    arguments: tuple[Argument, ...] = tuple(Ref(operand) for operand in operands)
    first = draft.values[operands[0]]
    match kind:
        case "view":
            draft.value(first.storage, first.version, 1, first.offset)
            return
        case "relu_":
            draft.written(first.storage)
            result = draft.value(first.storage, first.version + 1, first.shape[0], first.offset)
            draft.ops.append(Op(name, "aten.relu_.default", arguments, results=(result,)))
            return
    writes = {"norm": (statistics,), "rand": (generator,)}.get(kind, ())
    keywords = draw(st.sampled_from(((), (("alpha", draw(LITERALS)),))))
    results: list[str | None] = []
    for _ in range(2 if kind == "split" else 1):
        elements = first.shape[0] if kind == "relu" else draw(ELEMENTS)
        results.append(draft.value(draft.storage(Role.ACTIVATION, elements), 0, elements))
    if kind == "split" and draw(st.booleans()):
        draft.present.remove(unused := str(results.pop()))
        del draft.storages[draft.values.pop(unused).storage]
        results.append(None)
    operator = {"add": "aten.add.Tensor", "split": "my.split.default"}.get(kind, f"aten.{kind}.default")
    draft.ops.append(Op(name, operator, (*arguments, draw(LITERALS)), keywords, tuple(results), writes))


@st.composite
def swapped(draw: st.DrawFn, graph: Graph) -> Graph:
    """The graph with some storages swapped out over a gap between two ops that touch them."""
    for storage in draw(st.lists(st.sampled_from(tuple(graph.storages)), max_size=2, unique=True)):
        items = list(graph.instructions)
        uses = [at for at, item in enumerate(items) if storage in graph.touched(item)]
        if len(uses) < 2:
            continue
        gap = draw(st.integers(0, len(uses) - 2))
        if _is_in_flight(graph, storage, uses[gap], uses[gap + 1]):
            continue
        size = graph.storages[storage].size_bytes
        cut = draw(st.integers(0, size // 4)) * 4
        pieces = [SwapIn(storage, *ends) for ends in ((0, cut), (cut, size)) if ends[0] < ends[1]]
        left = draw(st.integers(0, len(pieces) - 1))  # of two pieces, the second may stay
        pieces = pieces[: len(pieces) - left] if cut else pieces
        end = max(piece.end for piece in pieces)
        rest = [SwapOut(storage, 0, end), Wait(storage), Drop(storage, 0, end), *pieces, Wait(storage)]
        places = sorted(draw(st.integers(uses[gap] + 1, uses[gap + 1])) for _ in rest)
        for place, item in zip(reversed(places), reversed(rest), strict=True):
            items.insert(place, item)
        graph = replace(graph, instructions=tuple(items))
    return graph


def _is_in_flight(graph: Graph, storage: str, begin: int, end: int) -> bool:
    """Whether an exchange of a storage goes on from one instruction to the other."""
    names = {item.name: at for at, item in enumerate(graph.instructions) if isinstance(item, Op)}
    spans = [
        (names[graph.ops[first].name], names[graph.ops[last].name]) for first, last in flights(graph).get(storage, ())
    ]
    return is_in_flight(spans, begin, end)


@st.composite
def mutated(draw: st.DrawFn, graph: Graph) -> Graph:
    """The graph with an instruction left out, two exchanged, one written twice, or an operand replaced."""
    if not graph.instructions:
        return graph
    items = list(graph.instructions)
    places = st.integers(0, len(items) - 1)
    at, other = draw(places), draw(places)
    match draw(st.sampled_from(("omit", "exchange", "move", "repeat", "redirect"))):
        case "omit":
            items.pop(at)
        case "exchange":
            items[at], items[other] = items[other], items[at]
        case "move":
            items.insert(other, items.pop(at))
        case "repeat":
            return _repeated(graph, items[at], other)
        case _:
            items[at] = _redirected(items[at], draw(st.sampled_from(tuple(graph.values))))
    return replace(graph, instructions=tuple(items))


def _repeated(graph: Graph, item: Instruction, place: int) -> Graph:
    """Write an instruction a second time; an op gets a new name and fresh storages for what it creates."""
    storages, values = dict(graph.storages), dict(graph.values)
    if isinstance(item, Op):
        fresh: dict[str, str] = {}
        for value in [values[name] for name in item.results if name is not None]:
            fresh[value.name] = f"{value.name}.again"
            storage = value.storage if value.version else f"{value.storage}.again"
            storages[storage] = replace(storages[value.storage], name=storage)
            values[fresh[value.name]] = replace(value, name=fresh[value.name], storage=storage)
        results = tuple(name and fresh[name] for name in item.results)
        item = replace(item, name=f"{item.name}.again", origin=item.captured, results=results)
    instructions = (*graph.instructions[: place + 1], item, *graph.instructions[place + 1 :])
    return replace(graph, storages=storages, values=values, instructions=instructions)


def _redirected(item: Instruction, value: str) -> Instruction:
    if isinstance(item, Op) and item.arguments:
        return replace(item, arguments=(Ref(value), *item.arguments[1:]))
    return item
