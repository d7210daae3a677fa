"""How are the results of `gpu.py` kept? In one file, written after every turn, which a later run continues."""

import argparse
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Any

from gpu_turns import CHECKS, Network, Turn
from main_job import ROOT, processor

PACKAGES = ("torch", "transformers", "torchvision", "numba", "numpy", "highspy")
FIGURES = (
    "budget_bytes",
    "in_core_peak_bytes",
    "peak_bytes",
    "reserved_bytes",
    "speed",
    "default_speed",
    "predicted_seconds",
    "seconds",
    "in_core_seconds",
    "default_in_core_seconds",
    "planning_seconds",
    "bitwise",
)
BITS = ("in_core_losses", "in_core_bits")
SOURCES = (".py", ".cpp", ".h")
FINAL = ("does not fit", "is not installed")
"""How reasons begin that a rival has again at the next time."""


@dataclass
class Table:
    """The file of results: facts, rows by name, and what was left out."""

    out: Path
    head: dict[str, Any]
    checks: dict[str, Any]
    rows: dict[str, dict[str, Any]]
    not_run: list[str]

    @staticmethod
    def opened(out: Path, head: dict[str, Any]) -> "Table":
        """Return the table of a file, which is to be continued."""
        found = json.loads(out.read_text()) if out.exists() else {"checks": {}, "rows": []}
        return Table(out, head, found["checks"], {row["name"]: row for row in found["rows"]}, [])

    def has(self, turn: Turn) -> bool:
        """Whether there are figures of a turn, from this commit, or a reason that it would have again."""
        row = self.checks if turn == CHECKS else self.rows.get(turn.row, {})
        if row.get("commit") != self.head["commit"]:
            return False
        if turn.who != "ours":
            told = row["rivals_told"].get(turn.who, {})
            return "seconds" in told or told.get("reason", "").startswith(FINAL)
        return "failed" not in row

    def has_failed(self, turn: Turn) -> bool:
        """Whether this commit has tried a turn in vain, or the row that it belongs to."""
        row = self.rows.get(turn.row, {})
        if row.get("commit") != self.head["commit"]:
            return False
        return "failed" in row or turn.who in row["rivals_told"]

    @property
    def facts(self) -> dict[str, Any]:
        """What this commit has found out about the device."""
        if self.checks.get("commit") != self.head["commit"]:
            return {}
        own = {name: found for name, found in self.checks.items() if name not in {"commit", "failed"}}
        return {name: found for name, found in own.items() if not (isinstance(found, dict) and "error" in found)}

    def note(self, turn: Turn, network: Network | None, facts: dict[str, Any], failure: str) -> None:
        """Write down what came of a turn."""
        if network is None:
            self.checks = {"commit": self.head["commit"], **facts} | ({"failed": failure} if failure else {})
        elif turn.who == "ours":
            self.rows[turn.row] = self._row(turn, network, facts, failure)
        else:
            _add_rival(self.rows[turn.row], turn.who, facts, failure)
        self.write()

    def _row(self, turn: Turn, network: Network, facts: dict[str, Any], failure: str) -> dict[str, Any]:
        facts = {key: value for key, value in facts.items() if key not in BITS}
        for name, own in (("speed", "in_core_seconds"), ("default_speed", "default_in_core_seconds")):
            facts[name] = facts[own] / facts["seconds"] if "seconds" in facts and facts[own] else None
        before = self.rows.get(turn.row, {})
        row = {
            "name": turn.row,
            "workload": turn.network,
            "settings": dict(network.settings),
            "commit": self.head["commit"],
            "over": facts.pop("over", turn.over),
            "asked_over": turn.over,
            **{key: facts.pop(key, None) for key in FIGURES},
            "rivals": {},
            "rivals_told": {},
            **facts,
        }
        if before.get("budget_bytes") == row["budget_bytes"]:
            for name, told in before.get("rivals_told", {}).items():
                _add_rival(row, name, told, told.get("reason", ""))
        return row | ({"failed": failure} if failure else {})

    def write(self) -> None:
        """Write the file, and a copy to `$OUT`."""
        rows = list(self.rows.values())
        text = json.dumps({**self.head, "checks": self.checks, "rows": rows, "not_run": self.not_run}, indent=2)
        part = self.out.with_suffix(".part")
        part.write_text(text + "\n")
        part.replace(self.out)
        folder = os.environ.get("OUT")
        if folder and Path(folder) != self.out.parent:
            shutil.copy(self.out, folder)


def _add_rival(row: dict[str, Any], name: str, facts: Mapping[str, Any], failure: str) -> None:
    seconds = facts.get("seconds")
    row["rivals"][name] = row["in_core_seconds"] / seconds if seconds else None
    row["rivals_told"][name] = {**facts, "reason": failure} if failure else dict(facts)


# On what it was made -----------------------------------------------------------------------------------------------


def head(options: argparse.Namespace, card: Mapping[str, str]) -> dict[str, Any]:
    """Return what a reader needs to run the command again."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = ""
    machine = {**card, "processor": processor(), "cores": len(os.sched_getaffinity(0)), "host_bytes": free_host_bytes()}
    command = f"bash benchmarks/gpu.sh --deadline {options.deadline:g}{' --smoke' if options.smoke else ''}"
    return {"command": command, "machine": machine, "versions": versions, "commit": commit()}


def commit() -> str:
    """Return the commit that is checked out; without git `COMMIT` of the environment, else what the sources hash to."""
    try:
        found = _output("git", "rev-parse", "HEAD").strip()
        changed = _output("git", "status", "--porcelain", "--", "src", "benchmarks/*.py").strip()
    except (OSError, subprocess.SubprocessError):
        return os.environ.get("COMMIT") or f"sources {_sources()}"
    return found + (" with changes" if changed else "")


def _sources() -> str:
    found = sha256()
    paths = (path for folder in ("src", "benchmarks") for path in (ROOT / folder).rglob("*"))
    for path in sorted(path for path in paths if path.suffix in SOURCES):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


def graphics_card() -> dict[str, str]:
    """Return what the driver says of the first GPU; nothing where there is no driver."""
    fields = ("name", "memory.total", "driver_version", "pcie.link.gen.max", "pcie.link.width.max", "power.limit")
    try:
        line = _output("nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader").splitlines()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return {"name": "gpu"}
    return dict(zip(fields, map(str.strip, line.split(",")), strict=True))


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True, timeout=30).stdout


def free_host_bytes() -> int:
    """Return what the host, or the group of processes that this one is in, has left of memory."""
    told = dict(line.split()[:2] for line in Path("/proc/meminfo").read_text().splitlines())
    free = int(told["MemAvailable:"]) << 10
    group = Path("/sys/fs/cgroup")
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        stat = (group / limit).with_name("memory.stat")
        if (group / limit).exists() and (group / used).exists() and (group / limit).read_text().strip() != "max":
            kinds = dict(line.split()[:2] for line in stat.read_text().splitlines())
            cached = int(kinds.get("active_file", 0)) + int(kinds.get("inactive_file", 0))
            free = min(free, int((group / limit).read_text()) - int((group / used).read_text()) + cached)
    return free
