"""What do optimizers and scalers call that a trace cannot follow? Functions that do the same without a look at numbers.

A rate is a symbol while a step is traced. What compares it, or asks for its number, is exchanged for what gives a
symbol again, and the tensors of a scaler are made for good, since it keeps them.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.fx import _symbolic_trace
from torch.optim import _adafactor
from torch.utils._python_dispatch import _disable_current_modes

from outgrow.frontends.fake.kernels.lists import RATED

_SYMBOLS = (torch.SymFloat, torch.SymInt)
_MAKE_SCALE = "_lazy_init_scale_growth_tracker"
_make_scale = getattr(GradScaler, _MAKE_SCALE)
_sqrt, _pow = math.sqrt, math.pow
_full: Callable[..., Tensor] = torch.full


@contextmanager
def made_traceable() -> Iterator[None]:
    """Let scalers make their tensors for good, and functions of `_TRACEABLE` be those that can be traced.

    Functions under `torch.fx.wrap` stay what they are: a tracer would exchange them in the user's modules meanwhile.
    """
    with ExitStack() as stack:
        stack.enter_context(patch.object(GradScaler, _MAKE_SCALE, _made_for_good))
        stack.enter_context(patch.dict(_symbolic_trace._wrapped_fns_to_patch, clear=True))
        for owner, name, function in _TRACEABLE:
            stack.enter_context(patch.object(owner, name, function, create=True))
        yield


def _traced_tensor(made: Callable[..., Tensor], data: Any, **options: Any) -> Tensor:
    """As `torch.tensor` or `torch.as_tensor`, by which a tensor is `made`, which asks a symbol for its number."""
    return _full((), data, **options) if isinstance(data, _SYMBOLS) else made(data, **options)


def _traced_sqrt(number: Any, /) -> Any:
    """As `math.sqrt`, which asks a symbol for its number."""
    return torch.sym_sqrt(torch.sym_float(number)) if isinstance(number, _SYMBOLS) else _sqrt(number)


def _traced_pow(base: Any, exponent: Any, /) -> Any:
    """As `math.pow`, which asks symbols for their numbers."""
    if isinstance(base, _SYMBOLS) or isinstance(exponent, _SYMBOLS):
        return torch.sym_float(base) ** torch.sym_float(exponent)
    return _pow(base, exponent)


def _made_for_good(scaler: GradScaler, device: torch.device) -> None:
    """Give a scaler its tensors, as its first use does; real ones, since it keeps them."""
    with _disable_current_modes():
        _make_scale(scaler, device)


_TRACEABLE: tuple[tuple[object, str, object], ...] = (
    (_adafactor, "max", torch.sym_max),
    (_adafactor, "min", torch.sym_min),
    (torch, "as_tensor", partial(_traced_tensor, torch.as_tensor)),
    (torch, "tensor", partial(_traced_tensor, torch.tensor)),
    (math, "sqrt", _traced_sqrt),
    (math, "pow", _traced_pow),
    *((torch, name, function) for name, function in RATED.items()),
)
"""Functions that optimizers call on numbers of unknown content, and those that do the same without looking at them."""
