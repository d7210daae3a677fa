"""Why can a step not be captured?

While a step is captured its tensors have shapes but no contents. What asks for contents (`if loss > 1`,
`.numpy()`, a mask made of activations that chooses as many rows as they say) ends in an error of torch, deep
inside a library. Such an error becomes `Uncapturable`, naming the innermost line that belongs to the user.
Any other error is the user's own and is left as it is.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from traceback import walk_tb
from types import FrameType, TracebackType

import torch
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from outgrow.errors import Uncapturable
from outgrow.frontends.user.lines import is_of_a_library, is_raised_by_torch, where

CONTENT = (
    "this needs the content of a tensor, which is not there while the step is captured; return the tensor and do it "
    "after the step (print, log, check), or write it with tensor operations such as torch.where(mask, one, other)"
)
_NUMBER = (
    "float(), int() or complex() of a tensor needs its content, which is not there while the step is captured; decide "
    "by the tensor, or loss.item(), itself, or return it as it is, and make the number after the step"
)
_SHAPE = (
    "the shape of this result depends on the content of a tensor; give it a fixed shape, for example with "
    "torch.where(mask, one, other) or by multiplying with the mask, or do it outside of the step"
)
_LENGTHS = (
    "this operator reads lengths, which are not there while the step is captured, and other lengths make other shapes; "
    "give the layer padded sequences, and mask what is behind their ends"
)
_COUNTED = (
    "this result has an entry for each number up to the largest one, which is not there while the step is captured; "
    "count with torch.zeros(n).index_add_(0, x, weights), with weights of ones to count only"
)
_REJECTED = (
    "samples of this distribution are drawn again until all are accepted, which only their contents say; draw them "
    "outside of the step, and pass them as an argument, or take a distribution that is drawn at once"
)
_SHAPES: Mapping[object, str] = {
    torch.ops.aten.bincount.default: _COUNTED,
    torch.ops.aten._pack_padded_sequence.default: _LENGTHS,
}
ANOMALY = (
    "anomaly mode looks at the content of every gradient, which is not there while the step is captured; look "
    "for NaN without a budget, or leave the mode off (set_detect_anomaly, or a trainer's detect_anomaly=True)"
)
_FORWARD = (
    "plans hold no derivatives in forward mode (jvp, jacfwd, hessian); leave this to eager mode, outside of the step"
)
_OPERATOR = "this operator cannot say what it returns without running; do it outside of the step"
_UNDESCRIBED = (
    "this operator does not say what it returns without running; say so with register_fake, or do it outside of the "
    "step"
)
_COMPILED = (
    "this calls what torch.compile made, whose kernels are not those of eager; "
    "call the model itself (model._orig_mod) inside of the step, and after it an optimizer that compiles its updates"
)
DROP_IN = (
    '. Or leave the loop as it is, and plan its parts: torch.compile(model, backend="outgrow", '
    'options={"memory_budget": ...})'
)
NESTED = (
    "this makes a nested tensor, whose shapes are contents, and plans hold plain ones only; take padded tensors and "
    "their masks in its place (a TransformerEncoder: enable_nested_tensor=False), or do this outside of the step"
)
NOT_HELD = "which no plan can hold (random numbers: leave the generator out, so that torch's own is used)"
_GENERATOR = f"this gives an operator a Generator, {NOT_HELD}"
RECURRENT = (
    "a recurrent layer by cuDNN, which alone knows how much it keeps for the backward pass; set "
    "torch.backends.cudnn.enabled = False, or call the step under torch.backends.cudnn.flags(enabled=False)"
)
_UNTRACEABLE = "torch cannot trace this; write it otherwise, or do it outside of the step"
_OF_FUNCTIONS = (
    "torch cannot trace this operator, {}, whose operands are functions; write an if or a loop in its place, which the "
    "backend of torch.compile takes whatever it looks at, or torch.where, or do it outside of the step"
)
_INDEX = (
    "this takes a number as an index that the step computes, and which is not there while it is captured; look up with "
    "the tensor itself, by index_select(dim, index.view(1)) or gather"
)
_NO_FAKE = "no fake impl registered"
_NOT_BUILT = "Torch not compiled with"
"""CUDA, or XPU: eager mode has this error too."""
_PINNED = (
    "this locks memory of the host, which no plan repeats; pin batches outside of the step, as DataLoader does with "
    "pin_memory=True"
)
_STREAM = (
    "this tells torch's allocator of a stream, which no plan repeats; copy batches on other streams outside of the step"
)
_SAYING: Mapping[str, str] = {
    "dynamo-optimized function": _COMPILED,
    "NestedTensor": NESTED,
    _NO_FAKE: _UNDESCRIBED,
}
_CONTENT_MESSAGES = (
    "is not supported for tensor subclasses",
    "Cannot access data pointer of Tensor",
    "its data is not allocated yet",
    "passed to FakeTensor",
    "SymBool",
    "SymFloat",
    "SymInt",
)
"""What errors say that are raised where a tensor or a number has no content, the latter by the name of its type."""
_LOOKING: Mapping[str, str] = {
    "torch/nn/modules/rnn.py:forward": _LENGTHS,
    "torch/nn/utils/rnn.py:pad_packed_sequence": _LENGTHS,
    "torch/distributions/von_mises.py:_rejection_sample": _REJECTED,
    "torch/distributions/wishart.py:rsample": _REJECTED,
    "outgrow/frontends/fake/eager/eager_ways.py:as_number": _NUMBER,
}
"""Functions that look at contents, by the end of their files' paths and their names; and what to do instead."""
_RECURRENT = ("torch/nn/modules/rnn.py:forward",)
"""It looks, on a GPU, whether its weights lie in one memory."""
_ENGINE = ("torch/autograd/graph.py:_engine_run_backward",)
"""Between the operators of a backward pass it looks at gradients in anomaly mode alone."""
_SYMBOL = "torch/fx/experimental/sym_node.py"
_NESTING = tuple([f"torch/nested/__init__.py:{name}" for name in ("nested_tensor", "nested_tensor_from_jagged")])
_UNTRACKED = "is not tracked with proxy"
_TRANSFORMS = ("torch/_functorch/eager_transforms.py:_jvp_with_argnums",)


@contextmanager
def refusals() -> Iterator[None]:
    """Turn torch's errors about missing contents into `Uncapturable`; let every other error pass."""
    try:
        yield
    except (RuntimeError, TypeError, AssertionError, IndexError, ZeroDivisionError) as error:
        reason = _reason(error)
        if reason is None:
            raise
        way_out = DROP_IN if _operator_of_functions(error) is None else ""  # parts have none of these either
        raise Uncapturable(f"{where(error.__traceback__)}: {reason}{way_out}") from error


def is_unanswerable(error: Exception) -> bool:
    """Whether an error is one that eager mode does not have: it asks for contents, or for what an operator returns."""
    kinds = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException)
    return isinstance(error, kinds) or _NO_FAKE in str(error)


def check_nothing_caught(errors: Iterable[RuntimeError]) -> None:
    """Raise `Uncapturable` if the user's code has caught one of these errors of torch and gone on another way."""
    for error in errors:
        traceback = error.__traceback__  # begins where the error was caught
        if traceback is not None and not is_of_a_library(traceback.tb_frame.f_code.co_filename):
            raise Uncapturable(f"{where(traceback)}: {_reason(error)}{DROP_IN}") from error


def _reason(error: RuntimeError | TypeError | AssertionError | IndexError | ZeroDivisionError) -> str | None:
    match error:
        case RuntimeError() if "devices" in str(error) and _is_below(error.__traceback__, _TRANSFORMS):
            return _FORWARD
        case GuardOnDataDependentSymNode() if _is_asked_by(error.__traceback__, _ENGINE):
            return ANOMALY
        case GuardOnDataDependentSymNode() | DataDependentOutputException():
            return _of_content(error)
        case DynamicOutputShapeException():
            return _SHAPES.get(error.func, _SHAPE)
        case UnsupportedOperatorException():
            return NESTED if "nested" in str(error.func) else _OPERATOR
        case RuntimeError() if _UNTRACKED in str(error) and _is_below(error.__traceback__, _NESTING):
            return NESTED
        case RuntimeError() if why := next((_SAYING[part] for part in _SAYING if part in str(error)), None):
            return why
        case RuntimeError() | TypeError() | IndexError() if any(part in str(error) for part in _CONTENT_MESSAGES):
            return _INDEX if isinstance(error, IndexError) else _of_content(error)
        case NotImplementedError() if why := _not_implemented(error):
            return why
        case AssertionError() if "aten._pin_memory" in str(error):
            return _PINNED
        case AssertionError() | NotImplementedError() | ZeroDivisionError() if is_raised_by_torch(error.__traceback__):
            return None if _NOT_BUILT in str(error) else _UNTRACEABLE
        case _:
            return None


def _not_implemented(error: NotImplementedError) -> str | None:
    if "torch.Stream" in str(error):
        return _STREAM
    if "torch._C.Generator" in str(error):  # later than 2.11, torch traces it
        return _GENERATOR
    if "UntypedStorage" in str(error) and _is_below(error.__traceback__, _RECURRENT):
        return f"this runs {RECURRENT}"
    name = _operator_of_functions(error)
    return None if name is None else _OF_FUNCTIONS.format(name)


def _operator_of_functions(error: BaseException) -> str | None:
    """Return the name of the operator with functions for operands, such as torch.cond, that an error was raised by."""
    innermost = [frame for frame, _ in walk_tb(error.__traceback__)][-1:]
    found = next((frame.f_locals.get("self") for frame in innermost), None)
    return found.name() if isinstance(found, HigherOrderOperator) else None


def _of_content(error: RuntimeError | TypeError) -> str:
    """Return why the content of a tensor is not there for what an error was raised by."""
    return next((why for who, why in _LOOKING.items() if _is_below(error.__traceback__, (who,))), CONTENT)


def looks_in_vain(frame: FrameType) -> bool:
    """Whether a function runs that looks at contents until it finds what it wants, so that no answer is likely."""
    return _is_one_of(frame, tuple(_LOOKING))


def _is_below(traceback: TracebackType | None, functions: tuple[str, ...]) -> bool:
    """Whether an error was raised by what a function calls, one of those that are named."""
    return any(_is_one_of(frame, functions) for frame, _ in walk_tb(traceback))


def _is_asked_by(traceback: TracebackType | None, functions: tuple[str, ...]) -> bool:
    """Whether an error was raised by a symbol whose value one of these functions asked for itself."""
    outer = takewhile(lambda item: not item[0].f_code.co_filename.endswith(_SYMBOL), walk_tb(traceback))
    *_, (frame, _) = outer
    return _is_one_of(frame, functions)


def _is_one_of(frame: FrameType, functions: tuple[str, ...]) -> bool:
    code = frame.f_code
    return f"{Path(code.co_filename).as_posix()}:{code.co_name}".endswith(functions)
