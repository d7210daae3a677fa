"""Which way would torch go in eager? Where it sees that it is traced it goes another one, with other bits.

    autocast      its cache is off while make_fx traces: a weight that is used twice would be cast twice, and the two
                  gradients summed in 32 bits, where eager sums them in the lower precision
    attention     in evaluation mode fused kernels are avoided where a tensor has functions of its own, as every tensor
                  seems to have while Python modes are active
    products      a gradient is found without a look at the factors (`frontends.fake.eager.products`)
    extremes      a gradient is multiplied by a mask of where the element is (`frontends.fake.eager.extremes`)
    fills         the gradient of a number is summed with zeros around it (`frontends.fake.eager.fills`)
    weights       of the targets that count are summed with zeros between them (`frontends.fake.eager.smoothing`)
    twice         determinants, and cumulative products, have other second derivatives (`frontends.fake.eager.twice`)
    values        of matrices are found with their vectors, which nobody wants (`frontends.fake.eager.values`)
    logits        of another type than their targets have gradients that are rounded (`frontends.fake.eager.logits`)
    labels        may be bytes (`frontends.fake.eager.labels`)
    one-hot       vectors are written where their ones are (`frontends.fake.eager.onehot`)
    casts         within kernels that multiply matrices are refused (`frontends.fake.eager.uncast`)
    lengths       of a CTC loss may be numbers, of which torch makes a tensor (`frontends.fake.kernels.alignments`)
    clipping      takes gradients on a GPU all at once, whose norms are summed otherwise than those of one by one
    copies        of a tensor, with copy.deepcopy, are clones
    checkpoints   selective ones keep every result, where eager keeps those that their policy names
    decisions     by what is in a tensor, which are told from numbers (`frontends.fake.looks.questions`)
    likeness      of two tensors is asked of a tensor (`frontends.fake.eager.alike`)
    checks        by what is in a tensor, which raise an error or go on (`frontends.fake.eager.checked`)
    guesses       what a step decides by numbers that are not there yet (`frontends.fake.looks.guessing`)
    types         of numbers are those of eager, to whoever asks (`frontends.fake.eager.kinds`)
    rates         and other numbers of parameter groups have other quotients (//)
    transformers  does not look at a fake tensor, such as a mask or the positions of tokens, to see whether a mask can
                  be left out; where it can look at it, it may

While the step itself is traced, torch is told what it would find in eager. Functions are exchanged where they are
looked up, and where they are called: somebody may have looked them up before.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias
from unittest.mock import patch

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional as F
from torch.nn.modules import activation
from torch.nn.utils import clip_grad
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint
from torch.utils._foreach_utils import _has_foreach_support

from outgrow.frontends.fake.eager.alike import ALIKE
from outgrow.frontends.fake.eager.checked import found_if_well
from outgrow.frontends.fake.eager.extremes import EXTREMES
from outgrow.frontends.fake.eager.fills import filled, filled_in_place
from outgrow.frontends.fake.eager.foreign import check_casts
from outgrow.frontends.fake.eager.kinds import kinds_of_eager
from outgrow.frontends.fake.eager.labels import OPERATORS, nll_loss
from outgrow.frontends.fake.eager.logits import logits_loss
from outgrow.frontends.fake.eager.onehot import one_hot
from outgrow.frontends.fake.eager.products import product
from outgrow.frontends.fake.eager.smoothing import cross_entropy_loss
from outgrow.frontends.fake.eager.twice import IS_OLD, once
from outgrow.frontends.fake.eager.uncast import UNCAST
from outgrow.frontends.fake.eager.values import VALUES
from outgrow.frontends.fake.fakes import FakeMode
from outgrow.frontends.fake.kernels.alignments import ctc_loss
from outgrow.frontends.fake.looks.guessing import numbers_decide
from outgrow.frontends.user.refusals import looks_in_vain
from outgrow.frontends.user.training.guards import Symbols
from outgrow.frontends.user.training.sharing import place

_ONCE = {name: once(name, getattr(torch, name)) for name in ("cumprod", "det")}
_PROD = once("prod", product) if IS_OLD else product
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {"prod": _PROD, "masked_fill": filled, **EXTREMES, **_ONCE}
"""What takes the place of torch's functions, and of the methods of tensors."""


def _number_by(convert: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    """Return what makes a Python number of a tensor, as `convert` does; a refusal knows by its name who asks."""

    def as_number(tensor: Tensor) -> Any:
        return convert(tensor)

    return as_number


_own_list = FakeTensor.tolist
_listing: list[Tensor] = []
"""Tensors of which a list is made: torch asks for what is in each of their elements.

It asks by `item`, which is told nothing of the list. They are those of one trace: threads trace one at a time.
"""


def _item(tensor: Tensor) -> Any:
    """Return what is in a tensor of one element; a truth value, which may be compared with `is`, at once."""
    if tensor.dtype is torch.bool and tensor.numel() == 1 and not _listing:
        return bool(tensor)
    return tensor.item()


def _list(tensor: FakeTensor) -> Any:
    """Return the list of what is in a tensor, of truth values such that can be calculated with."""
    _listing.append(tensor)
    try:
        return _own_list(tensor)
    finally:
        _listing.pop()


_own_copy = Tensor.__deepcopy__


def _copied(tensor: Tensor, memo: dict[object, object]) -> Any:
    """Return a deep copy: of what has its memory for itself a clone. Torch would copy memory behind the tracer."""
    if id(tensor) in memo:
        return memo[id(tensor)]
    is_whole = tensor.untyped_storage().nbytes() == tensor.nbytes and (_copied, place(tensor)) not in memo
    if type(tensor) not in (Tensor, FakeTensor) or not (tensor.is_leaf and is_whole) or tensor.grad is not None:
        return _own_copy(tensor, memo)
    with torch.no_grad():
        found = tensor.clone(memory_format=torch.preserve_format).requires_grad_(tensor.requires_grad)
    memo[id(tensor)] = memo[_copied, place(tensor)] = found
    return found


_Functions: TypeAlias = tuple[object, Mapping[str, Callable[..., Any]]]
_IN_PLACE: tuple[_Functions, ...] = (
    (torch, {**_FUNCTIONS, "ctc_loss": ctc_loss, "binary_cross_entropy_with_logits": logits_loss}),
    (Tensor, {**_FUNCTIONS, "masked_fill_": filled_in_place}),
    (torch.linalg, {"det": _ONCE["det"]}),
    (OPERATORS, {"cross_entropy_loss": cross_entropy_loss, "nll_loss_nd": nll_loss}),
)
"""What takes the place of functions, by their names, where they are looked up."""
_EXCHANGED: Mapping[Callable[..., Any], Callable[..., Any]] = {
    **{getattr(owner, name): ours for owner, functions in _IN_PLACE for name, ours in functions.items()},
    Tensor.item: _item,
    Tensor.__deepcopy__: _copied,
    **{convert: _number_by(convert) for convert in (Tensor.__float__, Tensor.__int__, Tensor.__complex__)},
    F.one_hot: one_hot,
    **ALIKE,
    **UNCAST,
    **VALUES,
}
"""Functions of torch, and what is called in their place."""
_NONE = torch._C._disabled_torch_function_impl
_decided = Tensor.__bool__


@contextmanager
def as_in_eager(mode: FakeMode, *, caches_casts: bool) -> Iterator[None]:
    """Let torch, and libraries, go the ways of eager on tensors of a mode; autocast keeps casts if it does so there."""
    guessing = mode.guessing
    assert guessing is not None, "a step is traced"

    def decided(tensor: Tensor) -> bool:
        found = None if mode.may_look_at(tensor) else found_if_well(tensor, sys._getframe(1))
        if found is not None:
            return found
        is_guessed = guessing.may_decide(tensor) and not looks_in_vain(sys._getframe(1))
        if is_guessed and not mode.answers(tensor):
            return guessing.by_tensor(tensor)
        with mode.deciding(), guessing.looking():
            return _decided(tensor)

    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(caches_casts)
    try:
        with (
            _Exchanged(),
            _called_in_place(*_IN_PLACE, *_OF_SYMBOLS),
            patch.object(FakeTensor, "tolist", _list),
            patch.object(torch.overrides, "has_torch_function", _has_own_functions),
            patch.object(activation, "_is_make_fx_tracing", lambda: False),
            patch.object(Tensor, "__bool__", decided, create=True),
            patch.object(clip_grad, "_has_foreach_support", _takes_lists),
            patch.object(checkpoint, "_is_compiling", lambda *_call: False),
            numbers_decide(guessing),
            kinds_of_eager(),
            _seen_by_transformers(mode),
        ):
            yield
    finally:
        torch.set_autocast_cache_enabled(before)


class _Exchanged(TorchFunctionMode):
    """Calls ours in the place of functions of torch, whoever holds them."""

    def __torch_function__(
        self, func: Callable[..., Any], _types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        check_casts(func)
        return _EXCHANGED.get(func, func)(*args, **(kwargs or {}))


@contextmanager
def _called_in_place(*owners: _Functions) -> Iterator[None]:
    with ExitStack() as stack:
        for owner, functions in owners:
            for name, ours in functions.items():
                stack.enter_context(patch.object(owner, name, ours, create=True))
        yield


def _takes_lists(tensors: Sequence[Tensor | None], device: torch.device) -> bool:
    """Whether torch takes such tensors all at once, were they not fake. On a CPU the bits are those of one by one."""
    own: list[Any] = [None if isinstance(tensor, FakeTensor) else tensor for tensor in tensors]
    return device.type != "cpu" and _has_foreach_support(own, device)


@contextmanager
def _seen_by_transformers(mode: FakeMode) -> Iterator[None]:
    """Let transformers take a tensor for a real one if it can look at it."""
    asked = sys.modules.get("transformers.utils.import_utils")
    if asked is None or not hasattr(asked, "is_fake_tensor"):
        yield
        return

    def is_unknown(tensor: object) -> bool:
        return isinstance(tensor, FakeTensor) and not mode.may_look_at(tensor)

    with patch.object(asked, "is_fake_tensor", is_unknown):
        yield


def _with_truth(own: Callable[..., Any]) -> Callable[..., Any]:
    """Return a comparison that refuses a truth value and a number: torch takes all of them for different."""

    def compared(self: torch.SymBool, other: object) -> Any:
        if not isinstance(other, bool | torch.SymBool):
            raise TypeError(f"a {type(other).__name__} was compared with SymBool")
        return own(self, other)

    return compared


_COMPARED: Mapping[str, Callable[..., Any]] = {
    name: _with_truth(getattr(torch.SymBool, name)) for name in ("__eq__", "__ne__")
}
_own_power = torch.SymFloat.__pow__


def _power(number: torch.SymFloat, exponent: Any) -> Any:
    """Return a power as torch does, which assumes that the number is not negative, and asks sympy whether it may be."""
    known, symbols = number.node.hint, number.node.shape_env
    is_plain = isinstance(exponent, int | float | torch.SymInt | torch.SymFloat) and isinstance(symbols, Symbols)
    if known is None or not known >= 0 or not is_plain:
        return _own_power(number, exponent)
    symbols.assume_not_negative(number)
    return number.__float_pow__(exponent)


_CALCULATED: Mapping[str, Callable[..., Any]] = {
    "__floordiv__": lambda self, other: float(self) // other,
    "__rfloordiv__": lambda self, other: other // float(self),
    "__divmod__": lambda self, other: divmod(float(self), other),
    "__pow__": _power,
}


_OF_SYMBOLS: tuple[_Functions, ...] = ((torch.SymFloat, _CALCULATED), (torch.SymBool, _COMPARED))


def _has_own_functions(tensors: Iterable[object]) -> bool:
    """Whether one of them is of a type with functions of its own; active modes and fake twins do not count."""
    kinds = {type(tensor) for tensor in tensors} - {Tensor}
    return any(getattr(kind, "__torch_function__", _NONE) is not _NONE for kind in kinds)
