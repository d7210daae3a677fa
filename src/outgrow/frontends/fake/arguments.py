"""What is a call of an operator given, and what of that does it write?

Operators are given tensors and numbers, and lists of them: to look through these takes less than half of the time that
torch's trees need, which can be of any class, and a trace does so several times for each call.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from outgrow.operators.effects import HIDDEN_WRITES, hidden_writes

_OWN = frozenset(
    {"aten", "prim", "prims", "outgrow", "outgrow_kernels", "profiler", "quantized", "c10d", "_c10d_functional"}
)


def is_foreign(func: object) -> bool:
    """Whether something is an operator that is neither torch's nor outgrow's: it may do what no schema says."""
    return isinstance(func, OpOverload) and func.namespace not in _OWN


@dataclass(frozen=True, eq=False)
class Invoked:
    """A call of an operator, or of another function, as it is traced."""

    func: Any
    args: Sequence[Any]
    kwargs: Mapping[str, Any]

    @cached_property
    def leaves(self) -> list[object]:
        """What it is given, and what is in lists and dicts among it."""
        return leaves_of(self.args, self.kwargs)

    @cached_property
    def tensors(self) -> list[Tensor]:
        """The leaves that are tensors."""
        return tensors_of(self.leaves)

    def written(self) -> list[Tensor]:
        """Return the tensors that it may write: as an operator says, or in silence; or all that a function is given."""
        func, args = self.func, self.args
        if not isinstance(func, OpOverload):
            return self.tensors
        silently = [args[at] for at in hidden_writes(str(func), args)] if writes_in_silence(func) else []
        return tensors_of(leaves_of(silently, written_arguments(func, args, self.kwargs) if writes(func) else []))

    def exchanged(self, of: Callable[[Tensor], object]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return what it is given, with something else in place of each tensor."""
        return exchanged((tuple(self.args), dict(self.kwargs)), of)


@dataclass(frozen=True, slots=True)
class Form:
    """What a kernel may look at in a tensor, except its contents."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def empty(self) -> Tensor:
        """Return a tensor of this form."""
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=self.device)


def form_of(tensor: Tensor) -> Form:
    """Return the form of a tensor."""
    return Form(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device)


def leaves_of(*given: object) -> list[object]:
    """Return what is given, and what is in lists and dicts among it.

    >>> leaves_of(([1.0, 2.0], 0), {"alpha": 1})
    [1.0, 2.0, 0, 1]
    """
    found: list[object] = []
    for item in given:
        if isinstance(item, list | tuple):
            found += leaves_of(*item)
        elif isinstance(item, dict):
            found += leaves_of(*item.values())
        else:
            found.append(item)
    return found


def tensors_of(leaves: Sequence[object]) -> list[Tensor]:
    """Return the leaves that are tensors."""
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def exchanged(given: Any, of: Callable[[Tensor], object]) -> Any:
    """Return what a call is given, with something else in place of each tensor, in lists and dicts as well."""
    if isinstance(given, Tensor):
        return of(given)
    if type(given) is tuple or type(given) is list:
        return type(given)(exchanged(item, of) for item in given)
    if type(given) is dict:
        return {name: exchanged(item, of) for name, item in given.items()}
    return given


def writes(func: object) -> bool:
    """Whether an operator may write what it is given, by its schema."""
    return not isinstance(func, OpOverload) or func._schema.is_mutable


@cache
def writes_in_silence(func: object) -> bool:
    """Whether an operator may write what it is given although its schema does not say so."""
    return str(func) in HIDDEN_WRITES


def written_arguments(func: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]) -> list[object]:
    """Return the arguments of a call that an operator writes, by its schema."""
    return [
        args[at] if at < len(args) else kwargs.get(argument.name)
        for at, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
