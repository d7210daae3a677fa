"""How do the tests train the same job twice, by itself and under a budget, and compare all that is left?"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Optimizer

from outgrow.frontends.user.training.state import StateSlot, Training, state_tensors

WIDTH = 768
"""A weight, its gradient and an activation of as many rows take 2.25 MiB each: large enough to be moved."""

Step = Callable[..., object]


@dataclass
class Job:
    """A model in training, batches for it, and how often its own step was called on real tensors."""

    model: nn.Sequential
    optimizer: Optimizer
    batches: list[tuple[Tensor, Tensor]]
    real_calls: int = 0

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        self.real_calls += type(x) is Tensor
        return F.cross_entropy(self.model(x), y)

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        """The step that most tests compile; gradients are gone at its end."""
        loss = self.loss(x, y)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


def linear() -> nn.Module:
    """What a wide perceptron consists of."""
    return nn.Linear(WIDTH, WIDTH)


def wide(*, layers: int = 4, momentum: float = 0.0, layer: Callable[[], nn.Module] = linear) -> Job:
    """A perceptron with batch norm (buffers), dropout (the generator) and momentum (state), and three batches."""
    torch.manual_seed(0)
    blocks = [module for _ in range(layers) for module in (layer(), nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Dropout(0.1))]
    model = nn.Sequential(*blocks, nn.Linear(WIDTH, 10))
    return Job(model, SGD(model.parameters(), lr=0.05, momentum=momentum), [batch(WIDTH) for _ in range(3)])


def batch(rows: int) -> tuple[Tensor, Tensor]:
    """Random rows and their classes."""
    return torch.randn(rows, WIDTH), torch.randint(0, 10, (rows,))


@dataclass(frozen=True)
class Left:
    """What a training leaves: what its steps returned, the tensors of model and optimizer, the generator."""

    returned: tuple[str, ...]
    tensors: Mapping[StateSlot, Tensor]
    generator: Tensor


Scenario = Callable[[Job, Step], Sequence[object]]
"""What happens to a job whose step is called as `Step`; it gives what the steps returned."""


def left_by(scenario: Scenario, job: Job, step: Step) -> Left:
    """Play a scenario from a known state of the generator and return all that it leaves."""
    torch.manual_seed(1)
    returned = scenario(job, step)
    return left(job, returned)


def reporting(note: Callable[..., None], process_bytes: int) -> Callable[..., None]:
    """A `GuidedPlanning.note` that is told of a run in which the process took `process_bytes`."""

    def told(self: object, *given: object) -> None:
        note(self, *given[:-1], process_bytes)

    return told


def left(job: Job, returned: Sequence[object] = ()) -> Left:
    """Copies of all that a job holds now."""
    held = state_tensors(Training((job.model,), (job.optimizer,)))
    copies = {slot: tensor.detach().clone() for slot, tensor in held.items()}
    leaves, _ = pytree.tree_flatten(list(returned))
    return Left(tuple(_bits(leaf) for leaf in leaves), copies, torch.get_rng_state())


def _bits(leaf: object) -> str:
    """The bits of a tensor, so that NaN equals NaN; of anything else, how it is written."""
    if not isinstance(leaf, Tensor):
        return repr(leaf)
    return f"{tuple(leaf.shape)} {sha256(leaf.detach().reshape(-1).view(torch.uint8).numpy().data).hexdigest()}"


def differences(found: Left, expected: Left) -> list[str]:
    """Name what differs in a bit; nothing, one hopes."""
    assert len(found.returned) == len(expected.returned), "as many values are returned"
    pairs = enumerate(zip(found.returned, expected.returned, strict=True))
    names = [f"returned value {at}" for at, (ours, theirs) in pairs if ours != theirs]
    if not torch.equal(found.generator, expected.generator):
        names.append("generator")
    for slot in dict.fromkeys((*expected.tensors, *found.tensors)):
        ours, theirs = found.tensors.get(slot), expected.tensors.get(slot)
        if ours is None or theirs is None or _bits(ours) != _bits(theirs):
            names.append(str(slot))
    return names
