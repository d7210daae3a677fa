"""What does the command line train? A `Workload`: a model, its optimizer, the step as written, the batches.

A workload file has a function that takes keyword arguments and returns one. Benchmarks and tests take it
too, so that all of them train the same model. It holds no budget and no plan.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.optim import Optimizer


@dataclass(frozen=True, slots=True)
class Workload:
    """A training job: `step(*batch)` is called with each batch in turn and returns the loss.

    `step` closes over `model` and `optimizer` and is written the ordinary way: forward, `backward()`,
    `optimizer.step()`, `optimizer.zero_grad()`. `batches` may be gone through any number of times, each batch
    being a tuple of the arguments of `step`. `evaluate`, if given, returns named scores of the model as it
    is then.

    Example:
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x, y):
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        return Workload(model, optimizer, step, batches=[(torch.ones(4, 2), torch.zeros(4, 1))])
    """

    model: nn.Module
    optimizer: Optimizer
    step: Callable[..., Tensor]
    batches: Sequence[tuple[Tensor, ...]]
    evaluate: Callable[[], Mapping[str, float]] | None = None
