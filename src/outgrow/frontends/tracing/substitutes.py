"""What stands for what a step uses while it is traced? Fakes for tensors, symbols for numbers.

It may look at little of what these stand for (`frontends.fake.looks`); what it has looked at is noted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sympy
from torch import SymFloat, SymInt, Tensor

from outgrow.frontends.fake.fakes import FakeMode, Fakes
from outgrow.frontends.fake.looks.counters import Counters
from outgrow.frontends.fake.looks.guessing import Guessing
from outgrow.frontends.fake.looks.literals import Literals
from outgrow.frontends.fake.looks.questions import Asking, Looks
from outgrow.frontends.user.training.guards import Symbols, symbol
from outgrow.frontends.user.training.plain import NumberSlot
from outgrow.frontends.user.training.state import Slot, StateSlot


@dataclass(frozen=True, slots=True)
class Substitutes:
    """The `fakes` of a `mode`, and `symbols` for the numbers `hyper`, in their order.

    `expressions` are what the symbols were at first: a guard may turn one into a number.
    """

    mode: FakeMode
    shape_env: Symbols
    fakes: Fakes
    literals: Literals
    hyper: Mapping[NumberSlot, float]
    symbols: Sequence[SymInt | SymFloat]
    expressions: tuple[sympy.Symbol, ...]
    counters: Counters
    asking: Asking
    guessing: Guessing

    @staticmethod
    def of(
        mode: FakeMode,
        state: Mapping[StateSlot, Tensor],
        leaves: Sequence[object],
        hyper: Mapping[NumberSlot, float],
        looks: Looks,
        guessing: Guessing,
    ) -> "Substitutes":
        """Return what stands for the tensors of a state, for leaves of the arguments, and for numbers.

        What the step may look at it looks at by `looks`, and what it may guess, once it was told where gradients hang.
        """
        shape_env, literals = mode.shape_env, mode.literals
        assert isinstance(shape_env, Symbols), "the mode was given an environment of symbols"
        assert literals is not None, "and follows literals"
        fakes = Fakes.of(mode, _distinct(state), leaves)
        counters = Counters(shape_env, literals, looks, fakes.originals, fakes.tensors)
        asking = Asking(leaves, fakes.batch, fakes.buffers, literals, looks)
        mode.counters, mode.asking, mode.guessing = counters, asking, guessing
        symbols = [symbol(shape_env, f"hyper_{at}", value) for at, value in enumerate(hyper.values())]
        expressions = tuple(item.node.expr for item in symbols)
        return Substitutes(mode, shape_env, fakes, literals, hyper, symbols, expressions, counters, asking, guessing)


def _distinct(state: Mapping[StateSlot, Tensor]) -> dict[Slot, Tensor]:
    """Return each tensor once, by the first slot that holds it."""
    first: dict[int, tuple[StateSlot, Tensor]] = {}
    for slot, tensor in state.items():
        first.setdefault(id(tensor), (slot, tensor))
    return dict(first.values())
