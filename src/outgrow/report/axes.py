"""Where do a picture's points and ticks lie? A linear scale, and round numbers along it.

Ticks are 1, 2 or 5 times a power of ten of the unit that suits the largest value: GiB, MiB or KiB; s, ms or
us.
"""

import math
from dataclasses import dataclass

_BYTES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))
_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps 0..`most` to the pixels from `begin` to `end`."""

    most: float
    begin: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the pixel of a value."""
        return round(self.begin + (self.end - self.begin) * value / self.most, 1)


@dataclass(frozen=True, slots=True)
class Tick:
    """A value on an axis and how it is written there."""

    value: float
    label: str


def byte_ticks(most: float) -> tuple[Tick, ...]:
    """Return about five round sizes from 0 to `most` bytes.

    >>> [tick.label for tick in byte_ticks(9.2 * 2**30)]
    ['0 GiB', '2 GiB', '4 GiB', '6 GiB', '8 GiB']
    """
    return _ticks(most, _BYTES)


def second_ticks(most: float) -> tuple[Tick, ...]:
    """Return about five round times from 0 to `most` seconds.

    >>> [tick.label for tick in second_ticks(0.0021)]
    ['0 ms', '0.5 ms', '1 ms', '1.5 ms', '2 ms']
    """
    return _ticks(most, _SECONDS)


def _ticks(most: float, units: tuple[tuple[float, str], ...]) -> tuple[Tick, ...]:
    unit, name = next((item for item in units if most >= item[0]), units[-1])
    step = round_step(most / unit)
    count = math.floor(most / unit / step + 1e-9)
    return tuple(Tick(at * step * unit, f"{at * step:.10g} {name}") for at in range(count + 1))


def round_step(most: float) -> float:
    """Return 1, 2 or 5 times a power of ten, of which `most` holds between 2.6 and 6.5.

    >>> round_step(9.2), round_step(3.0), round_step(0.07)
    (2.0, 0.5, 0.02)
    """
    power = 10.0 ** math.floor(math.log10(most))
    return power * next(factor for factor in (0.1, 0.2, 0.5, 1.0, 2.0, 5.0) if most / power / factor <= 6.5)
