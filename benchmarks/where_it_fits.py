"""What does outgrow cost where the step fits? The same step with it and without it, in turns, in one process.

    python benchmarks/where_it_fits.py [--size 192] [--pairs 8] [--out benchmarks/results/where_it_fits.json]

The budget is 1 TiB, so there is nothing to plan away. Turns go A B B A, so that a drift of the machine harms both sides
alike; the figure is the median over pairs of the seconds without outgrow over those with it. Both sides train one model
on, one after the other: there is one process and one state of its memory.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles

from main_job import WORKLOAD, setting
from rows import RESULTS

from outgrow.frontends.compile import compile_workload
from outgrow.frontends.preparing.warmup import warm_up
from outgrow.frontends.workloads.loading import built, load_workload_function


def run(size: int, pairs: int) -> dict[str, object]:
    """Return the seconds of every pair and the median of their ratios."""
    baseline = warm_up()
    workload = built(load_workload_function(f"{WORKLOAD}:workload"), {"size": size})
    batch = tuple(workload.batches[0])
    compiled = compile_workload(workload, memory_budget="1TiB", name="brain_unet3d", baseline_bytes=baseline)

    def seconds(step: Callable[..., object]) -> float:
        begin = time.perf_counter()
        step(*batch)
        return time.perf_counter() - begin

    for step in (workload.step, compiled, compiled):
        seconds(step)
    found: list[tuple[float, float]] = []
    for number in range(pairs):
        if number % 2:
            with_it = seconds(compiled)
            without = seconds(workload.step)
        else:
            without = seconds(workload.step)
            with_it = seconds(compiled)
        found.append((without, with_it))
        print(f"{without:8.3f} s without, {with_it:8.3f} s with outgrow", flush=True)
    compiled.close()
    ratios = [without / with_it for without, with_it in found]
    lower, _, upper = quantiles(ratios, n=4)
    return {"speed": median(ratios), "quartiles": [lower, upper], "pairs": found}


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--size", type=int, default=192)
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--out", type=Path, default=RESULTS / "where_it_fits.json")
    options = parser.parse_args()
    found = run(options.size, options.pairs)
    command = f"python benchmarks/where_it_fits.py --size {options.size} --pairs {options.pairs}"
    options.out.write_text(json.dumps({**setting(command), **found}, indent=2) + "\n")
    print(f"speed {found['speed']:.3f}")


if __name__ == "__main__":
    main()
