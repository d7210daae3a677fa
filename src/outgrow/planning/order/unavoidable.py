"""Below which peak does no order come? Some storages are live at an op whatever the order.

A storage is live at job k in every order if its birth is k or comes before k in every order, and some job that
touches it is k or comes after k in every order (or it lasts to the end of the step).

    least(k)   = start + sizes of the storages that are live at k in every order + workspace(k)
    bound      = max over k of least(k)

No order has a lower peak, so an order with this peak is proved to be a best one.
"""

import numpy as np

from outgrow.planning.arrays import Flags
from outgrow.planning.order.jobs import Jobs


def unavoidable_bytes(jobs: Jobs) -> int:
    """Return bytes below which the peak of no order lies."""
    least = np.array(jobs.workspace_bytes, dtype=np.int64) + jobs.start_bytes
    for job, size in enumerate(jobs.lasting):
        if size:
            least[_members(jobs.descendants[job] | 1 << job, len(jobs))] += size
    until = [0] * len(jobs.sizes)
    for job, storages in enumerate(jobs.touches):
        for storage in storages:
            until[storage] |= jobs.ancestors[job] | 1 << job
    for storage, size in enumerate(jobs.sizes):
        birth = jobs.births[storage]
        if birth is None:
            least[~_members(until[storage], len(jobs))] -= size
        else:
            least[_members(until[storage] & (jobs.descendants[birth] | 1 << birth), len(jobs))] += size
    return int(least.max(initial=0))


def _members(bits: int, count: int) -> Flags:
    """Return a bit set as flags."""
    octets = np.frombuffer(bits.to_bytes(-(-count // 8), "little"), dtype=np.uint8)
    return np.unpackbits(octets, bitorder="little", count=count).astype(np.bool_)
