"""With which arguments is an operator called? With all that its schema has a place for, in their order."""

from collections.abc import Mapping, Sequence

from torch._ops import OpOverload


def completed(
    function: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]
) -> tuple[list[object], dict[str, object]]:
    """Return the arguments of a call, defaults included, and those that can only be given by keyword.

    >>> import torch
    >>> completed(torch.ops.aten.sum.dim_IntList, [1.0], {"dim": [0], "dtype": None})
    ([1.0, [0], False], {'dtype': None})
    """
    left = dict(kwargs)
    missing = (argument for argument in function._schema.arguments[len(args) :] if not argument.kwarg_only)
    return [*args, *(left.pop(argument.name, argument.default_value) for argument in missing)], left
