"""How is a call of torch written down as plain data, and how is it read back?

    aten.add.Tensor            an overload of an operator, in any namespace of `torch.ops`
    operator.truediv           a function on host scalars, of `operator`, `math` or `torch`, or `round`
    Symbol("torch.float32")    a dtype, a layout or a memory format
    Symbol("device.cuda.0")    a device

`resolve_operator` and `resolve_symbol` are the inverses of `operator_name` and `symbol_name`. `completed` gives a call
all arguments that the schema of its operator has a place for.
"""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType, SimpleNamespace
from typing import TypeAlias

import torch
from torch._ops import OpOverload

from outgrow.errors import Uncapturable

Named: TypeAlias = torch.dtype | torch.layout | torch.memory_format | torch.device

DETACHES = (torch.ops.aten.detach.default, torch.ops.aten.alias.default)
"""Operators whose result is the operand; `detach` is traced as the second from torch 2.14 on."""
_SCALAR_MODULES: dict[str, ModuleType | SimpleNamespace] = {
    "operator": operator,
    "math": math,
    "torch": torch,
    "builtins": SimpleNamespace(round=round),
}


def operator_name(function: Callable[..., object]) -> str:
    """Return the name under which `resolve_operator` finds `function` again.

    Raises `Uncapturable` for a function that is neither an operator of torch nor known on host scalars.

    >>> operator_name(torch.ops.aten.add.Tensor), operator_name(operator.truediv)
    ('aten.add.Tensor', 'operator.truediv')
    """
    if isinstance(function, OpOverload):
        return str(function)
    for module_name, module in _SCALAR_MODULES.items():
        if vars(module).get(function.__name__) is function:
            return f"{module_name}.{function.__name__}"
    raise Uncapturable(
        f"the step calls {function}, which has no name that a plan can store; "
        "write it with operators of torch, or call it outside of the step"
    )


def resolve_operator(name: str) -> Callable[..., object]:
    """Return the function that `operator_name` wrote as `name`.

    >>> resolve_operator("aten.add.Tensor")
    <OpOverload(op='aten.add', overload='Tensor')>
    """
    namespace, _, rest = name.partition(".")
    if namespace in _SCALAR_MODULES:
        return vars(_SCALAR_MODULES[namespace])[rest]
    packet, _, overload = rest.rpartition(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload)


def symbol_name(literal: Named) -> str:
    """Return the name of a literal that is a name.

    >>> symbol_name(torch.float32), symbol_name(torch.device("cuda", 0))
    ('torch.float32', 'device.cuda.0')
    """
    return f"device.{literal}".replace(":", ".") if isinstance(literal, torch.device) else str(literal)


def resolve_symbol(name: str) -> Named:
    """Return the literal that `symbol_name` wrote as `name`."""
    kind, _, rest = name.partition(".")
    return torch.device(rest.replace(".", ":")) if kind == "device" else vars(torch)[rest]


def completed(
    function: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]
) -> tuple[list[object], dict[str, object]]:
    """Return the arguments of a call, defaults included, and those that can only be given by keyword.

    >>> completed(torch.ops.aten.sum.dim_IntList, [1.0], {"dim": [0], "dtype": None})
    ([1.0, [0], False], {'dtype': None})
    """
    left = dict(kwargs)
    missing = (argument for argument in function._schema.arguments[len(args) :] if not argument.kwarg_only)
    return [*args, *(left.pop(argument.name, argument.default_value) for argument in missing)], left
