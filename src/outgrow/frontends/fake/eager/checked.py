"""What does torch look at only to raise an error? Such a check is an operator of the step, which goes on behind it.

    distributions    parameters, and what they are asked the probability of, are in range (`validate_args`)
    clipping         the norm of gradients is finite (`error_if_nonfinite=True`)
    Gaussian losses  no variance is below zero

What there will be to look at is not known when the step is captured, so it is captured as one in which all is well.
The operator looks in every call, in its turn (`frontends.tracing.checks`), and raises an error as torch does. Its text
names distributions without their parameters, and shows all values. An `except` within the step does not catch it: the
error leaves the step. What the batch alone decides is asked (`frontends.fake.looks.questions`), and may be caught.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import unwrap
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Geometric, distribution
from torch.distributions.constraints import Constraint, positive_definite, positive_semidefinite
from torch.nn import functional as F
from torch.nn.utils import clip_grad

_LIBRARY = torch.library.Library("outgrow", "FRAGMENT")
_ERRORS: Mapping[str, type[Exception]] = {kind.__name__: kind for kind in (RuntimeError, ValueError)}


def _check(found: Tensor, well: bool, error: str, text: str, values: Tensor | None) -> None:
    """Raise an error of this kind unless what was found is as it is if all is `well`; show the values looked at."""
    if bool(found) is not well:
        raise _ERRORS[error](text if values is None else f"{text}:\n{values}")


_LIBRARY.define("check(Tensor found, bool well, str error, str text, Tensor? values) -> ()")
_LIBRARY.impl("check", _check, "CompositeExplicitAutograd")
_LIBRARY.impl("check", lambda *_given: None, "Meta")


@dataclass(frozen=True, slots=True)
class _Told:
    """What code finds if all is `well`, and the error that it raises else: its kind, its text, the values it shows."""

    well: bool
    error: str
    text: str
    values: Tensor | None = None


def _parameter(names: Mapping[str, Any]) -> _Told:
    return _out_of_range(names, f"parameter {names['param']}", f"satisfy the constraint {_called(names['constraint'])}")


def _sample(names: Mapping[str, Any]) -> _Told:
    return _out_of_range(names, "value argument", f"be within the support ({_called(names['support'])})")


def _out_of_range(names: Mapping[str, Any], what: str, to: str) -> _Told:
    value, of = names["value"], f"of distribution {type(names['self']).__name__}"
    text = f"Expected {what} (Tensor of shape {tuple(value.shape)}) {of} to {to}, but found invalid values"
    return _Told(well=True, error="ValueError", text=text, values=value)


def _called(constraint: Constraint) -> str:
    """Return the name of a constraint, with its bounds if these are numbers."""
    has_tensors = any(isinstance(bound, Tensor) for bound in vars(constraint).values())
    return type(constraint).__name__.removeprefix("_") if has_tensors else repr(constraint)


def _norm(names: Mapping[str, Any]) -> _Told:
    text = (
        f"The total norm of order {names['norm_type']} for gradients from `parameters` is non-finite, so it cannot be "
        "clipped. To disable this error and scale the gradients by the non-finite norm anyway, set "
        "`error_if_nonfinite=False`"
    )
    return _Told(well=False, error="RuntimeError", text=text)


_NEGATIVE = "var has negative entry/entries"
_CHECKS: Mapping[CodeType, Callable[[Mapping[str, Any]], _Told]] = {
    Distribution.__init__.__code__: _parameter,
    Distribution._validate_sample.__code__: _sample,
    Geometric.__init__.__code__: lambda names: _out_of_range(names, "parameter probs", "be positive"),
    unwrap(clip_grad._get_total_norm).__code__: _norm,
    unwrap(F.gaussian_nll_loss).__code__: lambda _: _Told(well=False, error="ValueError", text=_NEGATIVE),
}
"""What code that checks is told to say, by the values of its names."""
_VERDICTS = (
    type(positive_definite).check.__code__,
    type(positive_semidefinite).check.__code__,
    *(item.__code__ for item in [getattr(distribution, "_all_true_or_runtime_assert", None)] if item),
)
"""They ask whether a matrix is symmetric, or all is well (torch 2.15), and who asks them raises the error if not."""


def found_if_well(found: Tensor, frame: FrameType) -> bool | None:
    """Return what code that checks finds if all is well, and check that in each call; None for other code."""
    checking = frame.f_back if frame.f_code in _VERDICTS else frame
    told_by = None if checking is None else _CHECKS.get(checking.f_code)
    if checking is None or told_by is None:
        return None
    told = told_by(checking.f_locals)
    torch.ops.outgrow.check.default(found, told.well, told.error, told.text, told.values)
    return told.well
