"""Which operators may write their result over their first operand, with equal bits?

Elementwise operators of which torch has a form that runs the same kernel into given memory: an in-place one, or one
that takes its result as a keyword. Each result element depends on the operand elements at its own place alone, so it
does not matter that they share memory.
"""

from collections.abc import Mapping

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

IN_PLACE: Mapping[str, str] = {form.replace(".grad_input", ".default"): form for form in INTO} | {
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
"""The form of an operator that writes over its first operand, by the operator's name."""
