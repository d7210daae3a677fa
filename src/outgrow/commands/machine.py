"""What does `outgrow machine` do? It measures this machine, or shows one that is described.

What it measures is printed in the form of the files in the folder `machines`, so that `--machine FILE` plans for it
elsewhere and later. Only measuring imports torch, which takes seconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from outgrow import __version__
from outgrow.errors import InvalidMachine
from outgrow.frontends.preparing.load import load, load_remark
from outgrow.frontends.preparing.machines import machine_description, machine_names
from outgrow.ir.machine import Machine
from outgrow.report.machinefile import Description, description_to_toml
from outgrow.report.output import STDOUT, write_atomically
from outgrow.report.progress import Narrator
from outgrow.report.rates import rates_of, rates_table

_SECONDS, _COPIES = 2.0, 15
"""How long arithmetic and memory are each measured, in seconds, and how often copies are."""


def list_machines(narrator: Narrator) -> None:
    """Tell the rates of every described machine."""
    narrator.say(rates_table([machine_description(name).machine for name in machine_names()]))


def show_machine(name: str, narrator: Narrator) -> None:
    """Tell the rates of a described machine, or of one in a file; raises `InvalidMachine` where it is not valid."""
    narrator.say(rates_of(machine_description(name)))


def measure_machine(device: str | None, offload_dir: Path | None, out: Path | None, narrator: Narrator) -> None:
    """Measure this machine, its CPU and the link to `offload_dir` or its GPU, and write its description to a file.

    Without a file it is told. Raises `TierFailure` if the folder cannot take a spill file, or the host has no memory
    for what is copied to it, and `InvalidMachine` if there is no GPU.
    """
    narrator.stage("measure device")
    (wanting, processors), busy = load(), load_remark()
    measured = _gpu() if device == "cuda" else _cpu(offload_dir, narrator)
    now = datetime.now(UTC)
    begun = f"begun at a load of {wanting:.1f} on {processors} processors"
    when = f"Measured on {now:%Y-%m-%d} at {now:%H:%M} UTC by outgrow {__version__}, {begun}"
    described = Description(measured.machine, f"{when}.", f"{when}, to {measured.to}.")
    remarks = [remark for remark in (busy, measured.remark) if remark]
    text = "".join([*(f"# {remark}\n" for remark in remarks), description_to_toml(described, measured.how)])
    if out is None or out == STDOUT:
        narrator.say(text.rstrip())
        return
    write_atomically(out, text)
    parts = [rates_of(described), *remarks, f"Written to {out}: plan for it with --machine {out}"]
    narrator.say("\n\n".join(parts))


@dataclass(frozen=True, slots=True)
class _Measured:
    """A machine, where its link leads, how each figure was found, and what is to be known beside."""

    machine: Machine
    to: str
    how: Mapping[str, str]
    remark: str = ""


def _cpu(offload_dir: Path | None, narrator: Narrator) -> _Measured:
    from outgrow.frontends.preparing.measure import Care, graphics_card, how_measured, measured_machine  # noqa: PLC0415
    from outgrow.runtime.tiers import offload_folder  # noqa: PLC0415

    folder, care, card = offload_folder(offload_dir), Care(_SECONDS, _COPIES), graphics_card()
    remark = f"Only the CPU was measured: --device cuda measures the GPU, here a {card}." if card else ""
    return _Measured(measured_machine(folder, care, narrator.stage), str(folder), how_measured(care), remark)


def _gpu() -> _Measured:
    from outgrow.frontends.preparing.measure import graphics_card, how_device_measured, machine_of  # noqa: PLC0415

    if graphics_card() is None:
        raise InvalidMachine("torch finds no GPU of CUDA here. Leave --device out to measure the CPU.")
    from outgrow.runtime.device import Cuda  # noqa: PLC0415

    return _Measured(machine_of(Cuda()), "locked memory of the host", how_device_measured())
