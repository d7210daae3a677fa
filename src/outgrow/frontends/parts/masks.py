"""Which way does a model go while Dynamo reads it? The one that it goes in eager mode.

Eager mode looks at a mask that it is given, and leaves it out where all are ones; and at positions, whether several
sequences are packed in a row. Other kernels run then. Under Dynamo transformers looks at neither, and keeps masks; nor
does it scan a sequence (Mamba) step by step. So when a part of ours is read it is told that nothing is traced, and
Dynamo breaks the graph where it looks. Positions that the model makes itself, from nothing but numbers, are known while
Dynamo reads: there is no break for these. An `nn.MultiheadAttention` that is evaluated is one operator of torch's in
eager mode, and so it is in a part. An `nn.TransformerEncoder` that is evaluated makes a nested tensor of a mask of
padding, which no part can hold: it runs as it is, between parts.

What other backends compile goes the ways that it went before.
"""

import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from types import MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._dynamo.callback import CallbackArgs, callback_handler
from torch._dynamo.comptime import ComptimeContext, comptime
from torch._dynamo.repro.after_dynamo import WrapBackendDebug
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.nn.modules import activation

_ASKING = ("transformers.masking_utils", "transformers.modeling_attn_mask_utils")
"""Where transformers makes masks."""
_COUNTING = frozenset({"arange", "add", "sub", "unsqueeze", "expand", "view", "reshape", "to", "long"})
"""What makes positions of numbers."""
_WRITING = frozenset({"setitem", "iadd", "isub", "imul", "copy"})
"""What writes, beside what ends in an underscore."""
_backends: set[Callable[..., object]] = set()
_known: list[Tensor | None] = [None]
"""The positions that were looked at last, if they are known."""


def look_as_in_eager(backend: Callable[..., object]) -> None:
    """From now on let transformers look at masks and positions in all that this backend compiles."""
    _backends.add(backend)
    _prepare()
    if _prepare not in callback_handler.start_callbacks:  # `torch._dynamo.reset` forgets it
        callback_handler.register_start_callback(_prepare)


def _prepare(_about: CallbackArgs | None = None) -> None:
    """Replace how an encoder runs, what an attention asks, and what transformers asks, once it is there.

    Dynamo's guards want the same functions in each call.
    """
    _replace(nn.TransformerEncoder, "forward", _apart_in_parts)
    _replace(activation, "_is_make_fx_tracing", _no_in_parts)
    if "transformers" not in sys.modules:
        return
    for name in _ASKING:
        with suppress(ImportError):  # of another release
            module = import_module(name)
            _replace(module, "is_tracing", _no_in_parts)
            _replace(module, "is_torchdynamo_exporting", _no_in_parts)
            _replace(module, "find_packed_sequence_indices", _known_in_parts)
    for name, module in [*sys.modules.items()]:
        if name.startswith("transformers.models."):
            _replace(module, "is_torchdynamo_compiling", _no_in_parts)


def _replace(owner: ModuleType | type, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    asked = vars(owner).get(name)
    if asked is not None and asked.__module__ != __name__:
        setattr(owner, name, make(asked))


def _apart_in_parts(encode: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return what runs an encoder, and not in a part where eager mode would make a nested tensor."""
    apart: Any = torch._dynamo.disable(encode)

    def forward(encoder: nn.Module, *args: Any, **kwargs: Any) -> Tensor:
        padding = kwargs.get("src_key_padding_mask", args[2] if len(args) > 2 else None)
        makes_nested = padding is not None and not (encoder.training or torch.is_grad_enabled())
        return (apart if makes_nested and _is_read() else encode)(encoder, *args, **kwargs)

    return forward


def _no_in_parts(asked: Callable[..., bool]) -> Callable[..., bool]:
    """Return a question that is answered with no where a part of ours is read, else as before."""

    def is_traced(*tensor: object) -> bool:
        return not _is_read() and asked(*tensor)

    return is_traced


def _known_in_parts(asked: Callable[[Tensor], Tensor | None]) -> Callable[[Tensor], Tensor | None]:
    """Return what finds packed sequences, and knows without a break where positions are known and follow each other."""

    @torch._dynamo.assume_constant_result
    def follow() -> bool:
        (positions,) = _known
        if positions is None:
            return False
        with unset_fake_temporarily():
            return asked(positions) is None

    def find_packed(position_ids: Tensor) -> Tensor | None:
        if _is_read():
            comptime(_look)
            if follow():
                return None
        return asked(position_ids)

    return find_packed


@torch._dynamo.assume_constant_result
def _is_read() -> bool:
    """Whether Dynamo reads a part of ours; it asks while it does."""
    try:
        found: Any = InstructionTranslator.current_tx().output.compiler_fn
    except AttributeError:  # nothing is read
        return False
    return _bare(found) in _backends


def _bare(backend: Any) -> object:
    """Return a backend without what is wrapped around it."""
    match backend:
        case WrapBackendDebug():
            return _bare(backend._torchdynamo_orig_backend)
        case torch._TorchCompileWrapper():
            return _bare(backend.compiler_fn)
        case MethodType():
            return backend.__func__
    return backend


def _look(context: ComptimeContext) -> None:
    """Note the positions if they are made of nothing but numbers; for that it does not matter how often they repeat."""
    proxy: Any = context.get_local("position_ids").as_proxy()
    node: fx.Node = proxy.node
    while node.op == "call_method" and node.target == "expand":
        node = node.all_input_nodes[0]
    made = _sources(node)
    is_known = all(_name(item) in _COUNTING for item in made) and not any(
        _name(item).endswith("_") or _name(item) in _WRITING for item in node.graph.nodes if made & _sources(item)
    )
    _known[0] = _computed(node) if is_known else None


def _name(node: fx.Node) -> str:
    """Return the name of a call; nothing for what enters."""
    if node.op == "call_method":
        return str(node.target)
    return getattr(node.target, "__name__", "") if node.op == "call_function" else ""


def _sources(node: fx.Node) -> set[fx.Node]:
    """Return a node and all that it depends on."""
    found, waiting = {node}, [node]
    while waiting:
        fresh = set(waiting.pop().all_input_nodes) - found
        found |= fresh
        waiting += fresh
    return found


def _computed(node: fx.Node) -> Tensor:
    """Return what a node gives that depends on nothing but numbers."""
    args, kwargs = fx.map_arg(node.args, _computed), fx.map_arg(node.kwargs, _computed)
    with unset_fake_temporarily():
        if callable(node.target):
            return node.target(*args, **kwargs)
        given: Any = args
        return getattr(given[0], node.target)(*given[1:], **kwargs)
