"""Train part of a job, save it, and die in the middle of the next step; a program for `test_resume`.

    python -m tests.bitwise.resumed BUDGET_BYTES FIRST LAST CHECKPOINT SPILL

Steps FIRST to LAST - 1 are taken under the budget (0: by the plain loop) and their losses printed. From step 1 on, what
was trained comes from CHECKPOINT, where it is saved at the end; then the process goes on until it kills itself.
"""

import os
import signal
import sys
from pathlib import Path
from threading import Timer

import torch
from torch import nn
from torch.nn import functional as F

import outgrow

WIDTH, LAYERS = 1024, 6
STATE_BYTES = 4 * WIDTH * WIDTH * 4 * LAYERS
"""Weights, gradients and both averages of Adam."""
SECONDS_TO_LIVE = 0.05


def main(budget_bytes: int, first: int, last: int, checkpoint: Path, spill: Path) -> None:
    """Train from one step to another, save, and die while training."""
    torch.manual_seed(0)
    layers = [module for _ in range(LAYERS) for module in (nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Dropout(0.1))]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.randn(WIDTH // 4, WIDTH)

    def plain(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), x)
        loss.backward()
        optimizer.step()
        return loss

    step = plain
    if budget_bytes:
        step = outgrow.compile(plain, model=model, optimizer=optimizer, memory_budget=budget_bytes, offload_dir=spill)
    if first:
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        torch.set_rng_state(saved["generator"])
    for _ in range(first, last):
        print(float(step(x).detach()).hex(), flush=True)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "generator": torch.get_rng_state()}
    torch.save(state, checkpoint)
    Timer(SECONDS_TO_LIVE, os.kill, (os.getpid(), signal.SIGKILL)).start()
    while True:
        step(x)


if __name__ == "__main__":
    budget, first, last = map(int, sys.argv[1:4])
    main(budget, first, last, Path(sys.argv[4]), Path(sys.argv[5]))
