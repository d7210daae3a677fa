"""How is a table of results written? Row by row, to a file that a later run continues.

    --only TEXT    only the rows whose name contains TEXT; the other rows of the file stay as they are
    --resume       leave out rows that are in the file from the commit that is checked out now
    --large        also the rows of large steps (over 6,000 ops), which come last
    --ours         make ours again, and keep what the file says of others (where a table has `again`)
    --out FILE     another file than benchmarks/results/NAME.json

Each row has a `name`, the `commit` that it was made from, and `seconds`, what it took to make. A row is written as soon
as it is there, so a run that is cut off loses the row that it was at.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from main_job import ROOT, setting

RESULTS = ROOT / "benchmarks" / "results"
GB = 1_000_000_000

Row = dict[str, Any]
"""One row, as it is in the file."""

Goal = tuple[str, str, str, bool | None]
"""What is asked of all rows together, the limit, what was found, and whether it is met (None: nothing is asked)."""


def of_all(what: str, asked: str, holds: Sequence[bool]) -> Goal:
    """Return the goal that something holds of every row, given of which it does."""
    return (what, asked, f"{sum(holds)} of {len(holds)}", all(holds))


def workload_function(name: str) -> Callable[..., Any]:
    """Return a function (file:function) of `benchmarks/workloads`."""
    from outgrow.frontends.workloads.loading import load_workload_function

    return load_workload_function(f"{ROOT / 'benchmarks' / 'workloads' / name}")


class Item(Protocol):
    """What becomes a row."""

    @property
    def name(self) -> str:
        """What the row is called; no two of a table have the same."""
        ...


I = TypeVar("I", bound=Item)  # noqa: E741


def write_rows(
    table: str,
    items: Sequence[I],
    measured: Callable[[I], Row],
    told: Callable[[Row], str],
    again: Callable[[I, Row], Row] | None = None,
    served: Callable[..., object] | None = None,
    large: Collection[I] = (),
) -> None:
    """Make the rows that the command line asks for and write them to the table's file, one after the other.

    `told` is what is printed of a row; `again` makes one that keeps what an older one says of others. The rows of
    `large` items come last, and only if they are asked for. A process that `told_by_a_process` has begun answers with
    what `served` returns.
    """
    if sys.argv[1:2] == ["--serve"]:
        assert served is not None, "the file has something to serve"
        print(json.dumps(served(*json.loads(sys.argv[2]))))
        return
    options = _options(table)
    shared = setting(f"python benchmarks/{table}.py")
    known = {row["name"]: row for row in read_rows(options.out)}
    ordered = sorted(items, key=large.__contains__)
    for item in ordered:
        is_done = options.resume and known.get(item.name, {}).get("commit") == shared["commit"]
        if options.only not in item.name or is_done or (item in large and not options.large):
            continue
        begin = time.perf_counter()
        older = known.get(item.name) if options.ours else None
        made = again(item, older) if again and older else measured(item)
        row = {"name": item.name, "commit": shared["commit"], **made}
        known[item.name] = {**row, "seconds": time.perf_counter() - begin}
        print(f"{item.name}: {told(row)}", flush=True)
        rows = [known[item.name] for item in ordered if item.name in known]
        _replace(options.out, json.dumps({**shared, "rows": rows}, indent=2) + "\n")


class Failed(Exception):
    """A process that ended in no way that is foreseen."""


def told_by_a_process(
    file: str, *request: object, limit_seconds: float | None = None, environment: Mapping[str, str] | None = None
) -> Any:
    """Run a benchmark's file with `--serve` and a request in a process of its own; return what its last line says.

    Raises `Failed` with the last line of its errors if it does not end well, or in time.
    """
    command = [sys.executable, file, "--serve", json.dumps(request)]
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=limit_seconds, env=environment
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"more than {limit_seconds} s") from None
    if ended.returncode:
        raise Failed((ended.stderr.strip().splitlines() or ["died"])[-1][:300])
    return json.loads(ended.stdout.splitlines()[-1])


def read_rows(file: Path) -> list[Row]:
    """Return the rows of a file of results; none where there is no file."""
    return json.loads(file.read_text())["rows"] if file.exists() else []


def _replace(file: Path, text: str) -> None:
    part = file.with_suffix(".part")
    part.write_text(text)
    part.replace(file)


def _options(table: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"{table}.py")
    parser.add_argument("--only", default="", metavar="TEXT", help="only rows whose name contains this")
    parser.add_argument("--resume", action="store_true", help="not the rows that are there from this commit")
    parser.add_argument("--large", action="store_true", help="also steps of over 6,000 ops")
    parser.add_argument("--ours", action="store_true", help="ours again; of others, what the file says")
    parser.add_argument("--out", type=Path, default=RESULTS / f"{table}.json")
    return parser.parse_args()


def spelled(settings: Mapping[str, object]) -> str:
    """Return settings as a title has them.

    >>> spelled({"batch": 256, "dtype": "float16"})
    'batch 256, dtype float16'
    """
    return ", ".join(f"{key} {value}" for key, value in settings.items())
