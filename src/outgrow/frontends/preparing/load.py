"""Is this machine busy? Then what is measured of it is less than it can do."""

import os

_BUSY = 0.5
"""A load of more than this share of the processors is reported."""


def load() -> tuple[float, int]:
    """Return how many processes wanted to run over the last minute, and how many processors there are."""
    return os.getloadavg()[0], os.cpu_count() or 1


def load_remark() -> str:
    """Return what is to be known of rates that are measured now; empty if nothing is."""
    wanting, processors = load()
    busy = "The machine was busy, so it can be faster than this. Measure again while nothing else runs."
    return busy if wanting / processors > _BUSY else ""
