"""What goes past the trace of a step is refused, with a remedy, and nothing is changed."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.ao import quantization

from outgrow.errors import Uncapturable
from outgrow.frontends.tracing.capture import capture
from outgrow.frontends.user.training.state import Training
from tests.frontends.replay import replay

Body = Callable[[nn.Module, Tensor], object]


class Bounded(nn.Module):
    """A layer, a buffer that has no size yet, and one of many numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("low", torch.empty(0))
        self.register_buffer("many", torch.zeros(1 << 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).square().sum()


def captured(body: Body, model: nn.Module | None = None) -> list[str]:
    """The operators of a step."""
    model = model or Bounded()
    found = capture(lambda x: body(model, x), [model], [torch.optim.SGD(model.parameters())], (torch.ones(2, 4),))
    return [op.operator for op in found.graph.ops]


def spread(model: nn.Module, x: Tensor) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    model(x).backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad.data = parameter.grad.data[:1].expand(4, 4)


def clamped(_model: nn.Module, x: Tensor) -> Tensor:
    x.data = x.data.clamp(0, 1)
    return x


def caught(_model: nn.Module, x: Tensor) -> Tensor:
    y = x * 2
    try:
        y.data = x
    except Exception:  # noqa: BLE001 - a step that goes on, whatever happens
        y = y + 1
    return y


def without_a_library(_model: nn.Module, x: Tensor) -> Tensor:
    with torch.backends.mkldnn.flags(enabled=False):
        return x @ x.T


def resized(model: nn.Module, x: Tensor) -> None:
    low = model.get_buffer("low")
    low.resize_(4).copy_(x.amin(0))


def replaced(model: nn.Module, x: Tensor) -> None:
    torch.ops.aten.set_.source_Tensor(model.get_buffer("low"), x.mean(0))


def by_an_operator(model: nn.Module, x: Tensor) -> None:
    torch.amin(x, 0, out=model.get_buffer("low"))


def as_numbers(model: nn.Module, x: Tensor) -> Tensor:
    return x * sum(model.get_buffer("many").tolist())


def branched(model: nn.Module, x: Tensor) -> Tensor:
    try:
        factor = 2.0 if float(model(x).sum()) > 0 else 1.0
    except RuntimeError:
        factor = 0.0
    return x * factor


def as_text(_model: nn.Module, x: Tensor) -> tuple[Tensor, str]:
    return x * 2, f"twice {x}"


def followed_argument(model: nn.Module, x: Tensor) -> None:
    x.requires_grad_()
    model(x).backward()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (spread, r"sets the \.data of a tensor of shape \(4, 4\).*assign p\.grad itself"),
        (clamped, r"sets the \.data of a tensor of shape \(2, 4\).*copy_"),
        (caught, r"sets the \.data"),
        (without_a_library, "changes a setting of torch .mkldnn_enabled.*around the call"),
        (resized, "gives buffer 'low' another shape"),
        (replaced, "gives buffer 'low' another shape"),
        (by_an_operator, "gives buffer 'low' another shape"),
        (as_numbers, r"reads the content of \S+ .many. \(by tolist\)"),
        (branched, r"factor = 2\.0 if .*of a tensor needs its content"),
        (as_text, "returns text that it made of a tensor"),
        (followed_argument, r"leaves a gradient.*argument number 1 .counted from 1.*x\.detach\(\)\.requires_grad_\(\)"),
    ],
)
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_what_a_plan_would_leave_out_is_refused(body: Body, message: str) -> None:
    """Also where the step itself catches the refusal."""
    model = Bounded()
    with pytest.raises(Uncapturable, match=message):
        captured(body, model)
    assert model.get_buffer("low").shape == (0,)
    assert torch.backends.mkldnn.enabled
    x = torch.ones(2)
    x.data = torch.zeros(2)
    assert x.sum() == 0


def test_data_that_is_written_in_place_may_be_set_to_itself() -> None:
    """As `x.data *= 2` does, of parameters and of what a step makes."""
    left: list[list[Tensor]] = []
    for is_captured in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x: Tensor, model: nn.Linear = model, optimizer: torch.optim.Optimizer = optimizer) -> Tensor:
            model.weight.data *= 0.5
            y = model(x)
            y.data -= 0.1
            optimizer.zero_grad()
            loss = y.square().mean()
            loss.backward()
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.data -= 0.1 * parameter.grad
            return loss.detach()

        given = (torch.ones(2, 4),)
        training = Training((model,), (optimizer,))
        loss = replay(capture(step, [model], [optimizer], given), training, given, {}) if is_captured else step(*given)
        assert isinstance(loss, Tensor)
        left.append([loss, *(parameter.detach() for parameter in model.parameters())])
    assert all(map(torch.equal, *left))


def test_a_list_of_few_numbers_is_made_anew_in_each_call() -> None:
    """Of a buffer or a parameter, whole or not; sizes among them are asked for."""
    model = nn.Linear(4, 4)
    model.register_buffer("scales", torch.tensor([[1.5], [2.0]]))
    model.register_buffer("sizes", torch.tensor([1, 3]))
    scales, sizes = model.get_buffer("scales"), model.get_buffer("sizes")

    def step(x: Tensor) -> Tensor:
        with torch.no_grad():
            scales.add_(1.0)
        ((one,), (other,)), (first, rest) = scales.tolist(), x.split(sizes.tolist(), 1)
        return first * one + rest[:, :1] * other + sum(model.bias.tolist())

    training, given = Training((model,), ()), (torch.ones(2, 4),)
    found = capture(step, [model], [], given)
    for _ in range(2):
        before = scales.clone()
        expected = step(*given)
        scales.copy_(before)
        loss = replay(found, training, given, {})
        assert isinstance(loss, Tensor)
        assert torch.equal(loss, expected)
    assert any(question.answer == 3 for question in found.questions)


def test_a_step_on_a_cpu_may_set_what_concerns_cudnn() -> None:
    """As losses of CTC in transformers do."""

    def body(_model: nn.Module, x: Tensor) -> Tensor:
        with torch.backends.cudnn.flags(enabled=False):
            scores = x.log_softmax(-1)[:, None]
            return nn.functional.ctc_loss(scores, torch.tensor([[1]]), torch.tensor([2]), torch.tensor([1]))

    assert "aten._log_softmax.default" in captured(body)
    assert torch.backends.cudnn.enabled


def test_a_gradient_of_a_copy_of_an_argument_is_captured() -> None:
    """As the refusal says."""

    def body(model: nn.Module, x: Tensor) -> Tensor | None:
        x = x.detach().requires_grad_()
        model(x).backward()
        return x.grad

    assert "aten.pow.Tensor_Scalar" in captured(body)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:Please use quant_min")
def test_observers_have_room_for_their_channels_before_a_step_is_captured() -> None:
    """Their kernels resize buffers, which no trace sees; after a forward pass the sizes are final."""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
    vars(model)["qconfig"] = quantization.get_default_qat_qconfig("x86")
    quantization.prepare_qat(model.train(), inplace=True)
    with pytest.raises(Uncapturable, match="run the model once"):
        captured(lambda model, x: model(x), model)
    model(torch.ones(2, 4))
    operators = captured(lambda model, x: model(x), model)
    assert "aten._fused_moving_avg_obs_fq_helper.default" in operators
