"""How does a kernel lay its results? It is asked with zeros, once for all calls that are alike.

A step of a thousand layers has few calls that are not. What a kernel is asked with is let go at once, but the room that
it took stays with the process where small objects, which a capture makes all the time, have come to lie behind it.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.types import py_sym_types
from torch.utils._mode_utils import no_dispatch

from outgrow.frontends.fake.arguments import Form, form_of, leaves_of, tensors_of

_MOST_KNOWN = 1 << 12
"""Of so many calls the results are kept."""


def forms_given(
    func: OpOverload,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    form: Callable[[Tensor], Form] = form_of,
) -> tuple[Form, ...] | None:
    """Return the forms of what `func` gives for zeros in the `form` of each operand; None where it refuses those."""
    own = tuple([_told(item, form) for item in args])
    return _forms_given(func, own, tuple([(name, _told(item, form)) for name, item in kwargs.items()]))


def can_run(tensors: Sequence[Tensor]) -> bool:
    """Whether there are kernels for the devices of some tensors in this process."""
    return all(item.device.type == "cpu" or torch.cuda.is_available() for item in tensors)


def _told(item: object, form: Callable[[Tensor], Form]) -> object:
    """Return forms in place of tensors, a number in place of symbols, and tuples of what is in lists."""
    if isinstance(item, Tensor):
        return form(item)
    if isinstance(item, list | tuple):
        return tuple([_told(inner, form) for inner in item])
    return 1.0 if isinstance(item, py_sym_types) else item


@lru_cache(_MOST_KNOWN)
def _forms_given(
    func: OpOverload, args: tuple[object, ...], kwargs: tuple[tuple[str, object], ...]
) -> tuple[Form, ...] | None:
    with no_dispatch():
        try:  # what finds no memory now is no property of the operator, and is raised
            found = func(*map(_filled, args), **{name: _filled(item) for name, item in kwargs})
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, IndexError, ValueError, TypeError):
            return None
        return tuple(map(form_of, tensors_of(leaves_of(found))))


def _filled(item: object) -> object:
    """Return zeros in place of forms."""
    if isinstance(item, Form):
        return zeros(item)
    return tuple([_filled(inner) for inner in item]) if isinstance(item, tuple) else item


def zeros(form: Form) -> Tensor:
    """Return zeros of a form."""
    return form.empty().zero_()
