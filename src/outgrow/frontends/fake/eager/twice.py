"""Which gradients may be differentiated again? Not that of a determinant, nor that of cumulative products.

In eager mode torch looks at the matrix, or for zeros among the factors, and takes a way that it takes back as well.
While a step is traced it cannot look, and goes another way, with other bits, or with NaN where eager has none. Where
the gradient is not differentiated again, both ways are one; that of cumulative products, since torch 2.13 alone, and
not of complex64, of which eager mode divides in place, which rounds the last few elements otherwise.
"""

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor
from torch.torch_version import TorchVersion

from outgrow.errors import Uncapturable
from outgrow.frontends.fake.eager.products import is_transformed
from outgrow.frontends.user.lines import present_line
from outgrow.frontends.user.refusals import DROP_IN

IS_OLD = TorchVersion(torch.__version__) < "2.13"
"""Whether the gradient of cumulative products has other bits where it is traced, and so the second one of products."""
_OLD = (
    "the gradient of torch.cumprod has other bits where it is traced by a torch older than 2.13; take a newer one, or "
    "multiply by exp() of a cumsum() of logarithms"
)
_OF_COMPLEX = (
    "the gradient of torch.cumprod of complex64 has other bits where it is traced; cast to complex128, or multiply by "
    "exp() of a cumsum() of logarithms"
)
_REFUSED = (
    "the gradient of {} is itself differentiated (create_graph=True), where eager mode looks at what is in the tensor "
    "to choose a way; {}"
)
_OTHERWISE = {
    "cumprod": "multiply by exp() of a cumsum() of logarithms, or detach what needs no second derivative",
    "det": "take torch.linalg.slogdet, or detach what needs no second derivative",
    "prod": "take torch 2.13 or newer, or detach what needs no second derivative",
}


def once(name: str, own: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of torch of this name whose gradient is refused, with the user's line, where it is one again.

    >>> once("det", torch.linalg.det)(torch.eye(2))
    tensor(1.)
    """

    @wraps(own)
    def called(*args: Any, **options: Any) -> Any:
        found = own(*args, **options)
        if isinstance(found, Tensor) and found.grad_fn is not None and not is_transformed():
            found.grad_fn.register_prehook(partial(_check, name, found.dtype))
        return found

    return called


def _check(name: str, dtype: torch.dtype, _arriving: object) -> None:
    if torch.is_grad_enabled():
        what = _REFUSED.format(f"torch.{name}", _OTHERWISE[name])
        raise Uncapturable(f"{present_line()}: {what}{DROP_IN}")
    if name == "cumprod" and (IS_OLD or dtype is torch.complex64):
        raise Uncapturable(f"{present_line()}: {_OLD if IS_OLD else _OF_COMPLEX}{DROP_IN}")
