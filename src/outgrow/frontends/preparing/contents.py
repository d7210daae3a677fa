"""What is in the operands of an op that is tried alone? What gives results as large as those that were captured.

Noise and zeros do for most operators. A few have results as large as contents say, or go where these point:

    index, index_put             a mask has as many ones as entries were chosen by it, or written
    masked_select, nonzero       as many entries are not zero as were found
    _unique, _unique2            as many numbers are different
    repeat_interleave, bincount  the numbers add up to the entries of the result, or are the last of these
    pivots                       they count from 1

The first entries of a mask are its ones. Where the values that are written do not tell how many there are, since one
stands for all, it is full: no mask takes more.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor
from torch._ops import OpOverload

from outgrow.frontends.fake.kernels.lists import by_torch
from outgrow.frontends.tracing.names import resolve_operator
from outgrow.ir.graph import Argument, Graph, Op, Ref
from outgrow.runtime.lists import schema_of
from outgrow.runtime.program import Item
from outgrow.runtime.results import fill

_Operands = Mapping[str, Item]
_Given = Mapping[str, Argument]
"""The arguments of an op, by the names of the operator's parameters."""


def as_captured(graph: Graph, op: Op, operands: _Operands) -> _Operands:
    """Return the operands of an op, filled so that its results are as large as those that were captured.

    A mask whose entries lie so that not as many can be ones gets memory of its own.
    """
    given = _given(op)
    for parameter, argument in given.items():
        if parameter.endswith("pivots"):
            _tensor(argument, operands).fill_(1)
    first = op.results[0] if op.results else None
    if first is None:
        return operands
    shape = graph.values[first].shape
    if op.operator in _NUMBERS:
        numbers = _tensor(op.arguments[0], operands)
        fill(numbers, _NUMBERS[op.operator](numbers, shape[0]))
    own: dict[str, Item] = {}
    ones = _ones(op, given, shape, operands)
    for name, count in ones.items():
        _fill_first(_tensor(Ref(name), operands), count)
    for name, count in ones.items():
        mask = _tensor(Ref(name), operands)
        if int(mask.count_nonzero()) != count:
            own[name] = apart = torch.zeros_like(mask, memory_format=torch.contiguous_format)
            _fill_first(apart, count)
    return {**operands, **own}


def _different(numbers: Tensor, count: int) -> Tensor:
    return torch.arange(numbers.numel(), device=numbers.device).remainder_(count).view(numbers.shape)


def _adding_up(numbers: Tensor, total: int) -> Tensor:
    each, more = divmod(total, max(1, numbers.numel()))
    filled = torch.full_like(numbers, each)
    filled[:more] += 1
    return filled


_NUMBERS: Mapping[str, Callable[[Tensor, int], Tensor]] = MappingProxyType(
    {
        "aten._unique.default": _different,
        "aten._unique2.default": _different,
        "aten.bincount.default": lambda numbers, count: torch.full_like(numbers, count - 1),
        "aten.repeat_interleave.Tensor": _adding_up,
    }
)
"""What is in the first operand of an operator so that its first result has so many entries."""


def _ones(op: Op, given: _Given, shape: Sequence[int], operands: _Operands) -> dict[str, int]:
    """Return how many entries of each mask are not zero, for a first result of this shape."""
    match op.operator, op.arguments:
        case "aten.nonzero.default", (Ref(value=name), *_):
            return {name: shape[0]}
        case "aten.masked_select.default", (tensor, Ref(value=name)):
            mask = _tensor(Ref(name), operands)
            spread = torch.broadcast_shapes(mask.shape, _tensor(tensor, operands).shape).numel()
            return {name: shape[0] * mask.numel() // max(1, spread)}
        case _:
            indices = given.get("indices")
            return _chosen(given, indices, shape, operands) if isinstance(indices, tuple) else {}


def _chosen(given: _Given, indices: Sequence[Argument], shape: Sequence[int], operands: _Operands) -> dict[str, int]:
    """Return how many ones each mask among some indices has, for a result of `index` of this shape.

    A mask of n dimensions stands for n indices, each as long as it has ones. All indices are broadcast together, so the
    length is the last dimension of what comes of that. It stands where the indices do if these are side by side, else
    first.
    """
    names = [item.value if isinstance(item, Ref) else None for item in indices]
    tensors = {name: _tensor(Ref(name), operands) for name in names if name is not None}
    masks = {name: item for name, item in tensors.items() if item.dtype == torch.bool}
    if not masks:
        return {}
    places = [at for at, name in enumerate(names) if name is not None]
    are_side_by_side = places[-1] - places[0] < len(places)
    before = places[0] if are_side_by_side else 0
    indexed = sum(masks[name].dim() if name in masks else 1 for name in names if name is not None)
    behind = _tensor(given["self"], operands).dim() - before - indexed
    others = [size for name, item in tensors.items() if name not in masks for size in item.shape[-1:] if size != 1]
    smallest = min(item.numel() for item in masks.values())
    if "values" in given:
        shape = _tensor(given["values"], operands).shape
    length = shape[-1 - behind] if len(shape) > behind else 1
    if "values" in given and length == 1:
        length = others[0] if others else smallest
    return {name: length if length <= item.numel() else 1 for name, item in masks.items()}


def _fill_first(mask: Tensor, count: int) -> None:
    """Let so many entries be 1, and the others 0; along a stride of 0 there is only one."""
    once = mask[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in mask.stride())]
    once.zero_()
    count = count * once.numel() // max(1, mask.numel())
    while count and once.dim():
        whole, count = divmod(count, once[0].numel())
        once[:whole].fill_(1)
        once = once[whole] if count else once
    if count:
        once.fill_(1)


def _given(op: Op) -> _Given:
    function = resolve_operator(by_torch(op.operator))
    parameters = schema_of(function).arguments if isinstance(function, OpOverload) else ()
    return {parameter.name: argument for parameter, argument in zip(parameters, op.arguments, strict=False)}


def _tensor(argument: Argument, operands: _Operands) -> Tensor:
    assert isinstance(argument, Ref), "it is given as a value"
    tensor = operands[argument.value]
    assert isinstance(tensor, Tensor), "it is no number"
    return tensor
