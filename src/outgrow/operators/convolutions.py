"""What do the arguments of a convolution mean, and those of the operator of its gradients? Positions, by name."""

from collections.abc import Mapping
from dataclasses import dataclass

CONVOLUTION = "aten.convolution.default"
CONVOLUTION_BACKWARD = "aten.convolution_backward.default"


@dataclass(frozen=True, slots=True)
class Positions:
    """Where an operator takes what a convolution and its gradients have in common; `source` is the input."""

    source: int
    weight: int
    strides: int
    padding: int
    dilation: int
    transposed: int
    groups: int


FORWARD = Positions(source=0, weight=1, strides=3, padding=4, dilation=5, transposed=6, groups=8)
BACKWARD = Positions(source=1, weight=2, strides=4, padding=5, dilation=6, transposed=7, groups=9)
POSITIONS: Mapping[str, Positions] = {CONVOLUTION: FORWARD, CONVOLUTION_BACKWARD: BACKWARD}
"""The positions of each of the two operators."""

GRADIENT, BIAS_SIZES, MASK = 0, 3, 10
"""Where the backward takes the gradient of the output, the shape of the bias, and which gradients to return: those of
input, weight and bias."""
