"""Does the command line train, plan, compare, explain and measure, and refuse in a sentence instead of a traceback?"""

import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from outgrow.cli import main
from outgrow.commands import machine
from outgrow.errors import Infeasible
from outgrow.frontends import entries, guided
from outgrow.frontends.platforms.on_cpu import OnCpu
from outgrow.frontends.preparing import measure
from outgrow.frontends.preparing.machines import described_machine, machine_names
from outgrow.frontends.tracing.capture import capture
from outgrow.frontends.tracing.captured import Captured
from outgrow.frontends.workloads import loading, steps
from outgrow.planning.names import PLANNER_NAMES
from outgrow.runtime import device, flights
from outgrow.units import format_bytes, format_seconds
from tests.runtime.stand_in import StandIn
from tests.workloads import DEEP, PERCEPTRON, written

KEYS = [
    "workload", "machine", "planner", "budget_bytes", "floor_bytes", "in_core_peak_bytes", "bound_seconds",
    "in_core_seconds", "predicted", "simulated", "measured", "overhead_bytes", "bytes_swapped", "bytes_written",
    "seconds_recomputed", "ops", "planning_seconds", "bytes_below", "ran_as_written",
]  # fmt: skip
MORE_KEYS = ["settings", "scores", "plan", "account", "derivation"]
BIG = [f"--set={name}={value}" for name, value in DEEP.items()]


async def coroutine() -> None:
    """Do what no step does."""


@dataclass(frozen=True)
class Said:
    """How a command ended and what it said."""

    status: int
    out: str
    err: str


Command = Callable[..., Said]


@pytest.fixture
def outgrow(capsys: pytest.CaptureFixture[str], plans_found_quickly: None) -> Command:  # noqa: ARG001
    """Run a command in this process."""

    def run(*arguments: object) -> Said:
        try:
            status = main([str(argument) for argument in arguments])
        except SystemExit as usage:
            status = int(str(usage.code))
        captured = capsys.readouterr()
        return Said(status, captured.out, captured.err)

    return run


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    return written(tmp_path)


def refusal(said: Said, status: int = 1) -> str:
    """Return the reason of a refusal, which is all that it says on stderr."""
    assert said.status == status
    assert "Traceback" not in said.err
    if status == 1:
        assert said.err.startswith("outgrow: ")
        assert said.err.count("\n") == 1
    return said.err


def test_training_under_a_budget(outgrow: Command, toy: Path, disk_folder: Path, tmp_path: Path) -> None:
    """A line a step, the table, the scores; JSON with the keys of the interface, a page and a timeline."""
    out, page, trace = tmp_path / "out.json", tmp_path / "page.html", tmp_path / "trace.json"
    outputs = ("--json", out, "--report", page, "--trace", trace, "--offload-dir", disk_folder)
    said = outgrow("train", f"{toy}:perceptron", *BIG, "--memory-budget=170MiB", "--steps=3", *outputs)
    assert (said.status, said.err) == (0, "")
    lines = said.out.splitlines()
    assert [line.split("  ")[0] for line in lines[:3]] == ["step 1/3", "step 2/3", "step 3/3"]
    assert all("loss 1." in line and line.endswith(" of 170.0 MiB") for line in lines[:3])
    assert re.search(r"  [\d.]+ m?s \([\d.]+ [mu]?s of it planning\)  process ", lines[0])
    assert found_floor(said.out) <= 170.0
    assert lines[-1].startswith("error ")
    found = json.loads(out.read_text())
    assert list(found) == KEYS + MORE_KEYS
    assert list(found["predicted"]) == list(found["simulated"]) == ["peak_bytes", "seconds"]
    assert list(found["measured"]) == ["peak_bytes", "process_bytes", "seconds", "losses"]
    assert len(found["measured"]["losses"]) == 3
    assert found["bytes_swapped"] > 0
    assert found["settings"] == DEEP
    assert page.read_text().startswith("<!doctype html>")
    assert json.loads(trace.read_text())["traceEvents"]
    assert list(tmp_path.glob(".*")) == []


def found_floor(out: str) -> float:
    """Return the floor that a table tells, in MiB."""
    told = re.search(r"^floor +([\d.]+) MiB", out, re.MULTILINE)
    assert told is not None
    return float(told.group(1))


def test_the_floor_is_no_more_than_the_budget_that_has_trained(
    outgrow: Command, toy: Path, disk_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The margin for other processes does not lift it above."""
    monkeypatch.setattr(OnCpu, "slack_bytes", 1 << 30)
    said = outgrow("train", f"{toy}:perceptron", "--memory-budget=96MiB", "--offload-dir", disk_folder)
    assert (said.status, found_floor(said.out)) == (0, 96.0)
    assert "or less: under this budget there is a plan" in said.out


def test_later_steps_may_need_more(outgrow: Command, tmp_path: Path, toy: Path, disk_folder: Path) -> None:
    """A first step that makes state has another floor than those that find it, and that is said."""
    toy.write_text(PERCEPTRON.replace("SGD(", "Adam("))
    asked = ("--set=width=1024", "--memory-budget=8MiB", "--offload-dir", disk_folder)
    said = refusal(outgrow("train", f"{toy}:perceptron", *asked, "--json", tmp_path / "out.json"))
    assert said.endswith("Later steps may need more: `outgrow plan` says how much.\n")


def test_a_later_step_without_a_plan_says_what_was_done(
    outgrow: Command, tmp_path: Path, toy: Path, disk_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How many steps came before, and that there are no results of them."""

    def refused(*_: object, **__: object) -> None:
        raise Infeasible("Too small.", floor_bytes=1, culprit="mm")

    def without_plans(*arguments: Any) -> None:
        note(*arguments)
        monkeypatch.setattr(guided, "fitted", refused)

    note = entries.Entries.note_as_written
    monkeypatch.setattr(entries.Entries, "note_as_written", without_plans)
    toy.write_text(PERCEPTRON.replace("batches=[(x, y)]", "batches=[(x[1:], y[1:]), (x, y)]"))
    out = tmp_path / "out.json"
    asked = ("--memory-budget=1GiB", "--steps=3", "--offload-dir", disk_folder, "--json", out)
    said = refusal(outgrow("train", f"{toy}:perceptron", *asked))
    assert said.endswith("Too small. 1 of 3 steps were done, and nothing was written.\n")
    assert not out.exists()


def test_a_step_that_fits_runs_as_it_is(outgrow: Command, toy: Path, disk_folder: Path) -> None:
    """With room enough nothing moves, and inputs that are not numbers train on, as in eager; the table says so."""
    said = outgrow(
        "train", f"{toy}:perceptron", "--set=poison=true", "--memory-budget=2GiB", "--json=-", "--steps=2",
        "--offload-dir", disk_folder,
    )  # fmt: skip
    assert said.status == 0
    assert "step 2/2  loss nan" in said.err
    assert "not planned: it fits twice over, so your function itself was called" in said.err
    assert "simulated" not in said.err
    found = json.loads(said.out)
    assert found["measured"]["losses"] == [None, None]
    assert found["plan"]["decisions"] == []


def test_planning_explaining_and_comparing(outgrow: Command, toy: Path, tmp_path: Path) -> None:
    """The plan for a named machine is explained in words; every planner has its row and its object."""
    out, rows = tmp_path / "plan.json", tmp_path / "rows.json"
    asked = (f"{toy}:perceptron", *BIG, "--memory-budget=120MiB", "--machine=v100-pcie3")
    assert outgrow("plan", *asked, "--json", out).status == 0
    found = json.loads(out.read_text())
    assert list(found) == KEYS + MORE_KEYS
    assert found["measured"] is None
    assert found["machine"] == "v100-pcie3"

    said = outgrow("explain", out)
    assert said.status == 0
    assert "The budget is 120.0 MiB" in said.out
    assert f"set by {found['plan']['floor_op']}" in said.out
    assert said.out.count(format_bytes(found["floor_bytes"])) == 1
    assert "gaps are swapped" in said.out
    assert all(row["storage"] in said.out for row in found["account"]["swapped"])

    said = outgrow("compare", *asked, "--json", rows)
    assert said.status == 0
    compared = json.loads(rows.read_text())
    assert [row["planner"] for row in compared] == list(PLANNER_NAMES)
    assert all(f"\n{planner} " in said.out for planner in PLANNER_NAMES)
    assert {row["bound_seconds"] for row in compared if "bound_seconds" in row} == {found["bound_seconds"]}
    for row in compared[-2:]:
        assert row["because"] == "it chooses the order alone"
        assert f": it chooses the order alone ({row['culprit']})" in said.out


def test_a_planner_without_a_plan_has_a_row_that_says_so(outgrow: Command, toy: Path) -> None:
    """Where no planner has a plan, each row says below which budget, and the refusal stands once, with its status."""
    asked = (f"{toy}:perceptron", *BIG, "--memory-budget=40MiB", "--machine=v100-pcie3")
    said = outgrow("compare", *asked, "--json=-")
    assert said.status == 1
    *others, _, _ = rows = json.loads(said.out)
    assert all(row["because"] == "below the floor of every plan" for row in others)
    assert said.err.count("  no plan below ") == len(PLANNER_NAMES)
    assert f"no plan below {format_bytes(rows[0]['needs_bytes'])}\n" in said.err
    assert said.err.count("Raise the budget to") == 1
    assert said.err.splitlines()[-1].startswith("outgrow: Budget 40.0 MiB is below the floor.")


# Machines ---------------------------------------------------------------------------------------------------


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure no longer than it takes to have figures."""
    monkeypatch.setattr(machine, "_SECONDS", 0.0)
    monkeypatch.setattr(machine, "_COPIES", 3)


@pytest.mark.usefixtures("quickly")
def test_a_measured_machine_can_be_planned_for(outgrow: Command, toy: Path, disk_folder: Path, tmp_path: Path) -> None:
    """What `machine` writes says of each number how it was measured and when, and `--machine` reads it."""
    file, out = tmp_path / "mine.toml", tmp_path / "plan.json"
    said = outgrow("machine", "--offload-dir", disk_folder, "--out", file)
    assert (said.status, said.err) == (0, "")
    assert f"--machine {file}" in said.out
    lines = file.read_text().splitlines()
    for key in ("flops_per_second", "bytes_per_second", "out_bytes_per_second", "latency_seconds", "half_duplex"):
        at = next(at for at, line in enumerate(lines) if line.startswith(f"{key} = "))
        assert lines[at - 1].startswith("# measured: ")
    assert sum(line.startswith('source = "Measured on 20') for line in lines) == 2
    assert outgrow("plan", f"{toy}:perceptron", "--memory-budget=1GiB", "--machine", file, "--json", out).status == 0
    assert json.loads(out.read_text())["machine"] == described_machine(str(file)).name
    assert "device: Measured on" in outgrow("machine", file).out


@pytest.mark.usefixtures("quickly")
def test_a_busy_machine_and_a_gpu_are_told(
    outgrow: Command, disk_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rates of a busy machine are too low, and a GPU is measured if asked for: both are said; the output stays TOML."""
    monkeypatch.setattr(os, "getloadavg", lambda: (100.0, 1.0, 1.0))
    monkeypatch.setattr(measure, "graphics_card", lambda: "Voodoo 2")
    said = outgrow("machine", "--offload-dir", disk_folder)
    assert "# The machine was busy" in said.out
    assert "# Only the CPU was measured: --device cuda measures the GPU, here a Voodoo 2." in said.out
    assert tomllib.loads(said.out)["device"]["needs_workspace"] is True


@pytest.mark.parametrize("command", ["plan", "compare"])
def test_a_busy_machine_is_told_below_a_plan_for_it(
    outgrow: Command, toy: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Its rates go into every prediction; rates of a machine that is named do not change."""
    monkeypatch.setattr(os, "getloadavg", lambda: (100.0, 1.0, 1.0))
    asked = (command, f"{toy}:perceptron", "--memory-budget=1GiB")
    assert outgrow(*asked).out.count("The machine was busy") == 1
    assert "The machine was busy" not in outgrow(*asked, "--machine=v100-pcie3").out


def test_a_gpu_is_measured_where_there_is_one(
    outgrow: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its rates and its link to memory of the host are written for `--machine`; without one that is said."""
    monkeypatch.setattr(measure, "graphics_card", lambda: None)
    assert "no GPU" in refusal(outgrow("machine", "--device=cuda"))
    monkeypatch.setattr(measure, "graphics_card", lambda: "stand-in")
    monkeypatch.setattr(device, "Cuda", StandIn)
    monkeypatch.setattr(measure, "_MATRIX_BESIDE", 256)
    monkeypatch.setattr(measure, "_VECTOR_BYTES_BESIDE", 1 << 20)
    monkeypatch.setattr(flights, "MEASURED_BYTES", 1 << 20)
    file = tmp_path / "gpu.toml"
    assert outgrow("machine", "--device=cuda", "--out", file).status == 0
    assert described_machine(str(file)).device.name == StandIn().name
    assert "locked memory of the host" in file.read_text()


def test_known_machines_are_listed_and_shown(outgrow: Command) -> None:
    """A row for each, and of one of them the rates with their sources."""
    rows = outgrow("machine", "--list").out.splitlines()
    assert tuple(row.split()[0] for row in rows[1:]) == machine_names()
    shown = outgrow("machine", "v100-pcie3").out
    assert "TFLOP/s      12.5" in shown
    assert "Peaks: 15.7 TFLOP/s" in shown


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--list", "v100-pcie3"], "--list stands alone"),
        (["v100-pcie3", "--offload-dir=."], "leave the name out"),
        (["v100-pcie3", "--device=cuda"], "leave the name out"),
        (["--device=cuda", "--offload-dir=."], "leads to memory of the host"),
        (["--out=/nowhere/mine.toml"], "the folder /nowhere does not exist"),
    ],
)
def test_machine_says_what_it_needs(outgrow: Command, arguments: list[str], reason: str) -> None:
    """A known machine is not measured, and what is measured can be written."""
    assert reason in refusal(outgrow("machine", *arguments), status=2)


# Wrong usage and refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--memory-budget=8 bananas"], "memory budget '8 bananas' is not a size"),
        (["--memory-budget=0"], "memory budget '0' is not positive"),
        (["--memory-budget", "-1"], "memory budget '-1' is not positive"),
        (["--memory-budget=3"], "memory budget '3' is 3 B. Did you mean 3GiB?"),
        (["--memory-budget=1GiB", "--offload-dir="], "the folder is empty. Give a path."),
        (["--memory-budget=1GiB", "--steps=0"], "'0' is not a whole number"),
        (["--memory-budget=1GiB", "--steps=many"], "'many' is not a whole number"),
        (["--memory-budget=1GiB", "--planner=oracle"], "invalid choice: 'oracle'"),
        (["--memory-budget=1GiB", "--set", "rows"], "'rows' is not of the form name=value"),
        (["--memory-budget=1GiB", "--disk-budget=none"], "disk budget 'none' is not a size"),
        (["--memory-budget=1GiB", "--json=/nowhere/out.json"], "the folder /nowhere does not exist"),
        (["--memory-budget=1GiB", "--report=/"], "/ is a folder"),
        (["--memory-budget=1GiB", "--trace=/proc/trace.json"], "no file can be made in /proc"),
        (["--memory-budget=1GiB", f"--trace={'a' * 300}"], "no file can be made in .: File name too long"),
        ([], "the following arguments are required: --memory-budget"),
    ],
)
def test_wrong_usage(outgrow: Command, toy: Path, arguments: list[str], reason: str) -> None:
    """What cannot be meant is said before anything is loaded."""
    assert reason in refusal(outgrow("train", f"{toy}:perceptron", *arguments), status=2)


def test_an_unknown_machine_is_wrong_usage_and_lists_the_known(outgrow: Command, toy: Path) -> None:
    """Which machines are described is said where a name is not one."""
    said = outgrow("plan", f"{toy}:perceptron", "--memory-budget=1GiB", "--machine=abacus")
    assert "v100-pcie3" in refusal(said, status=2)
    said = outgrow("plan", f"{toy}:perceptron", "--memory-budget=1GiB", f"--machine={'a' * 300}")
    assert "v100-pcie3" in refusal(said, status=2)


@pytest.mark.parametrize("command", ["plan", "compare", "fit"])
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "cannot be read: No such file or directory. Give a file such as `outgrow machine --out` writes"),
        (
            "name = ",
            "is not TOML: Invalid value (at end of document). `outgrow machine --out FILE` writes a file of this form",
        ),
        ("", "is not valid: machine has no 'device'."),
    ],
)
def test_a_file_that_is_no_machine_is_refused(
    outgrow: Command, toy: Path, tmp_path: Path, command: str, text: str | None, reason: str
) -> None:
    """Every command that plans for a machine says what is wrong with its file, before anything is planned."""
    file = tmp_path / "mine.toml"
    if text is not None:
        file.write_text(text)
    wanted = ["--slowdown=1.1"] if command == "fit" else ["--memory-budget=1GiB"]
    found = refusal(outgrow(command, f"{toy}:perceptron", *wanted, "--machine", file))
    assert str(file) in found
    assert reason in found


def test_results_are_not_written_over_what_is_read(outgrow: Command, toy: Path, tmp_path: Path) -> None:
    """Neither over the machine's file, nor through a link, be it one that leads nowhere."""
    file, link, loop = (tmp_path / name for name in ("mine.toml", "link.json", "loop"))
    file.touch()
    link.symlink_to(file)
    loop.symlink_to(loop)
    wanted = [f"{toy}:perceptron", "--memory-budget=1GiB", "--machine", file, "--json"]
    assert "the machine that is planned for" in refusal(outgrow("plan", *wanted, file), status=2)
    assert "the machine that is planned for" in refusal(outgrow("plan", *wanted, link), status=2)
    assert "is not valid" in refusal(outgrow("plan", *wanted, loop))


def test_a_step_is_divided_among_so_many(outgrow: Command, toy: Path) -> None:
    """More would take hours to say."""
    found = refusal(outgrow("partition", f"{toy}:perceptron", "--workers=1000000"), status=2)
    assert "1024 workers at most, not 1000000" in found


def test_a_folder_is_no_machine(outgrow: Command, tmp_path: Path) -> None:
    """A folder is called one, and so is text of another encoding; a name that is none lists those that are."""
    assert "cannot be read: Is a directory" in refusal(outgrow("machine", tmp_path))
    (tmp_path / "mine.toml").write_bytes(b"name = \xff")
    assert "cannot be read: it is not text" in refusal(outgrow("machine", tmp_path / "mine.toml"))
    assert "Did you mean v100-pcie3? Described are: a100-pcie4" in refusal(outgrow("machine", "v100-pcie"), status=2)


def test_what_a_workload_prints_is_not_among_the_results(outgrow: Command, toy: Path, disk_folder: Path) -> None:
    """The standard output is theirs alone where one of them goes there."""
    usual = ("--memory-budget=1GiB", "--steps=1", "--offload-dir", disk_folder)
    said = outgrow("train", f"{toy}:prints", *usual, "--json=-")
    assert json.loads(said.out)["workload"].endswith("prints")
    assert "a workload is made" in said.err
    said = outgrow("train", f"{toy}:prints", *usual, "--trace=-")
    assert json.loads(said.out)
    assert "a workload is made" in outgrow("train", f"{toy}:prints", *usual).out


def test_results_are_written_though_evaluation_fails(outgrow: Command, toy: Path, disk_folder: Path) -> None:
    """All steps were done."""
    out = disk_folder / "out.json"
    usual = ("--memory-budget=1GiB", "--steps=1", "--offload-dir", disk_folder)
    assert "evaluate failed" in refusal(outgrow("train", f"{toy}:scored_by_a_number", *usual, "--json", out))
    assert json.loads(out.read_text())["measured"]["losses"]


def test_a_workload_may_go_to_another_folder(
    outgrow: Command, toy: Path, disk_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Hydra does; paths are those of where the command began."""
    away = disk_folder / "away"
    away.mkdir()
    seeded = "torch.manual_seed(seed)"
    toy.write_text(f"import os\n{PERCEPTRON}".replace(seeded, f"{seeded}; os.chdir({str(away)!r})"))
    monkeypatch.chdir(disk_folder)
    outputs = ("--json=out.json", "--report=out.html", "--trace=trace.json", "--offload-dir=spill")
    said = outgrow("train", f"{toy}:perceptron", *BIG, "--memory-budget=170MiB", *outputs)
    assert (said.status, Path.cwd()) == (0, away), said.err
    assert list(away.iterdir()) == []
    assert {"out.html", "out.json", "spill", "trace.json"} <= {path.name for path in disk_folder.iterdir()}


def test_fit_stops_below_values_of_which_there_is_no_workload(outgrow: Command, toy: Path) -> None:
    """As below those that do not fit; the reason is told."""
    said = outgrow("fit", f"{toy}:at_most_600", "--memory-budget=1GiB", "--vary=rows", "--machine=v100-pcie3")
    assert said.status == 0, said.err
    assert "rows 1024: is no workload: " in said.out
    assert "ValueError: that many rows there are not" in said.out
    assert "The largest rows that fits 1.00 GiB" in said.out


def place(text: str) -> str:
    """Return how a refusal names the line of the workload file that begins with this text."""
    numbered = enumerate(PERCEPTRON.splitlines(), start=1)
    number, line = next((number, line.strip()) for number, line in numbered if line.strip().startswith(text))
    return f"toy.py:{number}: `{line}`: "


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["perceptron", "--set=row=1"], "has no setting 'row'. Did you mean rows?"),
        (["perceptrons"], "Did you mean perceptron?"),
        (["looks_at_the_loss"], f"{place('if float(loss) > 1')}float(), int() or complex() of a tensor"),
        (["fails"], f"{place('raise KeyError')}KeyError: 'no such brain'"),
        (["scored_by_a_number"], "evaluate failed: it returned a float; return a dict of names and scores"),
        (["scored_by_a_word"], "evaluate failed: its score 'note' is no number: ValueError: could not convert string"),
        (["perceptron", *BIG, "--memory-budget=40MiB"], "is below the floor"),
        (["perceptron", "--offload-dir=/nowhere/spill"], "there is no folder /nowhere. Make that"),
        (["perceptron", "--offload-dir=/proc/nowhere"], "The offload folder /proc/nowhere cannot be made"),
        (["perceptron", "--offload-dir=/dev/null"], "The offload folder /dev/null is not a directory"),
        (["perceptron", "--offload-dir=/dev/shm"], "/dev/shm lies on tmpfs, which is memory itself"),
        (["perceptron", *BIG, "--memory-budget=170MiB", "--disk-budget=1MiB"], "Raise the disk budget"),
    ],
)
def test_refusals(outgrow: Command, toy: Path, disk_folder: Path, arguments: list[str], reason: str) -> None:
    """Each refusal is one line that says what was found and where. Of repeated options the last counts."""
    workload, *options = arguments
    usual = ("--memory-budget=1GiB", "--offload-dir", disk_folder)
    assert reason in refusal(outgrow("train", f"{toy}:{workload}", *usual, *options))


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("model", None, "whose model is a NoneType. Give the nn.Module that is trained."),
        ("model", [torch.nn.Linear(2, 2)], "whose model is a list. Give the nn.Module that is trained; put several of"),
        ("optimizer", (), "Give the torch.optim.Optimizer; the command line takes one, and a step of several is for"),
        ("optimizer", 3, "whose optimizer is a int. Give the torch.optim.Optimizer."),
        ("step", None, "whose step is a NoneType. Give the function that runs one step."),
        ("step", coroutine, "whose step is a generator or a coroutine. Give a function that returns once the step has"),
        ("batches", 3, "whose batches is a int. Give a list of them"),
        ("batches", [torch.ones(2)], "with a batch that is a Tensor. Give tuples"),
        ("batches", [(torch.ones(2),), 3], "with a batch that is a int. Give tuples"),
        ("evaluate", 3, "whose evaluate is a int. Give a function that returns named scores."),
    ],
)
def test_a_workload_of_other_things_is_refused(
    outgrow: Command, toy: Path, monkeypatch: pytest.MonkeyPatch, field: str, value: object, reason: str
) -> None:
    """The field is named, with what belongs there, before anything is captured."""
    made = loading.Workload

    def wrong(*arguments: Any, **keywords: Any) -> object:
        return replace(made(*arguments, **keywords), **{field: value})

    monkeypatch.setattr("outgrow.Workload", wrong)
    assert reason in refusal(outgrow("plan", f"{toy}:perceptron", "--memory-budget=1GiB"))


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("async def late(): ...", "late is a generator or a coroutine. Give a function that returns a Workload"),
        ("def late(): yield perceptron()", "late is a generator or a coroutine. Give a function that returns a"),
        (
            """\
def late():
    made = perceptron()
    async def scores(): ...
    return outgrow.Workload(made.model, made.optimizer, made.step, made.batches, evaluate=scores)""",
            "evaluate is a generator or a coroutine. Give a function that returns named scores",
        ),
    ],
)
@pytest.mark.filterwarnings("error")
def test_what_returns_before_its_work_is_done_is_refused(
    outgrow: Command, toy: Path, disk_folder: Path, function: str, reason: str
) -> None:
    """That is all that is said: no coroutine is left that nobody awaits."""
    toy.write_text(f"{PERCEPTRON}\n\n{function}\n")
    asked = ("--memory-budget=1GiB", "--offload-dir", disk_folder)
    assert reason in refusal(outgrow("train", f"{toy}:late", *asked))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["plan", "--memory-budget=1GiB", "--report={toy}"], "the workload itself"),
        (["plan", "--memory-budget=1GiB", "--report=a.html", "--json=a.html"], "--json writes there already"),
        (["plan", "--memory-budget=1GiB", "--json=-", "--trace=-"], "--json writes there already"),
        (["fit", "--memory-budget=1GiB", "--vary=rows", "--report=a.svg"], "--report draws what memory buys"),
        (["partition", "--workers=2", "--memory-budget=1GiB"], "name the --machine"),
    ],
)
def test_options_that_do_not_go_together_are_wrong_usage(
    outgrow: Command, toy: Path, arguments: list[str], reason: str
) -> None:
    """Nothing is overwritten, and no option is left without a word."""
    before = toy.read_text()
    command, *options = (argument.format(toy=toy) for argument in arguments)
    assert reason in refusal(outgrow(command, f"{toy}:perceptron", *options), status=2)
    assert toy.read_text() == before


def test_a_machine_is_not_written_over_a_folder(outgrow: Command) -> None:
    """Without a workload, a folder is called one."""
    assert ". is a folder" in refusal(outgrow("machine", "--out=."), status=2)


def test_a_full_disk_is_told_with_the_file(outgrow: Command, toy: Path, tmp_path: Path) -> None:
    """The error of a disk that is full names none; /dev/full is one that always is."""
    result = tmp_path / "result"
    result.symlink_to("/dev/full")
    options = ["--memory-budget=1GiB", "--machine=v100-pcie3", f"--json={result}"]
    assert refusal(outgrow("plan", f"{toy}:perceptron", *options)) == f"outgrow: {result}: No space left on device\n"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "The file is not JSON"),
        ('{"workload": 3}', "the file has no 'plan'"),
        ("[]", "the file is [], not an object"),
        ('{"plan": {"planner": "search"}}', "written in version 0 of its form, and this outgrow reads version 1"),
        ('{"plan": {"version": 2}}', "written in version 2 of its form, and this outgrow reads version 1"),
        ('{"plan": {"version": 1, "decisions": [], "fingerprint": "", "planner": ""}}', "plan has no 'budget'"),
    ],
)
def test_a_file_that_is_no_plan_is_refused(outgrow: Command, tmp_path: Path, text: str, reason: str) -> None:
    """`explain` says what is missing or wrong."""
    path = tmp_path / "plan.json"
    path.write_text(text)
    assert f"{path}: " in refusal(outgrow("explain", path))
    assert reason in refusal(outgrow("explain", path))
    assert "cannot be read" in refusal(outgrow("explain", tmp_path / "missing.json"))


def test_an_invalid_graph_is_shown_around_the_fault(
    outgrow: Command, toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was captured is verified, and the refusal shows the ops before and behind the one at fault."""

    def captured(*arguments: object) -> Captured:
        found = capture(*arguments)  # pyright: ignore[reportArgumentType]
        first, second, *rest = found.graph.instructions
        return replace(found, graph=replace(found.graph, instructions=(second, first, *rest)))

    monkeypatch.setattr(steps, "capture", captured)
    said = outgrow("plan", f"{toy}:perceptron", "--memory-budget=1GiB", "--machine=v100-pcie3")
    assert said.status == 1
    assert said.err.startswith("outgrow: invariant 1: ")
    assert said.err.count("\n") > 3


@pytest.mark.parametrize("planner", PLANNER_NAMES)
def test_an_impossible_budget_names_the_floor(outgrow: Command, toy: Path, planner: str) -> None:
    """Whatever the planner: how much would do, which op says so, and what to do."""
    asked = (f"{toy}:perceptron", *BIG, "--memory-budget=40MiB", "--machine=v100-pcie3", "--planner", planner)
    said = refusal(outgrow("plan", *asked))
    assert re.search(r"Raise the budget to \d+MiB", said)
    assert re.search(r"(while \w+ runs|at its best \w+ \(aten\.\w+)", said)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("command", ["train", "plan"])
def test_a_budget_beyond_the_machine_is_told_in_one_line(
    outgrow: Command, toy: Path, disk_folder: Path, command: str
) -> None:
    """It is no refusal: the step runs, and the line says what the machine has."""
    said = outgrow(command, f"{toy}:perceptron", "--memory-budget=100TiB", "--offload-dir", disk_folder)
    assert (said.status, said.err) == (0, "")
    assert said.out.startswith("The memory budget of 100.00 TiB is more than this machine has: ")


# Processes --------------------------------------------------------------------------------------------------


def command_line(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "outgrow", *map(str, arguments)]


def test_wrong_usage_does_not_wait_for_torch() -> None:
    """The seconds that torch takes to import are spent only if there is something to do."""
    code = "import sys; import outgrow.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_ctrl_c_ends_training_with_one_line_and_leaves_no_file(toy: Path, disk_folder: Path) -> None:
    """Interrupted in the middle of a step, the process says so, and its spill file is gone."""
    folder = disk_folder / "spill"
    folder.mkdir()
    arguments = (f"{toy}:perceptron", *BIG, "--memory-budget=170MiB", "--steps=1000", "--offload-dir", folder)
    process = subprocess.Popen(
        command_line("train", *arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("step ")
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (130, "outgrow: interrupted\n")
    assert list(folder.iterdir()) == []


def test_a_full_output_is_told_by_its_name() -> None:
    """It is no file that the user has named."""
    with Path("/dev/full").open("w") as full:
        process = subprocess.run(
            command_line("machine", "--list"), stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (process.returncode, process.stderr) == (1, "outgrow: <stdout>: No space left on device\n")


def test_a_reader_that_goes_away_is_no_error(toy: Path, tmp_path: Path, outgrow: Command) -> None:
    """`outgrow explain PLAN | head -1` says nothing on stderr."""
    out = tmp_path / "plan.json"
    outgrow("plan", f"{toy}:perceptron", "--memory-budget=1GiB", "--machine=v100-pcie3", "--json", out)
    reading, writing = os.pipe()
    os.close(reading)
    process = subprocess.run(
        command_line("explain", out), stdout=writing, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writing)
    assert process.stderr == ""
    assert process.returncode == 128 + signal.SIGPIPE


def test_a_reader_of_results_that_goes_away_is_no_error(toy: Path) -> None:
    """Of a result so short that Python would write it when it ends."""
    reading, writing = os.pipe()
    os.close(reading)
    asked = command_line("partition", f"{toy}:perceptron", "--workers=2", "--json=-")
    process = subprocess.run(asked, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert not re.search("pipe|Exception", process.stderr)
    assert process.returncode == 128 + signal.SIGPIPE


def test_a_step_is_divided_among_workers(outgrow: Command, toy: Path, tmp_path: Path) -> None:
    """`partition` tells what each worker holds and receives, and that a number of workers is one."""
    out = tmp_path / "division.json"
    said = outgrow("partition", f"{toy}:perceptron", *BIG, "--workers=4", "--verify", "--json", out)
    assert said.status == 0, said.err
    found = json.loads(out.read_text())
    assert found["workers"] == 4
    assert found["is_exact"]
    assert found["communicated_bytes"] > 0
    assert found["lasting_bytes_per_worker"] < found["peak_bytes_per_worker"] < found["in_core_peak_bytes"]
    assert re.search(rf"{format_bytes(found['communicated_bytes'])} +received by all workers", said.out)
    assert "whole: every worker runs all of the call." in said.out
    assert re.search(r"\d+ calls ran in \d+ ways; the worst differs by \de-1\d", said.out)
    assert (found["machine"], found["predicted_seconds"]) == (None, None)
    refused = outgrow("partition", f"{toy}:perceptron", "--workers=0")
    assert (refused.status, "'0' is not a whole number of 1 or more" in refused.err) == (2, True)


def test_a_workload_on_a_gpu_is_not_divided(outgrow: Command, toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers of a mesh are on the CPU, and so is a workload that `partition` takes."""
    monkeypatch.setattr("outgrow.frontends.workers.divisible.home_of", lambda _training: torch.device("cuda", 0))
    said = refusal(outgrow("partition", f"{toy}:perceptron", "--workers=2"))
    assert "has its model on cuda:0, and steps of models on the CPU are divided" in said


def test_a_divided_step_is_predicted_on_a_machine(outgrow: Command, toy: Path, tmp_path: Path) -> None:
    """`partition --machine` tells the seconds, those of exchanges among them, within the budget of each device."""
    out = tmp_path / "division.json"
    asked = ("partition", f"{toy}:perceptron", *BIG, "--workers=4")
    said = outgrow(*asked, "--machine=k80x8", "--memory-budget=1GiB", "--json", out)
    assert said.status == 0, said.err
    found = json.loads(out.read_text())
    assert found["machine"] == "k80x8"
    assert 0 < found["waiting_seconds"] < found["predicted_seconds"]
    assert found["ideal_seconds"] < found["predicted_seconds"]
    assert found["planned_peak_bytes"] <= 1 << 30
    assert re.search(rf"a step +{format_seconds(found['predicted_seconds'])} +on k80x8 within 1.00 GiB", said.out)
    assert outgrow("partition", f"{toy}:perceptron", *BIG, "--workers=1", "--machine=k80-pcie3").status == 0
    alone = outgrow(*asked, "--machine=k80-pcie3")
    assert (alone.status, "k80-pcie3 describes one device" in alone.err) == (1, True)
    many = outgrow("partition", f"{toy}:perceptron", *BIG, "--workers=16", "--machine=k80x8")
    assert (many.status, "k80x8 has 8 devices, fewer than 16 workers" in many.err) == (1, True)


def test_the_largest_setting_that_fits(outgrow: Command, toy: Path, tmp_path: Path) -> None:
    """`fit --vary` tells each value it tried, and the largest one that keeps budget and slowdown."""
    out = tmp_path / "fit.json"
    arguments = ("--memory-budget=96MiB", "--vary=rows", "--set=rows=256", "--machine=v100-pcie3")
    said = outgrow("fit", f"{toy}:perceptron", "--set=width=256", "--set=depth=8", *arguments, "--json", out)
    assert (said.status, said.err) == (0, "")
    found = json.loads(out.read_text())
    assert f"The largest rows that fits 96.0 MiB at 1.1 times the seconds in core: {found['largest']}" in said.out
    assert re.search(r"^rows 256: fits, 1\.\d+ times the seconds in core, [\d.]+ MiB in core$", said.out, re.MULTILINE)
    assert re.search(r"^rows \d+: is too slow, 1\.[1-9]\d+ times the seconds in core, ", said.out, re.MULTILINE)
    fitting = [row for row in found["trials"] if row["value"] == found["largest"]]
    assert fitting[0]["predicted"]["peak_bytes"] + fitting[0]["overhead_bytes"] <= 96 << 20


def test_the_smallest_budget_for_a_slowdown(outgrow: Command, toy: Path, tmp_path: Path) -> None:
    """`fit` without a budget prints seconds against budgets, the smallest that keeps the slowdown, and draws them."""
    out, picture = tmp_path / "fit.json", tmp_path / "curve.svg"
    arguments = ("--slowdown=1.2", "--machine=v100-pcie3", "--json", out, "--report", picture)
    said = outgrow("fit", f"{toy}:perceptron", "--set=width=512", "--set=rows=512", "--set=depth=4", *arguments)
    assert (said.status, said.err) == (0, "")
    found = json.loads(out.read_text())
    assert found["smallest"]["slowdown"] <= 1.2
    assert len(found["curve"]) > 5
    assert picture.read_text().count("<circle") == len(found["curve"])
    assert "The smallest budget at 1.2 times the seconds in core" in said.out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--vary=rows",), "--vary needs a --memory-budget"),
        (("--memory-budget=1GiB",), "something to --vary"),
        (("--slowdown=0.5",), "not a factor of 1 or more"),
        (("--slowdown=fast",), "not a factor of 1 or more"),
        (("--vary=not a name", "--memory-budget=1GiB"), "not the name of an argument"),
        (("--vary=rows:0", "--memory-budget=1GiB"), "'0' is not a whole number of 1 or more"),
    ],
)
def test_fit_says_what_it_needs(outgrow: Command, toy: Path, arguments: tuple[str, ...], reason: str) -> None:
    """Wrong usage is told before anything is planned."""
    assert reason in refusal(outgrow("fit", f"{toy}:perceptron", *arguments), status=2)


def test_a_setting_may_vary_by_multiples(outgrow: Command, toy: Path) -> None:
    """A volume that is halved three times has a size that is a multiple of 8; the search begins at one."""
    asked = ("fit", f"{toy}:perceptron", "--memory-budget=96MiB", "--machine=v100-pcie3", "--vary=rows:1000")
    said = outgrow(*asked, "--set=width=512")
    tried = [int(value) for value in re.findall(r"^rows (\d+): ", said.out, re.MULTILINE)]
    assert len(tried) > 1
    assert all(value % 1000 == 0 for value in tried)
    assert "begins: give a multiple of 1000" in refusal(outgrow(*asked, "--set=rows=8"))


def test_a_setting_without_influence_is_refused(outgrow: Command, toy: Path) -> None:
    """The search for the largest seed would never end."""
    said = outgrow("fit", f"{toy}:perceptron", "--memory-budget=96MiB", "--vary=seed", "--machine=v100-pcie3")
    assert "With seed 1, 2, 4 the step is the same" in refusal(said)


def test_a_setting_that_is_a_mere_number_is_refused(outgrow: Command, toy: Path) -> None:
    """Of a learning rate, too, there is no largest one that fits; it is an argument of operators."""
    toy.write_text(PERCEPTRON.replace("lr=0.1", "lr=0.1 * (1 + seed)"))
    said = outgrow("fit", f"{toy}:perceptron", "--memory-budget=96MiB", "--vary=seed", "--machine=v100-pcie3")
    assert "With seed 1, 2, 4 the step is the same in size: --vary needs a setting that" in refusal(said)


def test_nothing_fits_a_budget_below_every_floor(outgrow: Command, toy: Path) -> None:
    """Where not even the value 1 fits, the refusal says so with the floor's reason."""
    out = toy.with_name("trials.json")
    asked = ("fit", f"{toy}:perceptron", "--memory-budget=1MiB", "--vary=rows", "--machine=v100-pcie3")
    said = outgrow(*asked, "--json", out)
    assert "Not even rows 1 fits 1.0 MiB" in refusal(said)
    assert re.fullmatch(r"rows 1: does not fit \(needs [\d.]+ MiB\)\n", said.out)
    found = json.loads(out.read_text())
    assert found["largest"] is None
    assert [trial["value"] for trial in found["trials"]] == [1]


def test_a_smallest_value_that_is_too_slow_says_what_to_do(outgrow: Command, toy: Path) -> None:
    """It has a plan, and there is no floor to tell."""
    asked = ("fit", f"{toy}:perceptron", "--memory-budget=70MiB", "--vary=rows:253952", "--slowdown=1")
    said = outgrow(*asked, "--machine=v100-pcie3")
    assert re.search(r"rows 253952: is too slow, 1\.\d+ times", said.out)
    assert "in core. Its plan is slower: raise --slowdown or --memory-budget." in refusal(said)


def test_ctrl_c_waits_for_imports() -> None:
    """Those of torch and NumPy end in errors of theirs where it strikes them."""
    code = """
import signal, sys
from importlib.abc import MetaPathFinder
from outgrow.cli import main

class Interrupting(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "numpy":
            signal.raise_signal(signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupting())
sys.exit(main(sys.argv[1:]))
"""
    for arguments in (["plan", "none.py:none", "--memory-budget=1GiB"], ["machine"]):
        process = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
        assert (process.returncode, process.stderr) == (130, "outgrow: interrupted\n")
