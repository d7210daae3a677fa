"""Does an operator in pieces give what it gives as a whole? Pieces run, and what they give is put together.

What the catalogue says of operators is written by hand, so it is checked by running them: every strategy of a call, on
uneven pieces, in double precision (`worst_error`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from outgrow.frontends.names import resolve_operator, resolve_symbol
from outgrow.ir.graph import Symbol
from outgrow.operators.catalogue import entry_of
from outgrow.operators.regions import Region
from outgrow.operators.strategies import Partial, Piece, Split, Strategy, pieces
from outgrow.operators.tdl import Argument, Call, Operand, Reducer

_TOGETHER: Mapping[Reducer, Callable[[Tensor, Tensor], Tensor]] = {
    Reducer.SUM: torch.add,
    Reducer.MAX: torch.maximum,
    Reducer.MIN: torch.minimum,
    Reducer.PROD: torch.mul,
}

Results = Sequence[Tensor | None]


def run(call: Call, operands: Sequence[Tensor]) -> list[Tensor | None]:
    """Return the results of a call on tensors, None for those that it has not."""
    given = iter(operands)
    arguments = _arguments(call.arguments, given)
    keywords = {name: _argument(item, given) for name, item in call.keywords}
    found = resolve_operator(call.operator)(*arguments, **keywords)
    results: Sequence[object] = found if isinstance(found, tuple | list) else (found,)
    shown = zip(results, call.shapes, strict=True)
    return [item if isinstance(item, Tensor) and shape is not None else None for item, shape in shown]


def _arguments(arguments: Sequence[Argument], operands: Iterator[Tensor]) -> list[object]:
    return [_argument(item, operands) for item in arguments]


def _argument(item: Argument, operands: Iterator[Tensor]) -> object:
    match item:
        case tuple():
            return _arguments(item, operands)
        case Operand():
            return next(operands)
        case Symbol(name):
            return resolve_symbol(name)
        case _:
            return item


def run_piece(piece: Piece, operands: Sequence[Tensor]) -> list[Tensor | None]:
    """Return what one worker gives, from the whole operands."""
    regions = piece.regions
    parts = [part(item, regions[at], piece.fill) if at in regions else item for at, item in enumerate(operands)]
    found = run(piece.call, [torch.zeros_like(item) if at in piece.zeros else item for at, item in enumerate(parts)])
    return found if piece.divisor == 1 else [None if item is None else item / piece.divisor for item in found]


def part(tensor: Tensor, region: Region, fill: float) -> Tensor:
    """Return a region of a tensor; what lies beyond its bounds is `fill`."""
    beyond: list[int] = []
    for dim, (begin, end) in enumerate(region):
        size = tensor.shape[dim]
        tensor = tensor.narrow(dim, max(begin, 0), min(end, size) - max(begin, 0))
        beyond[:0] = (max(-begin, 0), max(end - size, 0))
    return F.pad(tensor, beyond, value=fill) if any(beyond) else tensor.contiguous()


def put_together(call: Call, strategy: Strategy, given: Sequence[Results]) -> list[Tensor | None]:
    """Return the results of a call from what its workers give."""
    found: list[Tensor | None] = []
    for outcome, parts in zip(strategy.outcomes, zip(*given, strict=True), strict=True):
        tensors = [item for item in parts if item is not None]
        match outcome:
            case Split(dim):
                found.append(torch.cat(tensors, dim))
            case Partial(by):
                whole = tensors[0]
                for tensor in tensors[1:]:
                    whole = _TOGETHER[by](whole, tensor)
                found.append(whole)
            case _:
                found.append(tensors[0] if tensors else None)
    entry = entry_of(call.operator)
    quotient = entry.quotient(call) if entry is not None else None
    if quotient is not None:
        upper, lower = (found[at] for at in quotient)
        assert upper is not None, "a quotient has two results"
        assert lower is not None, "a quotient has two results"
        found[quotient[0]] = upper / lower
    return found


def worst_error(call: Call, strategy: Strategy, workers: int, operands: Sequence[Tensor]) -> float:
    """Return the largest difference between a call in pieces and as a whole, over the largest element of the result."""
    whole = run(call, operands)
    together = put_together(call, strategy, [run_piece(piece, operands) for piece in pieces(call, strategy, workers)])
    errors = [0.0]
    for one, other in zip(together, whole, strict=True):
        assert (one is None) == (other is None), f"{call.operator} gives the same results in pieces"
        if one is not None and other is not None:
            assert one.shape == other.shape, f"{call.operator} gives {tuple(one.shape)} in pieces"
            scale = float(other.abs().max().clamp(min=1.0))
            errors.append(float((one - other).abs().max()) / scale)
    return max(errors)
