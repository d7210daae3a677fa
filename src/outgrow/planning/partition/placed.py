"""How quickly would a step run if each op were placed on one of several devices, as a rival of dividing all of them?

Parameters are given to devices in the order of their use, about equally many bytes to each. An op runs where its
parameter is, or else where its largest operand was made; each device takes its ops in their order, and waits for
operands that come from others. Source: the operator placement that Tofu is compared with (EuroSys 2019, section 7.1):
layers in turn, so that steps in time run as in a pipeline.
"""

from collections.abc import Mapping

from outgrow.analysis.cost import Cost
from outgrow.ir.graph import Graph, Role, result_values
from outgrow.ir.machine import Machine


def placed_seconds(graph: Graph, costs: Mapping[str, Cost], machine: Machine, devices: int) -> float:
    """Return the seconds of a captured step if each device runs some of its ops; memory is ignored."""
    size_of = {name: storage.size_bytes for name, storage in graph.storages.items()}
    homes = _homes(graph, devices)
    free = [0.0] * devices
    made: dict[str, tuple[int, float]] = {}
    there: dict[tuple[str, int], float] = {}
    for op in graph.ops:
        read = graph.reads(op)
        written = tuple(graph.values[name].storage for name in result_values(op))
        place = next((homes[name] for name in (*read, *written) if name in homes), None)
        if place is None:
            own = [name for name in read if name in made]
            place = made[max(own, key=size_of.__getitem__)][0] if own else 0
        begin = free[place]
        for name in read:
            source, ready = made.get(name, (place, 0.0))
            if source != place:
                sizes = [size_of[name] if other == source else 0 for other in range(devices)]
                seconds = machine.exchange_seconds(place, [0] * devices, sizes)
                ready = there.setdefault((name, place), ready + seconds)
            begin = max(begin, ready)
        free[place] = begin + costs[op.captured].seconds
        for name in written:
            made[name] = (place, free[place])
            for other in range(devices):
                there.pop((name, other), None)
    return max(free)


def _homes(graph: Graph, devices: int) -> dict[str, int]:
    """Return the device of each parameter."""
    found: dict[str, int] = {}
    sizes = {name: item.size_bytes for name, item in graph.storages.items() if item.role is Role.PARAMETER}
    total, before = max(1, sum(sizes.values())), 0
    for op in graph.ops:
        for name in graph.reads(op):
            if name in sizes and name not in found:
                found[name] = min(devices - 1, before * devices // total)
                before += sizes[name]
    return found
