"""In which order does a divided trace run, so that its exchanges go on beside arithmetic (`planning.partition.agenda`)?

Seconds are those of a pace that all workers know: of a machine that is described, or a nominal one. What shares memory
with something that a call writes keeps its order, and so do calls that draw random numbers.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TypeAlias

from torch import Tensor, fx
from torch.utils import _pytree as pytree

from outgrow.analysis.precedence import conflicts
from outgrow.frontends.tracing.convert import keeps_its_turn, written_nodes
from outgrow.frontends.user.training.sharing import address
from outgrow.ir.machine import Machine
from outgrow.operators.dataflow import Node
from outgrow.operators.strategies import description
from outgrow.operators.tdl import OperatorCall
from outgrow.planning.partition.agenda import Agenda, Job, agenda
from outgrow.planning.partition.footprint import dataflow_peak_bytes
from outgrow.planning.partition.shares import Shares

ITEM_BYTES = 4
"""The bytes that every element is taken to have."""
PATIENCE = 1.5
"""An exchange counts as this many times what its bytes take: boxes are packed before it and put together after it."""
WINDOWS = (512, 128, 64, 8)
"""How many calls, from the first one left on, are looked at: the first of these that is quicker and has the memory."""
MORE_MEMORY = 1.01
"""Another order may always take this many times the memory of the given one, not counting what is under way."""

_Memory: TypeAlias = int | str


@dataclass(frozen=True, slots=True)
class Pace:
    """How long workers take: seconds of a call, of a multiplication, and of a byte of memory or from another worker."""

    call: float
    multiplication: float
    byte: float
    received_byte: float

    @classmethod
    def of(cls, machine: Machine, workers: int) -> "Pace":
        """Return the pace of `workers` on a described machine, all exchanges being as slow as the slowest."""
        device = machine.device
        rate = machine.between(0, workers - 1).bytes_per_second if workers > 1 else 1.0
        return cls(device.seconds_per_op, 2 / device.flops_per_second, 1 / device.bytes_per_second, 1 / rate)


NOMINAL = Pace(1e-5, 1e-12, 4e-12, 8e-11)
"""The pace of a graphics card; only the ratios of its numbers matter."""


def in_order(graph: fx.Graph, shares: Shares, pace: Pace) -> tuple[fx.Graph, Mapping[str, tuple[str, ...]]]:
    """Return a graph in a better order, and by node the others whose fetches are to begin directly before it.

    Where workers have to swap, the order stays as given, since what is under way takes memory.
    """
    if shares.partition.is_tight:
        return graph, {}
    calls = [node for node in graph.nodes if node.op not in ("placeholder", "output")]
    jobs = _jobs(calls, shares, pace)
    own = agenda(jobs, 1)
    wider = (agenda(jobs, window) for window in WINDOWS)
    found = next((item for item in wider if item.seconds < own.seconds and _has_room(calls, item, shares)), own)
    early = {calls[at].name: tuple(calls[other].name for other in others) for at, others in found.early.items()}
    return _copied(graph, [calls[at] for at in found.order]), early


def _has_room(calls: Sequence[fx.Node], found: Agenda, shares: Shares) -> bool:
    """Whether workers have the memory for another order, if theirs grows as the peak of the whole step does."""
    nodes, part = shares.step.by_name, shares.partition
    names = (calls[at].name for at in found.order)
    other = replace(shares.step, nodes=tuple(nodes[name] for name in names if name in nodes))
    growth = dataflow_peak_bytes(other, {}) / part.in_core_peak_bytes
    return growth <= MORE_MEMORY or growth * part.peak_bytes_per_worker <= (part.memory_bytes or 0.0)


def _copied(graph: fx.Graph, calls: Sequence[fx.Node]) -> fx.Graph:
    """Return a copy of a graph that makes its calls in another order."""
    found = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    ends = {op: [node for node in graph.nodes if node.op == op] for op in ("placeholder", "output")}
    for node in (*ends["placeholder"], *calls, *ends["output"]):
        copies[node] = found.node_copy(node, copies.__getitem__)
        assert copies[node].name == node.name, f"{node.name} keeps its name"
    return found


def _jobs(calls: Sequence[fx.Node], shares: Shares, pace: Pace) -> list[Job]:
    nodes = shares.step.by_name
    number = {call: at for at, call in enumerate(calls)}
    found: list[Job] = []
    writes = [set(_written(call)) for call in calls]
    uses = [({*_read(call), *own}, own) for call, own in zip(calls, writes, strict=True)]
    for call, waits in zip(calls, conflicts(uses), strict=True):
        before = waits.union(number[item] for item in call.all_input_nodes if item in number)
        node = nodes.get(call.name)
        costs = (0.0, 0.0, 0.0) if node is None else _costs(node, shares, pace)
        found.append(Job(tuple(sorted(before)), *costs))
    return found


def _costs(node: Node, shares: Shares, pace: Pace) -> tuple[float, float, float]:
    """Return the seconds of what is fetched for a call, of what a worker does, and of results on their way."""
    fetched, handed_on = shares.received_for(node)
    byte = PATIENCE * pace.received_byte
    is_view = all(name is None or shares.step.tensors[name].viewed != name for name in node.results)
    seconds = 0.0 if is_view and not any(node.rewritten) else _seconds(shares.tasks(node)[0].call, pace)
    return byte * fetched, seconds, byte * handed_on


def _seconds(call: OperatorCall, pace: Pace) -> float:
    found = description(call)
    multiplications = prod(found.extents.values()) if found is not None else 0
    shapes = (*(operand.shape for operand in call.operands), *(shape for shape in call.shapes if shape is not None))
    size_bytes = ITEM_BYTES * sum(map(prod, shapes))
    return pace.call + max(pace.multiplication * multiplications, pace.byte * size_bytes)


def _read(call: fx.Node) -> Iterator[_Memory]:
    for item in call.all_input_nodes:
        yield from _memory(item)


def _written(call: fx.Node) -> Iterator[_Memory]:
    for item in written_nodes(call):
        yield from _memory(item)
    if keeps_its_turn(call):
        yield "random numbers"


def _memory(node: fx.Node) -> Iterator[_Memory]:
    """Yield a key for the memory of each tensor of a node, and of a constant its name."""
    if node.op == "get_attr":
        yield str(node.target)
    yield from (address(item) for item in pytree.tree_leaves(node.meta.get("val")) if isinstance(item, Tensor))
