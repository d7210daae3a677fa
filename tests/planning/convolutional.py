"""A small training step with all that frees memory for nothing: convolutions, pooling, updates that wait."""

from outgrow.ir.graph import Graph
from outgrow.ir.text import parse_graph

_WINDOW = "None, [1], [0], [1], False, [0], 1"


def convolutional(length: int, size: int = 256, weight: int = 64) -> Graph:
    """Convolutions, pooling and exponentials in turn, back with a gradient for each weight, and the updates."""
    view = f"f32[1,1,{size // 4}]"
    lines = ["storage x input 4", "value %x: x@0 f32[1]", f"storage a0 {size}", f"%a0: a0@0 {view} = my.expand(%x)"]
    for at in range(1, length):
        lines += [f"storage a{at} {size}", f"storage w{at} parameter {weight}"]
        lines.append(f"value %w{at}: w{at}@0 f32[1,1,{weight // 4}]")
        lines.append(f"%a{at}: a{at}@0 {view} = {_forward(at)}")
    gradient = f"%a{length - 1}"
    for at in reversed(range(1, length)):
        lines += [f"storage g{at} {size}", _backward(at, gradient, view, weight)]
        gradient = f"%g{at}"
    lines += [f"%n{at}: w{at}@1 f32[1,1,{weight // 4}] = my.update(%w{at}, %d{at})" for at in range(1, length, 3)]
    return parse_graph("\n".join([*lines, f"return {gradient}"]))


def _forward(at: int) -> str:
    calls = (
        f"aten.exp.default(%a{at - 1})",
        f"aten.convolution.default(%a{at - 1}, %w{at}, {_WINDOW})",
        f"my.pool(%a{at - 1})",
    )
    return calls[at % 3]


def _backward(at: int, gradient: str, view: str, weight: int) -> str:
    match at % 3:
        case 1:
            made = f"%g{at}: g{at}@0 {view}, %d{at}: d{at}@0 f32[1,1,{weight // 4}], _"
            mask = "[True, True, False]"
            call = f"aten.convolution_backward.default({gradient}, %a{at - 1}, %w{at}, {_WINDOW}, {mask})"
            return f"storage d{at} gradient {weight}\n{made} = {call}"
        case 2:
            return f"%g{at}: g{at}@0 {view} = aten.avg_pool2d_backward.default({gradient}, %a{at - 1})"
        case _:
            return f"%g{at}: g{at}@0 {view} = aten.mul.Tensor({gradient}, %a{at})"
