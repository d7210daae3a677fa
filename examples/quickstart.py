"""Train more layers than fit: 1.4 GiB of activations under a budget of 512 MiB."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import outgrow

layers = [layer for _ in range(12) for layer in (nn.Conv3d(16, 16, 3, padding=1), nn.LeakyReLU())]
model = nn.Sequential(nn.Conv3d(2, 16, 3, padding=1), *layers, nn.Conv3d(16, 2, 1))
model.to(memory_format=torch.channels_last_3d)  # pyright: ignore[reportCallIssue]
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


@outgrow.compile(model=model, optimizer=optimizer, memory_budget="512MiB")
def step(x: Tensor, y: Tensor) -> Tensor:
    """Forward, loss, backward, update: the ordinary way."""
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


x = torch.randn(1, 2, 96, 96, 96).to(memory_format=torch.channels_last_3d)
y = (x[:, 0] > x[:, 1]).long()
for _ in range(5):
    print(f"loss {step(x, y).item():.4f}")
print(step.plan)
