"""What becomes of a call on lists of tensors? A call for each tensor, so that none is there for longer than its own.

Optimizers (`foreach`, `fused`), the clipping of gradients and scalers of losses call an operator on all parameters at
once. As one op it would need all of them, with their gradients and their state: the floor of every plan.

    aten._foreach_add_.List([p, q], [g, h])   ->   aten._foreach_add_.List([p], [g])
                                                   aten._foreach_add_.List([q], [h])

Torch goes through its lists one tensor after the other, and a kernel of a GPU that takes many computes each element by
itself, so the bits are the same. But which kernel a GPU takes is asked of a list as a whole: where some of its tensors
would get the quick one, and others not, the list is left as it is.

The operators of fused optimizers take rates that must be known while they are traced, so each rate would be captured
anew. While a step is traced, operators that take any number stand for them (`RATED`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

_LIBRARY = torch.library.Library("outgrow", "FRAGMENT")
_FUSED = ("adam_", "adamw_", "sgd_", "adagrad_")
_ASKED_AS_A_WHOLE = "aten::_foreach_"
_ON_LISTS = (_ASKED_AS_A_WHOLE, "aten::_fused_", "aten::_amp_foreach_", *(f"outgrow::{name}" for name in _FUSED))
"""How the names of operators begin that do the same with each tensor of a list; a few others begin so, too."""
_OF_ALL = "scalars"
"""A tensor of this name has a number for each tensor of the lists."""
_Given = tuple[tuple[object, ...], dict[str, object]]


def each_by_itself(func: OpOverload) -> Callable[..., object]:
    """Return what calls an operator on lists for one tensor after the other, and other operators as they are."""
    if not _is_on_lists(func):
        return func

    def called(*args: object, **kwargs: object) -> object:
        calls = _calls(func, args, kwargs)
        if len(calls) < 2 or not _get_one_kernel(func, calls):
            return func(*args, **kwargs)
        returned = [func(*own, **named) for own, named in calls]
        return [item for found in returned for item in found] if func._schema.returns else None

    return called


def _is_on_lists(func: OpOverload) -> bool:
    """Whether an operator does the same with each tensor of its lists, and returns nothing, or a list of tensors."""
    if not func.name().startswith(_ON_LISTS) or len(func._schema.returns) > 1:
        return False
    first, *others = func._schema.arguments
    is_of_all = any(item.name == _OF_ALL and str(item.type) == "Tensor" for item in others)
    return str(first.type) == "List[Tensor]" and not is_of_all


def _calls(func: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]) -> list[_Given]:
    """Return the arguments for each tensor; none if the lists, except empty ones, are not of one length."""
    names = [item.name for item in func._schema.arguments]
    of_lists = {item.name for item in func._schema.arguments if str(item.type).startswith("List[")}
    given = dict(zip(names, args, strict=False)) | dict(kwargs)
    lists = {name: items for name, items in given.items() if name in of_lists and isinstance(items, list) and items}
    lengths = {len(items) for items in lists.values()}
    found: list[_Given] = []
    for at in range(lengths.pop() if len(lengths) == 1 else 0):
        own: dict[str, object] = {**given, **{name: [items[at]] for name, items in lists.items()}}
        found.append((tuple([own[name] for name in names[: len(args)]]), {name: own[name] for name in kwargs}))
    return found


def _get_one_kernel(func: OpOverload, calls: Sequence[_Given]) -> bool:
    """Whether the tensors of a list get by themselves the kernel that they get together."""
    if not func.name().startswith(_ASKED_AS_A_WHOLE):
        return True
    each = [[item for items in own if isinstance(items, list) for item in items] for own, _ in calls]
    tensors = [[item for item in items if isinstance(item, Tensor)] for items in each]
    first = tensors[0][0]
    return first.device.type == "cpu" or len({_is_uniform(own, first) for own in tensors}) == 1


def _is_uniform(tensors: Sequence[Tensor], first: Tensor) -> bool:
    """Whether tensors that belong together lie alike, without gaps, and are of the type and device of the first."""
    own = tensors[0]
    return all(
        (item.dtype, item.device, item.shape, item.stride()) == (first.dtype, first.device, own.shape, own.stride())
        and _is_dense(item)
        for item in tensors
    )


def _is_dense(tensor: Tensor) -> bool:
    """Whether the elements of a tensor lie side by side, in any order of its dimensions."""
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


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
    return f"aten._fused_{rest}" if namespace == "outgrow" and rest.partition(".")[0] in _FUSED else operator


RATED: Mapping[str, Callable[..., None]] = {f"_fused_{name}": _rated(name) for name in _FUSED}
"""What stands for functions of torch, by their names, while a step is traced."""
