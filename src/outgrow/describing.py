"""What does `outgrow machine` do? It measures this machine, or shows one that is described.

What it measures is printed in the form of the files in the folder `machines`, so that `--machine FILE` plans for it
elsewhere and later. Only measuring imports torch, which takes seconds.
"""

import os
from datetime import UTC, datetime
from pathlib import Path

from outgrow import __version__
from outgrow.frontends.machines import machine_description, machine_names
from outgrow.report.machinefile import Description, description_to_toml
from outgrow.report.output import STDOUT, write_atomically
from outgrow.report.progress import Narrator
from outgrow.report.rates import rates_of, rates_table

_SECONDS, _COPIES = 2.0, 15
"""How long arithmetic and memory are measured, each, and how often a copy is."""
_BUSY = 0.5
"""A load of more than this share of the processors is told."""


def list_machines(narrator: Narrator) -> None:
    """Tell the rates of every described machine."""
    narrator.say(rates_table([machine_description(name).machine for name in machine_names()]))


def show_machine(name: str, narrator: Narrator) -> None:
    """Tell the rates of a described machine, or of one in a file; raises `InvalidMachine` where it is not valid."""
    narrator.say(rates_of(machine_description(name)))


def measure_machine(offload_dir: Path | None, out: Path | None, narrator: Narrator) -> None:
    """Measure this machine, its link to `offload_dir`, and write its description to a file (None: tell it).

    Raises `TierFailure` if the folder cannot take a spill file.
    """
    narrator.stage("measure device")
    from outgrow.frontends.measure import Care, graphics_card, how_measured, this_machine  # noqa: PLC0415
    from outgrow.runtime.tiers import offload_folder  # noqa: PLC0415

    folder = offload_folder(offload_dir)
    care = Care(_SECONDS, _COPIES)
    load, processors = os.getloadavg()[0], os.cpu_count() or 1
    machine = this_machine(folder, care, narrator.stage)
    now = datetime.now(UTC)
    begun = f"begun at a load of {load:.1f} on {processors} processors"
    measured = f"Measured on {now:%Y-%m-%d} at {now:%H:%M} UTC by outgrow {__version__}, {begun}"
    described = Description(machine, f"{measured}.", f"{measured}, to {folder}.")
    remarks = _remarks(load / processors, graphics_card())
    text = "".join([*(f"# {remark}\n" for remark in remarks), description_to_toml(described, how_measured(care))])
    if out is None or out == STDOUT:
        narrator.say(text.rstrip())
        return
    write_atomically(out, text)
    parts = [rates_of(described), *remarks, f"Written to {out}: plan for it with --machine {out}"]
    narrator.say("\n\n".join(parts))


def _remarks(share_taken: float, card: str | None) -> list[str]:
    """What is to be known of the rates: a busy machine is slower, and a GPU was not measured."""
    remarks: list[str] = []
    if share_taken > _BUSY:
        remarks.append("The machine was busy, so it can be faster than this. Measure again while nothing else runs.")
    if card is not None:
        remarks.append(f"Only the CPU was measured: measuring a GPU, here a {card}, is not built yet.")
    return remarks
