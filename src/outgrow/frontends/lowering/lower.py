"""How does a derived graph become a program? Names become functions, arguments become look-ups.

Lowering decides nothing. It resolves each operator by its name, gives each swapped storage an extent of the tier,
and writes down after which instruction a storage dies. Where an op asks for the layout of a value alone, a tensor of
that layout stands in, over addresses without memory that all stand-ins of a program share.
"""

from collections.abc import Callable, Mapping
from itertools import accumulate
from types import MappingProxyType

import torch

import outgrow.frontends.lowering.by_rows
import outgrow.frontends.lowering.in_turn  # noqa: F401 - operators of these two are found by name
from outgrow.analysis.cost import Cost
from outgrow.analysis.sinking import lasting, passing
from outgrow.analysis.updates import is_update
from outgrow.frontends.fake.eager.foreign import drawing_nothing
from outgrow.frontends.fake.kernels.lists import by_torch
from outgrow.frontends.fake.kernels.reserves import keeping_reserve
from outgrow.frontends.tracing.names import resolve_operator, resolve_symbol
from outgrow.ir.graph import DEVICE, Argument, Graph, Like, Op, Ref, Role, Symbol
from outgrow.operators.in_place import IDLE, INTO, PLACED
from outgrow.operators.stalls import slowdown
from outgrow.plan import Addresses
from outgrow.runtime.memory import unread
from outgrow.runtime.over_operands import placed
from outgrow.runtime.program import Aim, Call, Geometry, Instruction, Program, Result, Slot

_NO_COSTS: Mapping[str, Cost] = MappingProxyType({})
_NO_AIMS: Mapping[int, tuple[Aim, ...]] = MappingProxyType({})


def lower(
    graph: Graph,
    unread: Callable[[int], torch.UntypedStorage] = unread,
    addresses: Addresses | None = None,
    aims: Mapping[int, tuple[Aim, ...]] = _NO_AIMS,
    sunk: frozenset[str] = frozenset(),
    *,
    costs: Mapping[str, Cost] = _NO_COSTS,
) -> Program:
    """Return the program of a derived graph; `unread` gives storages, by size, whose content does not matter.

    With `addresses` it runs in an arena; `aims` say what its ops allocate there. Storages that are `sunk` go to the
    tier below the next one; `costs` are those of its ops, by name as captured.
    """
    shown = stand_ins(graph, unread)
    leaving, passed = lasting(graph), passing(graph)
    instructions: list[Instruction] = [
        call_of(graph, item, shown) if isinstance(item, Op) else item for item in graph.instructions
    ]
    return Program(
        instructions=tuple(instructions),
        dies=graph.dying_at,
        geometry={name: geometry_of(graph, name) for name in graph.values},
        sizes={name: storage.size_bytes for name, storage in graph.storages.items()},
        offsets={
            **_offsets({name: size for name, size in passed.items() if name not in sunk}),
            **_offsets({name: size for name, size in passed.items() if name in sunk}),
        },
        lasting=leaving,
        stowed=frozenset(name for name in leaving if graph.storages[name].home != DEVICE),
        results=graph.results,
        sunk=sunk,
        addresses=addresses,
        aims=aims,
        costs=costs,
    )


def call_of(graph: Graph, op: Op, stand_ins: Mapping[str, torch.Tensor]) -> Call:
    """Return an op of a graph, ready to run; `stand_ins` replace the values of which it asks only the layout."""
    arguments, keywords = tuple(enumerate(op.arguments)), op.keywords
    return Call(
        name=op.name,
        captured=op.captured,
        function=function_of(op),
        constants=tuple(None if _reads(item) else _constant(item, stand_ins) for _, item in arguments),
        values=tuple((at, item.value) for at, item in arguments if isinstance(item, Ref)),
        slots=tuple((at, _slot(item, stand_ins)) for at, item in arguments if isinstance(item, tuple) and _reads(item)),
        keywords={key: _constant(item, stand_ins) for key, item in keywords if not _reads(item)},
        keyword_slots=tuple((key, _slot(item, stand_ins)) for key, item in keywords if _reads(item)),
        results=tuple(_result(graph, name) for name in op.results),
        updates=is_update(graph, op),
        slowdown=slowdown(graph.values, op),
    )


def function_of(op: Op) -> Callable[..., object]:
    """Return the function that an op calls; a form that writes over an operand gets that operand's memory."""
    form = PLACED.get(op.operator)
    if form is not None:
        return placed(resolve_operator(form.operator), form.operand, IDLE.get(form.operator, 0))
    function = drawing_nothing(keeping_reserve(op, resolve_operator(by_torch(op.operator))))
    if op.operator in IDLE:
        return placed(function, None, IDLE[op.operator])
    keyword = INTO.get(op.operator)
    if keyword is None or keyword in dict(op.keywords):
        return function
    return lambda first, *others, **keywords: function(first, *others, **keywords, **{keyword: first})


def _result(graph: Graph, name: str | None) -> Result | None:
    if name is None:
        return None
    value = graph.values[name]
    born = value.storage if value.version == 0 else None
    return Result(name, geometry_of(graph, name), born, graph.storages[value.storage].size_bytes)


def stand_ins(graph: Graph, unread: Callable[[int], torch.UntypedStorage]) -> dict[str, torch.Tensor]:
    """Return a tensor for each value of which some op asks only the layout."""
    geometry = {name: geometry_of(graph, name) for op in graph.ops for name in op.layouts}
    if not geometry:
        return {}
    storage = unread(max(graph.storages[item.storage].size_bytes for item in geometry.values()))
    return {name: item.over(storage) for name, item in geometry.items() if item.dtype is not None}


def _reads(argument: Argument) -> bool:
    """Whether an argument is a value, or has one in it."""
    return isinstance(argument, Ref) or (isinstance(argument, tuple) and any(map(_reads, argument)))


def _constant(argument: Argument, stand_ins: Mapping[str, torch.Tensor]) -> object:
    """Return an argument that is the same in every step."""
    if isinstance(argument, Like):
        return stand_ins[argument.value]
    if isinstance(argument, tuple):
        return [_constant(item, stand_ins) for item in argument]
    return resolve_symbol(argument.name) if isinstance(argument, Symbol) else argument


def _slot(argument: Argument, stand_ins: Mapping[str, torch.Tensor]) -> Slot:
    """Return the function that finds an argument while the step runs."""
    if isinstance(argument, Ref):
        name = argument.value
        return lambda lookup: lookup(name)
    if isinstance(argument, tuple) and _reads(argument):
        slots = tuple(_slot(item, stand_ins) for item in argument)
        return lambda lookup: [slot(lookup) for slot in slots]
    constant = _constant(argument, stand_ins)
    return lambda _lookup: constant


def geometry_of(graph: Graph, name: str) -> Geometry:
    """Return how a value of a graph lies in its storage."""
    value = graph.values[name]
    is_scalar = graph.storages[value.storage].role is Role.SCALAR
    dtype = None if is_scalar else vars(torch)[value.dtype]
    return Geometry(value.storage, dtype, value.shape, value.strides, value.offset)


def _offsets(rooms: Mapping[str, int]) -> dict[str, int]:
    """Give each storage its own bytes of the scratch, one after the other; `rooms` are what each takes there."""
    return dict(zip(rooms, accumulate(rooms.values(), initial=0), strict=False))
