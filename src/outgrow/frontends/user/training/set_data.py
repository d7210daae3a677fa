"""What does `tensor.data = other` do in a step? The tensor has the memory of the other one from then on.

Views that were taken of it before, what autograd keeps of them, and whoever holds them outside, stay with the memory
that it had. In a trace a call of `rebound` says so: who reads the tensor behind it reads the other memory. What a model
or an optimizer holds is given its memory after each call, in the same way.

The other one has to be made by the step, with the same shape, strides and type, or be what the tensor had when the step
began, which is given back. Gradients that were there before are not set, since they stay to the end of the step.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing, get_proxy_mode
from torch.fx.node import has_side_effect

from outgrow.frontends.user.training.sharing import Geometry, geometry, place
from outgrow.frontends.user.training.state import GradientSlot, StateSlot, title

DATA: Any = torch._C.TensorBase.data


@has_side_effect
def rebound(tensor: Tensor, content: Tensor) -> None:
    """Say in a trace that from here on `tensor` has the memory of `content`."""
    raise AssertionError(f"nobody runs the trace of {tensor} and {content}")


def sets_data(module: fx.GraphModule) -> bool:
    """Whether a step sets the `.data` of a tensor."""
    return any(True for _ in module.graph.find_nodes(op="call_function", target=rebound))


class SetData:
    """The tensors whose `.data` a step has set while it is traced."""

    def __init__(
        self,
        held: Mapping[StateSlot, Tensor],
        twin: Callable[[Tensor], Tensor],
        given: Callable[[], Sequence[Tensor]],
    ) -> None:
        """`held` are the tensors of models and optimizers; the others that can be set are those that the step makes.

        `twin` gives what the step sees in place of a tensor, and `given` all of these that it has not made.
        """
        self._held = {id(tensor): slot for slot, tensor in held.items()}
        self._twin, self._given = twin, given
        self._before: dict[int, tuple[Tensor, Tensor]] = {}
        """Twins by identity, and what they were at first."""

    def __contains__(self, tensor: Tensor) -> bool:
        """Whether the `.data` of a tensor was set, and what it had is not back."""
        return id(self._twin(tensor)) in self._before

    def name_of(self, tensor: Tensor) -> str:
        """Return what a tensor is called in a message."""
        slot = self._held.get(id(tensor))
        return f"a tensor of shape {tuple(tensor.shape)}" if slot is None else title(slot)

    def set(self, tensor: Tensor, content: Tensor) -> str | None:
        """Let a tensor have the memory of another one; return why it cannot, if so."""
        there, new = self._twin(tensor), self._twin(content)
        if geometry(there) == geometry(new) and there.dtype == new.dtype:  # `x.data *= 2` has written in place before
            return None
        slot = self._held.get(id(tensor))
        is_back = id(there) in self._before and geometry(new) == geometry(self._before[id(there)][1])
        if not (self._is_own(tensor, slot) and (is_back or self._is_made(new)) and _form(there) == _form(new)):
            return (
                f"the step sets the .data of {self.name_of(tensor)} to a tensor that it has not made, or that lies "
                "otherwise, or the tensor comes from outside; write into it (under torch.no_grad(), with copy_), "
                "assign p.grad itself, or do this outside of the step"
            )
        proxies = get_proxy_mode()
        assert proxies is not None, "a step is traced"
        nodes = tuple(proxies.tracer.tensor_tracker[item].proxy.node for item in (there, new))
        with disable_proxy_modes_tracing(), torch.no_grad(), torch._C.DisableTorchFunction():
            before = DATA.__get__(there)
            before.copy_(torch.empty_like(before))  # nobody knows any more what is in it
            self._before.setdefault(id(there), (there, before))
            DATA.__set__(there, new)
            if is_back:
                del self._before[id(there)]
        proxies.tracer.graph.call_function(rebound, nodes)
        return None

    def _is_own(self, tensor: Tensor, slot: StateSlot | None) -> bool:
        """Whether a tensor is the step's to set: nobody else finds it, or a plan can put what it is."""
        if slot is not None:
            return not isinstance(slot, GradientSlot)
        return isinstance(tensor, FakeTensor) and all(tensor is not item for item in self._given())

    def _is_made(self, tensor: Tensor) -> bool:
        """Whether the memory of a tensor is of the step's making."""
        first = {key: before for key, (_, before) in self._before.items()}
        return place(tensor) not in {place(first.get(id(item), item)) for item in self._given()}

    def undo(self) -> None:
        """Give the twins the memory that they had."""
        for there, before in self._before.values():
            DATA.__set__(there, before)


def _form(tensor: Tensor) -> Geometry:
    return (tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
