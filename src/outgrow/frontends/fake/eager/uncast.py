"""Which operators multiply matrices within? Autocast casts what they multiply; here they are refused under it.

Autocast sees the operators that a kernel calls as it sees those of the step. A captured step has no autocast: its casts
are operators of their own, and none lies within a kernel.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from outgrow.errors import Uncapturable
from outgrow.frontends.user.lines import present_line

_KEYS = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}


def is_cast(operator: str, kind: str) -> bool:
    """Whether autocast is on for devices of a kind, and casts what an operator of this name is given."""
    key = _KEYS.get(kind, "Autocast")
    return torch.is_autocast_enabled(kind) and torch._C._dispatch_has_kernel_for_dispatch_key(operator, key)


def uncast(name: str, own: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of torch of this name that is refused, with the user's line, under autocast.

    >>> uncast("linalg.pinv", torch.linalg.pinv)(torch.eye(2).double())
    tensor([[1., 0.],
            [0., 1.]], dtype=torch.float64)
    """

    @wraps(own)
    def called(*args: Any, **options: Any) -> Any:
        kinds = {item.device.type for item in (*args, *options.values()) if isinstance(item, Tensor)}
        for kind in kinds:
            if torch.is_autocast_enabled(kind):
                raise Uncapturable(
                    f"{present_line()}: under autocast torch.{name} casts also what it multiplies within its kernel, "
                    f"which no captured step repeats; call it within torch.autocast({kind!r}, enabled=False)"
                )
        return own(*args, **options)

    return called


_ENCODER = "_transformer_encoder_layer_fwd"
UNCAST = {
    own: uncast(name, own)
    for name, own in (
        ("bilinear", torch.bilinear),
        (_ENCODER, getattr(torch, _ENCODER)),
        ("linalg.pinv", torch.linalg.pinv),
        ("linalg.lstsq", torch.linalg.lstsq),
        ("pinverse", torch.pinverse),
        ("Tensor.pinverse", Tensor.pinverse),
    )
}
"""Functions of torch, and what is called in their place while a step is traced."""
