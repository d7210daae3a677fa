"""Do several processes compute what one does, and end when one of them does?"""

import os
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

import outgrow
from outgrow import Step, Workload
from outgrow.errors import Divided, Infeasible, OutgrowError, PeerLost, Uncapturable
from outgrow.frontends.workers import workers as module
from outgrow.frontends.workloads.loading import load_workload_function
from outgrow.planning.partition import options
from tests.frontends.several import Work, together

FAMILIES = Path(__file__).parents[3] / "benchmarks" / "workloads" / "families.py"
NAMES = ("perceptron", "image", "volume", "text", "series")
FEW_NAMES = ("image", "text")
TOLERANCE = 1e-12
STEPS = 3
SECONDS = 20.0
"""A process that waits for one that has ended says so sooner."""


def made(name: str, **settings: Any) -> Workload:
    """A small model of some family; its tensors are cut however small they are."""
    options.SMALL_BYTES = 0
    return load_workload_function(f"{FAMILIES}:{name}")(**settings)


def shared(job: Workload, mesh: DeviceMesh, budget: str = "2GiB") -> Step[..., Tensor]:
    """Its step, over a mesh."""
    return outgrow.compile(job.step, model=job.model, optimizer=job.optimizer, memory_budget=budget, mesh=mesh)


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()


def error(found: Tensor, expected: Tensor) -> float:
    """The largest difference, over the largest element."""
    return float((found - expected).detach().abs().max() / expected.detach().abs().max())


def errors(mesh: DeviceMesh, _folder: Path, names: Sequence[str] = NAMES) -> dict[str, list[float]]:
    """By family, how far losses and parameters are from one process, and bytes received, and how many were said."""
    found: dict[str, list[float]] = {}
    for name in names:
        job, alone = made(name), made(name)
        torch.manual_seed(1)
        step = shared(job, mesh)
        losses = [step(*job.batches[0]) for _ in range(STEPS)]
        torch.manual_seed(1)
        expected = [alone.step(*alone.batches[0]) for _ in range(STEPS)]
        pairs = zip(job.model.parameters(), alone.model.parameters(), strict=True)
        found[name] = [
            max(error(one, other) for one, other in zip(losses, expected, strict=True)),
            max(error(whole(one), other) for one, other in pairs),
            float(step.shared.received_bytes),
            float(STEPS * step.shared.predicted_bytes[mesh.get_local_rank()]),
        ]
        step.close()
    return found


def errors_of_few(mesh: DeviceMesh, folder: Path) -> dict[str, list[float]]:
    """The same for some families."""
    return errors(mesh, folder, FEW_NAMES)


def errors_in_no_room(mesh: DeviceMesh, folder: Path) -> dict[str, list[float]]:
    """The same where nothing is held but equal shares."""
    module.FOR_TENSORS = 0.0
    return errors(mesh, folder)


@pytest.mark.parametrize(("workers", "work"), [(2, errors_in_no_room), (4, errors_of_few)])
def test_several_compute_what_one_does(workers: int, work: Work) -> None:
    """Up to the order of sums, in every family, with dropout, and receive as many bytes as was said."""
    for found in together(work, workers):
        for name, (losses, parameters, received, predicted) in found.items():
            assert losses <= TOLERANCE, name
            assert parameters <= TOLERANCE, name
            assert received == predicted > 0, name


class Turned(torch.nn.Module):
    """A recurrent layer over sequences in another order, and some of its results, of which one index says many."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.GRU(7, 8, batch_first=True)
        self.places = torch.tensor([3, 0, 1]).view(1, 3, 1).expand(6, 3, 8)

    def forward(self, x: Tensor) -> Tensor:
        found, last = self.layer(x)
        return found.gather(1, self.places).square().sum() + last.clone().squeeze_(0).unsqueeze_(2).sum()


class Gathered(torch.nn.Module):
    """Rows of a layer's result, some of them twice, as edges of a graph ask for nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.rows = torch.nn.Linear(7, 8), torch.tensor([3, 0, 1, 3, 5])

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[self.rows].square().sum()


class Last(torch.nn.Module):
    """Convolutions whose weights have the channels last."""

    def __init__(self) -> None:
        super().__init__()
        convolutions = [torch.nn.Conv2d(3, 5, 3), torch.nn.Conv2d(5, 4, 3)]
        self.layers = torch.nn.Sequential(*convolutions)
        for layer in convolutions:
            layer.weight = torch.nn.Parameter(layer.weight.detach().contiguous(memory_format=torch.channels_last))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).square().mean()


def of(model: torch.nn.Module, x: Tensor) -> Workload:
    """The training of a model that gives a loss."""
    model = model.double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Workload(model, optimizer, step, [(x,)])


def turned() -> Workload:
    """The training of sequences in another order."""
    torch.manual_seed(0)
    return of(Turned(), torch.randn(6, 5, 7, dtype=torch.float64))


def gathered() -> Workload:
    """The training of rows that are gathered by numbers."""
    torch.manual_seed(0)
    return of(Gathered(), torch.randn(6, 7, dtype=torch.float64))


def last() -> Workload:
    """The training of convolutions with the channels last."""
    torch.manual_seed(0)
    return of(Last(), torch.randn(4, 3, 9, 9, dtype=torch.float64).to(memory_format=torch.channels_last))


def errors_of_layouts(mesh: DeviceMesh, _folder: Path) -> list[float]:
    """How far losses and parameters are from one process, whether they are cut or held whole."""
    found: list[float] = []
    for make, small_bytes in ((turned, 0), (gathered, 0), (last, 0), (last, options.SMALL_BYTES)):
        options.SMALL_BYTES = small_bytes
        job, alone = make(), make()
        step = shared(job, mesh)
        found += [error(step(*job.batches[0]), alone.step(*alone.batches[0])) for _ in range(STEPS)]
        pairs = zip(job.model.parameters(), alone.model.parameters(), strict=True)
        found += [error(whole(one), other) for one, other in pairs]
    return found


def test_tensors_that_lie_otherwise_are_cut() -> None:
    """Views that take the place of a tensor, tensors whose elements are one in memory, and those with channels last."""
    for found in together(errors_of_layouts, 2):
        assert max(found) <= TOLERANCE


def begun(mesh: DeviceMesh, _folder: Path, *, saved: Path) -> dict[str, Any]:
    """Train with batches of several shapes and a schedule, evaluate, and save."""
    job, alone = made("text"), made("text")
    x, y = job.batches[0]
    schedules = [torch.optim.lr_scheduler.StepLR(item.optimizer, 1, 0.5) for item in (job, alone)]
    step = shared(job, mesh)
    distances: list[float] = []
    for batch in ((x, y), (x[:3], y[:3]), (x, y)):
        torch.manual_seed(2)
        found = step(*batch)
        torch.manual_seed(2)
        distances.append(error(found, alone.step(*batch)))
        for schedule in schedules:
            schedule.step()
    evaluated = outgrow.compile(partial(evaluation, job), model=job.model, memory_budget="2GiB", mesh=mesh)
    distances.append(error(evaluated(x), evaluation(alone, x)))
    state_dict_saver.save(state_of(job), checkpoint_id=saved)
    parts = [parameter for parameter in job.model.parameters() if isinstance(parameter, DTensor)]
    held = sum(parameter.to_local().numel() for parameter in parts)
    return {"distances": distances, "held": held, "all": sum(parameter.numel() for parameter in parts)}


def evaluation(job: Workload, x: Tensor) -> Tensor:
    """Scores, without gradients and without dropout."""
    job.model.eval()
    with torch.no_grad():
        found = job.model(x)
    job.model.train()
    return found


def state_of(job: Workload) -> dict[str, Any]:
    """What a checkpoint holds."""
    model, optimizer = get_state_dict(job.model, job.optimizer)
    return {"model": model, "optimizer": optimizer}


def resumed(mesh: DeviceMesh, _folder: Path, *, saved: Path) -> float:
    """Load what other processes saved, train on, and return the loss."""
    job = made("text")
    state = state_of(job)
    state_dict_loader.load(state, checkpoint_id=saved)
    set_state_dict(job.model, job.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    torch.manual_seed(3)
    return shared(job, mesh)(*job.batches[0]).item()


def test_a_training_is_saved_by_two_and_continued_by_three(tmp_path: Path) -> None:
    """Each has its part of the parameters; batches of other shapes, evaluation and schedules are as alone."""
    for found in together(partial(begun, saved=tmp_path), 2):
        assert max(found["distances"]) <= TOLERANCE
        assert found["held"] <= 0.51 * found["all"]
    alone = made("text")
    x, y = alone.batches[0]
    schedule = torch.optim.lr_scheduler.StepLR(alone.optimizer, 1, 0.5)
    for batch in ((x, y), (x[:3], y[:3]), (x, y)):
        torch.manual_seed(2)
        alone.step(*batch)
        schedule.step()
    torch.manual_seed(3)
    expected = alone.step(x, y).item()
    for loss in together(partial(resumed, saved=tmp_path), 3):
        assert abs(loss / expected - 1) <= TOLERANCE


def refused(mesh: DeviceMesh, _folder: Path) -> dict[str, str]:
    """What is said where workers disagree, hold parameters elsewhere, or name a mesh that cannot be."""
    worker = mesh.get_local_rank()
    found: dict[str, str] = {}

    def attempt(what: str, call: Callable[[], object], *kinds: type[Exception]) -> None:
        with pytest.raises(kinds) as caught:
            call()
        found[what] = str(caught.value)

    job = made("perceptron")
    x, y = job.batches[0]
    torch.manual_seed(worker)
    attempt("seeds", lambda: shared(job, mesh)(x, y), Divided)
    torch.manual_seed(0)
    attempt("batch", lambda: shared(job, mesh)(x + worker, y), Divided)
    attempt("shapes", lambda: shared(job, mesh)(x[: 9 + worker], y[: 9 + worker]), Divided)
    with torch.no_grad():
        next(iter(job.model.parameters())).add_(worker)
    attempt("parameters", lambda: shared(job, mesh)(x, y), Divided)
    other = made("perceptron")
    listed = list(other.model.parameters())
    attempt("list", lambda: shared(other, mesh)(x, y), Uncapturable)
    listed.clear()
    grid = init_device_mesh("cpu", (1, mesh.size()))
    attempt("mesh", lambda: shared(other, grid), ValueError)
    apart = torch.nn.Linear(2, 2, device="meta")
    attempt("device", lambda: outgrow.compile(x.add, model=apart, memory_budget="1GiB", mesh=mesh), ValueError)
    attempt("early", lambda: shared(made("perceptron"), mesh).shared, RuntimeError)
    attempt("larger", lambda: init_device_mesh("cpu", (mesh.size() + 1,)), RuntimeError)
    return found


def test_what_workers_would_wait_for_in_vain_is_refused() -> None:
    """By all of them, at the start, in a sentence that says what differs."""
    for found in together(refused, 2):
        assert "do not agree on the state of torch's generator" in found["seeds"]
        assert "do not agree on the batch" in found["batch"]
        assert "do not agree on the operators of the step" in found["shapes"]
        assert "do not agree on parameters" in found["parameters"]
        assert "held in a list" in found["list"]
        assert "mesh has 2 dimensions" in found["mesh"]
        assert "the model is on meta" in found["device"]
        assert "call the step once" in found["early"]


def kept(mesh: DeviceMesh, _folder: Path) -> dict[str, str]:
    """What is said of steps that keep what has no content, and of one that reads what the step before has left.

    And whether parameters that are cut in inference mode are of it.
    """
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses: list[Tensor] = []
    without_a_name = [losses]

    def appending(x: Tensor) -> Tensor:
        itemgetter(0)(without_a_name).append(loss := model(x).sum())
        return trained(loss)

    def trained(loss: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    found: dict[str, str] = {}
    with pytest.raises(Uncapturable) as caught:
        outgrow.compile(appending, model=model, optimizer=optimizer, memory_budget="1GiB", mesh=mesh)(torch.ones(3, 4))
    found["appending"] = str(caught.value)
    assert losses == []
    read = torch.nn.Linear(4, 4)
    with torch.inference_mode():
        outgrow.compile(read.forward, model=read, memory_budget="1GiB", mesh=mesh)(torch.ones(3, 4))
    found["cut"] = str([parameter.is_inference() for parameter in read.parameters()])
    return found


def test_what_a_step_over_a_mesh_would_keep_or_has_left_is_refused() -> None:
    """As in one process: its Python does not run again. Parameters that are cut in inference mode can be trained."""
    (found,) = together(kept, 1)
    assert "has no content while the step is captured" in found["appending"]
    assert found["cut"] == "[False, False]"


def left_in_a_log(mesh: DeviceMesh | None) -> list[Any]:
    """What a step leaves in lists and in attributes in three calls."""
    torch.manual_seed(0)
    model, numbers, tensors = torch.nn.Linear(4, 4), list[float](), list[Tensor]()
    holder = SimpleNamespace(hidden=torch.zeros(3, 4))

    def step(x: Tensor) -> Tensor:
        hidden = model(x) + holder.hidden
        holder.hidden = hidden.detach()
        loss = hidden.square().mean()
        loss.backward()
        numbers.append(loss.item())
        tensors.append(loss.detach())
        model.seen = hidden[:2].detach()
        return loss.detach()

    ran = step if mesh is None else outgrow.compile(step, model=model, memory_budget="1GiB", mesh=mesh)
    for _ in range(3):
        ran(torch.ones(3, 4))
    return [numbers, torch.stack(tensors).tolist(), holder.hidden.tolist(), vars(model)["seen"].tolist()]


def logged(mesh: DeviceMesh, _folder: Path) -> dict[str, Any]:
    """The same over a mesh, and alone; each call is another step, since it reads what the one before has left."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {"over a mesh": left_in_a_log(mesh), "alone": left_in_a_log(None)}


def test_what_a_step_over_a_mesh_leaves_outside_is_whole() -> None:
    """Numbers, tensors in lists, and one that the next call reads."""
    for found in together(logged, 2):
        pairs = zip(found["over a mesh"], found["alone"], strict=True)
        for ours, alone in pairs:
            torch.testing.assert_close(torch.tensor(ours), torch.tensor(alone))


def changed(mesh: DeviceMesh, _folder: Path) -> dict[str, Any]:
    """What becomes of a change that one worker alone sees: first one that is no matter, then one that is."""
    job, alone, level = made("perceptron"), made("perceptron"), {"level": 1}

    def scaled(own: Workload, *batch: Tensor) -> Tensor:
        factor = 1.0 if level["level"] > 0 else 0.5
        return own.step(*batch) * factor

    step = outgrow.compile(
        partial(scaled, job), model=job.model, optimizer=job.optimizer, memory_budget="2GiB", mesh=mesh
    )
    distances: list[float] = []
    for _ in range(STEPS):
        torch.manual_seed(1)
        found = step(*job.batches[0])
        torch.manual_seed(1)
        distances.append(error(found, alone.step(*alone.batches[0])))
        level["level"] += mesh.get_local_rank()
    level["level"] -= 9 * mesh.get_local_rank()
    with pytest.raises(Divided) as caught:
        step(*job.batches[0])
    return {"distances": distances, "said": str(caught.value)}


def test_a_change_that_one_worker_sees_is_captured_by_all() -> None:
    """No worker waits for another that captures the step anew; if the steps are others, all say so."""
    for found in together(changed, 2):
        assert max(found["distances"]) <= TOLERANCE
        assert "do not agree on the operators of the step" in found["said"]


def drifted(mesh: DeviceMesh, _folder: Path) -> dict[str, list[str]]:
    """What is said where one worker goes on otherwise than the others, or not at all, and whether all go on then."""
    worker, found = mesh.get_local_rank(), dict[str, list[str]]()

    def tried(name: str, change: Callable[[Workload], Any]) -> None:
        job = made("perceptron")
        torch.manual_seed(1)
        ours = shared(job, mesh)
        ours(*job.batches[0])
        batch = change(job) or job.batches[0]
        try:
            ours(*batch)
        except OutgrowError as refusal:
            found[name] = [type(refusal).__name__, str(refusal)]

    def drawn(_job: Workload) -> None:
        torch.rand(1 + worker)

    def slower(job: Workload) -> None:
        job.optimizer.param_groups[0]["lr"] *= 1 + worker

    def swapped(job: Workload) -> list[Tensor]:
        order = torch.arange(len(job.batches[0][0])).roll(worker)
        return [item[order] for item in job.batches[0]]

    tried("random", drawn)
    tried("rate", slower)
    tried("batch", swapped)
    job = made("perceptron")
    fails: list[int] = []

    def failing(*batch: Tensor) -> Tensor:
        if worker in fails:
            raise ZeroDivisionError
        return job.step(*batch)

    step = outgrow.compile(failing, model=job.model, optimizer=job.optimizer, memory_budget="2GiB", mesh=mesh)
    x, y = job.batches[0]
    said: list[str] = []
    for rows, failed in [(len(x), []), (len(x) - 2, [1]), (len(x), []), (len(x) - 2, [])]:
        fails[:] = failed
        torch.manual_seed(1)
        try:
            step(x[:rows], y[:rows])
        except (ZeroDivisionError, Divided) as error:
            said.append(str(error) or type(error).__name__)
        else:
            said.append("done")
    found["fails"] = said
    other = made("perceptron")
    with pytest.raises((Divided, Infeasible)) as caught:
        shared(other, mesh, ["2GiB", "8MiB"][worker])(*other.batches[0])
    found["budget"] = [type(caught.value).__name__]
    return found


def test_workers_that_drift_apart_or_refuse_are_told_at_once() -> None:
    """None trains on with other numbers, or waits for one that does not come; what one refuses can be tried again."""
    first, second = together(drifted, 2)
    for found in (first, second):
        assert "do not agree on the state of torch's generator" in found["random"][1]
        assert "do not agree on learning rates" in found["rate"][1]
        assert "do not agree on the batch" in found["batch"][1]
        assert [found["fails"][at] for at in (0, 2, 3)] == ["done"] * 3
    assert "Worker 1 does not go on with this step" in first["fails"][1]
    assert second["fails"][1] == "ZeroDivisionError"
    assert second["budget"] == ["Infeasible"]


def left(mesh: DeviceMesh, folder: Path) -> float | None:
    """One worker ends after a step; return how long the other waited for it, and check what it is told."""
    job = made("perceptron")
    step = shared(job, mesh)
    step(*job.batches[0])
    step(*job.batches[0])
    if mesh.get_local_rank() == 1:
        (folder / "1.json").write_text("null")
        os._exit(0)
    begin = time.monotonic()
    with pytest.raises(PeerLost, match="start all workers again"):
        _go_on(step, job)
    return time.monotonic() - begin


def _go_on(step: Step[..., Tensor], job: Workload) -> None:
    for _ in range(STEPS):
        step(*job.batches[0])


def test_a_worker_that_ends_is_missed_within_seconds() -> None:
    """The others raise an error that says so, and do not hang."""
    waited, _ = together(left, 2)
    assert waited is not None
    assert waited < SECONDS
