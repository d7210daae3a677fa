"""What does the catalogue say of an operator? What it computes, and how a part of it is called."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from outgrow.operators.tdl import (
    ALL,
    All,
    Argument,
    Element,
    Operand,
    OperatorCall,
    OperatorResult,
    Place,
    Shape,
    numbered,
)

Describe: TypeAlias = Callable[[OperatorCall], Sequence[OperatorResult | None]]
Adapt: TypeAlias = Callable[[OperatorCall, str], OperatorCall]


@dataclass(frozen=True, slots=True)
class Entry:
    """A description, and what goes with it.

    `adapt` makes of a call on parts, whose other arguments are those of the whole, and of the variable that was cut
    the call that computes the part: sizes become smaller, and padding that is read as elements is not added again.
    `fill` is what the operator takes for elements beyond the bounds of an operand. `quotient` names two results of
    which the first, once put together, is divided by the second; a `divisor` divides all results of a part where parts
    are sums of what the whole call takes the mean of.
    """

    describe: Describe
    adapt: Adapt = lambda call, _cut: call
    fill: float = 0.0
    quotient: Callable[[OperatorCall], tuple[int, int] | None] = lambda _call: None
    divisor: Callable[[OperatorCall], int] = lambda _call: 1


def asked(call: OperatorCall, results: Sequence[OperatorResult]) -> list[OperatorResult | None]:
    """Return the results of a call that are asked for, None for the others."""
    return [None if shape is None else result for result, shape in zip(results, call.shapes, strict=True)]


def only_shape(call: OperatorCall) -> Shape:
    """Return the shape of the one result of a call."""
    (shape,) = call.shapes
    assert shape is not None, f"what {call.operator} makes is asked for"
    return shape


def all_of(dim: Argument, rank: int) -> tuple[Place | All, ...]:
    """Return `rank` variables, but all of the dimension that an argument names."""
    axis = dimension(dim, rank)
    return tuple(ALL if number == axis else place for number, place in enumerate(numbered("i", rank)))


def broadcast(operand: Operand, at: Sequence[Place]) -> Element:
    """Return the element of an operand for a place of the result; a size of one is broadcast."""
    places = at[len(at) - len(operand.shape) :]
    return operand[tuple(0 if size == 1 else place for place, size in zip(places, operand.shape, strict=True))]


def with_argument(call: OperatorCall, position: int, argument: Argument) -> OperatorCall:
    """Return a call with another argument at a position."""
    arguments = (*call.arguments[:position], argument, *call.arguments[position + 1 :])
    return OperatorCall(call.operator, arguments, call.shapes, call.keywords)


def sized(position: int) -> Adapt:
    """Return an adaption for operators whose argument at a position is the shape of the result."""
    return lambda call, _cut: with_argument(call, position, call.shapes[0])


def whole_number(argument: Argument) -> int:
    """Return an argument that is a whole number."""
    assert isinstance(argument, int), f"{argument} is a whole number"
    return argument


def dimension(argument: Argument, rank: int) -> int:
    """Return which of `rank` dimensions an argument names; a number, which has none, is taken for one of one."""
    return whole_number(argument) % max(rank, 1)


def whole_numbers(argument: Argument, count: int) -> tuple[int, ...]:
    """Return an argument that is a whole number for each of `count` dimensions, or one for all of them."""
    found = argument if isinstance(argument, tuple) else (argument,)
    numbers = tuple(whole_number(item) for item in found)
    return numbers * count if len(numbers) == 1 else numbers
