"""What does an op cost? Seconds and workspace of each op, as a table beside the graph.

Costs are measured where the op has run on this machine before, and modelled where it has not:

    seconds    = seconds per op + max(flops / device flops, bytes / device bandwidth)       (a roofline)
    workspace  <= a bound by kind of operator: generous, since the first plan must keep the budget (0 on a device whose
                  library needs none, as with the implicit matrix products of a GPU's convolutions)

An op that can be taken apart into parts (`operators.parts`) shares its seconds among them in proportion to their flops,
and each part may need its workspace; the turns of an op that can go by operand (`operators.in_turn`) share them in
proportion to the operands. Two ops that can run as one, some rows at a time (`operators.rows`), take together as long
as both, until that one has been measured; it holds these rows of what the first one makes.

A measured cost is known by the op's key: operator, arguments, and the dtypes, shapes and strides of all
operands and results.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from math import prod

from outgrow.ir.graph import Argument, Graph, Like, Op, Ref, Value, result_values
from outgrow.ir.layout import is_channels_last
from outgrow.ir.machine import Device
from outgrow.operators.arithmetic import flops, moved_bytes, value_bytes
from outgrow.operators.convolutions import BACKWARD, CONVOLUTION_BACKWARD, GRADIENT, POSITIONS
from outgrow.operators.in_turn import in_turn, operand_of
from outgrow.operators.parts import parts
from outgrow.operators.rows import JOINT, LOG_PROBABILITIES, pairs, part_bytes


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds and workspace bytes of one op; `measured` is False where a model gave them.

    Of the workspace, `served_bytes` are asked of torch's allocator, so memory that rests there serves them; for the
    others there has to be room beside what rests.
    """

    seconds: float
    workspace_bytes: int = 0
    served_bytes: int = 0
    measured: bool = False


Costs = Mapping[str, Cost]
"""The cost of each captured op, of each part or turn of one, and of each that two can run as, by its name.

A repeated op costs what it repeats.
"""


def costs_of(graph: Graph, device: Device, known: Mapping[str, Cost]) -> dict[str, Cost]:
    """Return the cost of every op of a captured graph, `known` by key, else modelled, and of what may stand for it."""
    keys = {op.name: cost_key(graph, op) for op in with_joint(graph)} if known else {}
    seen = {name: known[key] for name, key in keys.items() if key in known}
    costs = {op.name: seen.get(op.name) or modelled(graph, op, device) for op in graph.ops}
    return {**with_parts(graph, costs), **seen}


def with_joint(graph: Graph) -> tuple[Op, ...]:
    """Return the ops of a captured graph, then those that two of them can run as: what is measured under a key."""
    return (*graph.ops, *(one for _, _, one in pairs(graph)))


def with_parts(graph: Graph, costs: Costs) -> dict[str, Cost]:
    """Return the costs of the ops of a captured graph, and of those that may stand for them.

    The seconds of the parts of an op add up to those of the whole, and what two ops can run as takes as long as both.
    """
    found = dict(costs)
    for op in graph.ops:
        work = pieces(graph, op)
        for name, own in work.items():
            share = own / sum(work.values()) if sum(work.values()) else 1 / len(work)
            found[name] = replace(costs[op.name], seconds=share * costs[op.name].seconds)
    for first, second, one in pairs(graph):
        both = costs[first.name], costs[second.name]
        workspace = max(cost.workspace_bytes for cost in both) + workspace_bound(graph, one)
        found[one.name] = Cost(sum(cost.seconds for cost in both), workspace)
    return found


def pieces(graph: Graph, op: Op) -> dict[str, float]:
    """Return the work of the parts or turns that together may stand for a captured op, by name; none has no other."""
    found: dict[str, float] = {part.name: flops(graph, part) for part in parts(op)}
    turns = in_turn(op, graph.values)
    return found | {turn.name: value_bytes(graph.values[operand_of(turn)]) for turn, _ in turns}


def from_parts(costs: Sequence[Cost]) -> Cost:
    """Return the cost of an op whose parts were measured: all their seconds, and the most workspace."""
    return neediest(sum(cost.seconds for cost in costs), costs)


def neediest(seconds: float, costs: Sequence[Cost]) -> Cost:
    """Return a measured cost with enough workspace for each of these, and enough room beside what rests."""
    workspace = max(cost.workspace_bytes for cost in costs)
    beside = max(cost.workspace_bytes - cost.served_bytes for cost in costs)
    return Cost(seconds, workspace, workspace - beside, measured=True)


OF_NUMBERS = ("operator", "math", "torch")
"""The namespaces of functions on host scalars."""
NUMBER_SECONDS = 1e-6
"""About what one of these takes."""

COMPILED = "outgrow.fused_"
"""The begin of the name of each operator that a compiler made of several."""


def modelled(graph: Graph, op: Op, device: Device) -> Cost:
    """Return the roofline seconds of an op and an upper bound of its workspace."""
    if op.operator.partition(".")[0] in OF_NUMBERS:
        return Cost(NUMBER_SECONDS)
    arithmetic = flops(graph, op) / device.flops_per_second
    movement = moved_bytes(graph, op) / device.bytes_per_second
    workspace = workspace_bound(graph, op) if device.needs_workspace else 0
    if device.needs_workspace and device.reorders_gradients and op.operator == CONVOLUTION_BACKWARD:
        workspace += _reordered_bytes(*[graph.values[op.references[at]] for at in (BACKWARD.source, BACKWARD.weight)])
    return Cost(device.seconds_per_op + max(arithmetic, movement), workspace)


def workspace_bound(graph: Graph, op: Op) -> int:
    """Return bytes that the workspace of an op is expected not to exceed.

    A convolution of tensors that are not channels-last, or that have one channel so that the library cannot tell,
    is reordered inside the library: up to three more tensors like those it touches. A small one is a matrix product
    with the columns of its operand (im2col). In channels-last almost nothing is reordered, except where one place of
    the smaller operand meets several of the larger (transposed, or the gradients of a strided one): up to one operand.
    What a compiled operator keeps between its loops is no more than it reads and writes. Others keep small buffers for
    each thread.
    """
    if op.operator.startswith(COMPILED):
        return moved_bytes(graph, op)
    if op.operator == JOINT:
        return part_bytes(graph.values[op.references[LOG_PROBABILITIES]])
    if op.operator not in POSITIONS:
        return min(moved_bytes(graph, op) // 16, 32 << 20)
    reads = [graph.values[name] for name in op.references]
    values = [*reads, *(graph.values[name] for name in result_values(op))]
    largest = max(value_bytes(value) for value in values)
    large = [value for value in values if len(value.shape) > 3 and value_bytes(value) > largest // 64]
    if not all(is_channels_last(value.shape, value.strides) for value in large):
        return max(3 * largest, _columns_bytes(reads, values[-1], op) + moved_bytes(graph, op))
    copied = largest if _is_transposed(op) or _is_strided_backward(op) else 0
    return copied + moved_bytes(graph, op) // 50


def _reordered_bytes(source: Value, weight: Value) -> int:
    """Return the bytes of the source of a convolution in another layout, and of two planes of its columns."""
    plane = prod(source.shape[-2:]) * value_bytes(source) // max(1, prod(source.shape))
    return value_bytes(source) + 2 * plane * source.shape[1] * prod(weight.shape[2:])


def _is_strided_backward(op: Op) -> bool:
    """Whether these are the gradients of a strided convolution."""
    strides = op.arguments[BACKWARD.strides] if op.operator == CONVOLUTION_BACKWARD else ()
    return isinstance(strides, tuple) and any(isinstance(stride, int) and stride > 1 for stride in strides)


_LIBRARY_SIZE = 20_480
"""oneDNN convolves operands of more values than this in all dimensions except the last; torch itself the others."""


def _columns_bytes(reads: Sequence[Value], result: Value, op: Op) -> int:
    """Return the bytes of the columns of a small convolution: a kernel's worth of values for each place it stands."""
    at = POSITIONS[op.operator]
    source, weight = reads[at.source], reads[at.weight]
    target = reads[GRADIENT] if op.operator == CONVOLUTION_BACKWARD else result
    if prod(source.shape[:-1]) > _LIBRARY_SIZE:
        return 0
    places = source if _is_transposed(op) else target
    return value_bytes(places) // places.shape[1] * (prod(weight.shape) // weight.shape[0])


def _is_transposed(op: Op) -> bool:
    return op.arguments[POSITIONS[op.operator].transposed] is True


def cost_key(graph: Graph, op: Op) -> str:
    """Return a key under which ops of equal cost are known: operator, arguments and all layouts."""
    names: dict[str, str] = {}
    for name in (*op.operands, *op.layouts, *result_values(op)):
        value = graph.values[name]
        names[name] = f"{value.dtype}{list(value.shape)}:{list(value.strides)}"
    arguments = [_spelled(argument, names) for argument in op.arguments]
    keywords = [f"{key}={_spelled(argument, names)}" for key, argument in op.keywords]
    made = [names[name] if name is not None else "-" for name in op.results]
    text = f"{op.operator}({', '.join((*arguments, *keywords))}) -> {', '.join(made)}"
    return f"{op.operator} {sha256(text.encode()).hexdigest()[:20]}"


def _spelled(argument: Argument, names: Mapping[str, str]) -> str:
    if isinstance(argument, Ref):
        return names[argument.value]
    if isinstance(argument, Like):
        return f"like {names[argument.value]}"
    if isinstance(argument, tuple):
        return "[" + ", ".join(_spelled(item, names) for item in argument) + "]"
    return "scalar" if isinstance(argument, float) else repr(argument)
