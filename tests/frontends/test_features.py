"""Every feature of an ordinary step leaves the bits of eager: in core, in half of its memory, and near the floor."""

from collections.abc import Callable, Hashable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore
from torch.nn.parallel import DistributedDataParallel
from torch.optim import LBFGS, SGD, Optimizer, SparseAdam, lr_scheduler

from outgrow.errors import Uncapturable
from outgrow.frontends.tracing.capture import capture
from outgrow.planning.search import search
from outgrow.runtime.medium import OnDisk
from outgrow.runtime.spill import Spill
from tests.frontends.features import Make, by, named
from tests.frontends.lowering.test_fusing import check_fusions
from tests.frontends.steps import Job
from tests.frontends.within import SHARES, Known, Within, differences, eager, left_by

SGD_RATE = 0.25
FLAT = {"evaluated"}
"""Without a backward pass nothing waits: the peak is the floor."""
TRIALS = 500
WEIGHT = torch.ones(16, 8)
ENCODER = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), 1).eval()


@pytest.fixture
def spill(disk_folder: Path) -> Iterator[Spill]:
    """A spill file."""
    spill = Spill(OnDisk(disk_folder))
    yield spill
    spill.close()


@pytest.mark.parametrize(("name", "make"), list(named()), ids=[name for name, _ in named()])
def test_a_feature_has_the_bits_of_eager_at_every_budget(
    name: str, make: Make, spill: Spill, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What steps return, state, rates and generator after three batches. Their ops can be fused."""
    monkeypatch.setattr(search, "_MOST_TRIALS", TRIALS)
    expected, captured = left_by(make, eager), dict[Hashable, list[Known]]()
    for share in SHARES:
        within = Within(share, spill, captured=captured)
        assert differences(left_by(make, within), expected) == [], (name, share)
        assert within.is_rewritten == (share < 1.0 and name not in FLAT), (name, share)
    for ready in within.ready.values():
        check_fusions(ready.captured.graph)


def _seeded(_job: Job, x: Tensor, _y: Tensor) -> Tensor:
    torch.manual_seed(3)
    return torch.randn_like(x)


def _own_generator(_job: Job, x: Tensor, _y: Tensor) -> Tensor:
    return torch.randn(x.shape, generator=torch.Generator())


def _compiled(job: Job, x: Tensor, _y: Tensor) -> object:
    return torch.compile(job.models[0], backend="eager")(x)


def _rate_by_hand(job: Job, _x: Tensor, _y: Tensor) -> None:
    job.optimizers[0].param_groups[0]["lr"] *= 0.5


def _scheduled_before(job: Job, x: Tensor, y: Tensor) -> object:
    lr_scheduler.StepLR(job.optimizers[0], 1).step()
    return job.step(x, y)


def _scheduled_by_number(job: Job, _x: Tensor, _y: Tensor) -> None:
    lr_scheduler.CosineAnnealingWarmRestarts(job.optimizers[0], 3).step(3)


def _rate_after_schedule(job: Job, _x: Tensor, _y: Tensor) -> float:
    lr_scheduler.StepLR(job.optimizers[0], 1).step()
    return job.optimizers[0].param_groups[0]["lr"]


def _updated_after_schedule(job: Job, x: Tensor, _y: Tensor) -> Tensor:
    lr_scheduler.StepLR(job.optimizers[0], 1).step()
    return x * job.optimizers[0].param_groups[0]["lr"]


def _counted_after_schedule(job: Job, x: Tensor, _y: Tensor) -> Tensor:
    scheduler = lr_scheduler.StepLR(job.optimizers[0], 1)
    scheduler.step()
    return x * scheduler.last_epoch


def _data_exchanged(job: Job, _x: Tensor, _y: Tensor) -> None:
    weight = next(job.models[0].parameters())
    weight.data = weight.data * 2
    weight.data = WEIGHT


def _nested(_job: Job, x: Tensor, _y: Tensor) -> Tensor:
    with torch.no_grad():
        return ENCODER(x[None], src_key_padding_mask=torch.zeros(1, len(x), dtype=torch.bool))


def _conditional(_job: Job, x: Tensor, _y: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))


def _opaque(_job: Job, x: Tensor, _y: Tensor) -> object:
    return SimpleNamespace(scores=x + 1)


def _positive(job: Job, x: Tensor, _y: Tensor) -> Tensor:
    found = job.models[0](x)
    return found[found > 0]


def _packed(_job: Job, x: Tensor, _y: Tensor) -> object:
    return nn.utils.rnn.pack_padded_sequence(x[None], torch.tensor([3]), batch_first=True)


def _curved(_job: Job, x: Tensor, _y: Tensor) -> Tensor:
    weight = torch.ones(8)
    return torch.func.vmap(torch.func.hessian(lambda row: (row * weight).sin().sum()))(x[:4])


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
@pytest.mark.parametrize(
    ("step", "message"),
    [
        (_seeded, "seeds torch's generator"),
        (_own_generator, "a Generator.*leave the generator out"),
        (_compiled, r"test_features.py:\d+.*_orig_mod.*after it an optimizer"),
        (_rate_by_hand, "'lr'.*scheduler.step"),
        (_scheduled_before, "call the scheduler after the last step of its optimizer"),
        (_scheduled_by_number, "an argument, which would be the same in every call"),
        (_rate_after_schedule, "the learning rate or the count.*ask after the step"),
        (_updated_after_schedule, "the learning rate or the count.*ask after the step"),
        (_counted_after_schedule, "the learning rate or the count.*ask after the step"),
        (_data_exchanged, r"sets the \.data of parameter '0\.weight'.*copy_"),
        (_nested, r"test_features.py:\d+.*enable_nested_tensor=False"),
        (_conditional, r"test_features.py:\d+.*torch cannot trace this operator, cond, .*outside of the step$"),
        (_opaque, "a SimpleNamespace holds tensors; return them"),
        (_packed, r"test_features.py:\d+.*reads lengths.*torch.compile"),
        (_curved, r"forward mode"),
        (_positive, r"test_features.py:\d+.*depends on the content"),
    ],
)
def test_what_a_capture_could_not_repeat_is_refused(step: Callable[..., object], message: str) -> None:
    """The message names the thing or the line, and a remedy; the generator is as it was."""
    job = by(partial(SGD, lr=SGD_RATE))()
    before = torch.get_rng_state()
    with pytest.raises(Uncapturable, match=message):
        capture(partial(step, job), job.models, job.optimizers, _two())
    assert torch.equal(torch.get_rng_state(), before)
    assert job.optimizers[0].param_groups[0]["lr"] == SGD_RATE


def _two() -> tuple[Tensor, Tensor]:
    return torch.ones(200, 8), torch.zeros(200, dtype=torch.long)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [(LBFGS, r"how often it calls.*torch\.compile\(model"), (SparseAdam, "sparse gradient.*Adam and sparse=False$")],
)
def test_optimizers_whose_steps_are_no_graph_are_refused(kind: Callable[..., Optimizer], reason: str) -> None:
    """By name, with the reason and a remedy: the drop-in, unless it has no sparse gradients either."""
    job = by(kind)()
    with pytest.raises(Uncapturable, match=rf"{kind.__name__} .*{reason}"):
        capture(job.step, job.models, job.optimizers, _two())


def test_a_model_that_torch_divides_is_refused() -> None:
    """By the name of what divides it, with the mesh as the remedy."""
    model = nn.Linear(8, 8)
    optimizer = SGD(model.parameters())
    torch.distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        divided = DistributedDataParallel(model)
        with pytest.raises(
            Uncapturable, match=r"DistributedDataParallel exchanges gradients.*mesh to outgrow\.compile"
        ):
            capture(lambda x: divided(x).sum().backward(), (divided,), (optimizer,), (torch.ones(2, 8),))
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("share", SHARES)
def test_gradients_that_somebody_holds_are_those_of_eager(share: float, spill: Spill) -> None:
    """Also where the step empties them: it adds to what an earlier backward pass has left, updates, and clears."""

    def trained(ran: Callable[[Job, tuple[object, ...]], object]) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.Tanh())))
        optimizer = SGD(model.parameters(), lr=0.1, weight_decay=0.1, momentum=0.9)

        def step(x: Tensor) -> Tensor:
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        job = Job(step, (model,), (optimizer,), lambda: (torch.randn(16, 64),))
        left: list[Tensor] = []
        for _ in range(3):
            model(torch.randn(16, 64)).sum().backward()
            held = [parameter.grad for parameter in model.parameters()]
            ran(job, job.batch())
            left += [gradient.clone() for gradient in held if gradient is not None]
        return [*left, *(parameter.detach() for parameter in model.parameters())]

    found, expected = trained(Within(share, spill)), trained(eager)
    assert len(found) == len(expected) == 4 * 8
    assert all(map(torch.equal, found, expected))


def test_contents_that_were_exchanged_are_put_back() -> None:
    """A step that is refused for that leaves the parameter as it was."""
    job = by(partial(SGD, lr=SGD_RATE))()
    weight = next(job.models[0].parameters())
    before, place = weight.detach().clone(), weight.data_ptr()
    with pytest.raises(Uncapturable, match="sets the"):
        capture(partial(_data_exchanged, job), job.models, job.optimizers, _two())
    assert weight.data_ptr() == place
    assert torch.equal(weight, before)


def test_a_step_may_look_at_what_is_made_of_literals_alone() -> None:
    """What is found in a mask of literals is known, until something else is written into it."""

    def step(x: Tensor, *, spoil: bool) -> Tensor:
        mask = torch.ones(3, 3).tril()
        view = mask[0]
        if spoil:
            view.mul_(x)
        return x + 1 if bool((mask == torch.ones_like(x).expand(3, 3).tril()).all()) else x

    model = nn.Linear(1, 1)
    x = torch.full((3,), 2.0)
    assert [op.operator for op in capture(step, (model,), (), (x,), {"spoil": False}).graph.ops] == ["aten.add.Tensor"]
    assert len(capture(step, (model,), (), (x,), {"spoil": True}).guesses) == 1
