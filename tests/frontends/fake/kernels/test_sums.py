"""Sums of gradients of maps that are single points lie as autograd lays them, which kernels behind go by."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from outgrow.frontends.fake.kernels.sums import Sums
from outgrow.frontends.tracing import trace
from outgrow.frontends.tracing.capture import capture
from outgrow.frontends.user.training.state import Training
from tests.frontends.bits import same_bits
from tests.frontends.replay import replay

WIDTH = 24


class Points(nn.Module):
    """Layers for ways; a batch normalisation goes by the strides of the gradient that arrives."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.other = (nn.BatchNorm2d(WIDTH) for _ in range(3))
        self.left, self.right = (nn.Conv2d(WIDTH, WIDTH, 1) for _ in range(2))


Way = Callable[[Points, Tensor], Tensor]


def residual(net: Points, x: Tensor) -> Tensor:
    """The gradient of what skips the block arrives first, and that of the block is added to it."""
    x = net.first(x)
    return x + net.norm(net.left(x))


def shared(net: Points, x: Tensor) -> Tensor:
    """One gradient goes to both addends, and the first gets more before the other has read it."""
    a = net.first(x)
    b = net.right(F.relu(a))
    c = net.left(a)
    return net.other(c) + (a + b)


def shared_twice(net: Points, x: Tensor) -> Tensor:
    """What is made out of place decides how the next sum lies."""
    return shared(net, shared(net, x) * 0.5)


def doubled(net: Points, x: Tensor) -> Tensor:
    """One gradient is added to itself."""
    x = net.first(x)
    x = x + x
    return x + net.norm(net.left(x))


def hooked(net: Points, x: Tensor) -> Tensor:
    """What a hook adds is a sum of its own."""
    x = net.first(x)
    x.register_hook(lambda gradient: gradient + gradient)
    return x + net.norm(net.left(x))


def computed_again(net: Points, x: Tensor) -> Tensor:
    """A backward pass within a backward pass."""
    x = net.first(x)
    return x + checkpoint(lambda x: net.norm(net.left(x)) + x, x, use_reentrant=True)


def differentiated_twice(net: Points, x: Tensor) -> Tensor:
    """Gradients with a history are added up out of place."""
    x = net.first(x)
    inner = net.other(x + net.left(x).tanh())
    (gradient,) = torch.autograd.grad(inner.square().sum(), x, create_graph=True)
    return x + net.norm(gradient)


WAYS = (residual, shared, shared_twice, doubled, hooked, computed_again, differentiated_twice)


def left(way: Way, *, captured: bool) -> list[Tensor]:
    """The result of a step, and the gradients of all weights."""
    torch.manual_seed(0)
    net = Points()
    net.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    x = torch.empty(4, WIDTH, 1, 1, memory_format=torch.channels_last).normal_()
    weights = torch.linspace(-1, 1, x.numel()).reshape(4, WIDTH, 1, 1)

    def step(x: Tensor) -> Tensor:
        result = way(net, net.right(x))
        (net.right(result).sin() * weights).sum().backward()
        return result.detach()

    if captured:
        found: Any = replay(capture(step, (net,), (), (x,)), Training((net,), ()), (x,), {})
    else:
        found = step(x)
    return [found, *(weight.grad for weight in net.parameters() if weight.grad is not None)]


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> list[frozenset[int]]:
    """Which sums are made out of place in each trace."""
    apart: list[frozenset[int]] = []
    monkeypatch.setattr(trace, "Sums", lambda numbers: apart.append(numbers) or Sums(numbers))
    return apart


@pytest.mark.parametrize("way", WAYS, ids=[way.__name__ for way in WAYS])
def test_gradients_have_the_bits_of_eager(way: Way) -> None:
    """Those of every weight."""
    expected, found = (left(way, captured=captured) for captured in (False, True))
    assert all(same_bits(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("way", [residual, shared])
def test_a_second_trace_is_told_what_the_first_was(way: Way, apart: list[frozenset[int]]) -> None:
    """The number that the first could not do without, and no other one; so it succeeds as well."""
    net = Points()
    net.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    x = torch.randn(4, WIDTH, 1, 1).contiguous(memory_format=torch.channels_last)

    def step(x: Tensor, factor: Tensor, times: Tensor) -> None:
        result = net.right(x) * factor.item()
        for _ in range(int(times.item())):
            result = net.right(way(net, result))
        result.sin().sum().backward()

    captured = capture(step, (net,), (), (x, torch.tensor(0.5), torch.tensor(2)))
    assert len(captured.questions) == 1
    assert apart.count(frozenset()) == 2


def test_sums_that_eager_makes_out_of_place_are_found_by_a_second_trace(apart: list[frozenset[int]]) -> None:
    """Only where there are some."""
    left(residual, captured=True)
    assert apart == [frozenset()]
    left(shared, captured=True)
    assert [bool(numbers) for numbers in apart] == [False, False, True]
