"""How do fusions of a captured step become kernels? Inductor compiles each, before anything is planned.

A fusion (`frontends.lowering.fusing`) is compiled once for a device and for all its repetitions in a model: by what it
computes, its `text`. It becomes an operator of its own, `outgrow.fused_<digest>`, and so an op like any other:
measured, swapped around, repeated. Since fusions are chosen before the plan, a step under a budget runs the kernels
that it runs in core, and gives their bits. They are not always those of eager: a compiler sums up in another order.
"""

import gc
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from outgrow.analysis.cost import COMPILED
from outgrow.errors import Uncapturable
from outgrow.frontends.lowering.fusing import Fusion, fused, fusions
from outgrow.frontends.tracing.captured import Captured
from outgrow.frontends.tracing.names import resolve_operator, resolve_symbol
from outgrow.ir.graph import Argument, Graph, Ref, Symbol, Value, result_values

Kernel = Callable[[Sequence[Tensor]], list[Tensor]]

_LIBRARY = torch.library.Library("outgrow", "FRAGMENT")
_SCHEMA = "(Tensor[] operands) -> Tensor[]"
_KNOWN: set[str] = set()
"""Operators in that library: it is the process's, as torch's registry is, which refuses to define one twice."""


def by_kernels(captured: Captured, kernels: str) -> Captured:
    """Return a captured step as these kernels run it."""
    return captured if kernels == "eager" else by_inductor(captured)


def by_inductor(captured: Captured) -> Captured:
    """Return a captured step whose fusions are compiled. Raises `Uncapturable` where they cannot be."""
    graph, device = captured.graph, captured.device
    found = fusions(graph, captured.elsewhere)
    compiled = fused(graph, found, lambda fusion: _operator(graph, fusion, device))
    gc.collect()  # what the compiler leaves behind
    return replace(captured, graph=compiled)


def _operator(graph: Graph, fusion: Fusion, device: torch.device) -> str:
    """Return the name of the operator that a fusion becomes, which is compiled if it is new."""
    full_name = f"{COMPILED}{sha256(f'{device} {text(graph, fusion)}'.encode()).hexdigest()[:16]}"
    if full_name not in _KNOWN:
        name = full_name.removeprefix("outgrow.")
        kernel = _compiled(graph, fusion, device)
        _LIBRARY.define(f"{name}{_SCHEMA}")
        _LIBRARY.impl(name, kernel, "CompositeExplicitAutograd")
        _KNOWN.add(full_name)
    return f"{full_name}.default"


def text(graph: Graph, fusion: Fusion) -> str:
    """Return what a fusion computes, whatever its values are called."""
    numbers: dict[str, int] = {}

    def spelled(name: str | None) -> str:
        if name is None:
            return "-"
        value = graph.values[name]
        number = numbers.setdefault(value.storage, len(numbers))
        return f"{number}:{value.dtype}{value.shape}{value.strides}+{value.offset}"

    def argument(item: Argument) -> str:
        if isinstance(item, tuple):
            return f"[{', '.join(map(argument, item))}]"
        return spelled(item.value) if isinstance(item, Ref) else repr(item)

    lines = [f"operands {[*map(spelled, fusion.operands)]}"]
    for op in fusion.ops:
        given = [*map(argument, op.arguments), *(f"{key}={argument(item)}" for key, item in op.keywords)]
        lines.append(f"{[*map(spelled, op.results)]} = {op.operator}({', '.join(given)})")
    return "\n".join([*lines, f"results {[*map(spelled, fusion.results)]}"])


def _compiled(graph: Graph, fusion: Fusion, device: torch.device) -> Kernel:
    """Return the kernel of a fusion. Its results lie in memory of their own, laid out as those of its ops."""
    from torch._inductor.compile_fx import compile_fx  # noqa: PLC0415  it takes seconds to load
    from torch._inductor.exc import InductorError  # noqa: PLC0415

    with FakeTensorMode():
        operands = [_empty(graph.values[name], device) for name in fusion.operands]
    try:
        with torch.no_grad():
            kernel: Any = compile_fx(_module(graph, fusion), operands)
    except InductorError as error:
        reason = str(error).strip().splitlines()[0]
        raise Uncapturable(
            f"Inductor cannot compile {', '.join(op.operator for op in fusion.ops)}: {reason}. "
            'Leave kernels="inductor" out, so that the operators run one by one'
        ) from error
    layouts = [graph.values[name] for name in fusion.results]
    sizes = [graph.storages[layout.storage].size_bytes for layout in layouts]

    def run(operands: Sequence[Tensor]) -> list[Tensor]:
        with torch.no_grad():
            results = kernel(*operands)
        taken = {operand.untyped_storage()._cdata for operand in operands}
        return [_own(*item, taken) for item in zip(results, layouts, sizes, strict=True)]

    return run


def _module(graph: Graph, fusion: Fusion) -> fx.GraphModule:
    """Return a fusion as what Inductor takes: a node for each op, and one for each view of a result."""
    made = fx.Graph()
    nodes = {name: made.placeholder(f"operand_{at}") for at, name in enumerate(fusion.operands)}
    owners = {graph.values[name].storage: name for op in fusion.ops for name in result_values(op)}

    def node(name: str) -> fx.Node:
        if name not in nodes:
            value = graph.values[name]
            owner = nodes[owners[value.storage]]
            geometry = ([*value.shape], [*value.strides], value.offset)
            nodes[name] = made.call_function(torch.ops.aten.as_strided.default, (owner, *geometry))
        return nodes[name]

    def argument(item: Argument) -> Any:
        match item:
            case Ref(name):
                return node(name)
            case tuple():
                return [argument(part) for part in item]
            case Symbol(name):
                return resolve_symbol(name)
            case None | bool() | int() | float() | str():
                return item
            case _:
                raise AssertionError("a captured op asks no layout")

    for op in fusion.ops:
        arguments = tuple(map(argument, op.arguments))
        keywords = {key: argument(item) for key, item in op.keywords}
        call = made.call_function(resolve_operator(op.operator), arguments, keywords)
        several = len(op.results) > 1
        for at, name in enumerate(op.results):
            if name is not None:
                nodes[name] = made.call_function(operator.getitem, (call, at)) if several else call
    made.output(tuple(nodes[name] for name in fusion.results))
    return fx.GraphModule(nn.Module(), made)


def _empty(value: Value, device: torch.device) -> Tensor:
    return torch.empty_strided(value.shape, value.strides, dtype=vars(torch)[value.dtype], device=device)


def _own(result: Tensor, value: Value, size_bytes: int, taken: set[int]) -> Tensor:
    """Return a result laid out as its op would have done it, in memory of its own; `taken` are storages of others."""
    storage = result.untyped_storage()
    is_alone = storage._cdata not in taken and storage.nbytes() == size_bytes
    taken.add(storage._cdata)
    layouts = zip(value.shape, result.stride(), value.strides, strict=True)
    is_laid_out = not result.storage_offset() and all(size < 2 or ours == theirs for size, ours, theirs in layouts)
    return result if is_alone and is_laid_out else _empty(value, result.device).copy_(result)
