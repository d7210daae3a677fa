"""Does the benchmark for GPUs measure what it says, and does it go on where a row fails? On a machine without one."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import gpu
import gpu_rivals
import gpu_rows
import gpu_table
import gpu_trainings
import gpu_turns
import pytest
import torch

from outgrow.errors import DeviceFull, Infeasible

HEAD = {"command": "", "machine": {}, "versions": {}, "commit": "a"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the smoke run left its files."""
    folder = tmp_path_factory.mktemp("smoke")
    command = [sys.executable, gpu.__file__, "--smoke", "--out", str(folder / "gpu.json")]
    (folder / "out").mkdir()
    environment = {**os.environ, "OUT": str(folder / "out")}
    subprocess.run(command, check=True, env=environment, capture_output=True, timeout=280)
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> Mapping[str, Any]:
    """The file of the smoke run."""
    return json.loads((folder / "gpu.json").read_text())


def row_of(found: Mapping[str, Any], network: str) -> Mapping[str, Any]:
    """The only row of a network."""
    (row,) = (row for row in found["rows"] if row["workload"] == network)
    return row


def test_the_file_says_on_what_it_was_made(folder: Path, found: Mapping[str, Any]) -> None:
    """Machine, versions and commit are there, nothing was left out, and a copy and what was said are in `$OUT`."""
    assert set(HEAD) < set(found)
    assert found["machine"]["name"] == "stand-in"
    assert found["versions"]["torch"]
    assert found["not_run"] == []
    assert sorted(path.name for path in (folder / "out").iterdir()) == ["gpu.json", "rows.log"]


def test_facts_come_first(found: Mapping[str, Any]) -> None:
    """The allocator is directed, copies have a rate, every result is found in the rehearsal, and bits are equal."""
    checks = found["checks"]
    assert "failed" not in checks
    assert checks["directed"]["works"]
    assert checks["machine"]["link"]["out_bytes_per_second"] > 0
    operators = checks["operators: mlp"]
    assert operators["aten.addmm.default"]["found"] == operators["aten.addmm.default"]["born"] > 0
    assert checks["run: mlp"]["bitwise"]
    assert checks["run: mlp"]["misplaced_of"] == {}


def test_a_row_has_the_bits_of_the_step_in_core(found: Mapping[str, Any]) -> None:
    """Losses and state are equal, in fewer bytes than in core, and a rival has a speed at the same budget."""
    row = row_of(found, "mlp")
    assert set(gpu_table.FIGURES) < set(row)
    assert row["bitwise"]
    assert row["peak_bytes"] <= row["budget_bytes"] < row["in_core_peak_bytes"]
    assert row["over"] == pytest.approx(2.0)
    assert row["speed"] == pytest.approx(row["in_core_seconds"] / row["seconds"])
    assert row["predicted_seconds"] > 0
    assert list(row["rivals"]) == ["checkpoint"]
    assert row["rivals"]["checkpoint"] > 0


@pytest.mark.parametrize(("network", "reason"), [("fails", "this workload fails"), ("hangs", "took more than")])
def test_a_row_that_fails_does_not_stop_the_others(found: Mapping[str, Any], network: str, reason: str) -> None:
    """What fails, and what hangs, has a reason in the place of figures; the rows after it are there."""
    row = row_of(found, network)
    assert reason in row["failed"]
    assert row["speed"] is None
    assert [row["workload"] for row in found["rows"]] == ["fails", "hangs", "mlp"]


def test_after_the_deadline_nothing_is_begun(tmp_path: Path) -> None:
    """What there is no time for is named in the file."""
    table = gpu_table.Table.opened(tmp_path / "gpu.json", HEAD)
    turns = gpu_turns.turns(is_smoke=False, compiles=True)
    gpu.run(table, turns, time.monotonic(), tmp_path / "log", is_smoke=False)
    assert json.loads((tmp_path / "gpu.json").read_text())["not_run"] == [turn.name for turn in turns]


@pytest.mark.parametrize("alone", [True, False])
def test_checks_that_are_alone_have_all_the_time(alone: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Among others they leave time for these."""
    limits: list[float] = []

    def told(_turn: object, _request: object, most_seconds: float, *_about: object, **_how: object) -> object:
        limits.append(most_seconds)
        return {}, "ended"

    monkeypatch.setattr(gpu, "told_by_a_process", told)
    table = gpu_table.Table.opened(tmp_path / "gpu.json", HEAD)
    chosen = [turn for turn in gpu_turns.turns(is_smoke=False, compiles=False) if turn.kind == "checks" or not alone]
    gpu.run(table, chosen, time.monotonic() + 500, tmp_path / "log", is_smoke=False)
    assert (limits[0] > gpu.MOST_SECONDS["checks"]) == alone


def test_checks_go_on_in_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that breaks the device is not begun again."""
    facts = iter([({"context": {}, "pages": {"error": "it ended"}}, "exit status 1"), ({"overlap": {}}, "")])
    asked: list[object] = []

    def told(_turn: object, request: object, *_about: object, **_how: object) -> object:
        asked.append(request)
        return next(facts)

    monkeypatch.setattr(gpu, "told_by_a_process", told)
    found, failure = gpu.checks(gpu_turns.CHECKS, {}, 100.0, tmp_path / "log", is_smoke=False)
    assert asked == [{"told": []}, {"told": ["context", "pages"]}]
    assert (list(found), failure) == (["context", "pages", "overlap"], "")


def test_checks_that_are_silent_are_ended(tmp_path: Path) -> None:
    """A process is, that told something too long ago; one that tells is not."""
    facts = tmp_path / "facts"
    for seconds, told_at, reason in [(0, time.time(), ""), (60, 0, "told nothing for 1000 s")]:
        facts.touch()
        os.utime(facts, (told_at, told_at))
        command = [sys.executable, "-c", f"import time; time.sleep({seconds})"]
        process = subprocess.Popen(command, start_new_session=True)
        assert gpu._ended(process, 600, 0, facts, 1000) == reason


def test_what_failed_comes_last(tmp_path: Path) -> None:
    """Also rivals of a row that failed; facts that are known are not asked for again, but those that failed are."""
    network = gpu_turns.SMOKE_NETWORKS["mlp"]
    table = gpu_table.Table.opened(tmp_path / "gpu.json", HEAD)
    first, second, third = (gpu_turns.Turn("mlp", over) for over in (2.0, 4.0, 8.0))
    rivals = [gpu_turns.Turn("mlp", over, who) for over, who in [(2.0, "checkpoint"), (4.0, "a"), (4.0, "b")]]
    known = {"in_core_seconds": 1.0, "default_in_core_seconds": 1.0, "budget_bytes": 8, "seconds": 2.0}
    table.note(first, network, {}, "took more than 300 s")
    table.note(second, network, known, "")
    table.note(rivals[1], network, {}, "took more than 60 s")
    chosen = [gpu_turns.CHECKS, first, rivals[0], rivals[1], rivals[2], third]
    assert sorted(chosen, key=table.has_failed) == [gpu_turns.CHECKS, rivals[2], third, first, rivals[0], rivals[1]]
    table.note(gpu_turns.CHECKS, None, {"context": {"a": 1}, "pages": {"error": "it ended"}}, "exit status 1")
    assert table.facts == {"context": {"a": 1}}
    assert gpu_table.Table.opened(tmp_path / "gpu.json", {**HEAD, "commit": "b"}).facts == {}


def test_a_table_is_continued(tmp_path: Path) -> None:
    """Rows of this commit are known again; a rival keeps its seconds where the budget is the same."""
    ours = gpu_turns.Turn("mlp", 2.0)
    rival = gpu_turns.Turn("mlp", 2.0, "checkpoint")
    network = gpu_turns.SMOKE_NETWORKS["mlp"]
    table = gpu_table.Table.opened(tmp_path / "gpu.json", HEAD)
    known = {"in_core_seconds": 1.0, "default_in_core_seconds": 1.0, "budget_bytes": 8}
    table.note(ours, network, {**known, "seconds": 2.0}, "")
    assert (table.has(ours), table.has(rival)) == (True, False)
    table.note(rival, network, {"seconds": 4.0}, "")
    again = gpu_table.Table.opened(tmp_path / "gpu.json", HEAD)
    assert (again.has(ours), again.has(rival)) == (True, True)
    again.note(ours, network, {**known, "in_core_seconds": 2.0, "seconds": 2.0}, "")
    assert again.rows[ours.row]["rivals"] == {"checkpoint": 0.5}
    again.note(rival, network, {}, "does not fit")
    assert again.rows[ours.row]["rivals"] == {"checkpoint": None}
    assert again.rows[ours.row]["rivals_told"] == {"checkpoint": {"reason": "does not fit"}}
    assert (again.has(rival), again.has(gpu_turns.CHECKS)) == (True, False)
    again.note(rival, network, {}, "took more than 60 s")
    again.note(gpu_turns.CHECKS, None, {"context": {}}, "")
    assert (again.has(rival), again.has(gpu_turns.CHECKS)) == (False, True)
    assert not gpu_table.Table.opened(tmp_path / "gpu.json", {**HEAD, "commit": "b"}).has(ours)


def test_a_copy_without_git_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is what the environment says, or follows from the sources: rows that they made are known again."""

    def missing(*command: str) -> str:
        raise subprocess.CalledProcessError(128, command)

    monkeypatch.setattr(gpu_table, "_output", missing)
    monkeypatch.delenv("COMMIT", raising=False)
    found = gpu_table.commit()
    assert found.startswith("sources ")
    assert gpu_table.commit() == found
    monkeypatch.setenv("COMMIT", "a")
    assert gpu_table.commit() == "a"


def test_a_budget_that_is_raised_is_a_limit_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the limit ended a row it is left out; the next budget may be enough with it."""
    asked, told = gpu_rows.Asked("mlp", {}, 4.0), list[dict[str, Any]]()
    refusal = Infeasible("too little", floor_bytes=200, culprit="a")
    tries: list[Exception | dict[str, Any]] = [torch.OutOfMemoryError("full"), refusal, {}]
    limits: list[bool] = []

    def within(*_about: object, is_limited: bool) -> dict[str, Any]:
        limits.append(is_limited)
        match found := tries.pop(0):
            case Exception():
                raise found
            case _:
                return found

    monkeypatch.setattr(gpu_rows, "in_core", lambda *_about: {"in_core_peak_bytes": 80})
    monkeypatch.setattr(gpu_rows, "within", within)
    monkeypatch.setattr(gpu_rows, "same", lambda *_about: {"bitwise": True})
    gpu_rows.outgrown(Mock(), asked, lambda **found: told.append(found))
    assert limits == [True, False, True]
    assert [found["budget_bytes"] for found in told if "budget_bytes" in found] == [20, 20, 204]


def test_turns_are_told_apart_and_name_what_exists() -> None:
    """No two turns have one name; networks and rivals are there, and a budget is known before a rival needs it."""
    turns = gpu_turns.turns(is_smoke=False, compiles=True)
    assert len({turn.name for turn in turns}) == len(turns)
    known: set[str] = set()
    for turn in turns[1:]:
        assert gpu_turns.NETWORKS[turn.network].workload in gpu_trainings.TRAININGS
        if turn.kind == "rival":
            assert turn.who in gpu_rivals.RIVALS
            assert turn.row in known
        known.add(turn.row)


@pytest.mark.parametrize(
    "refusal",
    [torch.OutOfMemoryError("no room"), DeviceFull("no room"), Infeasible("no room", floor_bytes=1, culprit="")],
)
def test_a_rival_without_room_does_not_fit(refusal: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever says so; it is not tried again at the next time, as one that failed is."""
    monkeypatch.setitem(gpu_rivals.RIVALS, "one", Mock(side_effect=refusal))
    found = gpu_rivals.rivalled(Mock(), gpu_rows.Asked("mlp", {}, 2.0, "one"))
    assert found == {"reason": "does not fit: no room"}
    assert found["reason"].startswith(gpu_table.FINAL)
