"""Models hold parameters, buffers and gradients by their names; a name may be a whole path."""

import torch
from torch import Tensor, nn
from torch.optim import SGD

import outgrow


class Flat(nn.Module):
    """Keeps what it trains of a layer in its own tables, by whole paths, as functional forms of modules do."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.head = nn.Linear(4, 4)
        for name, parameter in layer.named_parameters():
            self._parameters[f"layer.{name}"] = parameter
        self._buffers["layer.scale"] = torch.ones(4)

    def forward(self, x: Tensor) -> Tensor:
        weights = self._parameters
        self._buffers["layer.scale"] *= 0.5  # type: ignore[operator]
        x = torch.addmm(weights["layer.0.bias"], x, weights["layer.0.weight"].T)  # type: ignore[union-attr, arg-type]
        return self.head(x) * self._buffers["layer.scale"]


def trained(is_planned: bool) -> list[Tensor]:
    """What three steps return and leave."""
    torch.manual_seed(0)
    model = Flat(nn.Sequential(nn.Linear(4, 4)))
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x: Tensor) -> Tensor:
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = outgrow.compile(step, model=model, optimizer=optimizer, memory_budget="10TiB") if is_planned else step
    losses = [run(torch.randn(3, 4)) for _ in range(3)]
    return [*losses, *model.state_dict().values()]


def test_a_module_may_keep_parameters_and_buffers_by_whole_paths() -> None:
    """They are trained as in eager mode."""
    assert all(map(torch.equal, trained(is_planned=True), trained(is_planned=False)))
