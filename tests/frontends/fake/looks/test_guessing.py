"""What a step decides by what it computes is guessed, checked in each run, and done again the other way if wrong."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

import outgrow
from outgrow.errors import ReplayMismatch, Uncapturable
from outgrow.frontends import compile as compiling
from outgrow.frontends.fake.looks import guessing
from outgrow.frontends.fake.looks.guessing import Guess, Told
from outgrow.frontends.tracing.capture import capture
from outgrow.remarks import Remark

WIDTH = 8
Decide = Callable[[nn.Module, Optimizer, Tensor], object]
"""What a step does once it has a loss."""


def net() -> tuple[nn.Sequential, Optimizer]:
    """A batch norm has statistics that a run writes before it decides, and dropout draws."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.2), nn.Linear(WIDTH, 1))
    return model, SGD(model.parameters(), lr=0.1, momentum=0.9)


def scaled() -> tuple[nn.Sequential, Optimizer, Callable[[Tensor], object]]:
    """A step of a scaler, which leaves the optimizer out where gradients have overflown."""
    model, optimizer = net()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)

    def step(x: Tensor) -> object:
        optimizer.zero_grad()
        scaler.scale(model(x).square().mean()).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return scaler.get_scale()

    return model, optimizer, step


def deciding(decide: Decide) -> tuple[nn.Sequential, Optimizer, Callable[[Tensor], object]]:
    model, optimizer = net()

    def step(x: Tensor) -> object:
        optimizer.zero_grad()
        return decide(model, optimizer, model(x).square().mean())

    return model, optimizer, step


def trained(_model: nn.Module, optimizer: Optimizer, loss: Tensor) -> Tensor:
    loss.backward()
    optimizer.step()
    return loss


def finite(model: nn.Module, optimizer: Optimizer, loss: Tensor) -> object:
    return trained(model, optimizer, loss) if torch.isfinite(loss) else None


def is_a_number(model: nn.Module, optimizer: Optimizer, loss: Tensor) -> object:
    number = loss.item()
    return None if number != number else trained(model, optimizer, loss)  # noqa: PLR0124 - users write it so


def equals_itself(model: nn.Module, optimizer: Optimizer, loss: Tensor) -> object:
    number = loss.item()
    return trained(model, optimizer, loss) if number == number else None  # noqa: PLR0124 - users write it so


def finite_by_math(model: nn.Module, optimizer: Optimizer, loss: Tensor) -> object:
    return trained(model, optimizer, loss) if math.isfinite(loss.item() / 2) else "left out"


def finite_by_numpy(model: nn.Module, optimizer: Optimizer, loss: Tensor) -> object:
    return None if np.isnan(loss.item()) or np.isinf(loss.item()) else trained(model, optimizer, loss)


def smaller(model: nn.Module, optimizer: Optimizer, loss: Tensor) -> object:
    return trained(model, optimizer, loss * (0.5 if loss.item() > 2 else 1.0)), min(loss.item(), 3.0)


def counted(model: nn.Module, optimizer: Optimizer, loss: Tensor) -> object:
    factor = (1.0, 0.5)[loss.item() > 2]
    return trained(model, optimizer, loss * factor), int(loss.item() > 2)


def is_true(model: nn.Module, optimizer: Optimizer, loss: Tensor) -> object:
    is_large, is_itself = loss.item() > 2, loss.item() >= loss.item()
    trained(model, optimizer, loss * (0.5 if is_large is True else 1.0))
    return is_large is False, is_itself


def norm_is_finite(model: nn.Module, optimizer: Optimizer, loss: Tensor) -> object:
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if not (norm.isnan() or norm.isinf()):
        optimizer.step()
    return norm


def each_gradient(model: nn.Module, optimizer: Optimizer, loss: Tensor) -> None:
    loss.backward()
    for parameter in model.parameters():
        if parameter.grad is not None and parameter.grad.isnan().any():
            parameter.grad = None
    optimizer.step()


def ends_early(_model: nn.Module, _optimizer: Optimizer, loss: Tensor) -> Tensor:
    found = loss.detach()
    for _ in range(8):
        if found < 0.5:
            break
        found = found / 2
    return found


def accumulated(_model: nn.Module, optimizer: Optimizer, loss: Tensor) -> None:
    loss.backward()
    (loss * 0.5 if loss > 2 else loss).detach().sqrt()
    if loss < 100:
        optimizer.step()


FORMS = (
    *(finite, is_a_number, equals_itself, finite_by_math, finite_by_numpy, smaller, is_true, counted),
    *(norm_is_finite, each_gradient, ends_early, accumulated),
)


def ones() -> Tensor:
    return torch.ones(4, WIDTH)


def batches() -> Iterator[Tensor]:
    """Some with what is no number, and a large one."""
    for seed, factor in enumerate((1.0, math.nan, 1.0, 1.0, math.nan, 30.0)):
        torch.manual_seed(seed)
        x = torch.randn(4, WIDTH)
        x[0, 0] *= factor
        yield x


def left(model: nn.Module, optimizer: Optimizer, returned: object) -> list[str]:
    """All that a step leaves, as text: NaN is the same as NaN there."""
    gradients = [None if item.grad is None else item.grad.tolist() for item in model.parameters()]
    state = [state["momentum_buffer"].tolist() for state in optimizer.state.values()]
    values = {name: item.tolist() for name, item in model.state_dict().items()}
    generator = torch.get_rng_state().tolist()
    return [str(item) for item in (_plain(returned), gradients, state, values, generator)]


def _plain(returned: object) -> object:
    if isinstance(returned, tuple):
        return [_plain(item) for item in returned]
    return returned.tolist() if isinstance(returned, Tensor) else returned


@pytest.mark.usefixtures("no_room_is_ample")
@pytest.mark.parametrize("decide", [*FORMS, None], ids=lambda form: form.__name__ if form else "scaled")
@pytest.mark.filterwarnings("ignore::outgrow.remarks.Remark")
def test_a_step_goes_the_ways_of_eager(decide: Decide | None, tmp_path: Path) -> None:
    """Bits, gradients, statistics and random numbers are those of eager, whatever was guessed."""
    found: list[list[list[str]]] = []
    for is_planned in (False, True):
        model, optimizer, step = scaled() if decide is None else deciding(decide)
        if is_planned:
            step = outgrow.compile(step, model=model, optimizer=optimizer, memory_budget="1GiB", offload_dir=tmp_path)
        found.append([left(model, optimizer, step(x)) for x in batches()])
    eager, planned = found
    assert planned == eager


def test_what_comes_of_ones_is_guessed() -> None:
    """So a step is mostly captured for the way that it goes."""
    model, optimizer, step = deciding(finite)
    (guess,) = capture(step, [model], [optimizer], (ones(),)).guesses
    assert guess.answer
    assert guess.line is not None
    assert "if torch.isfinite(loss)" in guess.line
    large, optimizer, step = deciding(smaller)
    assert not any(guess.answer for guess in capture(step, [large], [optimizer], (ones(),)).guesses)


def test_guesses_of_a_line_are_what_a_run_has_found() -> None:
    """So a step that looks at each gradient is not captured for each."""
    model, optimizer, step = deciding(each_gradient)
    captured = capture(step, [model], [optimizer], (ones(),))
    assert [guess.answer for guess in captured.guesses] == [False] * 6
    told = captured.otherwise(2, 4)
    assert [guess.answer for guess in told.certain] == [False, False, True]
    again = capture(step, [model], [optimizer], (ones(),), told=told)
    assert again.goes(told)
    assert not captured.goes(told)
    assert [guess.answer for guess in again.guesses] == [False, False, True, False, True, False]
    assert again.decides_otherwise(captured) == told.certain[2].line


def test_later_guesses_of_a_line_are_as_the_last_answer_that_was_told() -> None:
    """A loop that goes on takes no look at each turn for another step."""
    model, optimizer, step = deciding(each_gradient)
    captured = capture(step, [model], [optimizer], (ones(),))
    told = Told(captured.otherwise(2).certain)
    again = capture(step, [model], [optimizer], (ones(),), told=told)
    assert [guess.answer for guess in again.guesses] == [False, False, True, True, True, True]


def test_what_is_likely_is_told_of_lines() -> None:
    """Behind a guess that was wrong there may be other decisions than those that were found."""
    here, there = Guess("here", answer=False), Guess("there", answer=False)
    told = Told.after([here, here, there, here, there], {1, 3})
    assert told == Told((here, here.otherwise), (there, here.otherwise))
    assert told.begins([here, here.otherwise, here.otherwise, there, here])
    assert told.begins([here, here.otherwise])
    assert not told.begins([here, here.otherwise, there, here])
    assert not told.begins([here, here, there, here.otherwise])


def fails(_model: nn.Module, _optimizer: Optimizer, loss: Tensor) -> Tensor:
    if not torch.isfinite(loss):
        raise FloatingPointError("the loss is no number")
    return loss


def exits(_model: nn.Module, _optimizer: Optimizer, loss: Tensor) -> Tensor:
    if not math.isfinite(loss.item()):
        raise SystemExit(3)
    return loss


def asserts(_model: nn.Module, _optimizer: Optimizer, loss: Tensor) -> Tensor:
    assert not loss.isnan(), "the loss is no number"
    return loss


@pytest.mark.usefixtures("no_room_is_ample")
@pytest.mark.parametrize(
    ("decide", "error"), [(fails, FloatingPointError), (exits, SystemExit), (asserts, AssertionError)]
)
def test_an_error_of_the_other_way_passes(decide: Decide, error: type[BaseException], tmp_path: Path) -> None:
    """Everything is as before the call then, and the step goes on."""

    def step_of(model: nn.Module, optimizer: Optimizer, loss: Tensor) -> object:
        return trained(model, optimizer, loss + decide(model, optimizer, loss))  # type: ignore[operator]

    model, optimizer, step = deciding(step_of)
    planned = outgrow.compile(step, model=model, optimizer=optimizer, memory_budget="1GiB", offload_dir=tmp_path)
    first, bad, *_ = batches()
    planned(first)
    torch.manual_seed(1)
    before = left(model, optimizer, None)
    with pytest.raises(error):
        planned(bad)
    after = left(model, optimizer, None)
    assert [*before[2:]] == [*after[2:]]  # gradients are gone, as after zero_grad
    assert planned(first) is not None


@pytest.mark.usefixtures("no_room_is_ample")
def test_an_error_behind_a_wrong_guess_is_none(tmp_path: Path) -> None:
    """What is guessed may be a way that no call goes."""

    def decide(model: nn.Module, optimizer: Optimizer, loss: Tensor) -> object:
        if loss > 0.99:  # it is for ones
            raise ValueError("never")
        return trained(model, optimizer, loss)

    model, optimizer, step = deciding(decide)
    planned = outgrow.compile(step, model=model, optimizer=optimizer, memory_budget="1GiB", offload_dir=tmp_path)
    loss = planned(next(batches()))
    assert isinstance(loss, Tensor)
    assert loss < 0.99


def updated(model: nn.Module, optimizer: Optimizer, loss: Tensor) -> object:
    trained(model, optimizer, loss)
    return loss if next(model.parameters()).sum() < 2 else None


def added_to(model: nn.Module, optimizer: Optimizer, loss: Tensor) -> None:
    loss.backward()
    if torch.isfinite(nn.utils.clip_grad_norm_(model.parameters(), 1.0)):
        optimizer.step()


@pytest.mark.parametrize(
    ("decide", "message"),
    [
        (updated, r"return loss if next.*made of parameters or optimizer state that the step has updated"),
        (added_to, r"if torch.isfinite\(nn.*made of gradients of a step before that it has added to"),
    ],
)
def test_a_decision_by_what_was_changed_is_refused(decide: Decide, message: str) -> None:
    """That is not undone, should the step go another way."""
    model, optimizer = net()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    with pytest.raises(Uncapturable, match=message):
        capture(lambda x: decide(model, optimizer, model(x).square().mean()), [model], [optimizer], (ones(),))


@pytest.mark.usefixtures("no_room_is_ample")
def test_a_way_that_trains_nothing_may_be_one_of_several(tmp_path: Path) -> None:
    """Nobody is told that nothing is trained, where the way that is guessed first leaves the batch out."""

    def decide(model: nn.Module, optimizer: Optimizer, loss: Tensor) -> object:
        return trained(model, optimizer, loss) if loss < 0.99 else None

    model, optimizer, step = deciding(decide)
    planned = outgrow.compile(step, model=model, optimizer=optimizer, memory_budget="1GiB", offload_dir=tmp_path)
    assert planned(next(batches())) is not None


@pytest.mark.usefixtures("no_room_is_ample")
def test_gradients_that_are_set_to_zero_first_may_decide(tmp_path: Path) -> None:
    """A call that is repeated sets them to zero again."""
    found: list[list[list[str]]] = []
    for is_planned in (False, True):
        model, optimizer = net()

        def step(x: Tensor, model: nn.Module = model, optimizer: Optimizer = optimizer) -> None:
            optimizer.zero_grad(set_to_none=False)
            added_to(model, optimizer, model(x).square().mean())

        if is_planned:
            step = outgrow.compile(step, model=model, optimizer=optimizer, memory_budget="1GiB", offload_dir=tmp_path)
        found.append([left(model, optimizer, step(x)) for x in batches()])
    eager, planned = found
    assert planned == eager


def test_gradients_that_a_decision_leaves_as_they_are_may_not_decide_later() -> None:
    """Where the step goes the other way, they are not set to zero."""
    model, optimizer = net()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)

    def step(x: Tensor) -> None:
        loss = model(x).square().mean()
        if torch.isfinite(loss):
            optimizer.zero_grad(set_to_none=False)
            added_to(model, optimizer, loss)

    with pytest.raises(Uncapturable, match=r"made of gradients .* \(begin with zero_grad\(\), before it decides"):
        capture(step, [model], [optimizer], (ones(),))


def test_a_decision_by_a_batch_that_was_written_is_refused() -> None:
    """One by a tensor outside is not: that is put back."""
    model, optimizer = net()

    def step(x: Tensor, written: Tensor) -> object:
        written.mul_(2)
        return finite(model, optimizer, model(x * written.sum()).square().mean())

    with pytest.raises(Uncapturable, match="made of a batch that the step has written to"):
        capture(step, [model], [optimizer], (ones(), torch.ones(2)))
    outside = torch.ones(2)
    assert capture(lambda x: step(x, outside), [model], [optimizer], (ones(),)).guesses


def late(model: nn.Module, optimizer: Optimizer, loss: Tensor) -> object:
    if not torch.isfinite(loss):
        return None
    optimizer.zero_grad()
    return trained(model, optimizer, loss)


def updated_anyway(_model: nn.Module, optimizer: Optimizer, loss: Tensor) -> Tensor:
    if torch.isfinite(loss):
        optimizer.zero_grad()
        loss.backward()
    optimizer.step()
    return loss


@pytest.mark.usefixtures("no_room_is_ample")
@pytest.mark.parametrize("decide", [late, updated_anyway])
def test_gradients_of_before_are_there_for_the_other_way(decide: Decide, tmp_path: Path) -> None:
    """They stay in memory, and who would rather not have them there is told what to do."""
    found: list[list[list[str]]] = []
    for is_planned in (False, True):
        model, optimizer = net()

        def step(x: Tensor, model: nn.Module = model, optimizer: Optimizer = optimizer) -> object:
            return decide(model, optimizer, model(x).square().mean())

        if is_planned:
            step = outgrow.compile(step, model=model, optimizer=optimizer, memory_budget="1GiB", offload_dir=tmp_path)
            first, bad, *_ = batches()
            found.append([left(model, optimizer, step(first))])
            with pytest.warns(Remark, match=r"Call optimizer\.zero_grad\(\) before it decides"):
                found[-1].append(left(model, optimizer, step(bad)))
        else:
            first, bad, *_ = batches()
            found.append([left(model, optimizer, step(item)) for item in (first, bad)])
    eager, planned = found
    assert [item[:4] for item in planned] == [item[:4] for item in eager]


def test_a_loop_that_ends_by_what_it_computes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """No guess ends it."""
    monkeypatch.setattr(guessing, "_MOST_GUESSES", 16)
    model, optimizer = net()

    def step(x: Tensor) -> Tensor:
        found = model(x).square().mean().detach()
        while found > 1e-3:
            found = found / 2
        return found

    with pytest.raises(Uncapturable, match=r"while found > 1e-3.*decides 16 times"):
        capture(step, [model], [optimizer], (ones(),))


@pytest.mark.usefixtures("no_room_is_ample")
def test_what_the_other_way_is_refused_for_is_told_with_the_decision(tmp_path: Path) -> None:
    """It was no line of the step that was captured before."""

    def decide(model: nn.Module, optimizer: Optimizer, loss: Tensor) -> object:
        if torch.isfinite(loss):
            return trained(model, optimizer, loss)
        return float(loss)

    model, optimizer, step = deciding(decide)
    planned = outgrow.compile(step, model=model, optimizer=optimizer, memory_budget="1GiB", offload_dir=tmp_path)
    with pytest.raises(Uncapturable, match=r"if torch.isfinite.*goes another way here.*return float\(loss\)"):
        planned(torch.full((4, WIDTH), math.nan))


@pytest.mark.usefixtures("no_room_is_ample")
def test_a_step_that_decides_otherwise_each_time_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be repeated for ever."""
    model, optimizer, step = deciding(finite)
    planned = outgrow.compile(step, model=model, optimizer=optimizer, memory_budget="1GiB", offload_dir=tmp_path)

    def wrong(*_given: object) -> None:
        raise guessing.Misguessed(0)

    monkeypatch.setattr(compiling.calls, "carried_out", wrong)
    with pytest.raises(ReplayMismatch, match=r"if torch.isfinite.*repeated with the same numbers"):
        planned(ones())


@pytest.mark.usefixtures("no_room_is_ample")
def test_a_step_that_goes_many_ways_is_remarked(tmp_path: Path) -> None:
    """It is captured for each."""

    def decide(model: nn.Module, optimizer: Optimizer, loss: Tensor) -> Tensor:
        trained(model, optimizer, loss)
        return next((loss * limit for limit in range(1, 8) if loss.detach() * 0 + numbers[0] < limit), loss)

    numbers = torch.zeros(1)
    model, optimizer, step = deciding(decide)
    planned = outgrow.compile(step, model=model, optimizer=optimizer, memory_budget="1GiB", offload_dir=tmp_path)

    def plays() -> None:
        for number in (0.5, 1.5, 2.5, 3.5, 4.5, 0.5):
            numbers.fill_(number)
            planned(ones())

    with pytest.warns(Remark, match="captured and planned 5 times.*decides by what it computes"):
        plays()


def test_a_look_within_vmap_is_the_error_of_eager() -> None:
    """Many are looked at at once."""
    model, optimizer = net()

    def step(x: Tensor) -> Tensor:
        return model(torch.vmap(lambda row: row if row.sum() > 0 else -row)(x))

    with pytest.raises(RuntimeError, match="data-dependent control flow"):
        step(ones())
    with pytest.raises(RuntimeError, match="data-dependent control flow"):
        capture(step, [model], [optimizer], (ones(),))


def test_what_numbers_ask_each_other_is_no_decision() -> None:
    """Of one that has a root torch wants to know whether it is negative."""

    def decide(model: nn.Module, optimizer: Optimizer, loss: Tensor) -> object:
        trained(model, optimizer, loss)
        return next(model.parameters()).sum().item() ** 0.5

    model, optimizer, step = deciding(decide)
    assert capture(step, [model], [optimizer], (ones(),)).guesses == ()


def test_another_answer_is_a_guess_of_the_same_line() -> None:
    assert Guess("here", answer=True).otherwise == Guess("here", answer=False)
