"""Does an operator in pieces give what it gives as a whole? Pieces run, and what they give is put together.

What the catalogue says of operators is written by hand, so it is checked by running them: every strategy of a call, on
uneven pieces, in double precision (`worst_error`). `checked` does so for the calls of a user's step.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor
from torch.nn import functional as F

from outgrow.frontends.tracing.names import resolve_operator
from outgrow.frontends.workers.dataflow import filled
from outgrow.frontends.workers.exchange import TOGETHER
from outgrow.operators import dataflow
from outgrow.operators.catalogue import entry_of
from outgrow.operators.dataflow import Dataflow, Node
from outgrow.operators.regions import Region
from outgrow.operators.strategies import Partial, Piece, Split, Strategy, pieces, strategies
from outgrow.operators.tdl import OperatorCall
from outgrow.planning.partition.partition import factors
from outgrow.runtime.results import results_of

MOST_ELEMENTS = 1 << 25
"""Calls on more elements are not tried."""
_SOME_NUMBER = 0.5
"""What stands for a number that is only known when the step runs."""

Results = Sequence[Tensor | None]


def run(call: OperatorCall, operands: Sequence[Tensor]) -> list[Tensor | None]:
    """Return the results of a call on tensors, None for those that it does not have."""
    given = iter(operands)
    arguments = [filled(item, _SOME_NUMBER, given) for item in call.arguments]
    keywords = {name: filled(item, _SOME_NUMBER, given) for name, item in call.keywords}
    results = results_of(resolve_operator(call.operator)(*arguments, **keywords))
    shown = zip(results, call.shapes, strict=True)
    return [item if isinstance(item, Tensor) and shape is not None else None for item, shape in shown]


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


def put_together(call: OperatorCall, strategy: Strategy, given: Sequence[Results]) -> list[Tensor | None]:
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
                    whole = TOGETHER[by](whole, tensor)
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


@dataclass(frozen=True, slots=True)
class Checked:
    """An operator in pieces against the same as a whole: along how many variables, and the worst difference.

    The error is None where the operator could not be run on numbers that were drawn, and `because` says why.
    """

    operator: str
    ways: int
    error: float | None
    because: str = ""


def checked(step: Dataflow, workers: int) -> Iterator[Checked]:
    """Run every different call of a step in all of its ways to be cut, on numbers drawn in double precision.

    Operators that leave the content of their results undefined are left out.
    """
    seen: set[OperatorCall] = set()
    for node in step.nodes:
        if node.call not in seen and "empty" not in node.call.operator:
            seen.add(node.call)
            counts = dict.fromkeys(factors(workers))
            cuts = [(strategy, ways) for ways in counts for strategy in strategies(node.call, ways)]
            if cuts:
                yield _checked(node, step, cuts)


def _checked(node: Node, step: Dataflow, cuts: Sequence[tuple[Strategy, int]]) -> Checked:
    tensors = [step.tensors[name] for name in node.operands]
    elements = sum(prod(tensor.shape) for tensor in tensors)
    if elements > MOST_ELEMENTS:
        return Checked(node.call.operator, len(cuts), None, f"{elements:,} elements are too many to try")
    try:
        operands = [_drawn(tensor) for tensor in tensors]
        errors = [worst_error(node.call, strategy, ways, operands) for strategy, ways in cuts]
    except (RuntimeError, TypeError, IndexError) as refusal:
        return Checked(node.call.operator, len(cuts), None, str(refusal).splitlines()[0])
    return Checked(node.call.operator, len(cuts), max(errors))


def _drawn(tensor: dataflow.Tensor) -> Tensor:
    """Return numbers like a tensor's: between 0 and 1; whole ones are 0 or 1, which name a place in any dimension."""
    dtype: torch.dtype = vars(torch)[tensor.dtype]
    numbers = 0.1 + 0.8 * torch.rand(tensor.shape, dtype=torch.float64)
    return numbers if dtype.is_floating_point else (numbers > 0.5).to(dtype)


def worst_error(call: OperatorCall, strategy: Strategy, workers: int, operands: Sequence[Tensor]) -> float:
    """Return the largest difference between a call in pieces and as a whole, over the largest element of the result."""
    whole = run(call, [item.clone() for item in operands])
    given = (run_piece(piece, [item.clone() for item in operands]) for piece in pieces(call, strategy, workers))
    together = put_together(call, strategy, list(given))
    errors = [0.0]
    for one, other in zip(together, whole, strict=True):
        assert (one is None) == (other is None), f"{call.operator} gives the same results in pieces"
        if one is not None and other is not None:
            assert one.shape == other.shape, f"{call.operator} gives {tuple(one.shape)} in pieces"
            scale = float(other.double().abs().max().clamp(min=1.0))
            errors.append(float((one.double() - other.double()).abs().max()) / scale)
    return max(errors)
