"""Which operators may write their result over an operand, with equal bits?

Elementwise operators of which torch has a form that runs the same kernel into given memory: an in-place one, or one
that takes its result as a keyword (`INTO`). Each result element depends on the operand elements at its own place alone,
so it does not matter that they share memory.

For others, the allocator gives the result the memory of an operand (`PLACED`): for some elementwise operators, and for
normalisations and their backward, which first sum over the operands and then read and write place by place, in groups
that do not share elements (channels, rows). The condition for both kinds is that operands of the result's shape have
its layout: other layouts run other kernels.
"""

from collections.abc import Mapping
from typing import NamedTuple

from outgrow.operators.rows import JOINT, JOINT_IN_PLACE, LOG_PROBABILITIES


class Form(NamedTuple):
    """An operator that writes its first result over the argument at `operand`."""

    operator: str
    operand: int = 0


INTO: Mapping[str, str] = {
    f"aten.{name}.grad_input": "grad_input"
    for name in (
        "gelu_backward",
        "hardsigmoid_backward",
        "hardtanh_backward",
        "leaky_relu_backward",
        "sigmoid_backward",
        "silu_backward",
        "softplus_backward",
        "tanh_backward",
        "threshold_backward",
    )
}
"""The keyword under which a form takes the memory of its result, by the form's name."""

IDLE: Mapping[str, int] = {"aten.native_batch_norm_backward.default": 1}
"""How many tensors of its first result's size an operator makes before it, and never touches."""

_PLACEABLE: Mapping[str, tuple[int, ...]] = {
    "aten.native_batch_norm.default": (0,),
    "aten.native_group_norm.default": (0,),
    "aten.native_layer_norm.default": (0,),
    "aten.native_batch_norm_backward.default": (0, 1),
    "aten.native_group_norm_backward.default": (1, 0),
    "aten.native_layer_norm_backward.default": (0, 1),
    "aten._log_softmax.default": (0,),
    "aten._softmax.default": (0,),
    "aten._log_softmax_backward_data.default": (0, 1),
    "aten._softmax_backward_data.default": (0, 1),
    "aten.add.Tensor": (1,),
    "aten.mul.Tensor": (1,),
    "aten.threshold_backward.default": (1,),
    "aten.gelu.default": (0,),
    "aten.gelu_backward.default": (1,),
}

PLACED: Mapping[str, Form] = {
    f"over{operand}.{operator}": Form(operator, operand)
    for operator, operands in _PLACEABLE.items()
    for operand in operands
}
"""The operator that a form runs, and the operand over which its result is placed, by the form's name."""


def _forms() -> dict[str, tuple[Form, ...]]:
    forms: dict[str, tuple[Form, ...]] = {form.replace(".grad_input", ".default"): (Form(form),) for form in INTO}
    forms |= {
        f"aten.{name}.{overload}": (Form(f"aten.{name}_.{overload}"),)
        for name, overload in (
            ("relu", "default"),
            ("add", "Tensor"),
            ("sub", "Tensor"),
            ("mul", "Tensor"),
            ("div", "Tensor"),
            ("neg", "default"),
            ("sqrt", "default"),
            ("exp", "default"),
            ("sigmoid", "default"),
            ("tanh", "default"),
            ("silu", "default"),
            ("leaky_relu", "default"),
        )
    }
    forms[JOINT] = (Form(JOINT_IN_PLACE, LOG_PROBABILITIES),)
    for name, (operator, operand) in PLACED.items():
        forms[operator] = (*forms.get(operator, ()), Form(name, operand))
    return forms


IN_PLACE: Mapping[str, tuple[Form, ...]] = _forms()
"""The forms of an operator that write its first result over an operand, by the operator's name; the best first."""
