"""What does a step decide by numbers that are not there yet? It is captured for one answer, and each run checks that.

    if not torch.isfinite(loss): return loss        a batch is left out
    if norm < 10: optimizer.step()                  gradients that are too large are not used
    if math.isnan(loss.item()): raise ...           a training that has failed ends
    scaler.step(optimizer)                          gradients have overflown, or not

The answer is guessed, and an operator of the step looks whether it is right, before all updates
(`frontends.tracing.guesses`). Where it is not, the run ends there, and the call is repeated as a step that is captured
for the other answer. So a wrong guess costs a part of a step, and the way that a step mostly goes but the look.

What is guessed first is what comes of ones: a loss is finite, and below a limit; a number that is no comparison is a
flag that is not up. Where a guess was wrong in the call, those behind it at its line are what they were found to be,
and what comes later at that line is as the last of these was. Where the step raises an error after a guess, the other
answer is taken: only a run knows whether the error is one of this call.
"""

import math
import operator
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from itertools import product
from threading import get_ident
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.utils._pytree as pytree
from torch import Tensor, fx
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils._mode_utils import no_dispatch

from outgrow.errors import Uncapturable
from outgrow.frontends.user.lines import NO_LINE, present_line
from outgrow.frontends.user.training.state import StateSlot

_MOST_GUESSES = 1 << 10
_MOST_ELEMENTS = 1 << 16
"""Of what has more no guess is calculated."""
_NUMBERS = (torch.SymBool, torch.SymFloat, torch.SymInt)
_OF_NUMBERS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "isfinite": torch.isfinite,
    "isinf": torch.isinf,
    "isnan": torch.isnan,
}
"""Functions of `math` and `numpy` that ask a number, and those of torch."""
_OF_ITSELF: Mapping[str, Callable[[Tensor], Tensor]] = {
    **{name: lambda number: number == number for name in ("__eq__", "__le__", "__ge__")},  # noqa: PLR0124 - NaN is not
    "__ne__": torch.isnan,
    **{name: lambda number: number > number for name in ("__lt__", "__gt__")},  # noqa: PLR0124 - for the same reason
}
"""Comparisons, and what a number is asked that is compared with itself."""
_LIBRARY = torch.library.Library("outgrow", "FRAGMENT")
_ENDLESS = (
    "the step decides {} times by what it computes, as a loop does that ends when something has converged; let it run "
    "a fixed number of times, or do this outside of the step"
)


class Misguessed(Exception):
    """A run has found other answers than those for which its step was captured: to the guesses of these numbers."""

    def __init__(self, *numbers: int) -> None:
        super().__init__(*numbers)
        self.numbers = numbers


@dataclass(frozen=True, slots=True)
class Guess:
    """The answer to a decision on a `line`."""

    line: str
    answer: bool

    @property
    def otherwise(self) -> "Guess":
        """The other answer."""
        return Guess(self.line, not self.answer)


@dataclass(frozen=True, slots=True)
class Told:
    """What earlier attempts of a call have found: its first answers, which are `certain`, and `likely` later ones.

    Those were found behind a guess that was wrong, so the step may come elsewhere, or decide there by something else.
    """

    certain: tuple[Guess, ...] = ()
    likely: tuple[Guess, ...] = ()

    @classmethod
    def after(cls, guesses: Sequence[Guess], wrong: Collection[int]) -> "Told":
        """Return what a run tells that has found some of its step's guesses wrong, and has looked at all of a line."""
        first = min(wrong)
        found = [guess.otherwise if number in wrong else guess for number, guess in enumerate(guesses)]
        return cls((*found[: first + 1],), (*found[first + 1 : last_of_line(guesses, first) + 1],))

    @property
    def likely_by_line(self) -> dict[str, deque[bool]]:
        """The likely answers of each line, in their order."""
        return _by_line(self.likely)

    def begins(self, guesses: Sequence[Guess]) -> bool:
        """Whether a step with these guesses goes the way that is told."""
        known = len(self.certain)
        if tuple(guesses[:known]) != self.certain:
            return False
        own, likely = _by_line(guesses[known:]), self.likely_by_line
        return all(all(map(operator.eq, own[line], likely[line])) for line in own.keys() & likely.keys())


NOTHING_TOLD = Told()


def _by_line(guesses: Iterable[Guess]) -> dict[str, deque[bool]]:
    found: dict[str, deque[bool]] = {}
    for guess in guesses:
        found.setdefault(guess.line, deque()).append(guess.answer)
    return found


def last_of_line(guesses: Sequence[Guess], number: int) -> int:
    """Return the number of the last guess at the line of this one."""
    return max(at for at, guess in enumerate(guesses) if guess.line == guesses[number].line)


def _check(found: Tensor | float, number: int, answer: bool) -> None:
    """Raise `Misguessed` unless what was found is true, or false, as the `answer` says."""
    if bool(found) is not answer:
        raise Misguessed(number)


_LIBRARY.define("guess(Tensor found, int number, bool answer) -> ()")
_LIBRARY.define("guess.number(Scalar found, int number, bool answer) -> ()")
for _name in ("guess", "guess.number"):
    _LIBRARY.impl(_name, _check, "CompositeExplicitAutograd")
    _LIBRARY.impl(_name, lambda *_given: None, "Meta")
CHECKS = (torch.ops.outgrow.guess.default, torch.ops.outgrow.guess.number)
"""Operators that check a guess."""


class Guessing:
    """The guesses of a step while it is traced; some are `told`. It guesses nothing if that is None.

    `held` are the gradients of before the step that hang in their slots when it decides: should it go another way, it
    may still want them.
    """

    def __init__(self, told: Told | None) -> None:
        self._told, self._may_guess = told or NOTHING_TOLD, told is not None
        self._by_line = {guess.line: guess.answer for guess in (*self._told.certain, *self._told.likely)}
        self.begun(tuple)

    def begun(self, hanging: Callable[[], Collection[StateSlot]]) -> "Guessing":
        """Begin a trace, in which some gradients are `hanging` in their slots still; return these guesses."""
        self._hanging, self._thread, self._is_looking = hanging, get_ident(), False
        self._likely = self._told.likely_by_line
        self.made: list[Guess] = []
        self.held: Collection[StateSlot] = ()
        return self

    def may_be_wrong(self, _kind: object, error: BaseException | None, _traceback: object) -> bool:
        """Whether an error that ends a trace may be none of this call; a refusal is one as soon as it goes this way."""
        is_of_step = isinstance(error, Exception | SystemExit) and not isinstance(error, Uncapturable)
        return is_of_step and len(self.made) > len(self._told.certain)

    def otherwise(self) -> "Guessing":
        """Return the guesses for a trace that goes the other way where this one has guessed last."""
        return Guessing(Told((*self.made[:-1], self.made[-1].otherwise)))

    def again(self) -> "Guessing":
        """Return the guesses for a trace that goes the way that this one has gone."""
        return Guessing(Told(tuple(self.made)) if self._may_guess else None)

    def may_guess(self) -> bool:
        """Whether it is the step that asks: no other thread, and no operator, which nobody traces."""
        return self._may_guess and get_ident() == self._thread and get_proxy_mode() is not None

    def may_decide(self, tensor: Tensor) -> bool:
        """Whether the step may decide by a tensor: by one number, which is none of many at once, as within `vmap`."""
        is_one = tensor.numel() == 1 and not is_functorch_wrapped_tensor(tensor)
        return is_one and self.may_guess() and not self._is_looking

    def looking(self) -> AbstractContextManager[object]:
        """Return a context in which torch looks at a tensor by ways that lead here again: there an answer is found."""
        return patch.object(self, "_is_looking", True)  # noqa: FBT003

    def by_tensor(self, found: Tensor) -> bool:
        """Return the answer that is guessed to whether a tensor is true, and check that in each run."""
        return self._guessed(found, torch.ops.outgrow.guess.default, lambda: _of_ones(found))

    def by_number(self, found: torch.SymBool | torch.SymFloat | torch.SymInt) -> bool:
        """Return the answer that is guessed to whether a number is true, and check that in each run."""
        return self._guessed(found, torch.ops.outgrow.guess.number, lambda: _at_one(found))

    def _guessed(self, found: Any, check: Callable[..., object], likely: Callable[[], bool]) -> bool:
        number, line = len(self.made), present_line() or NO_LINE
        if number == _MOST_GUESSES:
            raise Uncapturable(f"{line}: {_ENDLESS.format(number)}")
        if not number:
            self.held = self._hanging()
        answer = self._told_of(number, line)
        if answer is None:
            answer = likely()
        check(found, number, answer)
        self.made.append(Guess(line, answer))
        return answer

    def _told_of(self, number: int, line: str) -> bool | None:
        """Return what is told of the next guess, if anything is."""
        if number < len(self._told.certain):
            return self._told.certain[number].answer
        likely = self._likely.get(line)
        return likely.popleft() if likely else self._by_line.get(line)


def _of_ones(found: Tensor) -> bool:
    """Return what a truth value would be if the numbers were ones that it is made of; False for other numbers."""
    proxies = get_proxy_mode()
    proxy = None if proxies is None else proxies.tracer.tensor_tracker.get(found)
    node = getattr(getattr(proxy, "proxy", None), "node", None)
    if not isinstance(node, fx.Node) or found.dtype is not torch.bool:
        return False
    with no_dispatch(), torch._C.DisableTorchFunction():  # else it would be noted, and guessed again
        made = _made_of_ones(node, {})
        return isinstance(made, Tensor) and made.item() is True


def _made_of_ones(node: fx.Node, known: dict[fx.Node, object]) -> object:
    """Return what a node gives for ones in place of the numbers behind its truth values; None for what is too large."""
    if node not in known:
        known[node] = _computed(node, known)
    return known[node]


def _computed(node: fx.Node, known: dict[fx.Node, object]) -> object:
    like = node.meta.get("val")
    if not isinstance(like, Tensor) or like.numel() > _MOST_ELEMENTS:
        return None
    if like.dtype is not torch.bool or node.op != "call_function":
        return torch.ones(like.shape, dtype=like.dtype)
    given = {item: _made_of_ones(item, known) for item in node.all_input_nodes}
    if any(item is None for item in given.values()) or not callable(node.target):
        return None
    args, kwargs = pytree.tree_map_only(fx.Node, given.__getitem__, (node.args, node.kwargs))
    try:
        return node.target(*args, **kwargs)
    except (RuntimeError, TypeError, ValueError):  # of what it is made by then only it knows
        return None


def _at_one(found: torch.SymBool | torch.SymFloat | torch.SymInt) -> bool:
    """Return what a comparison would be if the numbers were ones that it compares; False for other numbers."""
    if not isinstance(found, torch.SymBool):
        return False
    expression = found.node.expr
    return expression.subs(dict.fromkeys(expression.free_symbols, 1)) == True  # noqa: E712 - sympy's truth is no bool


@contextmanager
def numbers_decide(guessing: Guessing) -> Iterator[None]:
    """Within it, whether numbers are true that are not there yet is guessed, and how they compare, if they are finite.

    What a comparison finds is guessed at once: nobody is asked where it is taken for what it is (`found is True`). What
    torch's numbers ask each other, such as whether one that has a root is negative, is no question of the step's.
    """

    def unknown(number: object) -> bool:
        return _is_unknown(number) and guessing.may_guess()

    def asked(number: Any, ask: Callable[[Tensor], Tensor]) -> bool:
        return guessing.by_tensor(ask(torch.scalar_tensor(number, dtype=torch.float64)))

    def deciding(own: Callable[[Any], bool]) -> Callable[[Any], bool]:
        return lambda number: guessing.by_number(number) if unknown(number) else own(number)

    def asking(own: Callable[..., Any], ask: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
        return lambda number, *more, **named: asked(number, ask) if unknown(number) else own(number, *more, **named)

    def comparing(own: Callable[[Any, Any], Any], of_itself: Callable[[Tensor], Tensor]) -> Callable[[Any, Any], Any]:
        def compared(number: Any, other: Any) -> Any:
            if _is_unknown(number) and _is_same(number, other):
                if not guessing.may_guess():
                    raise GuardOnDataDependentSymNode(number.node.expr, "is it NaN?")
                return asked(number, of_itself)
            found = own(number, other)
            is_asked = unknown(found) and sys._getframe(1).f_code.co_filename != torch.__file__
            return guessing.by_number(found) if is_asked else found

        return compared

    with ExitStack() as stack:
        for kind in _NUMBERS:
            stack.enter_context(patch.object(kind, "__bool__", deciding(kind.__bool__)))
        for kind, (name, ask) in product((torch.SymFloat, torch.SymInt), _OF_ITSELF.items()):
            stack.enter_context(patch.object(kind, name, comparing(getattr(kind, name), ask)))
        for module, (name, ask) in product((math, np), _OF_NUMBERS.items()):
            stack.enter_context(patch.object(module, name, asking(getattr(module, name), ask)))
        yield


def _is_unknown(number: object) -> bool:
    """Whether something is a number that is not there yet; a length of nested tensors is none that can be known."""
    return isinstance(number, _NUMBERS) and isinstance(number.node, SymNode) and number.node.hint is None


def _is_same(number: torch.SymFloat | torch.SymInt, other: object) -> bool:
    """Whether a number is compared with itself, which NaN is not equal to."""
    return isinstance(other, torch.SymFloat) and number.node.expr == other.node.expr
