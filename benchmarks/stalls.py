"""How many times as long does group normalisation's backward take where its result is written over an operand?

    python benchmarks/stalls.py [--only TEXT] [--resume]

In channels-last, for groups of 1 to 16 channels: turns with the result elsewhere, over the gradient and over the input,
one after the other, each on the same numbers; the shortest of each. What is modelled is in `operators.stalls`.
`ATEN_CPU_CAPABILITY=avx2` asks torch for the kernels of another processor.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter

import torch
from rows import Row, write_rows
from torch import Tensor

from outgrow.runtime import arena

ROUNDS = 40
EVERY = [True, True, True]


@dataclass(frozen=True)
class Normalisation:
    """A row: so many channels and groups, at the places of a cube of this size."""

    channels: int
    groups: int
    size: int

    @property
    def name(self) -> str:
        """What the row is called."""
        return f"{self.channels} channels, {self.groups} groups, {self.size}^3"


NORMALISATIONS = (
    *(Normalisation(16, groups, 64) for groups in (16, 8, 4, 2, 1)),
    *(Normalisation(64, groups, 48) for groups in (32, 16, 8, 4)),
    Normalisation(16, 8, 128),
)


def measured(case: Normalisation) -> Row:
    """Take turns with the result in each place."""
    arena.install()
    torch.manual_seed(0)
    layout = torch.channels_last_3d
    source, gradient = (torch.randn(1, case.channels, *3 * [case.size]).to(memory_format=layout) for _ in range(2))
    weight, places = torch.randn(case.channels), case.size**3
    shape = (1, case.channels, places, case.groups)
    _, mean, deviation = torch.ops.aten.native_group_norm(source, weight, weight, *shape, 1e-5)

    given = source.clone(), gradient.clone()

    def seconds(place: Tensor) -> float:
        source.copy_(given[0])  # the turn before may have written over them
        gradient.copy_(given[1])
        arena.expect(place.nbytes, 0, place.data_ptr())
        begin = perf_counter()
        torch.ops.aten.native_group_norm_backward(gradient, source, mean, deviation, weight, *shape, EVERY)
        return perf_counter() - begin

    def turns() -> Iterator[tuple[float, ...]]:
        elsewhere = torch.empty_like(source)
        for _ in range(ROUNDS):
            yield tuple(seconds(place) for place in (elsewhere, gradient, source))

    plain, over_gradient, over_source = map(min, zip(*turns(), strict=True))
    return {
        "capability": torch.backends.cpu.get_cpu_capability(),
        "channels_a_group": case.channels // case.groups,
        "elsewhere_seconds": plain,
        "over_gradient": over_gradient / plain,
        "over_source": over_source / plain,
    }


def told(row: Row) -> str:
    """Return a row in one line."""
    return f"over the gradient {row['over_gradient']:.2f}, over the input {row['over_source']:.2f}"


if __name__ == "__main__":
    write_rows("stalls", NORMALISATIONS, measured, told)
