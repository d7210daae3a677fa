"""What becomes of a call on lists of tensors? A call for each tensor, so that none is there for longer than its own.

Optimizers (`foreach`, `fused`), the clipping of gradients and scalers of losses call an operator on all parameters at
once. As one op it would need all of them, with their gradients and their state: the floor of every plan.

    aten._foreach_add_.List([p, q], [g, h])   ->   aten._foreach_add_.List([p], [g])
                                                   aten._foreach_add_.List([q], [h])

The bits are the same (`runtime.lists`). But which kernel a GPU takes is asked of a list as a whole: where some of its
tensors would get the quick one, and others not, the list is left as it is. Calls between which a plan puts nothing
become one again there (`runtime.joined`).

The operators of fused optimizers take rates that must be known while they are traced, so each rate would be captured
anew. While a step is traced, operators that take any number stand for them (`RATED`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from outgrow.runtime.lists import OPTIMIZERS, get_one_kernel, is_on_lists, lists_and_others, schema_of

_LIBRARY = torch.library.Library("outgrow", "FRAGMENT")
_Given = tuple[tuple[object, ...], dict[str, object]]


def each_by_itself(func: OpOverload) -> Callable[..., object]:
    """Return what calls an operator on lists for one tensor after the other, and other operators as they are."""
    if not is_on_lists(func):
        return func

    def called(*args: object, **kwargs: object) -> object:
        calls = _calls(func, args, kwargs)
        if len(calls) < 2 or not get_one_kernel(func, [_tensors(call) for call in calls]):
            return func(*args, **kwargs)
        returned = [func(*own, **named) for own, named in calls]
        return [item for found in returned for item in found] if schema_of(func).returns else None

    return called


def _calls(func: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]) -> list[_Given]:
    """Return the arguments for each tensor; none if the lists, except empty ones, are not of one length."""
    names = [item.name for item in schema_of(func).arguments]
    lists, others = lists_and_others(func, args, kwargs)
    lengths = {len(items) for items in lists.values()}
    found: list[_Given] = []
    for at in range(lengths.pop() if len(lengths) == 1 else 0):
        own: dict[str, object] = {**others, **{name: [items[at]] for name, items in lists.items()}}
        found.append((tuple([own[name] for name in names[: len(args)]]), {name: own[name] for name in kwargs}))
    return found


def _tensors(call: _Given) -> list[Tensor]:
    """Return what a call has in its lists, in order."""
    own, _ = call
    return [item for items in own if isinstance(items, list) for item in items if isinstance(item, Tensor)]


def _rated(name: str) -> Callable[..., None]:
    """Define the operator that takes any number, and return what calls it where there are unknown ones."""
    original: Any = getattr(torch, f"_fused_{name}")
    schema = str(getattr(torch.ops.aten, f"_fused_{name}").default._schema)
    _LIBRARY.define(schema.removeprefix("aten::_fused_").replace("float ", "Scalar "))
    _LIBRARY.impl(name, original, "CompositeExplicitAutograd")
    _LIBRARY.impl(name, lambda *_lists, **_options: None, "Meta")
    rated = getattr(torch.ops.outgrow, name)

    def called(*lists: object, **options: object) -> None:
        is_tensor = isinstance(options.get("lr"), Tensor)  # which torch has operators for
        is_unknown = not is_tensor and any(isinstance(option, torch.SymFloat) for option in options.values())
        (rated if is_unknown else original)(*lists, **options)

    return called


def by_torch(operator: str) -> str:
    """Return the name of torch's own operator for one that takes any rate, and any other name as it is.

    Where all numbers are known it does the same, without a way through Python.
    """
    namespace, _, rest = operator.partition(".")
    return f"aten._fused_{rest}" if namespace == "outgrow" and rest.partition(".")[0] in OPTIMIZERS else operator


RATED: Mapping[str, Callable[..., None]] = {f"_fused_{name}": _rated(name) for name in OPTIMIZERS}
"""What stands for functions of torch, by their names, while a step is traced."""
