"""Gradients that lie otherwise than results give eager's bits, from the first step on."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from outgrow.frontends import dynamo, parts
from outgrow.frontends.arrivals import arrived_as
from outgrow.runtime.heap import fill
from outgrow.runtime.program import Geometry, Result
from tests.frontends.test_between import same

CHANNELS, LENGTH = 128, 399


@pytest.fixture(autouse=True)
def _apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No plans are known, and none is left."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    yield
    dynamo.forget()


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


def test_a_gradient_that_is_one_number() -> None:
    """A sum hands out a number for all elements, and sums of it are other ones."""
    same(Sound(), lambda model: (model(sounds()) * 0.1).sum().backward())
    same(Sound(), lambda model: model(sounds()).mean().backward())


def test_two_forward_passes_before_one_backward_pass() -> None:
    """Each begins anew from what it began with."""

    def train(model: Callable[..., Any]) -> None:
        one, other = model(sounds()), model(sounds())
        (scored(one) + scored(other)).backward()

    same(Sound(), train)


def test_what_was_written_meanwhile_is_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where an input is no longer what it was, the gradient is copied to where it was expected."""
    begun: list[object] = []
    start = parts._Waiting.__init__
    monkeypatch.setattr(parts._Waiting, "__init__", lambda run, asked: (begun.append(asked), start(run, asked))[1])
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
    assert len(begun) == 2


def test_overlapping_gradients_are_copied() -> None:
    """What lies over itself in another way than by strides of 0 arrives as it was captured."""
    result = Result("x", Geometry("s", torch.float32, (3, 2), (2, 1), 0), "s", 24)
    overlapping = torch.arange(6.0).as_strided((3, 2), (1, 1))
    assert arrived_as([overlapping, None, torch.zeros(()).expand(3, 2)], [result] * 3) == [(2, 1), (2, 1), (0, 0)]


def test_one_number_is_copied_as_one() -> None:
    """There is room for one."""
    found = fill(torch.zeros(1).expand(3), torch.ones(1).expand(3))
    assert found.untyped_storage().nbytes() == 4
    assert torch.equal(found, torch.ones(3))
