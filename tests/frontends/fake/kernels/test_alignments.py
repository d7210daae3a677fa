"""A CTC loss is captured with lengths of any kind, though they are contents, and leaves the bits of eager."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Adam

from outgrow.runtime.medium import OnDisk
from outgrow.runtime.spill import Spill
from tests.frontends.steps import Job
from tests.frontends.within import Within, differences, eager, left_by

TIMES, CLASSES, WIDTH = 16, 12, 6
Lengths = Tensor | tuple[int, ...]


def job(how: str) -> Job:
    """Sequences of other lengths in each batch; as numbers they are the same in all."""
    model = nn.Linear(20, CLASSES)
    optimizer = Adam(model.parameters(), 0.01)

    def step(x: Tensor, targets: Tensor, inputs: Any, lengths: Any) -> Tensor:
        scores = model(x).log_softmax(-1).transpose(0, 1)
        loss = F.ctc_loss(scores, targets, inputs, lengths, zero_infinity=how == "short")
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    def batch() -> tuple[Tensor, Tensor, Lengths, Lengths]:
        x, targets = torch.randn(3, TIMES, 20), torch.randint(1, CLASSES, (3, WIDTH))
        inputs, lengths = torch.randint(13, TIMES + 1, (3,)), torch.randint(2, WIDTH, (3,))
        match how:
            case "numbers":
                return x, targets, (16, 14, 15), (2, 5, 4)
            case "in a row":
                return x, torch.cat([row[:n] for row, n in zip(targets, (2, 5, 4), strict=True)]), inputs, lengths_of()
            case "short":
                inputs[0], lengths[0] = 2, WIDTH
        return x, targets, inputs, lengths

    def lengths_of() -> Tensor:
        return torch.tensor([2, 5, 4])[torch.randperm(3)]

    return Job(step, (model,), (optimizer,), batch)


@pytest.mark.parametrize("how", ["tensors", "numbers", "in a row", "short"])
def test_a_loss_by_alignments_has_the_bits_of_eager(how: str, disk_folder: Path) -> None:
    """In core and at the floor, also where a sequence is too short for its target."""
    spill = Spill(OnDisk(disk_folder))
    try:
        for share in (1.0, 0.0):
            within = Within(share, spill)
            assert differences(left_by(lambda: job(how), within), left_by(lambda: job(how), eager)) == []
    finally:
        spill.close()
