"""For which machines can a step be planned from afar? One TOML file each in the folder `machines`.

    name = "v100-pcie3"
    [device]   name, flops_per_second, bytes_per_second, needs_workspace, source
    [link]     out_bytes_per_second, in_bytes_per_second, latency_seconds, half_duplex, source

`source` says where the rates are from. Rates are those that programs reach, not those of data sheets.
"""

import tomllib
from difflib import get_close_matches
from importlib.resources import files

from outgrow.errors import InvalidQuantity
from outgrow.ir.machine import Device, Link, Machine


def machine_names() -> tuple[str, ...]:
    """Return the names of all described machines, sorted.

    >>> "v100-pcie3" in machine_names()
    True
    """
    folder = files("outgrow") / "machines"
    return tuple(sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml")))


def described_machine(name: str) -> Machine:
    """Return the machine of this name; raises `InvalidQuantity`, listing the names, if there is none."""
    names = machine_names()
    if name not in names:
        close = get_close_matches(name, names, n=1)
        hint = f" Did you mean {close[0]}?" if close else ""
        raise InvalidQuantity(f"No machine is called {name!r}.{hint} Described are: {', '.join(names)}.")
    table = tomllib.loads((files("outgrow") / "machines" / f"{name}.toml").read_text())
    device, link = table["device"], table["link"]
    return Machine(
        name=table["name"],
        device=Device(
            device["name"],
            device["flops_per_second"],
            device["bytes_per_second"],
            needs_workspace=device.get("needs_workspace", True),
        ),
        link=Link(
            link["out_bytes_per_second"],
            link["in_bytes_per_second"],
            link.get("latency_seconds", 0.0),
            half_duplex=link.get("half_duplex", False),
        ),
    )
