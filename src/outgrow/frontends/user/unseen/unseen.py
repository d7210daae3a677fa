"""What can a step do that goes past everything that sees what it does? It is refused, since a plan would leave it out.

tensor.data = ...   gives a tensor other memory, behind the back of autograd and of every operator; what can be followed
                    of that is (`frontends.user.training.set_data`)
set_, resize_       give what models, optimizers or the caller hold another size, where a plan has one for each;
                    a kernel may do so, too: observers of quantization make room for their channels
x.grad              of an argument is found by the caller; a plan hands over what the step returns alone
settings of torch   choose kernels; a plan runs under those of the caller. Those of cuDNN choose none on a CPU, where
                    losses of CTC in transformers switch it off, too
torch.save          writes contents that are not there
tensor.numpy()      and its like read contents without an operator, which a plan would not read again; so does tolist()
                    of many numbers, where that of few looks at each
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import NoReturn
from unittest.mock import patch

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor

from outgrow.errors import Uncapturable
from outgrow.frontends.user.own_thread import in_own_thread
from outgrow.frontends.user.training.devices import CPU
from outgrow.frontends.user.training.set_data import DATA, SetData
from outgrow.frontends.user.training.sharing import geometry
from outgrow.frontends.user.training.state import BatchSlot, ConstantSlot, Slot, StateSlot, title, title_of_argument

OBSERVING = frozenset({torch.ops.aten._fused_moving_avg_obs_fq_helper.default})
"""Operators that resize operands in their kernels alone."""
_OF_CUDNN = (
    (torch._C, "_set_cudnn_enabled"),
    (torch._C, "_set_cudnn_benchmark"),
    (torch._C, "_set_cudnn_deterministic"),
)
_SETTINGS = (
    (torch._C, "_set_mkldnn_enabled"),
    *_OF_CUDNN,
    (torch._C, "_set_deterministic_algorithms"),
    (torch._C, "_set_float32_matmul_precision"),
    (torch, "set_num_threads"),
    (torch, "set_flush_denormal"),
)
_SETTING = (
    "the step changes a setting of torch ({}), which a plan would not do while it runs; change it around the call of "
    "the step"
)
_SAVING = "the step saves something (torch.save), whose content is not there while it is captured; save after it"
_REFUSED = {
    **{setting: _SETTING.format(setting[1].removeprefix("_set_")) for setting in _SETTINGS},
    (torch, "save"): _SAVING,
}
_READING = ("tolist", "numpy", "__array__", "__dlpack__")
_MOST_LISTED = 64
"""A list of so many numbers is made by looking at one after the other, which operators do."""


@contextmanager
def nothing_unseen(
    held: Mapping[StateSlot, Tensor],
    twin: Callable[[Tensor], Tensor],
    given: Callable[[], Sequence[Tensor]],
    home: torch.device,
) -> Iterator[SetData]:
    """Refuse settings of torch and reading contents, also where the step catches the refusal.

    `held` are the tensors that a message can name, `twin` gives what the step sees in place of one, and `given` all of
    these that it has not made. The step is that of a model on `home`. Yields what it does by `tensor.data = ...`, where
    that can be followed; to the end of the block.
    """
    refused: list[Uncapturable] = []
    data = SetData(held, twin, given)

    def refuse(message: str, *_given: object, **_named: object) -> NoReturn:
        refused.append(Uncapturable(message))
        raise refused[0]

    def set_content(tensor: Tensor, content: Tensor) -> None:
        why = data.set(tensor, content)
        if why is not None:
            refuse(why)

    def reading(name: str, read: Callable[..., object]) -> Callable[..., object]:
        def content(tensor: Tensor, *args: object, **kwargs: object) -> object:
            if not isinstance(tensor, FakeTensor):
                refuse(
                    f"the step reads the content of {data.name_of(tensor)} (by {name}), which may be another one in "
                    "later calls, and would not be read again; do this outside of the step, or keep what it holds as "
                    "numbers beside it"
                )
            return read(tensor, *args, **kwargs)

        return in_own_thread(content, read)

    with ExitStack() as stack:
        for name in _READING:
            read = reading(name, getattr(Tensor, name))
            stack.enter_context(patch.object(Tensor, name, read))
        stack.enter_context(patch.object(Tensor, "tolist", in_own_thread(_of_few(Tensor.tolist), Tensor.tolist)))
        stack.callback(data.undo)
        setter = in_own_thread(set_content, DATA.__set__)
        stack.enter_context(patch.object(Tensor, "data", property(DATA.__get__, setter)))
        for (owner, name), message in _REFUSED.items():
            if home != CPU or (owner, name) not in _OF_CUDNN:
                refusing = in_own_thread(partial(refuse, message), getattr(owner, name))
                stack.enter_context(patch.object(owner, name, refusing))
        yield data
    if refused:
        raise refused[0]


def _of_few(read: Callable[[Tensor], object]) -> Callable[[Tensor], object]:
    """Return what makes a list of a tensor: of few numbers by operators."""

    def tolist(tensor: Tensor) -> object:
        is_real = not isinstance(tensor, FakeTensor)
        return _listed(tensor.detach()) if is_real and tensor.numel() <= _MOST_LISTED else read(tensor)

    return tolist


def _listed(tensor: Tensor) -> object:
    """Return what is in a tensor as `tolist` does, by operators."""
    return [_listed(item) for item in tensor.unbind()] if tensor.dim() else tensor.item()


@contextmanager
def nothing_moved(tensors: Mapping[Slot, Tensor], data: SetData) -> Iterator[None]:
    """Raise `Uncapturable` at the end if a tensor lies otherwise, or is an argument for which a gradient was left.

    Those may lie elsewhere whose `data` was set.
    """
    before = {slot: geometry(tensor) for slot, tensor in tensors.items()}
    yield
    for slot, tensor in tensors.items():
        if geometry(tensor) != before[slot] and tensor not in data:
            raise Uncapturable(
                f"the step gives {_title(slot, tensor)} another shape or other memory (by .data =, resize_, set_ or "
                "out=), for which a plan has no room; give it its final shape outside of the step"
            )
        if isinstance(slot, BatchSlot) and (tensor.requires_grad or tensor.grad is not None):
            raise Uncapturable(
                f"the step leaves a gradient, or requires_grad, in {_title(slot, tensor)}, where the caller would not "
                "find it; begin the step with x = x.detach().requires_grad_(), and return x.grad if it is needed"
            )


def _title(slot: Slot, tensor: Tensor) -> str:
    assert not isinstance(slot, ConstantSlot), "constants are found later"
    return title_of_argument(slot.leaf, tensor) if isinstance(slot, BatchSlot) else title(slot)


def with_room(_func: OpOverload, args: Sequence[object], returned: object) -> object:
    """Return the results of one of `OBSERVING`, which have room for each channel by now, or raise `Uncapturable`."""
    observed, *channelwise = (args[at] for at in (0, 3, 4, 5, 6))
    channel_axis, is_channelwise = args[10], len(args) > 11 and args[11]
    assert isinstance(observed, Tensor), "the first operand is what is observed"
    assert isinstance(channel_axis, int), "an axis is a number"
    counts = {operand.numel() for operand in channelwise if isinstance(operand, Tensor)}
    if is_channelwise and counts != {observed.shape[channel_axis]}:
        raise Uncapturable(
            "the step makes room for the channels of a quantization observer, whose size a plan has to know; run the "
            "model once before the first step"
        )
    return returned
