"""The gradient of a binary cross entropy of logits and targets of two types has the bits of eager."""

from itertools import product
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD

from outgrow.frontends.fake.eager.logits import logits_loss
from outgrow.runtime.medium import OnDisk
from outgrow.runtime.spill import Spill
from tests.frontends.steps import Job
from tests.frontends.within import Within, differences, eager, left_by

TYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


@pytest.mark.parametrize("weighed", [False, True])
@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("reduction", [0, 1, 2])
def test_gradients_have_the_bits_of_torch(weighed: bool, positive: bool, reduction: int) -> None:
    """In every pair of types, whatever is weighed, also where the gradient is itself differentiated."""
    for dtype, other in product(TYPES, repeat=2):
        x, target = torch.randn(8, 40, dtype=dtype, requires_grad=True), torch.rand(8, 40, dtype=other)
        weight, pos_weight = (torch.rand(40, dtype=other) if wanted else None for wanted in (weighed, positive))
        expected = torch.binary_cross_entropy_with_logits(x, target, weight, pos_weight, reduction)
        found = logits_loss(x, target, weight, pos_weight, reduction)
        assert torch.equal(found, expected)
        arriving = torch.rand_like(expected)
        for is_differentiated in (False, True):
            (ours,), (wanted,) = (
                torch.autograd.grad(item, x, arriving, create_graph=is_differentiated, retain_graph=True)
                for item in (found, expected)
            )
            assert ours.dtype is dtype
            assert torch.equal(ours, wanted), (dtype, other, is_differentiated)


def classified() -> Job:
    """Scores in 16 bits, targets and weights of positive ones in 32, with autocast and without."""
    model, positive = nn.Linear(40, 6, dtype=torch.bfloat16), torch.rand(6)
    optimizer = SGD(model.parameters(), 0.1)

    def step(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        scores = model(x)
        loss = F.binary_cross_entropy_with_logits(scores, target)
        with torch.autocast("cpu", torch.bfloat16):
            weighed = F.binary_cross_entropy_with_logits(scores.double(), target, pos_weight=positive)
        (loss + weighed).backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss, weighed

    return Job(step, (model,), (optimizer,), lambda: (torch.randn(16, 40).bfloat16(), torch.rand(16, 6)))


def test_a_captured_step_rounds_gradients_as_eager_does(disk_folder: Path) -> None:
    """Losses and weights, in core and within less."""
    spill = Spill(OnDisk(disk_folder))
    try:
        for share in (1.0, 0.7):
            assert differences(left_by(classified, Within(share, spill)), left_by(classified, eager)) == []
    finally:
        spill.close()
