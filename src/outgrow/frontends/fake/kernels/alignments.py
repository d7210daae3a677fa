"""How much does a CTC loss keep of the alignments for its backward pass? As much as the longest target makes of it.

Lengths in a tensor are contents, so the results have room for the longest target that can be: as long as the targets
are wide, or, where they lie in a row, as all of them. The kernels are those of eager; what they keep is copied into
that room, and out of it again as they laid it out. Lengths that are Python numbers become a tensor of literals: torch
makes one of its own, which it cannot while it is traced.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

_LIBRARY = torch.library.Library("outgrow", "FRAGMENT")
aten = torch.ops.aten
_ctc_loss: Any = torch.ctc_loss


def _aligned(
    log_probs: Tensor, targets: Tensor, inputs: Tensor, lengths: Tensor, blank: int = 0, zero_infinity: bool = False
) -> tuple[Tensor, Tensor]:
    loss, kept = aten._ctc_loss.Tensor(log_probs, targets, inputs, lengths, blank, zero_infinity)
    room = kept.new_zeros((*kept.shape[:2], 2 * targets.shape[-1] + 1))
    room[..., : kept.shape[2]] = kept
    return loss, room


def _aligned_gradient(
    gradient: Tensor,
    log_probs: Tensor,
    targets: Tensor,
    inputs: Tensor,
    lengths: Tensor,
    loss: Tensor,
    room: Tensor,
    blank: int,
    zero_infinity: bool = False,
) -> Tensor:
    kept = room[..., : 2 * int(lengths.max()) + 1].contiguous()
    given = (gradient, log_probs, targets, inputs, lengths, loss, kept, blank, zero_infinity)
    return aten._ctc_loss_backward.Tensor(*given)


def _without_contents(log_probs: Tensor, targets: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    """Return results for log probabilities of shape (times, batch, classes): the losses, and what is kept."""
    times, batch = log_probs.shape[:2]
    return log_probs.new_empty(batch), log_probs.new_empty((batch, times, 2 * targets.shape[-1] + 1))


_LIBRARY.define(
    "aligned(Tensor log_probs, Tensor targets, Tensor inputs, Tensor lengths, int blank=0, bool zero_infinity=False)"
    " -> (Tensor, Tensor)"
)
_LIBRARY.impl("aligned", _aligned, "CompositeExplicitAutograd")
_LIBRARY.impl("aligned", _without_contents, "Meta")
_LIBRARY.define(
    "aligned_gradient(Tensor gradient, Tensor log_probs, Tensor targets, Tensor inputs, Tensor lengths, Tensor loss, "
    "Tensor room, int blank, bool zero_infinity=False) -> Tensor"
)
_LIBRARY.impl("aligned_gradient", _aligned_gradient, "CompositeExplicitAutograd")
_LIBRARY.impl("aligned_gradient", lambda _, log_probs, *__: log_probs.new_empty(log_probs.shape), "Meta")


def ctc_loss(log_probs: Tensor, targets: Tensor, inputs: object, lengths: object, *options: Any) -> Tensor:
    """Return what `torch.ctc_loss` returns, called as `torch.nn.functional` does it; lengths may be numbers."""
    return _ctc_loss(log_probs, targets, _tensor(inputs, targets), _tensor(lengths, targets), *options)


def _tensor(lengths: object, targets: Tensor) -> object:
    return torch.tensor(lengths, device=targets.device) if isinstance(lengths, Sequence) else lengths


BY_TENSORS: Mapping[object, Callable[..., object]] = {
    aten._ctc_loss.Tensor: torch.ops.outgrow.aligned.default,
    aten._ctc_loss_backward.Tensor: torch.ops.outgrow.aligned_gradient.default,
}
"""Operators that are given lengths as tensors, and what stands for them in a captured step."""
