"""Which random numbers does a step draw that are not torch's? None: they would be the same in every run of a plan.

Python's and NumPy's generators are looked at, those of their modules and those that the step, its modules or its
optimizers hold. Wherever one is further on after a step was traced, the step is refused, and the generator put back.
"""

import inspect
import pickle
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any

import numpy as np
from torch.utils import _pytree as pytree

from outgrow.errors import Uncapturable


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


@contextmanager
def nothing_drawn(step: Callable[..., object], holders: Iterable[object]) -> Iterator[None]:
    """Raise `Uncapturable` if the block draws from a generator that is not torch's; all are as before then."""
    held = [value for holder in holders for value in pytree.tree_leaves(list(vars(holder).values()))]
    sources = [*_OF_MODULES, *_of_its_own([*held, *_closed_over(step)])]
    states = [source.read() for source in sources]
    before = [pickle.dumps(state) for state in states]
    try:
        yield
        for source, state in zip(sources, before, strict=True):
            if pickle.dumps(source.read()) != state:
                raise Uncapturable(
                    f"the step draws from {source.name}, which the captured step would not repeat; draw with torch, or "
                    "outside of the step and pass the number as a tensor"
                )
    finally:
        for source, state in zip(sources, states, strict=True):
            source.write(state)


def _closed_over(step: Callable[..., object]) -> list[object]:
    """Return what a function uses of its surroundings."""
    function = inspect.unwrap(step)
    if not isinstance(function, FunctionType):
        return []
    seen = inspect.getclosurevars(function)
    return pytree.tree_leaves([*seen.nonlocals.values(), *seen.globals.values()])


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
