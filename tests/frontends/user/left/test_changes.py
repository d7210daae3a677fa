"""What a captured step has changed is changed where it is found after each call."""

import numpy as np
import torch
from torch import Tensor, nn

from outgrow.frontends.tracing.capture import capture


class Logging(nn.Module):
    """Fills a list and puts another one in its place, and turns a flag over."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.log: list[list[int]] = []
        self.is_odd = False

    def forward(self, x: Tensor) -> Tensor:
        self.log.append([1])
        self.log = [[2]]
        self.is_odd = not self.is_odd
        return self.linear(x)


def test_a_list_that_is_filled_and_exchanged_is_both() -> None:
    """Whoever has the first one sees what is in it; the second one is another one in each call."""
    model = Logging()
    first = model.log
    captured = capture(model, [model], [], (torch.ones(1, 2),))
    captured.leave()
    second = model.log
    assert (first, second) == ([[1]], [[2]])
    captured.leave()
    assert model.log == [[2]]
    assert model.log is not second


def test_an_owner_may_be_given_another_table_of_attributes() -> None:
    """What a step leaves is there then."""
    model = Logging()
    captured = capture(model, [model], [], (torch.ones(1, 2),))
    model.__dict__ = dict(vars(model))
    captured.leave()
    assert model.is_odd
    assert model.log == [[2]]


def test_what_a_step_returns_beside_tensors_is_its_own_in_each_call() -> None:
    """Whoever adds to it adds to nothing that the next call returns; what the step finds outside is itself."""
    model, table = nn.Linear(2, 2), np.ones(2)

    def step(x: Tensor) -> tuple[Tensor, object, object, object]:
        return model(x), np.zeros(2), {1}, table

    captured = capture(step, [model], [], (torch.ones(1, 2),))
    results = [torch.ones(1, 2)]
    for _ in range(2):
        match captured.unflatten(results):
            case (_, np.ndarray() as zeros, set() as numbers, found):
                assert (zeros.tolist(), numbers) == ([0.0, 0.0], {1})
                zeros += 1
                numbers.add(2)
                assert found is table
            case other:
                raise AssertionError(other)
