"""Does the main job reach its goals? The 3D U-Net on one brain, in core and under budgets, interleaved.

    python benchmarks/main_job.py [--size 192] [--rounds 2] [--out benchmarks/results/main_job_192.json]

Each row of the table is a process of its own, made by the same file with the same seed, so that memory is that of one
loop and nothing else; between its turns a process holds little, since all of them together have to fit. The processes
take turns for a number of rounds, and `eager` has a turn before and after each of the others: a row is compared with
the mean of its two neighbours, so that a slow minute of the machine, and a drift, slow both alike. A turn is two steps,
one to find the memory again that was given back after the last turn, and one that is timed. `checkpoint` and
`as_checkpoint` come after the others, since all of them together would not fit the machine. Nothing is known of costs
before. Speeds are medians over the rounds of the seconds of `eager` over those of the row; memory is the high water of
the process above its baseline (imports and warm-up, before model and data).

    eager            the plain loop, with the allocator setting that `import outgrow` makes
    eager_default    the plain loop as a user has it today
    checkpoint       the plain loop with torch.utils.checkpoint on every block of two convolutions
    half, third      outgrow with 1/2 and 1/3 of the process bytes of `eager`
    as_checkpoint    outgrow with the process bytes of `checkpoint`
    fits             outgrow with twice the process bytes of `eager`

`fits` runs the same function as `eager`, on memory that outgrow keeps from step to step, since its first call, just
below ample room, is planned. What a plan costs, without what that memory gains, is its speed over that of `fits`
(`speed_beside_fits`).

After 3 steps the losses, and a digest of parameters, buffers, optimizer state and generator, are compared with `eager`.
"""

import argparse
import functools
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
WORKLOAD = ROOT / "examples" / "brain_unet3d.py"
BITWISE_STEPS = 3
ROWS = ("eager", "eager_default", "checkpoint", "half", "third", "as_checkpoint", "fits")


# One row: a process that takes a step whenever it is asked -------------------------------------------------------


def serve(mode: str, size: int, budget_bytes: int | None) -> None:
    """Build the workload, then answer each line on stdin with one JSON line about one step."""
    import torch

    from outgrow.frontends.compile import compile_workload
    from outgrow.frontends.preparing.warmup import warm_up
    from outgrow.frontends.workloads.loading import built, load_workload_function
    from outgrow.runtime import arena
    from outgrow.runtime.freeing import trim
    from outgrow.runtime.process import high_water_bytes, reset_high_water

    function = load_workload_function(f"{WORKLOAD}:workload")
    baseline = warm_up()
    workload = built(function, {"size": size})
    batch = tuple(workload.batches[0])
    step: Any = workload.step
    if mode == "checkpoint":
        checkpoint_blocks(workload.model)
    compiled = None
    if budget_bytes is not None:
        step = compiled = compile_workload(
            workload, memory_budget=budget_bytes, name="brain_unet3d", baseline_bytes=baseline
        )
    answer({"ready": True})
    for line in sys.stdin:
        if line.strip() == "digest":
            answer({"digest": digest(workload.model, workload.optimizer)})
            continue
        if line.strip() == "rest":
            arena.keep_at_most(0)
            trim()
            answer({"rests": True})
            continue
        reset_high_water()
        begin = time.perf_counter()
        loss = step(*batch)
        seconds = time.perf_counter() - begin
        row: dict[str, Any] = {
            "seconds": seconds,
            "loss": float(loss).hex(),
            "process_bytes": high_water_bytes() - baseline,
        }
        del loss
        if compiled is not None:
            row |= {"process_bytes": compiled.process_bytes, "summary": compiled.plan.to_data()}
        row["threads"] = torch.get_num_threads()
        answer(row)
    if compiled is not None:
        compiled.close()


def answer(row: Mapping[str, Any]) -> None:
    """Send one JSON line to the parent."""
    sys.stdout.write(json.dumps(row) + "\n")
    sys.stdout.flush()


def checkpoint_blocks(model: Any) -> None:
    """Put torch.utils.checkpoint around every block of two convolutions."""
    from torch.utils.checkpoint import checkpoint

    for module in model.modules():
        if type(module).__name__ == "TwoConvolutions":
            module.forward = functools.partial(checkpoint, module.forward, use_reentrant=False)


def digest(model: Any, optimizer: Any) -> str:
    """Return a hash of every bit of parameters, buffers, optimizer state and generator."""
    import torch

    tensors = [*model.parameters(), *model.buffers()]
    for parameter in model.parameters():
        tensors += [value for value in optimizer.state[parameter].values() if isinstance(value, torch.Tensor)]
    return hash_of([*tensors, torch.get_rng_state()])


def hash_of(tensors: Sequence[Any]) -> str:
    """Return a hash of every bit of some tensors, in this order."""
    import torch

    found = sha256()
    for tensor in tensors:
        found.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


# The parent: turns, and the table --------------------------------------------------------------------------------


class Row:
    """A process that serves one row."""

    def __init__(self, mode: str, size: int, budget_bytes: int | None) -> None:
        self.mode, self.budget_bytes = mode, budget_bytes
        command = [sys.executable, __file__, "--serve", mode, "--size", str(size)]
        if budget_bytes is not None:
            command += ["--budget", str(budget_bytes)]
        setting = "0" if mode == "eager_default" else "1"
        environment = {**os.environ, "THP_MEM_ALLOC_ENABLE": setting}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.steps: list[dict[str, Any]] = []
        self.timed: list[tuple[float, float]] = []
        self.digest = ""
        self._read()

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None, "the row was opened with a pipe"
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"row {self.mode} ended with exit status {self.process.wait()}")
        return json.loads(line)

    def ask(self, request: str) -> dict[str, Any]:
        """Send a request and return the answer."""
        assert self.process.stdin is not None, "the row was opened with a pipe"
        self.process.stdin.write(request + "\n")
        self.process.stdin.flush()
        return self._read()

    def step(self) -> None:
        """Take one step."""
        self.steps.append(self.ask("step"))
        row = self.steps[-1]
        note = f"{self.mode:14s} {row['seconds']:7.2f} s  {row['process_bytes'] / 2**30:6.2f} GiB"
        print(note, file=sys.stderr, flush=True)

    def turn(self) -> float:
        """Take two steps and return the seconds of the second; then give back what rests."""
        self.step()
        self.step()
        self.ask("rest")
        return self.steps[-1]["seconds"]

    def first_steps(self) -> None:
        """Take the steps whose bits are compared, and the digest after them."""
        for _ in range(BITWISE_STEPS):
            self.step()
        self.digest = self.ask("digest")["digest"]
        self.ask("rest")

    @property
    def process_bytes(self) -> int:
        """The largest high water of any step."""
        return max(step["process_bytes"] for step in self.steps)

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None, "the row was opened with a pipe"
        self.process.stdin.close()
        self.process.wait()


def run(size: int, rounds: int, out: Path, *, checkpoint_alone: bool) -> None:
    """Run every row and write the table, after the rows under budgets and again after those with checkpoints."""
    rows = {"eager": opened("eager", size, None)}
    if not checkpoint_alone:
        under_budgets(rows, size, rounds)
        write(rows, size, rounds, out)
        for mode in tuple(rows)[1:]:
            rows[mode].close()
    rows["checkpoint"] = opened("checkpoint", size, None)
    rows["as_checkpoint"] = opened("as_checkpoint", size, rows["checkpoint"].process_bytes)
    take_turns([rows["checkpoint"], rows["as_checkpoint"]], rows["eager"], rounds)
    write(rows, size, rounds, out)
    for mode in ("eager", "checkpoint", "as_checkpoint"):
        rows[mode].close()


def under_budgets(rows: dict[str, Row], size: int, rounds: int) -> None:
    """Add the rows that are compared with the eager loop alone."""
    eager = rows["eager"]
    rows["eager_default"] = opened("eager_default", size, None)
    in_core = eager.process_bytes
    budgets = {"half": in_core // 2, "third": in_core // 3, "fits": 2 * in_core}
    rows |= {mode: opened(mode, size, budget) for mode, budget in budgets.items()}
    take_turns([row for row in rows.values() if row is not eager], eager, rounds)


def write(rows: Mapping[str, Row], size: int, rounds: int, out: Path) -> None:
    """Write the table of the rows that have been run."""
    table = {mode: describe(row, rows["eager"]) for mode, row in rows.items()}
    alone = "" if "half" in rows else " --checkpoint-alone"
    command = f"python benchmarks/main_job.py --size {size} --rounds {rounds}{alone}"
    found: dict[str, Any] = {**setting(command), "rows": table, "goals": goals(table, rows)}
    if "fits" in rows:
        found["speed_beside_fits"] = {mode: paired(rows[mode], rows["fits"]) for mode in ("half", "third")}
    out.write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found["goals"], indent=2), flush=True)


def opened(mode: str, size: int, budget_bytes: int | None) -> Row:
    """Return a row that has taken the steps whose bits are compared."""
    row = Row(mode, size, budget_bytes)
    row.first_steps()
    return row


def take_turns(rows: list[Row], eager: Row, rounds: int) -> None:
    """Let each row have a turn in every round, between two of `eager`, and note its seconds beside theirs."""
    before = eager.turn()
    for _ in range(rounds):
        for row in rows:
            own, after = row.turn(), eager.turn()
            row.timed.append((own, (before + after) / 2))
            eager.timed.append((after, after))
            before = after


def describe(row: Row, eager: Row) -> dict[str, Any]:
    """Return the figures of one row."""
    seconds = [own for own, _ in row.timed]
    losses = [step["loss"] for step in row.steps[:BITWISE_STEPS]]
    described: dict[str, Any] = {
        "budget_bytes": row.budget_bytes,
        "seconds": median(seconds),
        "all_seconds": seconds,
        "first_step_seconds": row.steps[0]["seconds"],
        "speed": median(theirs / own for own, theirs in row.timed),
        "process_bytes": row.process_bytes,
        "process_bytes_ratio": row.process_bytes / eager.process_bytes,
        "bitwise": losses == [step["loss"] for step in eager.steps[:BITWISE_STEPS]] and row.digest == eager.digest,
        "losses": [float.fromhex(step["loss"]) for step in row.steps],
    }
    if "summary" in row.steps[-1]:
        described["summary"] = row.steps[-1]["summary"]
        described["first_summary"] = row.steps[0]["summary"]
        described |= {
            f"{kind}_over_measured_seconds": [foreseen(step["summary"], kind) for step in row.steps]
            for kind in ("predicted", "simulated")
        }
    return described


def foreseen(summary: Mapping[str, Any], kind: str) -> float:
    """Return what the plan, or its simulation with the op times of the step, says a step takes, over what it took."""
    return summary[kind]["seconds"] / summary["measured"]["seconds"]


def goals(table: Mapping[str, Mapping[str, Any]], rows: Mapping[str, Row]) -> dict[str, dict[str, Any]]:
    """Return each goal with its limit and what was measured."""
    budgeted = [mode for mode in rows if rows[mode].budget_bytes is not None]
    planned = [mode for mode in budgeted if mode != "fits"]
    summaries = {mode: table[mode]["summary"] for mode in planned}
    peaks = [s["predicted"]["peak_bytes"] / s["measured"]["peak_bytes"] for s in summaries.values()]
    times = [median(table[mode]["predicted_over_measured_seconds"][BITWISE_STEPS:]) for mode in planned]
    replays = [median(table[mode]["simulated_over_measured_seconds"][BITWISE_STEPS:]) for mode in planned]
    first = [max(step["summary"]["planning_seconds"] for step in rows[mode].steps) for mode in planned]
    found: dict[str, tuple[object, object]] = {
        "bitwise at every budget": (True, all(table[mode]["bitwise"] for mode in budgeted)),
    }
    if "half" in rows:
        found |= {
            "speed at 1/2": (">= 0.97", table["half"]["speed"]),
            "speed at 1/3": (">= 0.90", table["third"]["speed"]),
            "speed where the step fits": (">= 0.99", table["fits"]["speed"]),
            "speed at 1/2 against the default eager loop": (">= 1.00", paired(rows["half"], rows["eager_default"])),
        }
    if "checkpoint" in rows:
        speed = paired(rows["as_checkpoint"], rows["checkpoint"])
        found["speed against checkpoint at its memory"] = ("> 1.00", speed)
    kept = max(rows[mode].process_bytes / (rows[mode].budget_bytes or 1) for mode in budgeted)
    overhead = max(s["overhead_bytes"] / s["budget_bytes"] for s in summaries.values())
    found |= {
        "process_bytes / budget, largest of any step": ("<= 1.00", kept),
        "overhead_bytes / budget, largest": ("<= 0.05", overhead),
        "predicted / measured peak_bytes": ("1.00 to 1.05", [min(peaks), max(peaks)]),
        "predicted / measured seconds, medians over steps": ("0.90 to 1.10", [min(times), max(times)]),
        "simulated / measured seconds, medians over steps": ("0.95 to 1.05", [min(replays), max(replays)]),
        "seconds of planning": ("< 20", max(first)),
    }
    return {name: {"goal": goal, "found": value} for name, (goal, value) in found.items()}


def paired(row: Row, other: Row) -> float:
    """Return the median over rounds of the row's speed over the other's, each beside `eager`."""
    pairs = zip(row.timed, other.timed, strict=True)
    return median((theirs / own) / (others / its) for (own, theirs), (its, others) in pairs)


def setting(command: str) -> dict[str, Any]:
    """Return what a reader needs to run a command again."""
    import torch

    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=ROOT, check=False)
    return {
        "command": command,
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "commit": commit.stdout.strip(),
    }


def processor() -> str:
    """Return the processor's name."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def main() -> None:
    """Run the benchmark, or serve one row of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--size", type=int, default=192)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--checkpoint-alone", action="store_true", help="only the rows with checkpoints")
    parser.add_argument("--serve", choices=ROWS, help=argparse.SUPPRESS)
    parser.add_argument("--budget", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.size, options.budget)
        return
    cache = Path.home() / ".cache"
    cache.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        out = options.out or ROOT / "benchmarks" / "results" / f"main_job_{options.size}.json"
        out.parent.mkdir(exist_ok=True)
        run(options.size, options.rounds, out, checkpoint_alone=options.checkpoint_alone)


if __name__ == "__main__":
    main()
