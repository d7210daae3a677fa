"""What may a step look at while it is captured? At contents that are the same in every call.

A tensor is *known* if it is made of literals by deterministic operators: a causal mask, positions, the step counter
that an optimizer makes at its first step. Each known tensor has a real companion, on the same device, on which the
operators are repeated, so `bool((mask == causal).all())` has an answer that holds for every call. Everything else, the
step's inputs first of all, is unknown, and so is what an unknown tensor or a lifted hyper-parameter was written into.
"""

from collections.abc import Callable, Iterable, Sequence

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch._ops import OpOverload
from torch.types import py_sym_types
from torch.utils._mode_utils import no_dispatch

from outgrow.frontends.fake.arguments import Invoked, form_of, is_foreign, leaves_of, tensors_of, writes
from outgrow.frontends.fake.looks.noted import Noted

LIFTS = (torch.ops.aten.lift_fresh.default, torch.ops.aten.lift_fresh_copy.default)
_SMALL_BYTES, _LARGER_BYTES = 1 << 16, 16 << 20
"""Tensors of at most 64 KiB are followed; larger ones as long as all of these together take at most 16 MiB."""
_FILLED_LIKE = frozenset(getattr(torch.ops.aten, name).default for name in ("zeros_like", "ones_like", "full_like"))
_FILLED_NEW = frozenset(getattr(torch.ops.aten, name).default for name in ("new_zeros", "new_ones", "new_full"))
_FILLED = _FILLED_LIKE | _FILLED_NEW
"""Operators that use only the kind of a tensor, or its form as well, and fill another one with literals."""


class Literals:
    """Real companions of the fake tensors whose contents are known."""

    def __init__(self) -> None:
        self._known: Noted[Tensor] = Noted()
        self._left_bytes = _LARGER_BYTES

    def followed(self, call: Invoked, run: Callable[[], object]) -> object:
        """Return what `run` returns, the fake result of a call, and note what is known of it.

        Where the result is a number, or its shape depends on known contents, the real result is returned.
        """
        func = call.func
        if not isinstance(func, OpOverload) or not self._is_followed(call):
            self._known.forget(call.written())
            return run()
        if torch.Tag.data_dependent_output in func.tags:
            return self._real(call)
        if torch.Tag.dynamic_output_shape in func.tags and call.tensors:
            return self._as_large(call)
        fake = run()
        made = tensors_of(leaves_of(fake))
        if not (func.is_view or writes(func) or self._has_room(made)):
            return fake
        companions = tensors_of(leaves_of(self._real(call)))
        for tensor, real in zip(made, companions, strict=True):
            self._known.note(tensor, real)
        return fake

    def forget(self, tensors: Iterable[Tensor]) -> None:
        """Know nothing of tensors, nor of others in their memory."""
        self._known.forget(tensors)

    def knows(self, tensor: Tensor) -> bool:
        """Whether the content of a tensor is known."""
        return tensor in self._known

    def sharing(self, tensor: Tensor) -> list[Tensor]:
        """Return the known tensors that share memory with one."""
        return self._known.sharing(tensor)

    def content(self, tensor: Tensor) -> Tensor | None:
        """Return a copy of what is in a tensor, if that is known."""
        real = self._known.of(tensor)
        with no_dispatch():
            return None if real is None else real.clone()

    def number(self, tensor: Tensor) -> float | None:
        """Return the content of a tensor of one number; None where it is not known."""
        real = self._known.of(tensor)
        with no_dispatch():
            return None if real is None or real.numel() != 1 else real.item()

    def _has_room(self, tensors: Sequence[Tensor]) -> bool:
        """Whether companions of these tensors may be made; larger ones use up what is left for them."""
        needed = sum(tensor.nbytes for tensor in tensors)
        if needed > _SMALL_BYTES:
            if needed > self._left_bytes:
                return False
            self._left_bytes -= needed
        return True

    def _is_followed(self, call: Invoked) -> bool:
        func, tensors = call.func, call.tensors
        if not is_deterministic(func, call.leaves):
            return False
        if func in LIFTS:
            return tensors[0] in self._known or type(tensors[0]) is Tensor
        if func in _FILLED:
            return True
        if not tensors:
            return func.namespace == "aten" and "empty" not in func._schema.name
        return all(tensor in self._known for tensor in tensors)

    def _real(self, call: Invoked) -> object:
        """Return what a call gives on real tensors."""
        func = call.func
        companion = of_its_form if func in _FILLED_LIKE else _of_its_kind if func in _FILLED_NEW else self._companion
        with no_dispatch():
            args, kwargs = call.exchanged(companion)
            found = func(*args, **kwargs)
            return found.clone() if func in LIFTS else found

    def _as_large(self, call: Invoked) -> object:
        """Return fake results of the shapes that contents give them."""
        like = call.tensors[0]

        def fake(real: Tensor) -> Tensor:
            found = like.new_empty_strided(real.shape, real.stride(), dtype=real.dtype)
            self._known.note(found, real)
            return found

        return pytree.tree_map_only(Tensor, fake, self._real(call))

    def _companion(self, tensor: Tensor) -> Tensor:
        real = self._known.of(tensor)
        return tensor if real is None else real


def is_deterministic(func: OpOverload, leaves: Sequence[object]) -> bool:
    """Whether a call with these leaves of arguments gives the same whenever its tensors are the same."""
    if is_foreign(func) or torch.Tag.nondeterministic_seeded in func.tags:
        return False
    return not any(isinstance(leaf, py_sym_types) for leaf in leaves)


def of_its_form(tensor: Tensor) -> Tensor:
    """Return a tensor without content that lies as this one does."""
    return form_of(tensor).empty()


def _of_its_kind(tensor: Tensor) -> Tensor:
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device)
