"""What does an operator return whose abstract implementation fails, though its kernel does not?

over no elements     means divide by zero, as the gradients of losses of an empty batch do, and sizes are asked for
                     otherwise: the operator costs nothing, so it is run on memory without elements
in complex numbers   `nan_to_num_` knows real ones alone, where `nan_to_num` knows both: what is written is returned
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_map_only

from outgrow.frontends.fake.arguments import Invoked, form_of, writes
from outgrow.frontends.fake.kernels.ambiguous import may_run
from outgrow.frontends.fake.kernels.asked import zeros
from outgrow.frontends.fake.looks.literals import of_its_form

FAILURES = (RuntimeError, TypeError, ZeroDivisionError)


def returned_after_all(func: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]) -> object | None:
    """Return the fake results of `func`, whose abstract implementation has failed; None if its kernel may fail as well.

    Fakes are made anew for it, so the mode of fake tensors must be on.
    """
    call = Invoked(func, args, kwargs)
    operands = call.tensors
    if func is torch.ops.aten.nan_to_num_.default and operands[0].is_complex():
        return operands[0]
    if writes(func):
        return None
    if all(item.numel() for item in operands) or not may_run(func, call.leaves, operands):
        return None
    try:
        own, named = call.exchanged(lambda like: zeros(form_of(like)))
        with no_dispatch():
            found = func(*own, **named)
    except FAILURES:
        return None
    return tree_map_only(Tensor, of_its_form, found)
