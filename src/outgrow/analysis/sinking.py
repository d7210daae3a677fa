"""Which storages go on to the tier below, where the next one has not the room for all that leaves the device?

Those with the most instructions between their copies out and back, until the others have room. What is born and dies in
the step has room of its own in its tier (`passing`). What outlives the step is read between steps where it rests, so it
sinks only where the device reads the tier below (`lasting`).
"""

import mmap
from collections.abc import Mapping

from outgrow.ir.graph import DEVICE, Drop, Graph, SwapIn, SwapOut
from outgrow.ir.machine import Machine
from outgrow.units import round_up

ROOM_BYTES = max(4096, mmap.PAGESIZE)
"""Room in a tier is a multiple of this: direct I/O asks for 4096 bytes, and a mapping for whole pages."""


def lasting(graph: Graph) -> frozenset[str]:
    """Return the storages of a derived graph that outlive the step and leave the device, or are away throughout it."""
    dropped = {item.storage for item in graph.instructions if isinstance(item, Drop)}
    return frozenset(name for name in graph.outliving if name in dropped or graph.storages[name].home != DEVICE)


def passing(graph: Graph) -> dict[str, int]:
    """Return the other storages that leave the device, in the order in which they do, and the room of each in bytes."""
    there = lasting(graph)
    moved = (item.storage for item in graph.instructions if isinstance(item, SwapOut | Drop))
    return {name: _room(graph, name) for name in dict.fromkeys(moved) if name not in there}


def sunk(graph: Graph, machine: Machine) -> frozenset[str]:
    """Return the storages of a derived graph that go to the tier below the next one; none if there is no such tier.

    >>> from outgrow.ir.machine import Device, LinkRates
    >>> from outgrow.ir.text import parse_graph
    >>> graph = parse_graph('''
    ... storage x input 4096
    ... storage y 4096
    ... storage z 4096
    ... value %x: x@0 f32[1024]
    ... %y: y@0 f32[1024] = my.one(%x)
    ... swap_out y 0:4096
    ... %z: z@0 f32[1024] = my.two(%y)
    ... swap_out z 0:4096
    ... wait z
    ... drop z 0:4096
    ... swap_in z 0:4096
    ... wait y
    ... drop y 0:4096
    ... swap_in y 0:4096
    ... wait z
    ... wait y
    ... ''')
    >>> machine = Machine(
    ...     "toy", Device("cpu", 1e9, 2e9), LinkRates(3e8, 3e8), tier_bytes=4096, below=LinkRates(1e8, 1e8)
    ... )
    >>> sorted(sunk(graph, machine))
    ['y']
    """
    if machine.tier_bytes is None or machine.below is None:
        return frozenset()
    rooms = passing(graph)
    there = {name: _room(graph, name) for name in sorted(lasting(graph))}
    if machine.reads_below:
        return _beyond(graph, rooms | there, machine.tier_bytes)
    return _beyond(graph, rooms, machine.tier_bytes - sum(there.values()))


def homeless(graph: Graph, machine: Machine) -> frozenset[str]:
    """Return the storages that outlive the step for which there is no room, in the next tier or below."""
    if machine.tier_bytes is None or machine.reads_below:
        return frozenset()
    return _beyond(graph, {name: _room(graph, name) for name in sorted(lasting(graph))}, machine.tier_bytes)


def _beyond(graph: Graph, rooms: Mapping[str, int], tier_bytes: int) -> frozenset[str]:
    """Return the storages with the longest time between copies, as many as leave room for the others."""
    beyond, apart = sum(rooms.values()) - tier_bytes, _apart(graph)
    found: list[str] = []
    for name in sorted(rooms, key=lambda name: -apart[name]):
        if beyond <= 0:
            break
        found.append(name)
        beyond -= rooms[name]
    return frozenset(found)


def _room(graph: Graph, name: str) -> int:
    return round_up(graph.storages[name].size_bytes, ROOM_BYTES)


def _apart(graph: Graph) -> dict[str, int]:
    """Return the fewest instructions between a copy of a storage out and the next one back, maybe of the next step.

    What is away throughout the step is so for all of them.
    """
    there, left = lasting(graph), dict[str, int]()
    found: dict[str, int] = {}
    for at, item in enumerate(graph.instructions):
        if isinstance(item, SwapOut | Drop):
            left[item.storage] = at
            found.setdefault(item.storage, 0)
        elif isinstance(item, SwapIn) and item.storage in left and item.storage not in there:
            apart = at - left[item.storage]
            found[item.storage] = min(found[item.storage] or apart, apart)
        elif isinstance(item, SwapIn):
            found.setdefault(item.storage, at)
    number = len(graph.instructions)
    found |= {name: found[name] + number - left[name] for name in found if name in there}
    return dict.fromkeys(there - found.keys(), number) | found
