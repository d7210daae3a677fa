"""Which architectures train under a budget, and with the bits of eager?

    python benchmarks/zoo.py [--only TEXT] [--resume]

Needs the packages of the extras `integrations` and `zoo`. An architecture takes three steps of AdamW by itself, twice,
then at three budgets: one that is never reached, one half between the floor and what the step takes in core, and the
floor that is named for a budget that is too small. It is captured whole if it can be; otherwise the backend of
`torch.compile` takes it, and if that cannot either, the reason is kept. Each training is a process of its own. Where
eager itself leaves other bits when it is repeated, all trainings are made with `torch.use_deterministic_algorithms`.

    bitwise    losses, parameters, buffers, gradients, optimizer state and generator equal those of the eager loop
    peak       high water of the process above its baseline, the largest of all steps
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from main_job import ROOT, hash_of
from rows import Failed, Goal, Row, of_all, told_by_a_process, write_rows
from zoo_models import ARCHITECTURES, Entry, Training

STEPS = 3
AMPLE, TOO_SMALL = 1 << 40, 1 << 20
SLACK = 8 << 20
"""What a process holds differs a little from one training to the next."""
TRIES = 8
LIMIT_SECONDS = 400
LEAST_TRAINED = 0.95


@dataclass
class Found:
    """How an architecture trains: "whole", "drop-in" or "refused", with the reason why not whole.

    `is_deterministic` where deterministic algorithms were asked for, since eager has other bits when it is repeated.
    """

    how: str
    reason: str = ""
    trainings: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    is_deterministic: bool = False


# A row: trainings in processes of their own -----------------------------------------------------------------------


def measured(item: Entry) -> Row:
    """Train an architecture in every way."""
    try:
        found = _found(item.name, is_deterministic=False) or _found(item.name, is_deterministic=True)
        found = found or Found("failed", "eager itself has other bits when it is repeated")
    except Failed as failure:
        found = Found("failed", str(failure))
    return {**asdict(found), "family": item.family}


def _found(name: str, *, is_deterministic: bool) -> Found | None:
    """Return how an architecture trains; None if nobody can say whether the bits are right."""
    reason = ""
    for how in ("whole", "drop-in"):
        asked = name, how, is_deterministic
        ample, near = _side_by_side((*asked, AMPLE), (*asked, TOO_SMALL))
        if "refusal" in ample:
            reason = reason or ample["refusal"]
            continue
        in_core = max(near["budget_bytes"], ample["peak_bytes"])
        middle = (near["budget_bytes"] + in_core) // 2
        half, expected = _side_by_side((*asked, middle), (name, "eager", is_deterministic, AMPLE))
        if expected["bits"] != expected["bits_again"]:
            return None
        trainings = [ample, half, near]
        for training in trainings:
            training["bitwise"] = training.pop("bits") == expected["bits"]
        return Found(how, reason, trainings, is_deterministic)
    return Found("refused", reason)


def _side_by_side(*trainings: tuple[str, str, bool, int]) -> list[dict[str, Any]]:
    with ThreadPoolExecutor(len(trainings)) as pool:
        return [future.result() for future in [pool.submit(_ended, *training) for training in trainings]]


def _ended(name: str, how: str, is_deterministic: bool, budget: int) -> dict[str, Any]:
    """Return what a training in a process of its own says at its end.

    Below the floor another process begins anew with what the refusal names: optimizer state exists from the second
    step, and parts of a step that were not reached yet have floors of their own.
    """
    for _ in range(TRIES):
        request = (name, how, is_deterministic, budget)
        try:
            told = told_by_a_process(__file__, *request, limit_seconds=LIMIT_SECONDS)
        except Failed as failure:
            raise Failed(f"{how} at {budget}: {failure}") from None
        if "floor_bytes" not in told:
            return told
        budget = told["floor_bytes"] + SLACK
    raise Failed(f"{how}: {budget} is below the floor after {TRIES} floors were named")


# A training -------------------------------------------------------------------------------------------------------


def served(name: str, how: str, is_deterministic: bool, budget: int) -> dict[str, Any]:
    """Train, and return the bits that are left and the peak; or why not."""
    import torch

    from outgrow.errors import Infeasible, Uncapturable

    torch.use_deterministic_algorithms(is_deterministic)
    try:
        found = _trained(name, how, budget)
        return {**found, "bits_again": _trained(name, how, budget)["bits"]} if how == "eager" else found
    except Infeasible as refusal:
        return {"floor_bytes": refusal.floor_bytes}
    except Uncapturable as refusal:
        return {"refusal": str(refusal).replace(f"{ROOT}/", "")}


def _trained(name: str, how: str, budget: int) -> dict[str, Any]:
    import torch

    training = ARCHITECTURES[name].make()
    with TemporaryDirectory(dir=Path.home()) as folder, LOOPS[how](training, budget, folder) as step:
        torch.manual_seed(1)
        taken = [step(batch) for batch in training.batches[:STEPS]]
        losses, peaks = zip(*taken, strict=True)
        return {"budget_bytes": budget, "bits": _bits(training, losses), "peak_bytes": max(peaks)}


Step = Callable[[object], tuple[float, int]]
"""Takes a batch, and returns the loss and the process's peak in bytes."""


@contextmanager
def _eager(training: Training, _budget: int, _folder: str) -> Iterator[Step]:
    yield lambda batch: (float(training.step(batch).detach()), 0)


@contextmanager
def _whole(training: Training, budget: int, folder: str) -> Iterator[Step]:
    import outgrow

    models, optimizers = list(training.models), list(training.optimizers)
    step = outgrow.compile(training.step, model=models, optimizer=optimizers, memory_budget=budget, offload_dir=folder)
    try:
        yield lambda batch: (float(step(batch).detach()), step.process_bytes)
    finally:
        step.close()


@contextmanager
def _by_parts(training: Training, budget: int, folder: str) -> Iterator[Step]:
    from outgrow.frontends import dynamo
    from outgrow.frontends.preparing.settings import Settings
    from outgrow.runtime.process import high_water_bytes, reset_high_water

    in_place = dynamo.InPlace(Settings.of(budget, offload_dir=folder))
    for model in training.models:
        in_place.compile(model)

    def step(batch: object) -> tuple[float, int]:
        reset_high_water()
        loss = float(training.step(batch).detach())
        return loss, max((high_water_bytes() - shared.baseline_bytes for shared in dynamo.budgets()), default=0)

    try:
        yield step
    finally:
        dynamo.forget()


LOOPS = {"eager": _eager, "whole": _whole, "drop-in": _by_parts}


def _bits(training: Training, losses: Sequence[float]) -> str:
    """Return a digest of losses, parameters, buffers, gradients, optimizer state and generator."""
    import torch

    models, optimizers = training.models, training.optimizers
    tensors = [tensor for model in models for tensor in model.state_dict().values()]
    tensors += [p.grad for model in models for p in model.parameters() if p.grad is not None]
    for optimizer in optimizers:
        tensors += [value for state in optimizer.state_dict()["state"].values() for value in state.values()]
    tensors += [torch.get_rng_state(), torch.tensor(losses, dtype=torch.float64)]
    return hash_of([torch.as_tensor(tensor) for tensor in tensors])


def goals(rows: Sequence[Row]) -> list[Goal]:
    """Return what is asked of all architectures together."""
    trained = [row for row in rows if row["trainings"]]
    bits = [training["bitwise"] for row in trained if row["how"] == "whole" for training in row["trainings"]]
    kept = [is_within(training) for row in trained for training in row["trainings"]]
    found = f"{len(trained)} of {len(rows)}"
    return [
        ("trained whole or by the drop-in", ">= 95 %", found, len(trained) >= LEAST_TRAINED * len(rows)),
        of_all("bitwise equal, of trainings captured whole", "all", bits),
        of_all("peak within the budget", "all", kept),
    ]


def is_within(training: dict[str, Any]) -> bool:
    """Whether the process kept its budget."""
    return training["peak_bytes"] <= training["budget_bytes"]


def told(row: Row) -> str:
    """Return a row in one line."""
    kept = [is_within(training) for training in row["trainings"]]
    bits = [item["bitwise"] for item in row["trainings"]]
    return f"{row['how']} bitwise {bits} within {kept} {row['reason'][:150]}"


if __name__ == "__main__":
    write_rows("zoo", tuple(ARCHITECTURES.values()), measured, told, served=served)
