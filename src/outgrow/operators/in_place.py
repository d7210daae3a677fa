"""Which operators may write their result over an operand, with equal bits?

Elementwise operators of which torch has a form that runs the same kernel into given memory: an in-place one, or one
that takes its result as a keyword (`INTO`). Each result element depends on the operand elements at its own place alone,
so it does not matter that they share memory.

For others, the allocator gives the result the memory of an operand (`PLACED`): for some elementwise operators, and for
normalisations and their backward, which first sum over the operands and then read and write place by place, in groups
that do not share elements (channels, rows). The condition for both kinds is that operands of the result's shape have
its layout: other layouts run other kernels. Some forms round once for each element, whichever kernel that is, and take
each operand by its own strides; there it is enough that the operand written over has the layout that the result has
elsewhere. An option, such as the factor of a sum, makes more than one operation of it.

Of complex numbers no operand may lie otherwise than the result, not even one that is repeated: where a loop has gaps, a
compiler's code asks whether what it writes is what it reads, and rounds otherwise if so. A quotient of complex numbers
is not written over an operand at all, since the loop over the last few elements, which fill no register, asks the same.
"""

from collections.abc import Mapping

from outgrow.ir.stand_ins import Form
from outgrow.operators.rows import JOINT, JOINT_IN_PLACE, LOG_PROBABILITIES

_ACTIVATIONS_BACKWARD = (
    "hardsigmoid_backward",
    "hardtanh_backward",
    "leaky_relu_backward",
    "sigmoid_backward",
    "silu_backward",
    "softplus_backward",
    "tanh_backward",
    "threshold_backward",
)
"""Operators of a gradient and of what an activation read or gave."""

INTO: Mapping[str, str] = {
    f"aten.{name}.grad_input": "grad_input" for name in (*_ACTIVATIONS_BACKWARD, "gelu_backward")
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
    "aten.gelu.default": (0,),
    "aten.gelu_backward.default": (1,),
    **{f"aten.{name}.default": (1,) for name in _ACTIVATIONS_BACKWARD},
}

_STRIDED = frozenset(
    (
        *(f"aten.{name}.Tensor" for name in ("add", "sub", "mul", "div")),
        "aten.hardsigmoid_backward.default",
        "aten.hardtanh_backward.default",
        "aten.leaky_relu_backward.default",
        "aten.threshold_backward.default",
    )
)
"""Operators of several operands that round once for each element, in one loop that makes no copy of an operand."""

PLACED: Mapping[str, Form] = {
    f"over{operand}.{operator}": Form(operator, operand)
    for operator, operands in _PLACEABLE.items()
    for operand in operands
}
"""The operator that a form runs, and the operand over which its result is placed, by the form's name."""


def _forms() -> dict[str, tuple[Form, ...]]:
    into = {form.replace(".grad_input", ".default"): form for form in INTO}
    into |= {
        f"aten.{name}.{overload}": f"aten.{name}_.{overload}"
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
    forms: dict[str, tuple[Form, ...]] = {
        operator: (Form(form, strided=operator in _STRIDED, real=operator == "aten.div.Tensor"),)
        for operator, form in into.items()
    }
    forms[JOINT] = (Form(JOINT_IN_PLACE, LOG_PROBABILITIES),)
    for name, placed in PLACED.items():
        form = Form(name, placed.operand, strided=placed.operator in _STRIDED)
        forms[placed.operator] = (*forms.get(placed.operator, ()), form)
    return forms


IN_PLACE: Mapping[str, tuple[Form, ...]] = _forms()
"""The forms of an operator that write its first result over an operand, by the operator's name; the best first."""
