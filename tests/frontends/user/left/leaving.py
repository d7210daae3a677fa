"""A small training whose step leaves something behind in each call."""

from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import SGD

import outgrow

K = TypeVar("K")
Leave: TypeAlias = Callable[[K, Tensor, Tensor], None]
"""What a step does at last, with what is kept, its loss and its batch."""


def plans_of(leave: Leave[K], kept: K, rows: Sequence[int], budget: str | None) -> int:
    """Train on batches of so many rows; return how many plans there are, if the step is planned."""
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer = SGD(model.parameters(), lr=0.1)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = (model(x) - 1).square().mean()
        loss.backward()
        optimizer.step()
        leave(kept, loss, x)
        return loss.detach()

    ran = step if budget is None else outgrow.compile(step, model=model, optimizer=optimizer, memory_budget=budget)
    generator = torch.Generator().manual_seed(1)
    for count in rows:
        ran(torch.randn(count, 4, generator=generator))
    return len(ran.plans.plans) if isinstance(ran, outgrow.Step) else 0
