"""The law of recomputation: a storage may be built again from what made it."""

from dataclasses import dataclass, replace

from outgrow.analysis.dependence import is_repeatable
from outgrow.ir.graph import Graph, Instruction, Op, Value, read_values
from outgrow.plan import Decision, Recompute
from outgrow.rewriting.rule import position_of, reading, require, returning


def recompute(graph: Graph, decision: Decision) -> Graph:
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
        every write that made the version is by a repeatable op, and what these ops read is still of the
        version that they read.
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
    assert isinstance(decision, Recompute), "the law of recomputation takes a Recompute"
    at = position_of(graph, decision.before, "recompute")
    require(decision.storage in graph.storages, "recompute", f"the graph has no storage {decision.storage}")
    chain = chain_of(graph, decision.storage, at)
    reason = why_not(graph, decision.storage, chain, at)
    require(reason is None, "recompute", reason or "")
    copy = _copy(graph, chain)
    later = _later_values(graph, decision.storage, at, copy.suffix)
    tail = tuple(_redirected(item, decision.storage, copy.suffix, later) for item in graph.instructions[at:])
    values = {
        **graph.values,
        **copy.values,
        **{new: _moved(graph.values[old], copy.suffix, new) for old, new in later.items()},
    }
    storages = dict(graph.storages)
    for name in copy.storages:
        storages[name + copy.suffix] = replace(graph.storages[name], name=name + copy.suffix)
    results = tuple(later.get(name, name) for name in graph.results)
    instructions = (*graph.instructions[:at], *copy.ops, *tail)
    return replace(graph, storages=storages, values=values, instructions=instructions, results=results)


def chain_of(graph: Graph, storage: str, at: int) -> tuple[Op, ...]:
    """Return the ops before position `at` that wrote `storage`, in order."""
    before = graph.instructions[:at]
    return tuple(item for item in before if isinstance(item, Op) and storage in graph.written(item))


def why_not(graph: Graph, storage: str, chain: tuple[Op, ...], at: int) -> str | None:
    """Return why `chain` cannot rebuild `storage` at position `at`, or None if it can."""
    if not chain or graph.storages[storage].is_persistent:
        return f"{storage} is not made by this step"
    made = {
        graph.values[name].storage for op in chain for name in op.results if name and graph.values[name].version == 0
    }
    for op in chain:
        if not is_repeatable(graph, op) or not made.issuperset(graph.written(op)):
            return f"{op.name} cannot be repeated"
    current = _versions_at(graph, at)
    for op in chain:
        for name in read_values(op):
            value = graph.values[name]
            if value.storage not in made and current.get(value.storage, 0) != value.version:
                return f"{value.storage} has been overwritten since {op.name} read it"
            if value.storage in made and value.storage != storage and value.version != 0:
                return f"{op.name} reads a later version of {value.storage}"
    return None


def _versions_at(graph: Graph, at: int) -> dict[str, int]:
    current: dict[str, int] = {}
    for item in graph.instructions[:at]:
        if isinstance(item, Op):
            for name in item.results:
                if name is not None:
                    current[graph.values[name].storage] = graph.values[name].version
            for name in item.writes:
                current[name] = current.get(name, 0) + 1
    return current


@dataclass(frozen=True, slots=True)
class _Copy:
    """A repeated chain: its ops, and the storages (by old name) and values (by new name) that they make."""

    suffix: str
    ops: tuple[Op, ...]
    storages: tuple[str, ...]
    values: dict[str, Value]


def _copy(graph: Graph, chain: tuple[Op, ...]) -> _Copy:
    made = {graph.values[name].storage: None for op in chain for name in op.results if name}
    suffix = _unused_suffix(graph, chain, tuple(made))
    own = {name for op in chain for name in (*read_values(op), *(result for result in op.results if result))}
    names = {name: name + suffix for name in own if graph.values[name].storage in made}
    values = {new: _moved(graph.values[old], suffix, new) for old, new in names.items()}
    ops = tuple(
        replace(returning(reading(op, names), names), name=op.name + suffix, origin=op.captured) for op in chain
    )
    return _Copy(suffix, ops, tuple(made), values)


def _unused_suffix(graph: Graph, chain: tuple[Op, ...], made: tuple[str, ...]) -> str:
    count = 1
    while any(op.name + f"${count}" in graph.op_positions for op in chain) or any(
        name + f"${count}" in graph.storages for name in made
    ):
        count += 1
    return f"${count}"


def _moved(value: Value, suffix: str, name: str) -> Value:
    return replace(value, name=name, storage=value.storage + suffix)


def _later_values(graph: Graph, storage: str, at: int, suffix: str) -> dict[str, str]:
    """New names for the values of `storage` that are used at or after position `at`."""
    used: dict[str, str] = {}
    for item in graph.instructions[at:]:
        if isinstance(item, Op):
            for name in (*read_values(item), *(result for result in item.results if result)):
                if graph.values[name].storage == storage:
                    used[name] = name + suffix
    used.update({name: name + suffix for name in graph.results if graph.values[name].storage == storage})
    return used


def _redirected(item: Instruction, storage: str, suffix: str, names: dict[str, str]) -> Instruction:
    if not isinstance(item, Op):
        require(item.storage != storage, "recompute", f"{storage} is moved by a transfer later")
        return item
    writes = tuple(name + suffix if name == storage else name for name in item.writes)
    return replace(returning(reading(item, names), names), writes=writes)
