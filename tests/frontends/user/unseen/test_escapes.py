"""What a step keeps of its values is refused where nobody would fill it in; what its modules keep is put back."""

import gc
from collections import deque
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from io import StringIO
from operator import itemgetter
from pdb import Pdb
from typing import TypeVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from outgrow.errors import Uncapturable
from outgrow.frontends.tracing.capture import capture

pytestmark = pytest.mark.nothing_frozen

T = TypeVar("T")
LOGS: list[list[object]] = [[]]


class Remembering(nn.Module):
    """Keeps a mask for the next call, what it returned last, and losses beside the main one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.mask: Tensor | None = None
        self.losses: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        if self.mask is None:
            self.mask = torch.ones(4)
        self.losses.clear()
        self.losses.append(x.square().mean())
        self.last = self.linear(x) * self.mask
        return self.last.sum() + self.losses[0]


def only(of: list[T]) -> T:
    """Return what is in a list, on no path that a step names."""
    return itemgetter(0)(of)


def captured(step: Callable[[Tensor, nn.Module], object]) -> None:
    model = Remembering()
    capture(lambda x: step(x, model), [model], [], (torch.ones(2, 4),), {})


def test_what_modules_keep_is_put_back() -> None:
    """A model that keeps tensors of its forward pass is captured, and is an ordinary model afterwards."""
    model = Remembering()
    capture(model, [model], [], (torch.ones(2, 4),), {})
    assert model.mask is None
    assert model.losses == []
    assert not hasattr(model, "last")
    model(torch.ones(2, 4))
    assert not isinstance(model.mask, FakeTensor)


def test_a_loss_in_a_list_without_a_name_is_refused() -> None:
    """Numbers and tensors, and it is said what keeps them and what to do."""
    kept: list[dict[str, object]] = [{}]
    latest: list[deque[Tensor]] = [deque(maxlen=3)]
    counters: list[dict[torch.device, Tensor]] = [{}]

    def number(x: Tensor, model: nn.Module) -> Tensor:
        loss = model(x)
        only(LOGS).append(loss.item())
        return loss

    def tensor(x: Tensor, model: nn.Module) -> Tensor:
        only(kept)["loss"] = model(x).detach()
        return x

    def lately(x: Tensor, model: nn.Module) -> Tensor:
        only(latest).append(model(x).detach())
        return x

    def on_device(x: Tensor, model: nn.Module) -> Tensor:
        only(counters)[x.device] = model(x).detach()
        return x

    for step, message in (
        (number, "a number in a list"),
        (tensor, r"a tensor of shape \(\) as `loss`"),
        (lately, r"a tensor of shape \(\) in a deque"),
        (on_device, r"a tensor of shape \(\) in a dict, by the key device\(type='cpu'\)"),
    ):
        with pytest.raises(Uncapturable, match=f"keeps {message}.* return it from the step"):
            captured(step)
        LOGS[0].clear()
        kept[0].clear()


MASK: Tensor | None = None


@pytest.mark.parametrize("looks", [False, True], ids=["kept", "refused before"])
def test_a_step_that_was_refused_runs_in_eager_mode(looks: bool) -> None:
    """Caches and variables that it filled are empty again, whatever it was refused for."""
    global MASK  # noqa: PLW0603
    table: dict[int, Tensor] = {2: torch.ones(2)}
    queue: deque[Tensor] = deque()
    bounded, unbounded = lru_cache(maxsize=2)(torch.ones), cache(torch.ones)

    def step(x: Tensor, model: nn.Module) -> Tensor:
        global MASK  # noqa: PLW0603
        if MASK is None:
            MASK = torch.ones(4)
        if not queue:
            queue.append(torch.ones(4))
        loss = model(x * MASK * queue[0] * bounded(4) * unbounded(4) * table.setdefault(4, torch.ones(4)))
        return -loss if looks and loss < 0 else loss

    with pytest.raises(Uncapturable):
        captured(step)
    assert (MASK, list(table), len(queue)) == (None, [2], 0)
    model = Remembering()
    assert torch.equal(step(torch.ones(2, 4), model).abs(), model(torch.ones(2, 4)).abs())
    MASK = None


@pytest.fixture
def frozen() -> Iterator[list[Tensor]]:
    """A list, in which a step may keep something, that the program has frozen with all that there is."""
    kept: list[Tensor] = []
    gc.freeze()
    yield kept
    gc.unfreeze()


def test_what_the_program_has_frozen_stays_frozen(frozen: list[Tensor]) -> None:
    """Also after a refusal, when nothing without content is left in it."""
    before, without_a_name = gc.get_freeze_count(), [frozen]

    def keeping(x: Tensor, model: nn.Module) -> Tensor:
        only(without_a_name).append(model(x))
        return x

    captured(lambda x, model: model(x))
    for step in (keeping, lambda x, model: keeping(x, model) if model(x) > 0 else x):
        with pytest.raises(Uncapturable):
            captured(step)
        assert frozen == []
    assert 0 < gc.get_freeze_count() <= before  # some objects have gone meanwhile


def test_a_debugger_that_goes_on_keeps_nothing() -> None:
    """Though it would show the variables of the step once more."""
    debugger = Pdb(stdin=StringIO("p loss.shape\nc\n"), stdout=(told := StringIO()), nosigint=True, readrc=False)

    def step(x: Tensor) -> Tensor:
        loss = x.sum()
        debugger.set_trace()
        return loss

    capture(step, [], [], (torch.ones(2),))
    assert "torch.Size([])" in told.getvalue()


def test_what_is_returned_is_not_kept() -> None:
    """A step may return numbers and tensors in whatever it likes."""
    captured(lambda x, model: {"loss": model(x), "number": model(x).item()})


def test_an_argument_that_is_a_weight_is_refused_where_that_is_written() -> None:
    """What is read after an update would be what was there before, or the other way round."""
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Tensor, weight: Tensor) -> Tensor:
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        return loss + weight.sum()

    with pytest.raises(Uncapturable, match=r"argument number 2 .* shape .4, 4.* shares memory with parameter 'weight'"):
        capture(step, [model], [optimizer], (torch.ones(2, 4), model.weight.detach()), {})


def test_an_argument_that_is_written_may_be_nothing_that_the_step_reads() -> None:
    """It would be read as it was before, or after: through a buffer, a tensor outside, or memory of NumPy."""
    model, outside, array = nn.Linear(4, 4), torch.ones(2, 4), np.ones((2, 4), dtype=np.float32)
    model.register_buffer("queue", torch.ones(2, 4))

    def step(x: Tensor, written: Tensor) -> Tensor:
        loss = (model(x) * model.get_buffer("queue") * outside).sum()
        written.mul_(2)
        return loss

    x = torch.from_numpy(array)
    pairs = ((model.get_buffer("queue"), "buffer 'queue'"), (outside[:1], "a tensor that it finds outside"))
    for written, what in (*pairs, (torch.from_numpy(array[1:]), "another")):
        with pytest.raises(Uncapturable, match=f"writes to argument number 2 .* shares memory with {what}"):
            capture(step, [model], [], (x, written), {})
    found = capture(step, [model], [], (x, torch.ones(2, 4)), {})
    assert found.is_apart((x, torch.ones(2, 4)))
    assert not found.is_apart((x, outside[:1]))
    assert not found.is_apart((x, torch.from_numpy(array)))


def test_derivatives_in_forward_mode_are_refused() -> None:
    """Their zeros have no memory."""
    with pytest.raises(Uncapturable, match="forward mode"):
        captured(lambda x, model: torch.func.jvp(lambda y: (y * torch.ones(4)).sum(), (x,), (x,))[1] + model(x))
