"""What does a library keep of a call for its backward pass, and where? The fake result does not say, so one asks.

Only the library knows how large what it keeps is. So the operator runs once on memory without contents, and only the
size of what it returns is used; that takes as much memory as the call takes anyway, and is remembered. cuDNN keeps
something of a batch normalisation; oneDNN of a recurrent layer, if gradients are wanted, which it sees from the grad
mode. What cuDNN keeps of a recurrent layer is not asked: such a layer is refused. Memory-efficient attention keeps two
numbers from which its dropout can be drawn again: in memory of the host, where its backward pass reads them.
"""

from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor
from torch.utils._mode_utils import no_dispatch

from outgrow.errors import Uncapturable
from outgrow.frontends.fake.arguments import Form, form_of
from outgrow.frontends.user.refusals import RECURRENT
from outgrow.ir.graph import Op

NORM = torch.ops.aten.cudnn_batch_norm.default
LAYER = torch.ops.aten.mkldnn_rnn_layer.default
KEEPING = frozenset((NORM, LAYER))
UNTOLD = frozenset((torch.ops.aten._cudnn_rnn.default,))
_TRAINS = 12
"""The place, among the arguments of one of `UNTOLD`, of whether it trains."""
_ATTENTION = torch.ops.aten._scaled_dot_product_efficient_attention.default
SEEDED = frozenset((_ATTENTION, torch.ops.aten._efficient_attention_forward.default))
_SEEDS = slice(2, 4)
"""The places of the two numbers among the results."""
_RESERVE = 3
"""The place, among the results of either operator, of what is kept."""


def with_reserve(func: Callable[..., Sequence[object]], args: Sequence[object], returned: object) -> tuple[object, ...]:
    """Return the fake results of `func`, of `KEEPING`, with as much kept as its kernel keeps, or None."""
    assert isinstance(returned, Sequence), "these operators have several results"
    results = list(returned)
    results[_RESERVE] = None
    if func is not LAYER or torch.is_grad_enabled():
        size = _reserve_bytes(func, tuple(map(_form, args)))
        results[_RESERVE] = torch.empty(size, dtype=torch.uint8, device=results[0].device)
    return tuple(results)


def without_reserve(_func: object, args: Sequence[object], returned: object) -> object:
    """Return the fake results of one of `UNTOLD`, which keeps nothing if it does not train, or raise `Uncapturable`."""
    if args[_TRAINS]:
        raise Uncapturable(f"the step trains {RECURRENT}")
    return returned


def with_seeds(_func: object, _args: Sequence[object], returned: object) -> tuple[object, ...]:
    """Return the fake results of one of `SEEDED`, with the two numbers where the kernel of a GPU has them."""
    assert isinstance(returned, Sequence), "these operators have several results"
    results = list(returned)
    home = results[0].device
    if home.type == "cuda":
        where = _seeds_device(home)
        results[_SEEDS] = [torch.empty_like(number, device=where) for number in results[_SEEDS]]
    return tuple(results)


@cache
def _seeds_device(home: torch.device) -> torch.device:
    with no_dispatch(), torch.no_grad():
        few = torch.empty(1, 1, 8, 8, device=home)
        return _ATTENTION(few, few, few, None, compute_log_sumexp=True)[_SEEDS][0].device


def keeping_reserve(op: Op, function: Callable[..., object]) -> Callable[..., object]:
    """Return what runs an op whose operator is `function`: with gradients where a layer's reserve is a result."""
    if op.operator != str(LAYER) or op.results[_RESERVE] is None:
        return function

    def run(*arguments: object) -> object:
        with torch.enable_grad():
            return function(*arguments)

    return run


@cache
def _reserve_bytes(func: Callable[..., Sequence[object]], forms: tuple[object, ...]) -> int:
    with no_dispatch(), torch.enable_grad():
        kept = func(*map(_made, forms))[_RESERVE]
    assert isinstance(kept, Tensor), "with gradients there is something to keep"
    return kept.numel()


def _form(item: object) -> object:
    if isinstance(item, Tensor):
        return form_of(item)
    return tuple(item) if isinstance(item, list) else item


def _made(form: object) -> object:
    return form.empty() if isinstance(form, Form) else form
