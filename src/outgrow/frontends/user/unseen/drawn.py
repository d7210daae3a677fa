"""Which random numbers does a step draw that are not torch's? None: they would be the same in every run of a plan.

Python's and NumPy's generators are looked at: those of their modules, those that the step, its modules or its
optimizers hold, and all that are alive, since functions that the step calls may draw from any. Wherever one is further
on after a step was traced, the step is refused, and the generator put back. Those that a step makes need a seed
(`frontends.user.unseen.entropy`).
"""

import pickle
import random
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import BuiltinMethodType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
from sympy.core import random as of_sympy
from torch import nn
from torch.utils import _pytree as pytree

from outgrow.errors import Uncapturable
from outgrow.frontends.user.living import living
from outgrow.frontends.user.reach.functions import surroundings
from outgrow.frontends.user.unseen.entropy import nothing_from_entropy


@dataclass(frozen=True, slots=True)
class _Source:
    """A generator of random numbers, by what to call it, and how to read and to set its state."""

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object]


_OF_MODULES = (
    _Source("Python's random module", random.getstate, random.setstate),
    _Source("NumPy's random numbers", np.random.get_state, np.random.set_state),
)


_KINDS = (random.Random, np.random.Generator, np.random.RandomState)


def living_generators() -> list[object]:
    """Return the generators that live, without those with which sympy and `tempfile` work."""
    names = vars(tempfile)["_name_sequence"]
    others = {id(value) for owner in (of_sympy, names) if owner is not None for value in vars(owner).values()}
    alive = (item for item in living(*_KINDS) if id(item) not in others)
    return [item for item in alive if not isinstance(item, random.Random) or _is_made(item)]


def _is_made(generator: random.Random) -> bool:
    """Whether a generator has a state, which it has not before it was given a seed."""
    return type(generator).getstate is random.Random.getstate and "gauss_next" in vars(generator)


@contextmanager
def nothing_drawn(
    step: Callable[..., object], holders: Iterable[object], living: Sequence[object] = ()
) -> Iterator[None]:
    """Raise `Uncapturable` if the block draws from a generator that is not torch's; all are as before then.

    Those that are `living` are looked at beside those that the step and the holders have.
    """
    held = [value for holder in holders for value in pytree.tree_leaves(list(vars(holder).values()))]
    sources = [*_OF_MODULES, *_of_its_own([*held, *_closed_over(step), *living])]
    states = [source.read() for source in sources]
    before = [pickle.dumps(state) for state in states]
    moved: list[_Source] = []
    try:
        with nothing_from_entropy():
            yield
    finally:
        for source, state, content in zip(sources, states, before, strict=True):
            if pickle.dumps(source.read()) != content:
                source.write(state)
                moved.append(source)
    if moved:
        raise Uncapturable(
            f"the step draws from {moved[0].name}, which the captured step would not repeat; draw with torch, or "
            "outside of the step and pass the number as a tensor (if another thread draws from it: call the step once "
            "before that thread begins)"
        )


def _closed_over(step: object) -> list[object]:
    """Return what a callable uses of its surroundings, and what objects among that have as attributes."""
    seen = pytree.tree_leaves(surroundings(step))
    return [*seen, *(leaf for value in seen for leaf in pytree.tree_leaves(_attributes(value)))]


def _attributes(value: object) -> list[object]:
    """Return the attributes of an object of the user's; modules of Python and of torch, and types, have others."""
    is_other = isinstance(value, ModuleType | type | nn.Module | FunctionType) or not hasattr(value, "__dict__")
    return [] if is_other else list(vars(value).values())


def _of_its_own(values: Iterable[object]) -> Iterator[_Source]:
    """Yield the generators among some values, or whose methods these are, each once."""
    owners = (value.__self__ if isinstance(value, MethodType | BuiltinMethodType) else value for value in values)
    for owner in {id(owner): owner for owner in owners}.values():
        match owner:
            case random.SystemRandom():
                continue
            case random.Random():
                yield _Source("a random.Random", owner.getstate, owner.setstate)
            case np.random.RandomState():
                yield _Source("a RandomState of NumPy", owner.get_state, owner.set_state)
            case np.random.Generator():
                yield _Source("a Generator of NumPy", *_state_of(owner.bit_generator))
            case _:
                continue


def _state_of(generator: np.random.BitGenerator) -> tuple[Callable[[], Any], Callable[[Any], object]]:
    def write(state: Any) -> None:
        generator.state = state

    return lambda: generator.state, write
