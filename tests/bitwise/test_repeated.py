"""Steps that run from a score, with tensors that are made once, leave the bits that the eager steps leave."""

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import count, cycle, islice

import numpy as np
import pytest
import torch
from torch import nn

from outgrow import Workload
from outgrow.frontends.compile import Step
from outgrow.frontends.preparing.settings import Settings
from outgrow.frontends.user.training.state import Training
from outgrow.planning.addresses import addresses, stitched
from outgrow.planning.addresses.blocks import Block
from outgrow.planning.arrays import Flags
from outgrow.runtime.directed import Directions
from outgrow.runtime.planned_arena import Arena
from outgrow.runtime.program import Program
from outgrow.runtime.repeated import Repeated
from outgrow.runtime.resting import extent_of
from outgrow.runtime.score import Moved, Played, Score
from tests.bitwise.models import pooled, resnet, transformer
from tests.bitwise.test_on_device import on, wide
from tests.runtime.stand_in import StandIn, Threads, sleepy

pytestmark = pytest.mark.usefixtures("caches_of_its_own")
STEPS = 7
CASES = ((resnet, 58), (pooled, 80), (transformer, 40), (wide, 70))
"""Budgets, in MiB, not far above the floor; no weight leaves within a step that does not rest between steps as well.

A plan with such a weight has no score.
"""


@pytest.fixture
def repeated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The runs from a score, as they begin, by how many instructions they have."""
    runs: list[int] = []
    start = Repeated.start

    def noted(run: Repeated) -> None:
        runs.append(len(run.score.parts))
        start(run)

    monkeypatch.setattr(Repeated, "start", noted)
    return runs


@pytest.fixture
def scores(monkeypatch: pytest.MonkeyPatch) -> list[Score]:
    """The scores, each once, as they are first used."""
    found: list[Score] = []
    score = Arena.score

    def noted(arena: Arena, program: Program, there: dict[str, torch.UntypedStorage]) -> Score:
        made = score(arena, program, there)
        if not any(made is other for other in found):
            found.append(made)
        return made

    monkeypatch.setattr(Arena, "score", noted)
    return found


def states(workload: Workload) -> Iterator[torch.Tensor]:
    """What a workload holds: parameters, buffers, optimizer state."""
    yield from workload.model.state_dict().values()
    for entries in workload.optimizer.state.values():
        yield from (item for item in entries.values() if isinstance(item, torch.Tensor))


def left_by(workload: Workload, step: Callable[..., torch.Tensor], steps: int = STEPS) -> list[torch.Tensor]:
    """Return losses and states, after steps whose batches are new tensors and whose learning rate changes."""
    torch.manual_seed(1)
    left: list[torch.Tensor] = []
    kept: list[torch.Tensor] = []
    for at, batch in enumerate(islice(cycle(workload.batches), steps)):
        workload.optimizer.param_groups[0]["lr"] *= 0.9
        own = tuple(tensor + 0 if tensor.dtype is torch.int64 else tensor * (1 + at) for tensor in batch)
        kept += own  # so that the next ones lie elsewhere
        left.append(step(*own).detach().clone())
    return [*left, *(tensor.clone() for tensor in states(workload)), torch.get_rng_state()]


@pytest.mark.parametrize(("make", "mib"), CASES, ids=[make.__name__ for make, _ in CASES])
def test_scores_leave_the_bits_of_eager(
    make: Callable[[], Workload], mib: int, repeated: list[int], scores: list[Score]
) -> None:
    """Batches that lie elsewhere each time, other learning rates, dropout: all as it is without a score."""
    eager = make()
    expected = left_by(eager, eager.step)
    ours = make()
    step = on(StandIn(Threads(pauses=sleepy(1))), ours, mib << 20)
    found = left_by(ours, step)
    assert [at for at, pair in enumerate(zip(found, expected, strict=True)) if not torch.equal(*pair)] == []
    assert len(repeated) >= 2
    assert len(scores) == 1
    assert step.plan.bytes_swapped > 0
    assert step.traces.measured is not None
    assert step.traces.measured.peak_bytes <= step.plan.predicted.peak_bytes
    parts = [part for part in scores[0].parts if isinstance(part, Played)]
    assert sum(not (part.loose or part.nested) for part in parts) > len(parts) / 3


def test_what_comes_back_in_part_may_lie_in_other_pages(scores: list[Score], monkeypatch: pytest.MonkeyPatch) -> None:
    """From then on a storage is seen where those pages are shown beside the ones in which the rest of it stayed."""
    chance, moved = random.Random(0), set[str]()

    def any_free(is_free: Flags, number: int) -> list[int]:
        free = [int(page) for page in np.flatnonzero(is_free)]
        return chance.sample(free, min(number, len(free)))

    def in_any_pages(blocks: Sequence[Block], page_bytes: int) -> object:
        found = stitched.stitched(blocks, page_bytes=page_bytes, alignment_bytes=addresses.ALIGNMENT_BYTES)
        moved.update(block.label for block, seen in zip(blocks, found.addresses, strict=True) if len(set(seen)) > 1)
        return found.count * page_bytes, found.addresses, found.pages

    monkeypatch.setattr(stitched, "_tightest", any_free)
    monkeypatch.setattr(addresses, "in_pages", in_any_pages)
    eager = pooled()
    expected = left_by(eager, eager.step)
    ours = pooled()
    step = on(StandIn(Threads(pauses=sleepy(1)), page_bytes=1 << 14), ours, 78 << 20)
    found = left_by(ours, step)
    assert [at for at, pair in enumerate(zip(found, expected, strict=True)) if not torch.equal(*pair)] == []
    (score,) = scores
    assert moved & {part.copy.storage for part in score.parts if isinstance(part, Moved)}


def with_gradients() -> Workload:
    """A perceptron whose gradients outlive the step: they go when the next one begins."""
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(1024, 1024), nn.ReLU())))
    optimizer = torch.optim.SGD(model.parameters(), 1e-2, momentum=0.9)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return Workload(model, optimizer, step, [(torch.randn(64, 1024),)])


def test_gradients_that_rest_after_the_step_have_the_bits_of_eager(repeated: list[int]) -> None:
    """The step makes them, and they are read where they rest."""
    eager = with_gradients()
    expected = left_by(eager, eager.step)
    ours = with_gradients()
    step = on(StandIn(Threads(pauses=sleepy(3))), ours, 48 << 20)
    found = left_by(ours, step)
    gradients = [(ours.model.get_parameter(name).grad, item.grad) for name, item in eager.model.named_parameters()]
    assert [at for at, pair in enumerate(zip(found, expected, strict=True)) if not torch.equal(*pair)] == []
    assert all(torch.equal(one, other) for one, other in gradients if one is not None and other is not None)
    assert any(one is not None and extent_of(one.untyped_storage()) is not None for one, _ in gradients)
    assert len(repeated) >= 2


def in_lists() -> Workload:
    """A perceptron with many small tensors, which an optimizer updates by calls on lists."""
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(12) for layer in (nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU())))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, foreach=True)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return Workload(model, optimizer, step, [(torch.randn(4096, 64), torch.randint(0, 64, (4096,)))])


def test_a_score_updates_small_tensors_together(scores: list[Score]) -> None:
    """By calls on lists as long as eager's, where a plan puts nothing between them, with the bits of eager."""
    eager = in_lists()
    expected = left_by(eager, eager.step)
    ours = in_lists()
    step = on(StandIn(Threads(pauses=sleepy(2))), ours, 20 << 20)
    found = left_by(ours, step)
    assert [at for at, pair in enumerate(zip(found, expected, strict=True)) if not torch.equal(*pair)] == []
    assert step.plan.bytes_swapped > 0
    on_lists = [part.arguments[0] for part in scores[-1].parts if isinstance(part, Played)]
    longest = max(len(items) for items in on_lists if isinstance(items, list))
    assert longest == len(list(ours.model.parameters()))


def test_state_that_was_loaded_has_a_score_of_its_own(scores: list[Score]) -> None:
    """An optimizer that loads state has other tensors: what was prepared over the old ones is not used."""

    def saved_and_loaded(workload: Workload, step: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
        before = left_by(workload, step)
        workload.optimizer.load_state_dict(workload.optimizer.state_dict())
        for entries in workload.optimizer.state.values():
            entries.update({key: item.clone() for key, item in entries.items()})
        return [*before, *left_by(workload, step)]

    eager = resnet()
    expected = saved_and_loaded(eager, eager.step)
    ours = resnet()
    step = on(StandIn(), ours, "220MiB")
    assert all(map(torch.equal, saved_and_loaded(ours, step), expected))
    assert len(scores) >= 2


def test_a_failed_repetition_leaves_what_was_there(monkeypatch: pytest.MonkeyPatch, repeated: list[int]) -> None:
    """Before the first update all is as before the step; later steps go on from there."""
    eager = wide()
    expected = [*left_by(eager, eager.step), *left_by(eager, eager.step)]
    ours = wide()
    step = on(StandIn(Threads(pauses=sleepy(6))), ours, "70MiB")
    found = left_by(ours, step)
    assert repeated
    assert any(extent_of(tensor.untyped_storage()) for tensor in states(ours))
    before = [tensor.clone() for tensor in states(ours)]
    play, left = Repeated._play, count(-20)

    def failing(run: Repeated, part: Played) -> None:
        if next(left) == 0:
            raise RuntimeError("the device is lost")
        play(run, part)

    with monkeypatch.context() as broken:
        broken.setattr(Repeated, "_play", failing)
        with pytest.raises(RuntimeError, match="the device is lost"):
            step(*ours.batches[0])
    assert all(map(torch.equal, states(ours), before))
    assert all(map(torch.equal, [*found, *left_by(ours, step)], expected))


@pytest.mark.parametrize("steps", [1, STEPS])
def test_what_a_failed_op_keeps_is_of_its_own_step(steps: int, repeated: list[int]) -> None:
    """Its scratch lives on in the error; the next step has nothing to do with that."""
    fails = False

    @torch.library.custom_op(f"outgrow_tests::halved_{steps}", mutates_args=())
    def halved(x: torch.Tensor) -> torch.Tensor:
        scratch = x * 2
        if fails:
            raise KeyboardInterrupt
        return scratch / 4

    halved.register_fake(torch.empty_like)
    torch.manual_seed(0)
    model, x = nn.Linear(64, 64), torch.randn(512, 64)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(halved(x)).square().mean()
        loss.backward()
        return loss

    ours = Step(step, Training((model,), ()), Settings.of("2MiB"), name="", device=StandIn())
    expected = [ours(x) for _ in range(steps)][-1]
    fails = True
    with pytest.raises(KeyboardInterrupt):
        ours(x)
    fails = False
    assert torch.equal(ours(x), expected)
    assert bool(repeated) is (steps > 1)


@pytest.mark.parametrize("steps", [1, STEPS])
def test_an_interrupt_leaves_no_thread_directed(
    steps: int, repeated: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it comes when the thread has just been directed: what it allocates next would lie in the arena."""
    torch.manual_seed(0)
    model, x, at_site = nn.Linear(64, 64), torch.randn(512, 64), list[bool]()
    at, off = Directions.at, Directions.off

    def interrupted(directions: Directions, position: int) -> bool:
        at_site.append(at(directions, position))
        if at_site[-1]:
            raise KeyboardInterrupt
        return False

    def forwarded(directions: Directions) -> None:
        off(directions)
        at_site.append(False)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        return loss

    ours = Step(step, Training((model,), ()), Settings.of("2MiB"), name="", device=StandIn())
    expected = [ours(x) for _ in range(steps)][-1]
    with monkeypatch.context() as breaking:
        breaking.setattr(Directions, "at", interrupted)
        breaking.setattr(Directions, "off", forwarded)
        with pytest.raises(KeyboardInterrupt):
            ours(x)
    assert not at_site[-1]
    assert torch.equal(ours(x), expected)
    assert bool(repeated) is (steps > 1)


def test_results_that_are_lists_of_what_changes() -> None:
    """An op that reads a list with a part of the batch in it, and a loss that is kept from step to step."""
    torch.manual_seed(0)
    model = nn.Linear(64, 64)

    def step(x: torch.Tensor) -> torch.Tensor:
        both = torch.cat([model(x), x, model(x + 1)])
        loss = both.square().mean()
        loss.backward()
        return loss

    def gradients(step: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
        losses: list[torch.Tensor] = []
        for at in range(STEPS):
            model.zero_grad()
            losses.append(step(torch.full((512, 64), 0.1 * at)))
        return [*losses, *(item.grad.clone() for item in model.parameters() if item.grad is not None)]

    expected = gradients(step)
    ours = Step(step, Training((model,), ()), Settings.of("2MiB"), name="", device=StandIn())
    found = gradients(ours)
    assert len(found) == len(expected) == STEPS + 2
    assert all(map(torch.equal, found, expected))


def test_steps_of_two_shapes_have_a_score_each(scores: list[Score]) -> None:
    """They take turns in one arena."""

    def alternating(workload: Workload, step: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
        torch.manual_seed(1)
        images, labels = workload.batches[0]
        sizes = [len(images), len(images) - 1] * STEPS
        return [*(step(images[:size], labels[:size]).detach().clone() for size in sizes), *states(workload)]

    eager = resnet()
    expected = alternating(eager, eager.step)
    ours = resnet()
    found = alternating(ours, on(StandIn(Threads(pauses=sleepy(4))), ours, "64MiB"))
    assert [at for at, pair in enumerate(zip(found, expected, strict=True)) if not torch.equal(*pair)] == []
    assert len(scores) >= 2
