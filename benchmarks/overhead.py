"""What does outgrow cost a step that fits, and the first call?

    python benchmarks/overhead.py [--only TEXT] [--resume]

Needs the packages of the extras `integrations` and `zoo`. Each architecture of the zoo is trained twice in one process,
by itself and under a budget that is never reached; the two take turns, each first in every other round.

    overhead    median over the rounds of the seconds of our step over those of the eager one beside it, less 1
    first call  seconds of the first call under the budget: capture, plan, and the step itself
    eager       seconds of an eager step, the median over the rounds
"""

import time
from collections.abc import Callable, Sequence
from statistics import median

from main_job import ROOT
from rows import Failed, Goal, Row, of_all, told_by_a_process, write_rows
from zoo_models import ARCHITECTURES, Entry

ROUNDS, SECONDS = 40, 4.0
"""As many rounds as fit the seconds, but at least a quarter of them."""
LIMIT_SECONDS = 400
MOST_OVERHEAD = 0.01


def measured(item: Entry) -> Row:
    """Time an architecture in a process of its own."""
    try:
        return told_by_a_process(__file__, item.name, limit_seconds=LIMIT_SECONDS)
    except Failed as failure:
        return {"reason": str(failure)}


def served(name: str) -> Row:
    """Let two trainings take turns."""
    import outgrow
    from outgrow.errors import Uncapturable

    plain, ours = ARCHITECTURES[name].make(), ARCHITECTURES[name].make()
    step = outgrow.compile(ours.step, model=list(ours.models), optimizer=list(ours.optimizers), memory_budget=1 << 40)
    try:
        first = _seconds(lambda: step(ours.batches[0]))
    except Uncapturable as refusal:
        return {"reason": str(refusal).replace(f"{ROOT}/", "")}
    _seconds(lambda: plain.step(plain.batches[0]))
    batch, begin = 1, time.perf_counter()
    eager: list[float] = []
    ratios: list[float] = []
    while len(ratios) < ROUNDS // 4 or (len(ratios) < ROUNDS and time.perf_counter() - begin < SECONDS):
        at = batch % len(plain.batches)
        turns = {
            "eager": lambda at=at: plain.step(plain.batches[at]),
            "ours": lambda at=at: step(ours.batches[at]),
        }
        seconds = {who: _seconds(turns[who]) for who in sorted(turns, reverse=batch % 2 == 0)}
        eager.append(seconds["eager"])
        ratios.append(seconds["ours"] / seconds["eager"])
        batch += 1
    return {"overhead": median(ratios) - 1, "first_call_seconds": first, "eager_seconds": median(eager)}


def _seconds(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def goals(rows: Sequence[Row]) -> list[Goal]:
    """Return what is asked of the rows of steps that were captured."""
    timed = [row for row in rows if "overhead" in row]
    overhead = median(row["overhead"] for row in timed)
    in_time = [row["first_call_seconds"] < first_call_limit(row) for row in timed]
    return [
        ("overhead, median", "<= 1 %", f"{overhead:.2%} of {len(timed)}", overhead <= MOST_OVERHEAD),
        of_all("first call below 3 eager steps + 20 s", "all", in_time),
    ]


def first_call_limit(row: Row) -> float:
    """Return the seconds that a first call may take."""
    return 3 * row["eager_seconds"] + 20


def told(row: Row) -> str:
    """Return a row in one line."""
    if "reason" in row:
        return row["reason"]
    eager, first = row["eager_seconds"], row["first_call_seconds"]
    return f"overhead {row['overhead']:.2%}, first call {first:.1f} s, eager {eager:.3f} s"


if __name__ == "__main__":
    write_rows("overhead", tuple(ARCHITECTURES.values()), measured, told, served=served)
