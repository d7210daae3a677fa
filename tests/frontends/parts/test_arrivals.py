"""Gradients that lie otherwise than results give eager's bits, from the first step on."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from outgrow.frontends import dynamo
from outgrow.frontends.parts import parts, passes
from outgrow.frontends.parts.arrivals import arrival_of
from outgrow.runtime.results import fill
from tests.frontends.parts.test_between import compiled, same

CHANNELS, LENGTH = 128, 399


pytestmark = [
    pytest.mark.usefixtures("parts_apart"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]


class Sound(nn.Module):
    """A scale and a layer whose result is handed out transposed, behind statistics that move and numbers are drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Conv1d(CHANNELS, CHANNELS, 3, padding=1)
        self.norm = nn.BatchNorm1d(CHANNELS)
        self.scale = nn.Parameter(torch.randn(CHANNELS, 1))
        self.after = nn.Linear(CHANNELS, CHANNELS)

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(F.gelu(self.norm(self.before(x))), 0.1) * self.scale
        return self.after(x.transpose(1, 2)).transpose(1, 2)


def sounds() -> Tensor:
    return torch.randn(4, CHANNELS, LENGTH)


def scored(result: Tensor) -> Tensor:
    return F.layer_norm(result.contiguous(), (LENGTH,)).sin().mean()


def sines(result: Tensor) -> Tensor:
    return result.contiguous().sin().mean()


def test_a_gradient_that_is_transposed() -> None:
    """The first step has its bits, and leaves statistics and generator as eager mode does; so has the next one."""
    left: list[tuple[Tensor, ...]] = []

    def train(model: Callable[..., Any]) -> None:
        module.norm.reset_running_stats()
        for _ in range(2):
            scored(model(sounds())).backward()
        running = module.norm.running_mean, module.norm.running_var
        left.append((*(item.clone() for item in running if item is not None), torch.get_rng_state()))

    module = Sound()
    same(module, train)
    assert all(torch.equal(one, other) for found in left[1:] for one, other in zip(left[0], found, strict=True))


class Checkpointed(Sound):
    """Computes statistics a second time in the backward pass, which moves them a second time."""

    def forward(self, x: Tensor) -> Tensor:
        inner = checkpoint(lambda x: self.norm(self.before(x)).relu(), x, use_reentrant=False)
        return self.after(inner.transpose(1, 2)).transpose(1, 2)


def test_a_backward_pass_that_moves_statistics() -> None:
    """Also in the step that begins anew for a gradient that is transposed, and behind another forward pass."""
    left: list[list[Tensor]] = []

    def train(model: Callable[..., Any]) -> None:
        module.norm.reset_running_stats()
        for others in (0, 1, 0):
            result = model(sounds())
            for _ in range(others):
                model(sounds())
            scored(result).backward()
        left.append([buffer.clone() for buffer in module.buffers()])

    module = Checkpointed()
    same(module, train)
    assert all(torch.equal(one, other) for found in left[1:] for one, other in zip(left[0], found, strict=True))


def test_a_gradient_that_is_one_number() -> None:
    """A sum hands out a number for all elements, and sums of it are other ones."""
    same(Sound(), lambda model: (model(sounds()) * 0.1).sum().backward())
    same(Sound(), lambda model: model(sounds()).mean().backward())


def test_a_gradient_of_single_points() -> None:
    """It is contiguous and channels-last at once; a batch normalisation goes by the strides that say nothing else."""
    module, layer = nn.Sequential(nn.Conv2d(24, 24, 1), nn.BatchNorm2d(24)), nn.Conv2d(24, 24, 1)
    for part in (module, layer):
        part.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    x = torch.randn(4, 24, 1, 1).contiguous(memory_format=torch.channels_last)
    same(module, lambda model: layer(model(x)).sin().sum().backward())
    same(module, lambda model: model(x).sin().sum().backward())


class Skipping(nn.Module):
    """What begins with a residual block of single points has two addends for its input."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.BatchNorm2d(24), nn.BatchNorm2d(24)
        self.layer, self.last = nn.Conv2d(24, 24, 1), nn.Conv2d(24, 24, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        torch._dynamo.graph_break()
        x = x + self.norm(self.layer(x))
        torch._dynamo.graph_break()
        return self.last(x)


def test_addends_of_single_points() -> None:
    """Autograd adds them up between parts, and the sum lies like the first."""
    module = Skipping()
    module.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    x = torch.randn(4, 24, 1, 1).contiguous(memory_format=torch.channels_last)
    same(module, lambda model: model(x).sin().sum().backward())


def test_two_forward_passes_before_one_backward_pass() -> None:
    """Each begins anew from what it began with."""

    def train(model: Callable[..., Any]) -> None:
        one, other = model(sounds()), model(sounds())
        (scored(one) + scored(other)).backward()

    same(Sound(), train)


def test_what_was_written_meanwhile_is_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where an input is no longer what it was, the gradient is copied to where it was expected; the next one is not."""
    begun: list[object] = []
    start = passes.Waiting.__init__
    monkeypatch.setattr(passes.Waiting, "__init__", lambda run, *asked: (begun.append(asked), start(run, *asked))[1])
    module = Sound()
    model = torch.compile(module, backend=dynamo.backend, options={"memory_budget": 1 << 30})
    x = sounds()
    loss = scored(model(x))
    assert module.after.bias is not None
    with torch.no_grad():
        module.after.bias.zero_()
    loss.backward()
    assert len(begun) == 1
    scored(model(x)).backward()
    assert len(begun) == 3


def test_overlapping_gradients_arrive_as_if_they_did_not() -> None:
    """What lies over itself in another way than by strides of 0 is copied."""
    overlapping = torch.arange(6.0).as_strided((3, 2), (1, 1))
    found = arrival_of([overlapping, None, torch.zeros(()).expand(3, 2), torch.ones(3, 1)])
    assert found.strides == ((2, 1), None, (0, 0), (1, 1))


def test_one_number_is_copied_as_one() -> None:
    """There is room for one."""
    found = fill(torch.zeros(1).expand(3), torch.ones(1).expand(3))
    assert found.untyped_storage().nbytes() == 4
    assert torch.equal(found, torch.ones(3))


class Reporting(nn.Module):
    """A result to learn from, and one to look at, whose derivative may be infinite."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        shares = torch.softmax(self.linear(x) * 200, 1)
        return shares[:, 0].sum(), -(shares * shares.log()).sum()


def test_a_result_that_nobody_learns_from_has_no_part_in_gradients() -> None:
    """Not even zero times infinity; one that somebody learns from later has."""
    x = torch.randn(16, 8)

    def train(model: Callable[..., Any]) -> None:
        for at in (0, 0, 1, 0, 1):
            (gain, entropy) = model(x)
            (entropy * 1e-3 if at else gain).backward()

    found = same(Reporting(), lambda model: model(x)[0].backward())
    assert all(gradient is not None and gradient.isfinite().all() for gradient in found)
    module = Reporting()
    with torch.no_grad():
        module.linear.weight.div_(100)
    same(module, train)


class Silent(torch.autograd.Function):
    """A function that hands no gradient back."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(_ctx: Any, *_gradients: Tensor) -> None:
        return None


def test_where_no_gradient_arrives_there_is_none() -> None:
    """The backward pass of the part does not run."""
    found = same(Sound(), lambda model: Silent.apply(model(sounds())).sum().backward())
    assert all(gradient is None for gradient in found)


class Borrowing(torch.autograd.Function):
    """A function whose gradient is a weight."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        return x * weight

    @staticmethod
    def backward(ctx: Any, *_gradients: Tensor) -> tuple[Tensor, Tensor]:
        (weight,) = ctx.saved_tensors
        return weight, weight


class Weighted(nn.Module):
    """One weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return Borrowing.apply(x, self.weight)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_a_gradient_has_memory_of_its_own() -> None:
    """What is added to it later is not added to a weight."""
    module = Weighted()

    def train(model: Callable[..., Any]) -> None:
        for _ in range(3):
            model(torch.ones(3)).sum().backward()

    same(module, train)
    assert torch.equal(module.weight, torch.ones(3))


class Summed(nn.Module):
    """Two weights with one gradient, which for the second one, or for both, is seen in another shape."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.one, self.other = nn.Parameter(torch.randn(shape)), nn.Parameter(torch.randn(32))

    def forward(self, x: Tensor) -> Tensor:
        return (x * (self.one + self.other.view_as(self.one)).view_as(x)).sin()


@pytest.mark.parametrize("shape", [(4, 8), (32,)])
def test_weights_with_one_gradient_have_memory_of_their_own(shape: tuple[int, ...]) -> None:
    """What is added to one later is not added to the other."""
    module = Summed(shape)

    def train(model: Callable[..., Any]) -> None:
        for _ in range(3):
            module.zero_grad()
            for _ in range(2):
                model(torch.randn(4, 8)).square().sum().backward()

    same(module, train)


class Reading(nn.Module):
    """Two layers read what a first part has made."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.one, self.other = (nn.Linear(64, 64) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).float().sin()
        torch._dynamo.graph_break()
        return self.one(x) * self.other(x)


def test_autocast_casts_what_is_no_leaf_for_each_reader() -> None:
    """Gradients of the casts are summed in single precision."""

    def train(model: Callable[..., Any]) -> None:
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(torch.randn(32, 64)).float().square().mean()
        loss.backward()

    same(Reading(), train)


class Twice(nn.Module):
    """Two results read one input, the first of them twice."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return (x.sin() * self.weight).sum() + x.exp().sum(), (x * self.weight).cos().sum()


def test_fewer_gradients_bring_fewer_addends() -> None:
    """An input keeps its places, of which some are empty then."""
    found: list[Tensor] = []

    def train(model: Callable[..., Any]) -> None:
        for results in ((0, 1), (1,), (0,), (0, 1)):
            x = torch.randn(4, 8, requires_grad=True)
            given = model(x)
            found.append(*torch.autograd.grad(sum(given[at] for at in results) + x.square().sum(), x))

    same(Twice(), train)
    assert all(map(torch.equal, found[:4] * 2, found[4:]))


def test_other_shapes_are_captured_as_gradients_arrived_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """So each is captured once, and not for a gradient that does not arrive."""
    found: list[object] = []
    original = parts.capture

    def captured(*args: Any) -> object:
        found.append(args)
        return original(*args)

    monkeypatch.setattr(parts, "capture", captured)
    module = compiled(Reporting())
    counts: list[int] = []
    for size in (16, 12, 8, 10):  # the second makes Dynamo take any size
        module(torch.randn(size, 8))[1].backward()
        counts.append(len(found))
    assert counts == [2, 4, 5, 6]


def test_gradients_need_not_arrive_as_they_did_for_other_shapes() -> None:
    """Transposed or not, fewer or more, they have eager's bits in every shape, and addends keep their places."""
    module, found = Sound(), list[Tensor]()

    def transposed(model: Callable[..., Any]) -> None:
        for size, score in ((64, sines), (48, sines), (72, sines), (80, torch.sum), (56, sines), (88, torch.mean)):
            result = model(torch.randn(4, CHANNELS, size))
            score(result).backward()

    def fewer(model: Callable[..., Any]) -> None:
        for size, results in ((4, (1,)), (6, (1,)), (5, (1,)), (7, (0, 1)), (3, (0,)), (9, (0, 1)), (8, (1,))):
            x = torch.randn(size, 8, requires_grad=True)
            given = model(x)
            found.append(*torch.autograd.grad(sum(given[at] for at in results) + x.square().sum(), x))

    same(module, transposed)
    same(Twice(), fewer)
    assert all(map(torch.equal, found[:7] * 2, found[7:]))
