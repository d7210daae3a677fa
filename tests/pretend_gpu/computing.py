"""What does a pretended GPU compute? What the CPU does: this lets its kernels work on the same memory.

    PRETEND_OPEN=1 python -m tests.pretend_gpu python -m pytest -p tests.pretend_gpu.computing -m cuda tests

A program of one's own imports this module before it begins. Then numbers mean something: a step that is planned for the
pretended GPU can be compared with the same one in eager mode, bit for bit. Dispatch, allocator, streams and copies are
torch's own, as before; times still mean nothing.

Not as on a GPU: cuDNN is off, attention is the plain one, a call with operands of both devices is computed where a GPU
refuses it, and random numbers depend on the seed and the offset of the generator, but are other ones. Needs
NUMBA_DISABLE_CUDA=1, too.
"""

import ctypes
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch._ops import OpOverload

GPU = torch.device("cuda", 0)
OFFSETS = 16
"""So far a generator goes on with each operator that draws from it; a multiple of 4."""
AS_THEY_ARE = frozenset(
    f"aten::{name}"
    for name in (
        *("empty.memory_format", "empty_strided", "_efficientzerotensor", "resize_", "resize_.out", "record_stream"),
        *("as_strided", "view", "view.dtype", "_reshape_alias", "alias", "unfold", "is_set_to", "is_pinned"),
        *("set_", "set_.source_Storage", "set_.source_Storage_storage_offset", "set_.source_Tensor", "_pin_memory"),
    )
)
"""Operators that launch no kernel."""
BESIDE = frozenset(("aten::convolution", "aten::convolution_backward", "aten::zero_"))
"""Operators that call others of the GPU, and are computed as a whole."""


def install() -> None:
    """Let operators of CUDA compute what those of the CPU do, from now on."""
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that kernels are replaced is the point
        for name in sorted(torch._C._dispatch_get_all_op_names()):
            if name.startswith("aten::") and name not in AS_THEY_ARE and name != "aten::copy_" and _has_kernels(name):
                library.impl(name.partition("::")[2], _computed(_operator(name)), "CUDA", allow_override=True)
        library.impl("copy_", _copied, "CUDA", allow_override=True)
        library.impl("_fused_sdp_choice", lambda *_args, **_kwargs: 0, "CUDA", allow_override=True)
    torch.backends.cudnn.enabled = False
    for kind in ("flash", "mem_efficient", "cudnn"):
        getattr(torch.backends.cuda, f"enable_{kind}_sdp")(False)
    _installed.append(library)


_installed: list[torch.library.Library] = []


def _has_kernels(name: str) -> bool:
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return name in BESIDE or (has(name, "CUDA") and (has(name, "CPU") or has(name, "CompositeExplicitAutograd")))


def _operator(name: str) -> OpOverload:
    packet, _, overload = name.partition("::")[2].partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _computed(operator: OpOverload) -> Callable[..., object]:
    """Return a kernel for the GPU: the CPU's, on tensors over the same memory; new results get memory of the GPU."""
    name = operator._schema.name.partition("::")[2]
    draws = torch.Tag.nondeterministic_seeded in operator.tags

    def compute(*args: object, **kwargs: object) -> object:
        here = _Here()
        given, options = pytree.tree_map(here.of, (args, kwargs))
        found = _drawn(operator, here.generator, given, options) if draws else operator(*given, **options)
        if name.startswith("convolution"):
            found = pytree.tree_map_only(Tensor, Tensor.contiguous, found)
        elif "batch_norm" in name and "backward" not in name and isinstance(found, tuple):
            found = _with_statistics(found, given)
        here.grow()
        return pytree.tree_map_only(Tensor, here.there, found)

    return torch.compiler.disable(compute)


class _Here:
    """The operands of a call, each with a tensor of the CPU over its memory."""

    def __init__(self) -> None:
        self.generator: torch.Generator | None = None
        self._pairs: dict[int, tuple[Tensor, Tensor]] = {}

    def of(self, item: object) -> Any:
        """Return what the CPU is given for an argument."""
        if isinstance(item, torch.Generator):
            self.generator = item
            return None
        if isinstance(item, torch.device):
            return torch.device("cpu")
        if not isinstance(item, Tensor) or item.device.type != "cuda":
            return item
        return self._pairs.setdefault(id(item), (item, _over(item)))[1]

    def grow(self) -> None:
        """Give operands that results were written to, and that were resized for it, their new shape and contents."""
        for item, own in self._pairs.values():
            if item.size() != own.size():
                item.resize_(own.size())
                _move(item.data_ptr(), own.contiguous().data_ptr(), item.numel() * item.element_size())

    def there(self, result: Tensor) -> Tensor:
        """Return a result on the GPU: an operand, a view of one, or a new tensor laid out as the CPU's."""
        begin, size = result.untyped_storage().data_ptr(), result.untyped_storage().nbytes()
        for item, own in self._pairs.values():
            if own is result:
                return item
            if size and own.untyped_storage().data_ptr() == begin:
                return torch.as_strided(item, result.size(), result.stride(), result.storage_offset())
        if size > result.numel() * result.element_size():
            result = result.clone()
        found = torch.empty_strided(result.size(), result.stride(), dtype=result.dtype, device=GPU)
        _move(found.data_ptr(), result.data_ptr(), found.untyped_storage().nbytes() if result.numel() else 0)
        return found


def _over(item: Tensor) -> Tensor:
    """Return a tensor of the CPU over the memory of one of the GPU."""
    storage = item.untyped_storage()
    own = torch.UntypedStorage(0)
    if storage.nbytes():
        own = torch._C._construct_storage_from_data_pointer(storage.data_ptr(), torch.device("cpu"), storage.nbytes())
    return torch.empty(0, dtype=item.dtype).set_(own, item.storage_offset(), item.size(), item.stride())


def _move(target: int, source: int, size: int) -> None:
    if size:
        ctypes.memmove(target, source, size)


def _drawn(
    operator: OpOverload, generator: torch.Generator | None, args: Sequence[object], options: Mapping[str, object]
) -> object:
    """Return what an operator draws from the generator of the GPU, which goes on; the CPU's stays where it is."""
    drawn = torch.cuda.default_generators[GPU.index] if generator is None else generator
    before, seed, offset = torch.get_rng_state(), drawn.initial_seed(), drawn.get_offset()
    torch.default_generator.manual_seed((seed * 6364136223846793005 + offset * 1442695040888963407) % (1 << 63))
    try:
        return operator(*args, **options)
    finally:
        torch.set_rng_state(before)
        drawn.set_offset(offset + OFFSETS)


def _with_statistics(found: tuple[Any, ...], args: Sequence[Any]) -> tuple[Any, ...]:
    """Return the results of a normalisation with statistics also where it does not train, as a GPU has them."""
    channels = args[0].size(1)
    saved = [item if item.numel() else torch.zeros(channels) for item in found[1:3]]
    return (found[0], *saved, *found[3:])


def _copied(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:  # noqa: ARG001
    """Copy as the CPU does; where the bytes lie alike, just these."""
    is_alike = target.dtype == source.dtype and target.size() == source.size()
    if is_alike and target.is_contiguous() and source.is_contiguous() and not (source.is_conj() or source.is_neg()):
        _move(target.data_ptr(), source.data_ptr(), target.numel() * target.element_size())
    else:
        own = _over(target) if target.device.type == "cuda" else target
        own.copy_(_over(source) if source.device.type == "cuda" else source)
    return target


install()
