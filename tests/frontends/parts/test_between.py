"""What happens between and around the passes of a part has eager's gradients, or a reason why not."""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import ref

import pytest
import torch
from torch import Tensor, fx, nn
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint

from outgrow.analysis.precedence import predecessors
from outgrow.errors import OutOfTurn, Uncapturable
from outgrow.frontends import dynamo
from outgrow.frontends.parts.joint import hole_of
from outgrow.frontends.preparing.settings import Settings
from tests.runtime.stand_in import StandIn

pytestmark = [
    pytest.mark.usefixtures("parts_apart"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]

WIDTH = 32
Gradients = list[Tensor | None]


def compiled(module: Callable[..., Any], device: StandIn | None = None) -> Callable[..., Any]:
    settings = Settings.of(1 << 30)

    def part(graph: fx.GraphModule, _inputs: object) -> Callable[..., object]:
        return dynamo.part_of(graph, settings, device)

    return torch.compile(module, backend=part)


def same(module: nn.Module, train: Callable[[Callable[..., Any]], object]) -> Gradients:
    """Train eagerly and by parts, on a CPU and on a device; return the gradients, which have to be equal.

    Each begins with the same weights, since a forward pass may change them.
    """
    found: list[Gradients] = []
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    for model in (module, compiled(module), compiled(module, StandIn())):
        module.load_state_dict(before)
        module.zero_grad()
        module.requires_grad_(True)
        torch.manual_seed(1)
        train(model)
        found.append([parameter.grad for parameter in module.parameters()])
    for others in found[1:]:
        for one, other in zip(found[0], others, strict=True):
            assert (one is None) == (other is None)
            assert one is None or other is None or torch.equal(one, other)
    return found[0]


class Heads(nn.Module):
    """Two results that share a body."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.one, self.other = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.body(x).relu()
        return self.one(x), self.other(x)


class Remembering(nn.Module):
    """The last result is read, without its history."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.last = nn.Linear(WIDTH, WIDTH), torch.zeros(4, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        self.last = (self.linear(x) + 0.5 * self.last.detach()).tanh()
        return self.last


class Saving(nn.Module):
    """The result is read again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.linear(x).sigmoid()
        return x, x.sum()


class Writing(nn.Module):
    """Writes over its input what depends on its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x.add_(self.linear(x.clone()))
        return x.sum()


class Normal(nn.Module):
    """Its running statistics move in every forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.linear(x))


def rows() -> Tensor:
    return torch.randn(16, WIDTH)


def test_a_result_that_nobody_uses_gives_no_gradient() -> None:
    """Its weights have none, as in eager mode, so that an optimizer leaves them alone."""
    found = same(Heads(), lambda model: model(rows())[1].square().sum().backward())
    assert [gradient is None for gradient in found] == [False, True, False]


def test_weights_that_are_frozen_between_the_passes_get_what_they_would_get() -> None:
    """Gradients go to the weights that they are of."""
    module = Heads()

    def train(model: Callable[..., Any]) -> None:
        one, other = model(rows())
        module.body.weight.requires_grad_(False)
        (one.sum() + other.square().sum()).backward()

    same(module, train)


def test_two_forward_passes_may_move_statistics() -> None:
    """The backward pass of the first does not read what the second has written."""

    def train(model: Callable[..., Any]) -> None:
        one, other = model(rows()), model(rows())
        (one.square().mean() + other.sin().mean()).backward()

    same(Normal(), train)


@pytest.mark.parametrize("device", [None, StandIn()], ids=["cpu", "device"])
def test_a_result_that_is_written_over_is_refused_where_it_is_read_again(device: StandIn | None) -> None:
    """As eager mode refuses it; a result that nobody reads again may be written."""
    kept, _ = compiled(Saving(), device)(rows())
    with torch.no_grad():
        kept.zero_()
    with pytest.raises(OutOfTurn, match="changed in place before the backward pass"):
        kept.sum().backward()
    free, _ = compiled(Heads(), device)(rows())
    free.mul_(2).sum().backward()


def test_results_that_overlap_are_not_written() -> None:
    """One would be a part of the history of the other."""

    class Overlapping(Saving):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            x = self.linear(x)
            return x[:, :20], x[:, 10:]

    one, other = compiled(Overlapping())(rows())
    one.mul_(2)
    with pytest.raises(OutOfTurn, match="changed in place"):
        (one.sum() + other.sum()).backward()


def test_a_gradient_of_a_gradient_is_refused() -> None:
    """It would be lost without a word."""
    x = rows().requires_grad_()
    result = compiled(Normal())(x)
    with pytest.raises(Uncapturable, match="create_graph=True"):
        torch.autograd.grad(result.sum(), x, create_graph=True)


def test_several_backward_passes_at_once_are_refused() -> None:
    """Each gradient would be many."""
    module, x = nn.Linear(WIDTH, 3), torch.randn(WIDTH)
    with pytest.raises(Uncapturable, match="not several at once"):
        torch.autograd.functional.jacobian(compiled(module), x, vectorize=True)


def test_a_view_that_gets_a_history_is_refused() -> None:
    """Autograd gives a view no history of a function with several results."""
    with pytest.raises(Uncapturable, match=r"by add_ in forward, test_between.py:\d+, which is a view"):
        compiled(Writing())(rows()[1:])


class WritingBehind(nn.Module):
    """Writes over what the loop, or a part before it, has made, and reads it again in a third part."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(x)
        torch._dynamo.graph_break()
        x.mul_(2)
        y = F.relu(x, inplace=True)
        z = self.two(y)
        torch._dynamo.graph_break()
        return z * x + y


class Clamping(nn.Module):
    """Weights that are kept within limits in the forward pass, as binarized nets and embeddings do."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.linear = nn.Embedding(9, WIDTH, max_norm=1.0), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        self.linear.weight.data.clamp_(-0.1, 0.1)
        self.linear.bias.data[0] = 0
        return self.linear(x + self.table(torch.arange(len(x)) % 9))


def test_inputs_that_are_written_past_their_history_keep_it() -> None:
    """By `.data` or without gradients: weights, and what another part has made."""

    class Between(Heads):
        def forward(self, x: Tensor) -> Tensor:
            x = self.body(x)
            torch._dynamo.graph_break()
            with torch.no_grad():
                x.neg_()
            x.data.clamp_(-0.5, 0.5)
            return self.one(x).sin() + x

    for module in (Between(), Clamping()):

        def train(model: Callable[..., Any]) -> None:
            for _ in range(2):
                model(rows()).square().mean().backward()

        assert any(gradient is not None for gradient in same(module, train))


def test_a_weight_whose_data_is_set_between_the_passes_is_refused() -> None:
    """Autograd, which has kept the weight itself, reads what that has by then; no version says so."""
    normed = nn.LayerNorm(WIDTH)
    found = compiled(normed)(rows())
    normed.weight.data = normed.weight.data * 0.5
    with pytest.raises(OutOfTurn, match=r"\.data was set"):
        found.sum().backward()


def test_an_input_that_is_a_view_and_written_over_is_refused() -> None:
    """By the name of the operator, and the line."""
    module = Heads()

    def seen(x: Tensor) -> Tensor:
        return module.one(x.neg_())

    x = module.body(rows())
    with pytest.raises(Uncapturable, match=r"by neg_ in seen, test_between.py:\d+, which is a view"):
        compiled(seen)(x[:3])


@pytest.mark.parametrize("is_trained", [False, True])
def test_other_memory_for_an_input_is_refused(is_trained: bool) -> None:
    """In the words of the loop, with the line; also where the gradient of the weight is wanted."""
    module = Heads()
    module.one.weight.requires_grad_(is_trained)

    def moving(x: Tensor) -> Tensor:
        with torch.no_grad():
            module.one.weight.data = module.one.weight.data * 0.9
        return module.one(module.body(x))

    with pytest.raises(Uncapturable, match=r"by \.data =, .*in moving, test_between.py:\d+; write into it"):
        compiled(moving)(rows())


def test_memory_that_a_trained_weight_has_for_a_while_is_refused() -> None:
    """Its gradient would arrive elsewhere; one that wants none may have other memory, and its own again."""
    module = Heads()

    def rounding(x: Tensor) -> Tensor:
        own = module.one.weight.data
        module.one.weight.data = own.round()
        found = module.one(module.body(x))
        module.one.weight.data = own
        return found

    with pytest.raises(Uncapturable, match=r"by \.data =, .*in rounding, test_between.py:\d+; write into it"):
        compiled(rounding)(rows())
    module.one.requires_grad_(False)
    assert torch.equal(compiled(rounding)(rows()), rounding(rows()))


def test_a_result_without_a_gradient_for_what_was_written_over_is_refused() -> None:
    """Eager mode minds it only once that gradient is asked for; here gradients of all results are captured."""

    def writing(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        hidden = x @ weight
        return hidden.sin(), hidden.mul_(2)

    with pytest.raises(Uncapturable, match=r"out of place .*, or detach the result"):
        compiled(writing)(rows(), torch.ones(WIDTH, WIDTH, requires_grad=True))


def test_an_input_that_is_written_over_has_the_history_of_what_was_written() -> None:
    """Whoever reads it later, by itself or by the result, finds the new content and adds to its gradient."""

    def train(model: Callable[..., Any]) -> None:
        for _ in range(3):
            model(rows()).square().mean().backward()

    same(WritingBehind(), train)


def test_an_input_that_wanted_no_gradient_gets_the_history_of_what_was_written() -> None:
    """As the zeros of a loss into which a mask puts what is positive, behind the break of the graph that it makes."""

    def train(model: Callable[..., Any]) -> None:
        for _ in range(3):
            x = rows()
            total = model(x)
            assert x.requires_grad
            (total + x.square().mean()).backward()

    same(Writing(), train)


def test_a_forward_pass_that_writes_over_its_input_may_be_dropped() -> None:
    """Nobody wants its backward pass, and nothing holds the input."""
    module = Heads()
    x = module.body(rows())
    compiled(lambda x: module.one(x.mul_(2)))(x)
    held = ref(x)
    del x
    assert held() is None


def test_what_a_part_writes_has_another_version_where_it_has_in_eager_mode() -> None:
    """So that whoever keeps it for a backward pass of his own is told; a batch norm tells of its counter alone."""

    def raised(module: nn.Module, run: Callable[..., object]) -> list[bool]:
        before = [buffer._version for buffer in module.buffers()]
        run(rows())
        return [buffer._version > version for buffer, version in zip(module.buffers(), before, strict=True)]

    one, other = Normal(), Normal()
    expected = raised(one, one)
    assert sorted(expected) == [False, False, True]
    assert raised(other, compiled(other)) == expected


@pytest.mark.parametrize("is_first", [False, True])
def test_a_batch_norm_may_run_in_eager_mode_before_a_part_runs_it(is_first: bool) -> None:
    """Eager mode keeps running statistics for the backward pass, and does not mind that they change."""
    module = Normal()

    def train(model: Callable[..., Any]) -> None:
        first, second = (module, model) if is_first else (model, module)
        (first(rows()).square().mean() + second(rows()).sin().mean()).backward()

    same(module, train)


def test_inference_tensors_are_inputs_like_others() -> None:
    """They have no versions."""
    module = Normal().eval()
    with torch.inference_mode():
        x = rows()
    with torch.no_grad():
        assert torch.equal(compiled(module)(x), module(x))


def test_an_evaluation_may_come_first_on_a_device() -> None:
    """What is made then, to measure the device, is written by other threads."""
    module, x = Normal().eval(), rows()
    model = compiled(module, StandIn())
    with torch.inference_mode():
        assert torch.equal(model(x), module(x))
    assert model(x).requires_grad


def test_threads_take_turns() -> None:
    """Parts that have been planned give each thread what they give one alone."""
    modules = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(3)]
    models = [compiled(module) for module in modules]
    given, found = rows(), dict[int, list[Tensor]]()

    def train(number: int) -> None:
        found[number] = []
        for _ in range(20):
            loss = models[number](given).square().sum()
            loss.backward()
            found[number].append(loss.detach())

    for number in range(3):
        train(number)
    expected = dict(found)
    for module in modules:
        module.zero_grad()
    threads = [threading.Thread(target=train, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(torch.stack(found[number]), torch.stack(expected[number])) for number in range(3))


def test_derivatives_in_forward_mode_are_refused() -> None:
    """A part would lose them."""
    model, given = compiled(nn.Tanh()), rows()
    model(given)
    with forward_ad.dual_level(), pytest.raises(Uncapturable, match="forward mode"):
        model(forward_ad.make_dual(given, given))


def test_a_part_may_detach_what_an_earlier_one_gave() -> None:
    """There is no way back into that one's backward pass, which has run; nor does its history live on."""
    module = Remembering()
    results: list[ref[Tensor]] = []

    def train(model: Callable[..., Any]) -> None:
        module.last = torch.zeros(4, WIDTH)
        results.clear()
        for _ in range(4):
            y = model(torch.randn(4, WIDTH))
            results.append(ref(y))
            y.sum().backward()

    same(module, train)
    assert [result() is not None for result in results] == [False, False, False, True]


def test_blocks_may_be_trained_one_by_one() -> None:
    """Each begins with the detached result of the one before, and has a loss of its own."""
    module = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    class Apart(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = module

        def forward(self, x: Tensor, at: int) -> Tensor:
            return self.layers[at](x.detach()).relu()

    def train(model: Callable[..., Any], *, backwards: bool) -> None:
        x, losses = torch.randn(4, WIDTH), list[Tensor]()
        for at in range(3):
            x = model(x, at)
            losses.append(x.square().mean())
        for loss in losses[:: -1 if backwards else 1]:
            loss.backward()

    for backwards in (False, True):
        same(Apart(), partial(train, backwards=backwards))


class Nesting(Normal):
    """A checkpointed region, which draws and counts, within another one."""

    def forward(self, x: Tensor) -> Tensor:
        def inner(x: Tensor) -> Tensor:
            return F.dropout(self.norm(x), 0.2).tanh() + x

        def outer(x: Tensor) -> Tensor:
            return checkpoint(inner, self.linear(x).sin(), use_reentrant=False) * x

        for _ in range(2):
            x = checkpoint(outer, x, use_reentrant=False)
        return x


def test_a_checkpoint_within_a_checkpoint_draws_what_its_forward_pass_drew() -> None:
    """Also in backward passes of other batches, and statistics move as often as in eager mode."""
    left: list[list[Tensor]] = []

    def train(model: Callable[..., Any]) -> None:
        for _ in range(2):
            model(rows()).square().mean().backward()
        left.append([*(buffer.clone() for buffer in module.buffers()), torch.get_rng_state()])

    module = Nesting()
    same(module, train)
    assert all(torch.equal(one, other) for found in left[1:] for one, other in zip(left[0], found, strict=True))


def test_what_writes_an_input_stays_in_its_pass() -> None:
    """However a plan orders the ops: the backward pass of a checkpoint counts once more, and it may never come."""

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Tanh())

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.body, x, use_reentrant=False)

    module = Counting()
    model = compiled(module)
    model(torch.randn(8, WIDTH))
    assert module.state_dict()["body.1.num_batches_tracked"] == 1
    (shared,) = dynamo.budgets()
    (ready,) = shared.plans.values()
    graph = ready.captured.graph
    hole = hole_of(graph)
    assert hole is not None
    at, before = graph.ops.index(hole), list[frozenset[int]]()
    for numbers in predecessors(graph):
        before.append(frozenset(numbers).union(*(before[number] for number in numbers)))
    writers = [number for number, op in enumerate(graph.ops) if {*graph.written(op)} & {*ready.captured.written}]
    assert {number < at for number in writers} == {True, False}
    assert all(number in before[at] or at in before[number] for number in writers if number != at)


def test_a_tensor_that_is_made_of_others_is_refused() -> None:
    """Nobody would know where its memory is."""
    x = torch.randn(4, WIDTH)
    with pytest.raises(Uncapturable, match="is given a TwoTensor, and holds plain tensors only"):
        compiled(nn.Linear(WIDTH, WIDTH))(TwoTensor(x, x.clone()))
