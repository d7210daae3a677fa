"""Is a weight cast by several parts in one autocast block? Eager mode casts it once there, and keeps the cast.

Its gradients then add up in half precision. Each part casts for itself, and they add up in single precision. That is
told, once. A block is known by a cast that torch keeps as long as the block: that of a tensor of a single number.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.graph import Node

from outgrow.frontends.tracing.captured import Captured
from outgrow.remarks import remark

_CAST = "aten._to_copy.default"


class Casts:
    """The weights that parts have cast in the autocast block of now, on one kind of device."""

    def __init__(self) -> None:
        self._probe: Tensor | None = None
        self._block: Node | None = None
        self._seen: dict[int, bool] = {}
        """By the identities of weights, whether a plan has cast it."""
        self._is_told = False

    def note(self, numbers: Sequence[int], args: Sequence[object], *, is_planned: bool) -> None:
        """Remark if one of the inputs of these numbers, which a call of a part casts, was cast by an earlier call.

        Of two that ran as they are written the cast is one, as in eager mode.
        """
        weights = [arg for arg in (args[at] for at in numbers) if isinstance(arg, Tensor) and _is_kept(arg)]
        if self._is_told or not weights or not torch.is_autocast_cache_enabled():
            return
        block = self._now(weights[0].device)
        if block is not self._block:
            self._block, self._seen = block, {}
        seen = {id(weight): self._seen.get(id(weight)) for weight in weights}
        again = next((item for item in weights if seen[id(item)] or (is_planned and seen[id(item)] is not None)), None)
        self._seen |= {at: is_planned or bool(was_planned) for at, was_planned in seen.items()}
        if again is not None:
            self._is_told = True
            remark(
                f"a weight of shape {tuple(again.shape)} is cast by several calls of compiled parts in one autocast "
                "block: eager mode casts it once and adds its gradients up in half precision, parts in single "
                "precision, so they differ in the last place. Give each call of the model a block of its own to have "
                "the same bits"
            )

    def _now(self, device: torch.device) -> Node | None:
        """Return what cast the probe: another node in each block."""
        if self._probe is None:
            self._probe = torch.ones(1, 1, device=device, requires_grad=True)
        product = torch.mm(self._probe, self._probe).grad_fn
        return None if product is None else product.next_functions[0][0]


def _is_kept(arg: Tensor) -> bool:
    """Whether autocast keeps the cast of a tensor."""
    is_leaf = arg.requires_grad and arg.is_leaf and not arg._is_view()
    return is_leaf and arg.dtype == torch.float32 and torch.is_autocast_enabled(arg.device.type)


def cast_inputs(captured: Captured) -> tuple[int, ...]:
    """Return the numbers of the inputs of which a part makes a copy of another type."""
    graph = captured.graph
    leaves = captured.batch_leaves
    read = {name for op in graph.ops if op.operator == _CAST for name in graph.reads(op)}
    return tuple(leaves[name] for name in sorted(read & leaves.keys()))
