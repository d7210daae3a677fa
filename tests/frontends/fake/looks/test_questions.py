"""A step may look at its batch: it goes the way of eager in each call, by a plan for each way."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD

import outgrow
from outgrow.errors import Uncapturable
from outgrow.frontends import within_budget
from outgrow.frontends.fake.looks import questions
from outgrow.frontends.tracing.capture import capture
from outgrow.frontends.user.training.state import Training
from outgrow.remarks import Remark
from tests.frontends.grouped import WORDS, grouped

Body: TypeAlias = Callable[[nn.Module, Tensor, Tensor], Tensor]
ROWS, LENGTH, WIDTH = 2, 6, 4
NOTHING = Training((), ())
"""No buffer is looked at."""


@pytest.fixture(autouse=True)
def planned(disk_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No room is ample."""
    monkeypatch.setattr(within_budget, "_ROOMY_BYTES", 1 << 60)
    monkeypatch.setenv("XDG_CACHE_HOME", str(disk_folder / "cache"))


def masked(model: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
    """A mask of ones is left out; the kernels are others then."""
    given = None if mask.all() else mask[:, None, :].expand(ROWS, LENGTH, LENGTH)
    y = model(x)
    return F.scaled_dot_product_attention(y, y, y, attn_mask=given).square().sum()


def cut(model: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
    """What is behind the longest row is cut off."""
    longest = int(mask.sum(1).max().item())
    return model(x[:, :longest]).square().sum()


def cut_and_averaged(model: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
    """Of two numbers one is calculated with."""
    longest, count = int(mask.sum(1).max().item()), mask.sum().item()
    return model(x[:, :longest]).sum() / count


def kept(model: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
    """Rows are weighed with yes and no."""
    return torch.stack([model(row).sum() * weight for row, weight in zip(x, mask[:, 3].tolist(), strict=True)]).sum()


def fractions_decide(model: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
    """Whether a number with fractions is zero."""
    share = 1 - mask.float().mean()
    return model(x).sum() * (2.0 if share else 3.0)


def cast(model: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
    """The way depends on a product, which autocast would round, were it on."""
    with torch.autocast("cpu", enabled=False):
        is_whole = bool((mask.float() @ torch.full((LENGTH, 1), 1.001) > LENGTH).all())
    return (model(x) * (2.0 if is_whole else 1.0)).sum()


def each_cut(model: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
    """Each row by itself, as far as it is filled."""
    rows = zip(x, mask.sum(1).tolist(), strict=True)
    return model(torch.stack([row[:length].sum(0) for row, length in rows])).square().sum()


def averaged(model: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
    """A number with which is only calculated."""
    return (model(x) * mask[..., None]).sum() / mask.sum().item()


def counted(model: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
    """A later question has no answer where an earlier one has another."""
    if mask.sum() == 0 or int(mask[0].nonzero_static(size=LENGTH)[2].item()) < 0:
        return model(x).sum()
    return model(x).square().sum()


def compared(model: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
    """A truth value is a number, itself, and a text."""
    is_full, is_empty = mask.all().item(), (~mask).all().item()
    weight = 1 + 2 * (is_full == 1) + 4 * (is_full is True) + 8 * (str(is_full) == "True") + 16 * (is_empty is False)
    return model(x).sum() * (weight + 32 * (mask[:, 3].tolist() == [1, 0]))


def spelled(model: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
    """A number is looked for by its text, and as an attribute."""
    longest = mask.sum(1).max().item()
    named = {"length 6": 2.0, "length 4": 3.0}
    return model(x).sum() * named.get(f"length {longest}", 1.0)


def sized(model: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
    """What torch itself does with a number is no more than what it does in eager mode."""
    longest = int(mask.sum(1).max().item())
    return F.interpolate(model(x)[None], size=(longest, WIDTH)).sum() + x.sum() ** mask.sum().item()


def chosen(model: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
    """What a mask chooses is as much as it has true entries, however it is written, and wherever it is spread."""
    y = model(x)
    rows, columns = mask.nonzero(as_tuple=True)
    whole = mask[:, :, None].expand(ROWS, LENGTH, WIDTH)
    repeated = y.repeat_interleave(mask.sum(0).clamp(min=1), dim=1)
    found = (y[mask], y[rows, columns], y.masked_select(whole), x[mask.nonzero()[:, 0]], repeated, torch.argwhere(mask))
    found = (*found, y.masked_select(mask[:, :, None]), y[:, :1].masked_select(mask[:, :, None]))
    return torch.stack([item.double().square().sum() for item in found]).sum()


def marked(model: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
    """A view of a larger mask is written, and looked at; so is a view of the view."""
    large = mask[:, None].expand(ROWS, 2, LENGTH).double()
    large, ones = large + 1, large[:, 1] > 0
    marks = large[:, 1]
    marks[ones] = 3.0
    if (marks > 2).all():
        return model(x).sum()
    longest = marks.as_strided((ROWS,), (2 * LENGTH,), 2 * LENGTH - 1)
    return model(x[:, 1:]).square().sum() if (longest > 2).any() else model(x * marks[:, :, None].float()).sum()


def classes(model: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
    """Classes are written into zeros, and choose what gets a margin; another name shows what was written, too."""
    lengths, sums = mask.sum(1), model(x).sum(2)
    marks, seen = torch.zeros(ROWS, LENGTH + 1), torch.zeros_like(sums[0])
    same = marks.data
    marks[torch.arange(ROWS), lengths] = 1
    seen.scatter_(0, lengths.clamp(max=LENGTH - 1), 1.0)
    whole = F.one_hot(lengths, LENGTH + 1)[:, 1:] == 1
    found = sums[marks[:, 1:] == 1], sums[same[:, 1:] == 1], sums[whole], sums[:, seen > 0]
    return torch.stack([item.square().sum() for item in found]).sum()


def kinds(model: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
    """Each kind of a row by itself, and how many there are of it; a weight fills places that are among them."""
    lengths = mask.sum(1)
    found, which, count = lengths.unique(return_inverse=True, return_counts=True)
    each = [model(x[which == number]).square().mean() for number in range(len(found))]
    filled = x.index_fill(1, lengths - 1, next(model.parameters()).sum())
    return (torch.stack(each) * count * lengths.unique()).sum() + filled.square().sum()


def weighed(model: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
    """Each row by how many there are of its length; which is the longest is another size only where that is asked."""
    lengths = mask.sum(1)
    often, weights = torch.bincount(lengths), mask[:, 0].double()
    most = torch.bincount(lengths, weights, minlength=LENGTH + 1)
    return (model(x).square().mean((1, 2)) / often[lengths]).sum() * most.square().sum()


def mask_of(*lengths: int) -> Tensor:
    return torch.arange(LENGTH) < torch.tensor(lengths)[:, None]


def losses(
    body: Body, masks: Sequence[Tensor], *, compiled: bool, is_outside: bool = False
) -> tuple[list[Tensor], int]:
    """Train a small model on random rows; return losses and weights, and how many plans there are.

    Masks are arguments of the step, or what it finds outside.
    """
    torch.manual_seed(0)
    held = masks[0].clone()
    model = nn.Linear(WIDTH, WIDTH)
    optimizer = SGD(model.parameters(), lr=0.1)

    def step(x: Tensor, mask: Tensor | None = None) -> Tensor:
        loss = body(model, x, held if mask is None else mask)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    run = outgrow.compile(step, model=model, optimizer=optimizer, memory_budget="10TiB") if compiled else step
    found: list[Tensor] = []
    for mask in masks:
        held.copy_(mask)
        with torch.autocast("cpu", torch.bfloat16):
            found.append(run(torch.randn(ROWS, LENGTH, WIDTH), *(() if is_outside else (mask,))))
    found += [parameter.detach() for parameter in model.parameters()]
    return found, len(run.plans.plans) if isinstance(run, outgrow.Step) else 0


@pytest.mark.parametrize("is_outside", [False, True], ids=["argument", "outside"])
@pytest.mark.parametrize(
    ("body", "lengths", "ways"),
    [
        (masked, [(6, 6), (6, 3), (6, 6), (2, 6)], 2),
        (cut, [(6, 1), (4, 2), (2, 4), (6, 6)], 2),
        (each_cut, [(6, 1), (4, 2), (6, 1)], 2),
        (averaged, [(6, 6), (4, 2), (2, 5)], 1),
        (chosen, [(6, 6), (4, 2), (2, 4), (5, 5), (0, 6), (4, 2)], 4),
        (classes, [(6, 6), (4, 2), (2, 4), (0, 3), (5, 5)], 3),
        (kinds, [(6, 6), (4, 2), (3, 3), (2, 5)], 2),
        (weighed, [(6, 6), (4, 2), (4, 4), (2, 6)], 2),
        (compared, [(6, 6), (4, 2), (2, 5), (0, 0)], 4),
        (spelled, [(6, 6), (4, 2), (2, 5), (2, 6)], 3),
        (sized, [(6, 6), (4, 2), (2, 5)], 3),
        (marked, [(6, 6), (6, 3), (4, 2), (6, 6), (2, 6), (2, 2)], 3),
        (kept, [(6, 6), (4, 2), (2, 5)], 1),
        (fractions_decide, [(6, 6), (4, 2), (2, 5)], 2),
        (cast, [(6, 6), (6, 6), (5, 5)], 2),
        (counted, [(6, 6), (0, 0), (3, 1), (0, 1)], 3),
    ],
)
def test_a_step_goes_the_ways_of_eager(
    body: Body, lengths: list[tuple[int, int]], ways: int, *, is_outside: bool
) -> None:
    masks = [mask_of(*item) for item in lengths]
    expected, _ = losses(body, masks, compiled=False, is_outside=is_outside)
    found, plans = losses(body, masks, compiled=True, is_outside=is_outside)
    assert all(map(torch.equal, found, expected))
    assert plans == ways


@pytest.mark.filterwarnings("ignore:.*captured and planned")
def test_a_batch_norm_outside_may_weigh_by_the_number_of_its_calls() -> None:
    """It is another one in every call."""
    norm = nn.BatchNorm1d(WIDTH, momentum=None)

    def normalised(model: nn.Module, x: Tensor, _mask: Tensor) -> Tensor:
        return norm(model(x).flatten(0, 1)).pow(3).sum()

    found: list[list[Tensor]] = []
    for compiled in (False, True):
        norm.reset_running_stats()
        trained, _ = losses(normalised, [mask_of(6, 6)] * 4, compiled=compiled)
        found.append([*trained, *(buffer.clone() for buffer in norm.buffers())])
    assert all(map(torch.equal, *found))


def test_a_step_in_ample_room_has_a_plan_for_each_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ways may take more memory or less."""
    monkeypatch.setattr(within_budget, "_ROOMY_BYTES", 0)
    masks = [mask_of(*item) for item in [(6, 6)] * 4 + [(6, 3)] * 2 + [(6, 6)]]
    found, plans = losses(masked, masks, compiled=True)
    assert all(map(torch.equal, found, losses(masked, masks, compiled=False)[0]))
    assert plans == 2


def test_a_smaller_batch_in_ample_room_may_go_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a step is captured; so is one of which a question makes no sense in a smaller batch."""
    monkeypatch.setattr(within_budget, "_ROOMY_BYTES", 0)
    torch.manual_seed(0)
    model = nn.Linear(WIDTH, WIDTH)
    optimizer = SGD(model.parameters(), lr=0.1)

    def step(x: Tensor, mask: Tensor) -> Tensor:
        y = model(x)
        is_full = mask.all() or mask.view(mask.numel() // 2, 2).any(1).all()
        loss = y.sum() if is_full else y.square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    run = outgrow.compile(step, model=model, optimizer=optimizer, memory_budget="10TiB")
    counts: list[int] = []
    full, cut = mask_of(6, 6), mask_of(4, 2)[:, :4].contiguous()
    for mask in (full, full[:, :4], mask_of(6, 4), mask_of(6, 2), cut, full[:1, :3]):
        run(torch.randn(*mask.shape, WIDTH), mask)
        counts.append(len(run.plans.plans))
    assert counts == [1, 1, 2, 2, 3, 3]


def test_in_ample_room_fewer_elements_need_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does a smaller length that the step finds in its batch."""
    monkeypatch.setattr(within_budget, "_ROOMY_BYTES", 0)
    masks = [mask_of(*item) for item in [(4, 4), (3, 2), (4, 3), (0, 1), (6, 4), (5, 5), (6, 6)]]
    found, plans = losses(chosen, masks, compiled=True)
    assert all(map(torch.equal, found, losses(chosen, masks, compiled=False)[0]))
    assert plans == 4
    assert losses(cut, masks, compiled=True)[1] == 2


def test_only_numbers_that_matter_are_told() -> None:
    """What is calculated with stays a scalar where another number is a length."""
    model, x = nn.Linear(WIDTH, WIDTH), torch.randn(ROWS, LENGTH, WIDTH)
    captured = capture(partial(cut_and_averaged, model), (model,), (), (x, mask_of(6, 2)))
    assert captured.answered_otherwise((x, mask_of(6, 3)), NOTHING) is None
    assert captured.answered_otherwise((x, mask_of(5, 3)), NOTHING) is not None


def test_a_list_of_numbers_is_asked_for_at_once() -> None:
    """An operator with many results runs once."""
    model, x = nn.Linear(WIDTH, WIDTH), torch.randn(ROWS, LENGTH, WIDTH)
    captured = capture(partial(each_cut, model), (model,), (), (x, mask_of(6, 2)))
    calls = {call for question in captured.questions for call in question.calls}
    assert [str(call.operator) for call in calls].count("aten.unbind.int") == 1


def test_an_argument_that_is_written_outside_is_refused() -> None:
    """Also where it was another one when the step was captured."""
    model, shared = nn.Linear(WIDTH, WIDTH), torch.ones(2, WIDTH)

    def step(x: Tensor) -> Tensor:
        shared.mul_(-1)
        return model(x).sum() * (2.0 if (x > 0).all() else 3.0)

    with pytest.raises(Uncapturable, match=r"number 1 .* shares memory with a tensor that it finds outside"):
        capture(step, (model,), (), (shared[1:],))
    captured = capture(step, (model,), (), (torch.ones(1, WIDTH),))
    assert captured.is_apart((torch.ones(1, WIDTH),))
    assert not captured.is_apart((shared[1:],))


def test_a_conjugated_argument_is_asked() -> None:
    """It is resolved, as its stand-in is."""

    def step(x: Tensor) -> Tensor:
        return x.abs() * (2 if (torch.view_as_real(x.resolve_conj())[..., 1] > 0).all() else 3)

    x = torch.tensor([1 - 2j])
    captured = capture(step, (nn.Linear(1, 1),), (), (x,))
    assert captured.answered_otherwise((x,), NOTHING) is None
    assert captured.answered_otherwise((x.conj(),), NOTHING) is not None


def test_a_question_is_asked_beside_the_graph() -> None:
    """The plan has no operator for it."""

    def step(x: Tensor, y: Tensor) -> Tensor:
        return x * 2 if torch.equal(x.abs(), y) else x * 3

    x = torch.full((3,), 2.0)
    captured = capture(step, (nn.Linear(1, 1),), (), (x, x))
    assert [op.operator for op in captured.graph.ops] == ["aten.mul.Tensor"]
    assert captured.answered_otherwise((x, x), NOTHING) is None
    asked = captured.answered_otherwise((-x, x + 1), NOTHING)
    assert asked is not None
    assert asked.line is not None
    assert "if torch.equal(x.abs(), y)" in asked.line


def fractions(x: Tensor, _model: nn.Module) -> object:
    return x * 2 if x.sum().item() > 1 else x


def of_a_weight(x: Tensor, model: nn.Linear) -> object:
    return x * 2 if (x[0] * model.weight > 0).all() else x


def drawn(x: Tensor, _model: nn.Module) -> object:
    return x * 2 if (torch.rand_like(x) > x).all() else x


def written(x: Tensor, _model: nn.Module) -> object:
    y = x.clone()
    y[0] = 2.0
    return x * 2 if (y > 1).all() else x


def too_large(x: Tensor, _model: nn.Module) -> object:
    return x * 2 if (x.expand(1 << 16, 3) + 1 > 0).all() else x


def too_long(x: Tensor, _model: nn.Module) -> object:
    y = x
    for _ in range(questions._MOST_OPERATORS):
        y = y + 1
    return x * 2 if (y > 0).all() else x


@pytest.mark.parametrize("body", [fractions, of_a_weight, drawn, written, too_large, too_long])
@pytest.mark.filterwarnings("ignore")
def test_other_questions_are_none(body: Callable[[Tensor, nn.Linear], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Their answer is guessed, and found in each run."""
    monkeypatch.setattr(questions, "_MOST_BYTES", 1 << 16)
    model = nn.Linear(1, 1)
    captured = capture(lambda x: body(x, model), (model,), (), (torch.ones(3),))
    assert not captured.questions
    assert len(captured.guesses) == 1


def test_a_batch_with_another_answer_in_every_call_is_told() -> None:
    """With the line that asks."""
    lengths = [(6, 1), (5, 1), (4, 1), (3, 1), (2, 1)]
    with pytest.warns(Remark, match=r"longest = int\(mask\.sum"):
        losses(cut, [mask_of(*item) for item in lengths], compiled=True)


@pytest.mark.filterwarnings("ignore")
def test_transformers_looks_at_masks_as_in_eager() -> None:
    """The gradients tell which kernels ran."""
    weights: list[list[Tensor]] = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = grouped()
        optimizer = SGD(model.parameters(), lr=0.1)

        def step(tokens: Tensor, mask: Tensor, model: Any = model, optimizer: SGD = optimizer) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(input_ids=tokens, labels=tokens, attention_mask=mask).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        run = outgrow.compile(step, model=model, optimizer=optimizer, memory_budget="10TiB") if compiled else step
        for lengths in ((6, 6), (6, 3), (6, 6)):
            run(torch.randint(0, WORDS, (ROWS, LENGTH)), mask_of(*lengths).long())
        weights.append([parameter.detach() for parameter in model.parameters()])
    assert all(map(torch.equal, *weights))
