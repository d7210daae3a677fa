"""How do a forward pass and its backward pass become one step? As one function, with a hole between the two.

    forward   what gives the results
    hole      the op `outgrow.elsewhere`: it reads the results and the inputs, since others see what is in them by then,
              and returns the gradients that arrive for the results
    backward  what gives the gradients of the inputs

Whoever runs the step stops before the hole, and goes on once gradients have arrived (`frontends.parts`).

An input that is written over, as by an in-place operator behind a break of the graph, has another history afterwards,
if it wants a gradient or what is written does: it is a result, too.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx
from torch._C import _autograd
from torch._higher_order_ops.wrap import tag_activation_checkpoint
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge
from torch.utils.checkpoint import checkpoint

from outgrow.errors import Uncapturable
from outgrow.frontends.parts.addends import addends
from outgrow.frontends.parts.aliases import SameAs, aliases, views_read
from outgrow.frontends.parts.casting import NO_CASTING, Casting
from outgrow.frontends.user.training.sharing import Geometry, geometry
from outgrow.ir.graph import Graph, Op

_STATE = re.compile("_(parameters|buffers)_")
"""What Dynamo's names of inputs that belong to a module have in common."""
_FRAME = re.compile(r'File "(?P<file>.*)", line (?P<line>\d+), in (?P<function>.*)')
_RESUMED = re.compile(r"torch_dynamo_resume_in_(.*)_at_\d+")
"""How Dynamo names what is left of a function behind a break."""
_ASSIGNING = frozenset({"iadd", "isub", "imul", "itruediv", "ipow", "setitem"})
"""What assigns to a tensor, beside what ends in an underscore or is called with `inplace`."""
_VERSION_LOWERED = "_lower_version_count_by_1"
_DATA_SET: Any = getattr(torch.ops.aten, "shallow_copy_data_", None)
"""Dynamo's function that makes up for the version that `set_` raises where `.data` is set."""
_OVERWRITTEN = "modified by an inplace operation"
"""How autograd says that a value which it keeps was written over."""
_ELSEWHERE = "outgrow.elsewhere.default"
_LIBRARY = torch.library.Library("outgrow", "FRAGMENT")
_LIBRARY.define(
    "elsewhere(Tensor[] results, int[] differentiable, int[] strides) -> Tensor[]",
    tags=(torch.Tag.nondeterministic_seeded,),
)


def _elsewhere(results: Sequence[Tensor], differentiable: Sequence[int], strides: Sequence[int]) -> list[Tensor]:
    """Return gradients without contents, with all their strides given in a row; without strides, like the results."""
    found = [results[at] for at in differentiable]
    if not strides:
        return [torch.empty_like(item) for item in found]
    rest = iter(strides)
    return [item.new_empty_strided(item.shape, [next(rest) for _ in item.shape]) for item in found]


_LIBRARY.impl("elsewhere", _elsewhere, "CompositeExplicitAutograd")


@dataclass(frozen=True, slots=True)
class Origin:
    """The line of the user's code where a part begins, as "forward, train.py:12", and the inputs that are no state."""

    begins: str
    inputs: tuple[int, ...]


class _Handed(torch.autograd.Function):
    """A tensor that somebody else has made: no leaf, so autocast does not keep its casts, and its version may rise."""

    @staticmethod
    def forward(_ctx: Any, tensor: Tensor) -> Tensor:
        """Return the same memory."""
        return tensor.detach()

    @staticmethod
    def backward(_ctx: Any, *gradients: Tensor) -> Tensor:
        """Return what arrives."""
        return gradients[0]


def primal(given: Tensor, arg: Tensor) -> Tensor:
    """Return what shares memory and version with an input, and wants a gradient of its own: a leaf if `arg` is one."""
    leaf = given.detach().requires_grad_()
    return leaf if arg.is_leaf else _Handed.apply(leaf)


Arriving: TypeAlias = Callable[[list[Sequence[int]]], Sequence[Sequence[int] | None]]
"""Gives the strides of the gradients for results of some shapes, those that can have one; None where none arrives."""


def joint(
    module: fx.GraphModule, args: Sequence[object], arriving: Arriving | None = None, casting: Casting = NO_CASTING
) -> Callable[..., object]:
    """Return the forward and backward pass of a module as one function of its inputs.

    It returns the results, behind them the inputs that are written over and have another history then; for each input
    that wants a gradient what adds up to it, in the order in which it arrives: eager mode adds it to what has arrived
    from elsewhere, piece by piece; and the numbers of those inputs. Gradients lie like the results, unless it is known
    how they are `arriving`. Autocast does in the backward pass what `casting` says.
    """
    numbered = enumerate(args) if torch.is_grad_enabled() else ()
    wanted = {at: arg for at, arg in numbered if isinstance(arg, Tensor) and arg.requires_grad}

    def both(*given: Any) -> tuple[list[object], list[list[Tensor]], list[int]]:
        primals = [primal(item, wanted[at]) if at in wanted else item for at, item in enumerate(given)]
        before = [_history(item) for item in primals]
        lying = [geometry(item) if isinstance(item, Tensor) else () for item in primals]
        leaves = {at: get_gradient_edge(primals[at]) for at in wanted}
        results: list[Any] = list(module(*primals))
        _check_memory(module, primals, lying, leaves)
        written = _written(module, args, primals, before)
        over = {id(primals[at]): SameAs(at) for at in written}
        views = aliases(results, [None if at in written else item for at, item in enumerate(primals)])
        through = {at: views.pop(at) for at in views_read(results, views, leaves)}
        results = [views.get(at, over.get(id(item), item)) for at, item in enumerate(results)]
        results += [primals[at] for at in written]
        differentiable = [at for at, item in enumerate(results) if isinstance(item, Tensor) and item.requires_grad]
        if not differentiable:
            return results, [], written
        strides: list[int] = []
        if arriving is not None:
            arrival = arriving([results[at].shape for at in differentiable])
            strides = [*chain.from_iterable(found for found in arrival if found is not None)]
            differentiable = [at for at, found in zip(differentiable, arrival, strict=True) if found is not None]
        tensors = [item.detach() if isinstance(item, Tensor) else torch.empty(0) for item in results]
        tensors += [item for item in given if isinstance(item, Tensor)]  # who writes one stays on its side
        gradients = torch.ops.outgrow.elsewhere(tensors, differentiable, strides)
        with _overwriting_refused(), casting.again():
            found = addends([results[at] for at in differentiable], [*leaves.values()], gradients)
        returned = [through.get(at, item) for at, item in enumerate(results)]
        for at in written:
            if at not in wanted:
                primals[at].detach_()  # it is what was given
        return [item.detach() if isinstance(item, Tensor) else item for item in returned], found, written

    return both


@contextmanager
def _overwriting_refused() -> Iterator[None]:
    """Refuse a part of which some result has no gradient any more, which eager mode minds once that is asked for."""
    try:
        yield
    except RuntimeError as error:
        if _OVERWRITTEN not in str(error):
            raise
        raise Uncapturable(
            "a compiled part is captured with gradients for all of its results, and that of one needs a value that the "
            "part has written over; write the operation out of place (x = x * 2 for x *= 2, inplace=False), or detach "
            f"the result, if no gradient of it is wanted. Autograd says: {error}"
        ) from error


def _check_memory(
    module: fx.GraphModule,
    primals: Sequence[object],
    before: Sequence[Geometry],
    edges: Mapping[int, GradientEdge],
) -> None:
    """Refuse a module that gives an input other memory, where the caller would not find it.

    So is one that gives back what it had, if gradients go to the input: they would arrive elsewhere, as `set_` leaves a
    leaf.
    """
    for at, (item, old) in enumerate(zip(primals, before, strict=True)):
        if not isinstance(item, Tensor):
            continue
        is_moved = at in edges and item.grad_fn is None and get_gradient_edge(item).node is not edges[at].node
        if is_moved or geometry(item) != old:
            raise Uncapturable(
                f"a compiled part gives its input of shape {tuple(item.shape)} another shape or other memory (by .data "
                f"=, resize_ or set_){_by(module, at)}; write into it (with copy_, under torch.no_grad()), or do this "
                "outside of the compiled model"
            )


def _history(item: object) -> tuple[int, Node | None]:
    """Return how often a tensor was written, and what computed it; inference tensors have no such history."""
    return (item._version, item.grad_fn) if isinstance(item, Tensor) and not item.is_inference() else (0, None)


def _written(
    module: fx.GraphModule,
    args: Sequence[object],
    primals: Sequence[object],
    before: Sequence[tuple[int, Node | None]],
) -> list[int]:
    """Return the numbers of the inputs that were written over and have another history now.

    Those that were written past autograd (by `.data`, or under `torch.no_grad()`) have the one that they had. Raises
    `Uncapturable` for a view: autograd gives no view the history of a function with several results.
    """
    found: list[int] = []
    for at, (arg, item, (version, node)) in enumerate(zip(args, primals, before, strict=True)):
        if not isinstance(arg, Tensor) or not isinstance(item, Tensor):
            continue
        if not item.requires_grad or item._version == version or (item.grad_fn is node and arg.requires_grad):
            continue
        if arg._is_view():
            raise Uncapturable(
                f"a compiled part writes over its input of shape {tuple(item.shape)}{_by(module, at)}, which is a "
                "view, and whose gradient is wanted from then on; write the operation out of place (inplace=False)"
            )
        found.append(at)
    return found


def _by(module: fx.GraphModule, at: int) -> str:
    """Return the line in which an input is written over first, and by which operator, if that is known."""
    given = next(islice(module.graph.find_nodes(op="placeholder"), at, None))
    for node in given.users:
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        if name.endswith("_") or node.kwargs.get("inplace") or name in _ASSIGNING:
            place = _place_of(node)
            return f" by {name}{place and f' in {place}'}"
    return ""


def origin_of(module: fx.GraphModule) -> Origin:
    """Return where a module that Dynamo has made comes from."""
    calls = [node.name for node in module.graph.nodes if node.op.startswith("call")]
    begins = next(filter(None, map(_place_of, module.graph.nodes)), calls[0] if calls else "")
    names = [node.name for node in module.graph.find_nodes(op="placeholder")]
    return Origin(begins, tuple(at for at, name in enumerate(names) if not _STATE.search(name)))


def _place_of(node: fx.Node) -> str:
    """Return the line of a node, as "forward, train.py:12"; nothing if it is not known."""
    found = _FRAME.search(node.stack_trace or "")
    return (
        "" if found is None else _RESUMED.sub(r"\1", f"{found['function']}, {Path(found['file']).name}:{found['line']}")
    )


def hole_of(graph: Graph) -> Op | None:
    """Return the hole of a captured joint function; None if nobody wants a gradient."""
    return next((op for op in graph.ops if op.operator == _ELSEWHERE), None)


def open_results(hole: Op | None) -> tuple[int, ...]:
    """Return the numbers of the results for which gradients arrive."""
    numbers = () if hole is None else hole.arguments[1]
    assert isinstance(numbers, tuple), "the operator takes a list"
    return tuple(number for number in numbers if isinstance(number, int))


def as_traced(module: fx.GraphModule) -> fx.GraphModule:
    """Let `.data` be set, and regions of `torch.utils.checkpoint` run twice, as in eager mode.

    Dynamo keeps a region as one call. A region within another one is a call in the graph of that.
    """
    for graph_module in module.modules():
        if isinstance(graph_module, fx.GraphModule):
            _let_data_be_set(graph_module)
            _run_regions_twice(graph_module)
    return module


def _let_data_be_set(module: fx.GraphModule) -> None:
    """Replace what Dynamo makes of `tensor.data = data`.

    That is `set_`, and a call that makes up for the version it raises; from torch 2.15 on an operator of its own.
    """
    for node in module.graph.find_nodes(op="call_function", target=_DATA_SET) if _DATA_SET else ():
        node.target = set_data_
    for node in module.graph.find_nodes(op="call_function", target=torch.Tensor.set_):
        for after in [user for user in node.users if getattr(user.target, "__name__", "") == _VERSION_LOWERED]:
            after.replace_all_uses_with(node)
            module.graph.erase_node(after)
            node.target = set_data_


def set_data_(tensor: Tensor, data: Tensor) -> Tensor:
    """Give a tensor the memory of another one, with the version that it had; return it.

    One that lies there already stays as it is: by `set_`, gradients of what reads it later would arrive elsewhere.
    """
    if geometry(tensor) != geometry(data):
        version = tensor._version
        torch.ops.aten.set_.source_Tensor(tensor, data)
        _autograd._unsafe_set_version_counter((tensor,), (version,))
    return tensor


def _run_regions_twice(module: fx.GraphModule) -> None:
    for node in module.graph.find_nodes(op="call_function", target=tag_activation_checkpoint):
        own, asked = (), node.kwargs
        is_reentrant = asked.get("use_reentrant") is not False
        if is_reentrant:
            read = [item for item in node.args[1:] if isinstance(item, fx.Node)]
            own = tuple(at for at, item in enumerate(read) if item.op == "placeholder" and _STATE.search(item.name))
        place = _place_of(node)
        draws_again = asked.get("preserve_rng_state", True)
        stops_early = not is_reentrant and asked.get("early_stop", True)
        how = {"own": own, "place": place, "draws_again": draws_again, "stops_early": stops_early}
        node.target, node.kwargs = _checkpointed, how
    module.recompile()


def _checkpointed(
    region: Callable[..., object],
    *args: object,
    own: Sequence[int],
    place: str,
    draws_again: bool,
    stops_early: bool,
) -> object:
    """Run a region under a checkpoint, with arguments that need no gradient, such as counting buffers, built in.

    Where it is reentrant, `own` are the numbers of the arguments that are weights of modules, not given to it. When it
    runs again it `draws_again` the numbers that it has drawn, and `stops_early` where it need not go to its end.
    """
    wanted = [at for at, arg in enumerate(args) if isinstance(arg, Tensor) and arg.requires_grad]
    if wanted and set(wanted) <= set(own) and torch.is_grad_enabled():
        raise Uncapturable(
            f"checkpoint(use_reentrant=True){place and f' in {place}'} is given nothing whose gradient is wanted, so "
            "eager mode gives its weights no gradients, and a compiled part would; pass use_reentrant=False"
        )

    def inner(*given: object) -> object:
        filled = dict(enumerate(args)) | dict(zip(wanted, given, strict=True))
        return region(*filled.values())

    return checkpoint(
        inner,
        *(args[at] for at in wanted),
        use_reentrant=False,
        preserve_rng_state=draws_again,
        early_stop=stops_early,
    )
