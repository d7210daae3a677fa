"""What asks whether a number is one goes the way that it goes in eager mode, and makes no other step of it."""

from collections.abc import Callable
from numbers import Integral, Number

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

import outgrow

pytestmark = pytest.mark.usefixtures("no_room_is_ample")
CALLS = 4
Branch = Callable[[Tensor, Tensor], object]


def of_a_result(_x: Tensor, loss: Tensor) -> object:
    return isinstance(loss.item(), float), isinstance(loss.item(), (Tensor, int)), isinstance(loss.item(), Number)


def of_the_batch(x: Tensor, loss: Tensor) -> object:
    count = (x > 0).sum().item()
    return loss.detach() * 2 if isinstance(count, int) and isinstance(count, Integral) else loss.detach()


def of_a_comparison(_x: Tensor, loss: Tensor) -> object:
    decides = loss.item() > 1
    return isinstance(decides, bool), isinstance(decides, int)


def by_its_class(_x: Tensor, loss: Tensor) -> object:
    return loss.item().__class__.__name__


def trained(branch: Branch, budget: str | None) -> tuple[list[object], int]:
    """What steps return that ask for types, and how many plans there are."""
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer = SGD(model.parameters(), lr=0.1)

    def step(x: Tensor) -> object:
        loss = (model(x) - 1).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return branch(x, loss)

    ran = step if budget is None else outgrow.compile(step, model=model, optimizer=optimizer, memory_budget=budget)
    found = [ran(torch.randn(3, 4)) for _ in range(CALLS)]
    plans = len(ran.plans.plans) if isinstance(ran, outgrow.Step) else 0
    return [item.tolist() if isinstance(item, Tensor) else item for item in found], plans


@pytest.mark.parametrize("branch", [of_a_result, of_the_batch, of_a_comparison, by_its_class])
def test_a_number_is_of_the_type_that_it_has_in_eager_mode(branch: Branch) -> None:
    """Also to abstract classes."""
    expected, _ = trained(branch, None)
    found, plans = trained(branch, "10TiB")
    assert found == expected
    assert plans <= 2
