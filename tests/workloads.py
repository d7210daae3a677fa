"""Which workload files do the tests of the command line train? Texts, written to a temporary folder."""

from pathlib import Path

PERCEPTRON = """\
import torch
import torch.nn.functional as F
from torch import nn

import outgrow


def perceptron(*, rows: int = 8, width: int = 8, depth: int = 2, poison: bool = False, loss="mse", seed=0):
    if rows < 0:
        raise ValueError(f"rows {rows} is negative")
    torch.manual_seed(seed)
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.Tanh())]
    model = nn.Sequential(*layers).to(torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x, y):
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    x, y = torch.randn(rows, width), torch.randn(rows, width)
    if poison:
        x[0, 0] = float("nan")

    def evaluate():
        with torch.no_grad():
            return {"error": F.mse_loss(model(x), y).item()}

    return outgrow.Workload(model, optimizer, step, batches=[(x, y)], evaluate=evaluate)


def needs_rows(rows):
    return perceptron(rows=rows)


def returns_nothing():
    return None


def without_batches():
    workload = perceptron()
    return outgrow.Workload(workload.model, workload.optimizer, workload.step, batches=[])


def looks_at_the_loss():
    workload = perceptron()

    def step(x, y):
        loss = workload.model(x).sub(y).square().mean()
        if float(loss) > 1:
            loss = loss * 2
        loss.backward()
        return loss

    return outgrow.Workload(workload.model, workload.optimizer, step, workload.batches)


def fails():
    workload = perceptron()

    def step(x, y):
        raise KeyError("no such brain")

    return outgrow.Workload(workload.model, workload.optimizer, step, workload.batches)


def scored_by_a_number():
    workload = perceptron()
    step, batches = workload.step, workload.batches
    return outgrow.Workload(workload.model, workload.optimizer, step, batches, evaluate=lambda: 0.9)


def scored_by_a_word():
    workload = perceptron()
    step, batches = workload.step, workload.batches
    return outgrow.Workload(workload.model, workload.optimizer, step, batches, evaluate=lambda: {"note": "good"})


def prints():
    print("a workload is made")
    return perceptron()


def at_most_600(rows: int = 256):
    if rows > 600:
        raise ValueError("that many rows there are not")
    return perceptron(rows=rows)


not_a_function = 3
"""

# What a plan has to deal with: 40 activations of 4 MiB each.
DEEP = {"rows": 4096, "width": 256, "depth": 40}


def written(folder: Path, text: str = PERCEPTRON, name: str = "toy.py") -> Path:
    """Return the path of a workload file of this text."""
    path = folder / name
    path.write_text(text)
    return path
