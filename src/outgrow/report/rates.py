"""How fast are machines? Their rates as a table, one column or one row a machine."""

from collections.abc import Sequence

from outgrow.ir.machine import Machine
from outgrow.report.columns import aligned
from outgrow.report.machinefile import Description
from outgrow.units import format_seconds

_HEADER = ("machine", "TFLOP/s", "memory GB/s", "out GB/s", "in GB/s", "latency", "link")


def rates_table(machines: Sequence[Machine]) -> str:
    """Return one row a machine.

    >>> from outgrow.ir.machine import Device, LinkRates
    >>> print(
    ...     rates_table([Machine("toy", Device("cpu", 4.4e11, 2.5e10), LinkRates(3e9, 2.9e9, 1e-4, half_duplex=True))])
    ... )
    machine  TFLOP/s  memory GB/s  out GB/s  in GB/s   latency         link
    toy         0.44           25         3      2.9  100.0 us  half duplex
    """
    return aligned([_HEADER, *((machine.name, *_rates(machine)) for machine in machines)], numbers_from=1)


def rates_of(description: Description) -> str:
    """Return the rates of one machine, with what its device is and where the rates are from."""
    machine = description.machine
    rates = aligned([*zip(_HEADER[1:], _rates(machine), strict=True)])
    parts = [f"{machine.name}: {machine.device.name}", rates]
    parts += [f"device: {description.device_source}"] if description.device_source else []
    parts += [f"link: {description.link_source}"] if description.link_source else []
    for level, source in zip(machine.peers, description.peer_sources, strict=False):
        rate = f"{level.count} peers: {level.bytes_per_second / 1e9:.4g} GB/s, {format_seconds(level.latency_seconds)}"
        parts.append(f"{rate}. {source}".strip())
    return "\n\n".join(parts)


def _rates(machine: Machine) -> tuple[str, ...]:
    device, link = machine.device, machine.link
    return (
        f"{device.flops_per_second / 1e12:.4g}",
        f"{device.bytes_per_second / 1e9:.4g}",
        f"{link.out_bytes_per_second / 1e9:.4g}",
        f"{link.in_bytes_per_second / 1e9:.4g}",
        format_seconds(link.latency_seconds),
        "half duplex" if link.half_duplex else "full duplex",
    )
