"""Which architectures train under a budget, and with the bits of eager?

    python benchmarks/zoo.py [--only TEXT] [--resume]

Needs the packages of the extras `integrations` and `zoo`. Each architecture takes three steps of AdamW by itself, then
at three budgets: one that is never reached, one about half between the floor and what the step takes in core, and the
floor that is named for a budget that is too small. It is captured whole if it can be; otherwise the backend of
`torch.compile` takes it, and if that cannot either, the reason is kept. Each row is a process of its own.

    bitwise    losses, parameters, buffers, gradients and generator equal those of the eager loop
    peak       high water of the process above its baseline, the largest of all steps
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from rows import Row, write_rows
from zoo_models import ARCHITECTURES, Training

STEPS = 3
AMPLE = 1 << 40
SLACK = 8 << 20
"""What a process holds differs a little from one training to the next."""
TRIES = 5
LIMIT_SECONDS = 400


@dataclass(frozen=True)
class Architecture:
    """A row: a network of `zoo_models`."""

    name: str
    is_large: bool = False


@dataclass
class Trained:
    """A training at a budget: whether its bits are eager's, and what the process took."""

    budget_bytes: int
    bitwise: bool
    peak_bytes: int
    is_rewritten: bool


@dataclass
class Found:
    """How an architecture trains: "whole", "drop-in" or "refused", with the reason why not whole."""

    how: str
    reason: str = ""
    trainings: list[Trained] = field(default_factory=list[Trained])


def measured(item: Architecture) -> Row:
    """Train an architecture in a process of its own."""
    command = [sys.executable, __file__, "--serve", item.name]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        return {**asdict(Found("failed", f"more than {LIMIT_SECONDS} s")), "family": ARCHITECTURES[item.name].family}
    if ended.returncode:
        last = (ended.stderr.strip().splitlines() or ["died"])[-1]
        return {**asdict(Found("failed", last[:300])), "family": ARCHITECTURES[item.name].family}
    return {**json.loads(ended.stdout.splitlines()[-1]), "family": ARCHITECTURES[item.name].family}


def served(name: str) -> Found:
    """Train an architecture in every way."""
    from outgrow.errors import Uncapturable

    make = ARCHITECTURES[name].make
    expected = _eager(make)
    if not _equal(_eager(make), expected):
        return Found("failed", "eager itself has other bits when it is repeated")
    with TemporaryDirectory(dir=Path.home()) as folder:
        try:
            return Found("whole", trainings=list(_at_budgets(make, expected, _whole(folder))))
        except Uncapturable as refusal:
            reason = str(refusal)
        try:
            return Found("drop-in", reason, list(_at_budgets(make, expected, _by_parts(folder))))
        except Uncapturable as refusal:
            return Found("refused", str(refusal))


Left = tuple[list[str], list[object]]


@dataclass
class Runner:
    """Takes a step, and says what the process took and whether the step was rewritten."""

    step: Callable[[object], object]
    peak_bytes: Callable[[], int]
    is_rewritten: Callable[[], bool]
    in_core_bytes: Callable[[], int]


def _at_budgets(make: Callable[[], Training], expected: Left, loop: Callable[..., object]) -> Iterator[Trained]:
    """Train at three budgets."""
    ample, in_core = _at(make, expected, loop, AMPLE)
    yield ample
    near = _from(make, expected, loop, 1 << 20)
    yield _from(make, expected, loop, (near.budget_bytes + max(near.budget_bytes, ample.peak_bytes, in_core)) // 2)
    yield near


def _from(make: Callable[[], Training], expected: Left, loop: Callable[..., object], budget: int) -> Trained:
    """Train at a budget, or at the next that a refusal names: optimizer state exists from the second step on."""
    from outgrow.errors import Infeasible

    for _ in range(TRIES):
        try:
            return _at(make, expected, loop, budget)[0]
        except Infeasible as refusal:
            budget = refusal.floor_bytes + SLACK
    raise AssertionError(f"no budget is enough: {budget} is below the floor after {TRIES} floors were named")


def _at(make: Callable[[], Training], expected: Left, loop: Callable[..., object], budget: int) -> tuple[Trained, int]:
    import gc

    gc.collect()
    training = make()
    with loop(training, budget) as runner:  # pyright: ignore[reportGeneralTypeIssues]
        left = _left(training, runner.step)
        peak = runner.peak_bytes()
        return Trained(budget, _equal(left, expected), peak, runner.is_rewritten()), runner.in_core_bytes()


def _whole(folder: str) -> Callable[..., object]:
    import outgrow

    @contextmanager
    def loop(training: Training, budget: int) -> Iterator[Runner]:
        step = outgrow.compile(
            training.step,
            model=list(training.models),
            optimizer=list(training.optimizers),
            memory_budget=budget,
            offload_dir=folder,
        )
        peaks, rewritten = [0], [False]

        def run(batch: object) -> object:
            returned = step(batch)
            peaks.append(step.process_bytes)
            rewritten.append(not step.current.is_empty)
            return returned

        try:
            yield Runner(run, lambda: max(peaks), lambda: any(rewritten), lambda: step.plan.in_core_peak_bytes)
        finally:
            step.close()

    return loop


def _by_parts(folder: str) -> Callable[..., object]:
    from outgrow.frontends import dynamo
    from outgrow.runtime.process import high_water_bytes, reset_high_water

    @contextmanager
    def loop(training: Training, budget: int) -> Iterator[Runner]:
        compiled = dynamo.compiled_in_place(memory_budget=budget, offload_dir=folder)
        for model in training.models:
            compiled(model)
        peaks = [0]

        def run(batch: object) -> object:
            reset_high_water()
            returned = training.step(batch)
            top = high_water_bytes()
            peaks.extend(top - shared.baseline_bytes for shared in dynamo.budgets())
            return returned

        try:
            yield Runner(run, lambda: max(peaks), lambda: budget < AMPLE, lambda: 0)
        finally:
            dynamo.forget()

    return loop


def _eager(make: Callable[[], Training]) -> Left:
    training = make()
    return _left(training, training.step)


def _left(training: Training, step: Callable[[object], object]) -> Left:
    """Take the steps and return losses and copies of the state."""
    import torch

    torch.manual_seed(1)
    losses = [float(step(batch).detach()).hex() for batch in training.batches[:STEPS]]  # pyright: ignore[reportAttributeAccessIssue]
    state = [tensor.detach().clone() for model in training.models for tensor in model.state_dict().values()]
    state += [p.grad.clone() for model in training.models for p in model.parameters() if p.grad is not None]
    return losses, [*state, torch.get_rng_state()]


def _equal(left: Left, right: Left) -> bool:
    import torch

    return (
        left[0] == right[0]
        and len(left[1]) == len(right[1])
        and all(torch.equal(ours, theirs) for ours, theirs in zip(left[1], right[1], strict=True))  # pyright: ignore[reportArgumentType]
    )


def told(row: Row) -> str:
    """Return a row in one line."""
    kept = [item["peak_bytes"] <= item["budget_bytes"] for item in row["trainings"]]
    bits = [item["bitwise"] for item in row["trainings"]]
    return f"{row['how']} bitwise {bits} within {kept} {row['reason'][:150]}"


def main() -> None:
    """Train what the command line asks for."""
    if sys.argv[1:2] == ["--serve"]:
        print(json.dumps(asdict(served(sys.argv[2]))))
    else:
        write_rows("zoo", [Architecture(name) for name in ARCHITECTURES], measured, told)


if __name__ == "__main__":
    main()
