"""Which operators may write their result over their first operand, with equal bits?

Elementwise operators of which torch has an in-place form that runs the same kernel: each result element
depends on the operand elements at its own place alone, so it does not matter that they share memory.
"""

from collections.abc import Mapping

IN_PLACE: Mapping[str, str] = {
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
"""The in-place form of an operator, by the operator's name."""
