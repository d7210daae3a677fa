"""How fast is a step on a GPU within a fraction of the memory that it takes in core? How fast are others there?

    python benchmarks/gpu.py [--deadline 300] [--only TEXT] [--resume] [--compile] [--smoke] [--out FILE]

Writes `benchmarks/results/gpu_<device>_<yyyymm>.json`, after every row, and copies it to the folder `$OUT` if there is
one. `checks` are facts about the GPU (`gpu_checks`); a row is a training (`gpu_trainings`) in core and within a budget
(`gpu_rows`), with the speeds of rivals within the same budget (`gpu_rivals`).

    over            what the step takes in core, by torch's allocator, over the budget; `asked_over` is what was asked
    speed           seconds of the step in core over seconds of ours or of a rival; null with a reason in `failed`
                    or in `rivals_told`; optimizers go tensor by tensor on both sides, and kernels are deterministic
    default_speed   the same with the step in core as users have it: an optimizer for all tensors, any kernels; null
                    where that has no room
    bitwise         losses and state of ours have the bits of those in core

Each row, and each rival, is a process of its own with a time limit, and the most important ones come first. Checks that
are alone (`--only checks`) have all the time that there is. What there is no time for before the deadline is in
`not_run`; `--resume` goes on with it, and then with what failed. A process that leaves the host hardly any memory
(LEAST_HOST_BYTES of the environment) is ended, since that would end all of them. What the processes said is in
`rows.log`, in `$OUT` or in the folder for temporary files.
"""

import argparse
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpu_table import Table, free_host_bytes, graphics_card, head
from gpu_turns import NETWORKS, SMOKE_NETWORKS, Network, Turn, turns
from main_job import ROOT
from rows import RESULTS

LEAST_SECONDS = {"checks": 15, "ours": 90, "rival": 30}
MOST_SECONDS = {"checks": 240, "ours": 300, "rival": 150}
COMPILE_SECONDS = 240
PROCESSES, SILENT_SECONDS = 4, 100.0
"""So many processes tell the checks if they break the device; one that tells nothing for so long is ended."""
LEAST_HOST_BYTES = int(os.environ.get("LEAST_HOST_BYTES") or 6 << 30)
TOLD_SECONDS = 1.0
"""So long before its end a process that hangs says where."""


# Processes ----------------------------------------------------------------------------------------------------------


def told_by_a_process(
    turn: Turn,
    request: Mapping[str, Any],
    most_seconds: float,
    log: Path,
    *,
    is_smoke: bool,
    silent_seconds: float = math.inf,
) -> tuple[dict[str, Any], str]:
    """Return the facts that a process told, and why it did not end well, if it did not."""
    folders = (ROOT / "src", ROOT, ROOT / "benchmarks")
    path = os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])])
    told = {"PYTHONFAULTHANDLER": "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    environment = {**os.environ, **told, "PYTHONPATH": path}
    with tempfile.TemporaryDirectory() as folder, log.open("a+b") as said:
        facts = Path(folder) / "facts"
        facts.touch()
        said.write(f"\n==== {turn.name}\n".encode())
        said.flush()
        begin = said.seek(0, os.SEEK_END)
        serve = ["--serve", turn.kind, json.dumps(request), str(facts), str(most_seconds - TOLD_SECONDS)]
        command = [sys.executable, str(Path(__file__)), *serve, *(["--smoke"] if is_smoke else [])]
        process = subprocess.Popen(command, stdout=said, stderr=said, env=environment, cwd=ROOT, start_new_session=True)
        least_host_bytes = LEAST_HOST_BYTES if not is_smoke else 0
        failure = _ended(process, most_seconds, least_host_bytes, facts, silent_seconds)
        said.seek(begin)
        lines = said.read().decode(errors="replace").strip().splitlines()
        if failure == "" and process.returncode:
            errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Infeasible|Failure|Full)\b", line)]
            failure = (errors or lines or [f"exit status {process.returncode}"])[-1][:500]
        found: dict[str, Any] = {}
        for line in facts.read_text().splitlines():
            found |= json.loads(line)
    return found, failure


def _ended(
    process: "subprocess.Popen[bytes]", most_seconds: float, least_host_bytes: int, facts: Path, silent_seconds: float
) -> str:
    """Wait for the end of a process, and return why it was brought about, if it was.

    One that the driver holds may not end: nobody waits for it for long.
    """
    begin = time.monotonic()
    while process.poll() is None:
        failure = ""
        if time.monotonic() - begin > most_seconds:
            failure = f"took more than {most_seconds:.0f} s"
        elif least_host_bytes and free_host_bytes() < least_host_bytes:
            failure = "left the host hardly any memory"
        elif time.time() - facts.stat().st_mtime > silent_seconds:
            failure = f"told nothing for {silent_seconds:.0f} s"
        if failure:
            os.killpg(process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10)
            return failure
        time.sleep(0.1)
    return ""


def checks(
    turn: Turn, known: Mapping[str, Any], most_seconds: float, log: Path, *, is_smoke: bool
) -> tuple[dict[str, Any], str]:
    """Return the facts about the device, those `known` among them, and why the last process did not end well."""
    deadline, failure = time.monotonic() + most_seconds, ""
    facts = dict(known)
    for _ in range(PROCESSES):
        left, asked = deadline - time.monotonic(), {"told": [*facts]}
        more, failure = told_by_a_process(turn, asked, left, log, is_smoke=is_smoke, silent_seconds=SILENT_SECONDS)
        facts |= more
        if not failure:
            break
    return facts, failure


def serve(kind: str, request: str, facts: Path, most_seconds: float, *, is_smoke: bool) -> None:
    """Do a turn in this process; tell each fact in a line of a file."""
    import faulthandler

    faulthandler.dump_traceback_later(most_seconds)

    def tell(**found: object) -> None:
        with facts.open("a") as file:
            file.write(json.dumps(found) + "\n")

    match json.loads(request).get("workload"):  # what the test of the benchmark asks for
        case "fails":
            raise SystemExit("this workload fails")
        case "hangs":
            time.sleep(3600)
        case _:
            pass

    from gpu_grounds import ground_of

    if kind == "checks":
        from gpu_checks import checked

        with ground_of(is_smoke=is_smoke) as ground:
            checked(ground, tell, json.loads(request)["told"], is_smoke=is_smoke)
        return
    from gpu_rows import Asked, be_deterministic, outgrown

    asked = Asked(**json.loads(request))
    be_deterministic(asked.deterministic)
    with ground_of(is_smoke=is_smoke) as ground:
        if asked.who == "ours":
            outgrown(ground, asked, tell)
        else:
            from gpu_rivals import rivalled

            tell(**rivalled(ground, asked))


# All of it ----------------------------------------------------------------------------------------------------------


def run(table: Table, chosen: Sequence[Turn], deadline: float, log: Path, *, is_smoke: bool) -> None:
    """Take the turns until the deadline, and write each down."""
    networks = SMOKE_NETWORKS if is_smoke else NETWORKS
    for turn in chosen:
        network = networks.get(turn.network)
        row = table.rows.get(turn.row, {})
        left = deadline - time.monotonic()
        if left < LEAST_SECONDS[turn.kind]:
            table.not_run.append(turn.name)
            continue
        if turn.kind == "rival" and not (row.get("budget_bytes") and row.get("in_core_seconds")):
            table.not_run.append(f"{turn.name}: the budget is not known, since ours failed")
            continue
        begin = time.monotonic()
        usual = COMPILE_SECONDS if "compile" in turn.who else MOST_SECONDS[turn.kind]
        if turn.kind == "checks" and len(chosen) == 1:
            usual = left
        most = min((network and network.most_seconds) or usual, left)
        if network is None:
            facts, failure = checks(turn, table.facts, most, log, is_smoke=is_smoke)
        else:
            facts, failure = told_by_a_process(turn, _request(turn, network, row), most, log, is_smoke=is_smoke)
        failure = failure or facts.pop("reason", "")
        table.note(turn, network, facts, failure)
        print(f"{_told(table, turn, failure)}, {time.monotonic() - begin:.0f} s in all", flush=True)
    table.write()


def _request(turn: Turn, network: Network, row: Mapping[str, Any]) -> dict[str, Any]:
    known = {name: row[name] for name in ("budget_bytes", "deterministic") if turn.kind == "rival"}
    return {
        "workload": network.workload,
        "settings": dict(network.settings),
        "over": turn.over,
        "who": turn.who,
        **known,
    }


def _told(table: Table, turn: Turn, failure: str) -> str:
    if failure:
        return f"{turn.name}: {failure}"
    row = table.rows.get(turn.row, {})
    if turn.kind == "checks":
        return json.dumps({"checks": table.checks}, indent=1)
    if turn.kind == "rival":
        return f"{turn.name}: speed {row['rivals'][turn.who]:.3f}"
    default = f"{row['default_speed']:.3f}" if row["default_speed"] else "unknown"
    return (
        f"{turn.name}: speed {row['speed']:.3f} ({default} of the default) at {row['over']:.2f} times"
        f" over, {'same bits' if row['bitwise'] else 'OTHER BITS'}, {row['reserved_bytes'] / 2**30:.2f} GiB reserved of"
        f" {row['budget_bytes'] / 2**30:.2f}, predicted {row['predicted_seconds']:.3f} s for {row['seconds']:.3f}"
    )


def main() -> None:
    """Run the benchmark, or serve one turn of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--deadline", type=float, default=300, metavar="SECONDS")
    parser.add_argument("--only", default="", metavar="TEXT", help="only what has this in its name")
    parser.add_argument("--resume", action="store_true", help="not what the file has from this commit")
    parser.add_argument("--compile", action="store_true", help="also the rival that compiles, which takes long")
    parser.add_argument("--smoke", action="store_true", help="everything once, without a GPU")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--serve", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        kind, request, facts, most_seconds = options.serve
        serve(kind, request, Path(facts), float(most_seconds), is_smoke=options.smoke)
        return
    deadline = time.monotonic() + options.deadline
    card = {"name": "stand-in"} if options.smoke else graphics_card()
    slug = card["name"].removeprefix("NVIDIA ").lower().replace(" ", "-")
    out = options.out or RESULTS / f"gpu_{slug}_{datetime.now(UTC):%Y%m}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    table = Table.opened(out, head(options, card))
    wanted = [turn for turn in turns(is_smoke=options.smoke, compiles=options.compile) if options.only in turn.name]
    chosen = [turn for turn in wanted if not (options.resume and table.has(turn))]
    if options.resume:
        chosen.sort(key=table.has_failed)
    log = Path(os.environ.get("OUT") or tempfile.gettempdir()) / "rows.log"
    run(table, chosen, deadline, log, is_smoke=options.smoke)


if __name__ == "__main__":
    main()
