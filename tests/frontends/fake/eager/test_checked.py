"""What torch checks only to raise an error is checked in every call, and raises that error before any update."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, Geometric, MultivariateNormal, Normal, Uniform, constraints
from torch.nn import functional as F

import outgrow

pytestmark = pytest.mark.usefixtures("no_room_is_ample")
WIDTH = 4


@pytest.fixture(autouse=True)
def distributions_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was compiled before: Dynamo tells distributions not to check any longer."""
    monkeypatch.setattr(Distribution, "_validate_args", True)


def parameter(found: Tensor, _targets: Tensor) -> Tensor:
    return Normal(found, found.exp()).rsample()


def sample(found: Tensor, targets: Tensor) -> Tensor:
    return Normal(targets[:, None], 1.0).log_prob(found)


def asked(found: Tensor, targets: Tensor) -> Tensor:
    return Categorical(logits=found.nan_to_num()).log_prob(targets)


def bounds(found: Tensor, _targets: Tensor) -> Tensor:
    return Uniform(found, found + 1).log_prob(found.nan_to_num())


def chance(found: Tensor, _targets: Tensor) -> Tensor:
    return Geometric(found.clamp(0, 1)).log_prob(torch.ones_like(found))


def matrix(found: Tensor, _targets: Tensor) -> Tensor:
    covariance = torch.eye(WIDTH) * found.square().mean() + F.pad(found[:1].clamp(max=0), (0, 0, 0, WIDTH - 1))
    return MultivariateNormal(found, covariance).log_prob(found.detach())


def variance(found: Tensor, _targets: Tensor) -> Tensor:
    return F.gaussian_nll_loss(found, torch.zeros_like(found), found)


def caught(found: Tensor, targets: Tensor) -> Tensor:
    """What a batch alone decides may be caught."""
    try:
        return F.gaussian_nll_loss(found, torch.zeros_like(found), targets[:, None].float())
    except ValueError:
        return found


def decided(found: Tensor, targets: Tensor) -> Tensor:
    """Who asks for a verdict need not raise an error."""
    matrix = F.pad(targets[None, :].float(), (0, 0, 0, len(targets) - 1)) + torch.eye(len(targets))
    return found * (1 if constraints.positive_definite.check(matrix) else 3)


def norm(found: Tensor, _targets: Tensor) -> Tensor:
    return found


Loss = Callable[[Tensor, Tensor], Tensor]
CASES: tuple[tuple[Loss, float, int, str], ...] = (
    (parameter, float("nan"), 0, "Expected parameter loc (Tensor of shape (3, 4))"),
    (sample, float("nan"), 0, "Expected value argument (Tensor of shape (3, 4))"),
    (asked, 1.0, WIDTH, "Expected value argument ("),
    (bounds, float("nan"), 0, "Expected parameter low (Tensor of shape (3, 4))"),
    (chance, -1.0, 0, "Expected parameter probs (Tensor of shape (3, 4))"),
    (matrix, -1.0, 0, "Expected parameter covariance_matrix (Tensor of shape (3, 4, 4))"),
    (variance, -1.0, 0, "var has negative entry/entries"),
    (norm, float("inf"), 0, "The total norm of order 2.0 for gradients from `parameters` is non-finite"),
)
"""Losses, what number and what class they cannot be told, and how the error begins."""


def trained(loss_of: Loss, compiled: Callable[..., Any]) -> tuple[nn.Module, Any]:
    """A model, and the step that trains it, as it is made by `compiled`."""
    torch.manual_seed(0)
    model = nn.Linear(WIDTH, WIDTH)
    nn.init.eye_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step(x: Tensor, targets: Tensor) -> Tensor:
        loss = loss_of(model(x), targets).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return model, compiled(step, model=model, optimizer=optimizer)


def as_it_is(step: Callable[..., Any], **_owners: object) -> Callable[..., Any]:
    return step


def within_a_budget(step: Callable[..., Any], **owners: Any) -> Callable[..., Any]:
    return outgrow.compile(step, **owners, memory_budget="4GiB")


@pytest.mark.parametrize(("loss_of", "number", "target", "text"), CASES, ids=[case[0].__name__ for case in CASES])
def test_a_check_raises_the_error_of_eager_before_any_update(
    loss_of: Loss, number: float, target: int, text: str
) -> None:
    """Its text is that of eager, but for how tensors and distributions are written; other calls have eager's bits."""
    (plain, eager), (model, step) = trained(loss_of, as_it_is), trained(loss_of, within_a_budget)
    good = torch.rand(3, WIDTH) + 2, torch.zeros(3, dtype=torch.long)
    bad = torch.full((3, WIDTH), number), torch.full((3,), target)
    for given in (good, good):
        torch.manual_seed(1)
        expected = eager(*given)
        torch.manual_seed(1)
        assert torch.equal(step(*given), expected)
    with pytest.raises((ValueError, RuntimeError), match="^" + re.escape(text)) as wanted:
        eager(*bad)
    with pytest.raises(wanted.type, match="^" + re.escape(text)):
        step(*bad)
    assert all(map(torch.equal, model.state_dict().values(), plain.state_dict().values()))


@pytest.mark.parametrize("loss_of", [caught, decided], ids=lambda loss_of: loss_of.__name__)
def test_what_ends_otherwise_than_in_an_error_is_as_in_eager_mode(loss_of: Loss) -> None:
    """The step goes the ways that it goes there."""
    (_, eager), (_, step) = trained(loss_of, as_it_is), trained(loss_of, within_a_budget)
    x = torch.rand(3, WIDTH)
    for targets in (
        torch.zeros(3, dtype=torch.long),
        -torch.ones(3, dtype=torch.long),
        torch.ones(3, dtype=torch.long),
    ):
        assert torch.equal(step(x, targets), eager(x, targets))


def test_what_is_known_is_checked_when_the_step_is_captured() -> None:
    """Numbers that the step names are the same in every call."""
    _, step = trained(lambda found, _targets: Normal(torch.zeros(4), -torch.ones(4)).log_prob(found), within_a_budget)
    with pytest.raises(ValueError, match="Expected parameter scale"):
        step(torch.rand(3, WIDTH), torch.zeros(3, dtype=torch.long))
