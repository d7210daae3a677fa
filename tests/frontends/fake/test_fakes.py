"""Are fake results what kernels give, and those that are put right still the results of the ops that made them?"""

from collections.abc import Callable, Iterator
from itertools import permutations

import pytest
import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from outgrow.frontends.fake import fakes
from outgrow.frontends.fake.fakes import FakeMode
from outgrow.frontends.fake.kernels.layouts import as_kernels_lay_out
from outgrow.frontends.tracing.capture import capture


def test_a_corrected_layout_is_no_op_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fresh tensor whose strides are put right is the result of its operator, not a new tensor."""

    def odd(fake: Tensor) -> Tensor:
        return torch.empty_strided(fake.shape, (1, 7), dtype=fake.dtype) if fake.shape == (4, 1) else fake

    monkeypatch.setattr(fakes, "like_a_kernel", odd)
    graph = capture(lambda x: torch.relu(x).exp(), [], [], (torch.zeros(4, 1),)).graph
    assert [op.operator for op in graph.ops] == ["aten.relu.default", "aten.exp.default"]
    assert graph.values["exp"].strides == (1, 7)


def _permuted() -> Tensor:
    return torch.randn(4, 32, 6).transpose(1, 2)


def _normalised(dtype: torch.dtype) -> Iterator[tuple[str, Tensor, nn.Module]]:
    yield "batch norm", torch.randn(8, 16, 4, 4).to(dtype), nn.BatchNorm2d(16)
    yield "batch norm, channels last", _channels_last(dtype), nn.BatchNorm2d(16)
    yield "batch norm, permuted", _permuted().to(dtype), nn.BatchNorm1d(6)
    yield "group norm", torch.randn(8, 16, 4, 4).to(dtype), nn.GroupNorm(4, 16)
    yield "group norm, channels last", _channels_last(dtype), nn.GroupNorm(4, 16)
    yield "layer norm, permuted", _permuted().to(dtype), nn.LayerNorm(32)
    yield "mean square", _permuted().to(dtype), _Square()


def _channels_last(dtype: torch.dtype) -> Tensor:
    return torch.randn(8, 16, 4, 4).to(dtype).contiguous(memory_format=torch.channels_last)


class _Square(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.mse_loss(x, torch.ones_like(x))


class _Compared(TorchDispatchMode):
    """Repeats every operator on fake tensors and notes where type, shape or strides of a result differ."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN204
        returned = func(*args, **(kwargs or {}))
        mode = FakeMode()
        fake_args, fake_kwargs = pytree.tree_map_only(
            Tensor, lambda t: mode.from_tensor(t.detach()), (args, kwargs or {})
        )
        with mode:
            fake = func(*fake_args, **fake_kwargs)
        pairs = zip(pytree.tree_leaves(returned), pytree.tree_leaves(fake), strict=True)
        self.found += [f"{func}: {_kind(a)}, fake {_kind(b)}" for a, b in pairs if _kind(a) != _kind(b)]
        return returned


def _kind(item: object) -> object:
    return (item.dtype, tuple(item.shape), item.stride()) if isinstance(item, Tensor) else type(item)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_results_are_of_the_type_and_layout_that_kernels_give(dtype: torch.dtype) -> None:
    """Normalisations with parameters of 32 bits, and losses, forward and backward, of permuted operands."""
    torch.manual_seed(0)
    for name, x, module in _normalised(dtype):
        x.requires_grad_()
        with _Compared() as compared:
            module(x).float().square().sum().backward()
        assert compared.found == [], name


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_attention_is_of_the_type_and_layout_that_its_kernel_gives(dtype: torch.dtype) -> None:
    """The result, and the sums kept for the backward, which have 64 bits a number where the operands do."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 3, 5, 8, dtype=dtype, requires_grad=True) for _ in range(3))
    with _Compared() as compared:
        F.scaled_dot_product_attention(query, key, value).square().sum().backward()
    assert compared.found == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients_of_a_recurrent_layer_are_of_the_type_that_its_kernel_gives(dtype: torch.dtype) -> None:
    """They have 32 bits a number, also under autocast, where the sequence and the parameters have 16."""
    torch.manual_seed(0)
    layer, sequence = nn.LSTM(4, 3), torch.randn(5, 2, 4).requires_grad_()
    with torch.autocast("cpu", dtype, enabled=dtype is not torch.float32), _Compared() as compared:
        layer(sequence)[0].square().sum().backward()
    assert compared.found == []


def test_a_recurrent_layer_is_captured_alike_whatever_torch_has_kept() -> None:
    """The gradients of its two biases are two tensors, as its kernel makes them, the first time and later."""
    layer = nn.LSTM(4, 3)

    def step(x: Tensor) -> Tensor:
        loss = layer(x)[0].square().sum()
        loss.backward()
        return loss

    FakeMode.cache_clear()
    first, second = (capture(step, [layer], [], (torch.ones(5, 2, 4),)).graph for _ in range(2))
    assert first == second
    assert [op.operator for op in first.ops if op.operator == "aten.copy_.default"] == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_bags_of_embeddings_keep_of_their_indices_what_kernels_keep(dtype: torch.dtype) -> None:
    """In each precision, with weights for each and without, with gradients and without."""
    bag, found = nn.EmbeddingBag(50, 8, mode="sum", dtype=dtype), torch.tensor([[1, 2, 4], [5, 1, 0]])
    weights = torch.ones(2, 3, dtype=dtype)
    with _Compared() as compared:
        for weighed in (None, weights):
            bag(found, per_sample_weights=weighed).sum().backward()
            with torch.no_grad():
                bag(found, per_sample_weights=weighed)
    assert compared.found == []


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_frozen_embeddings_keep_as_much_where_the_last_offset_is_an_end(mode: str) -> None:
    """As where it is a beginning: other operators run, and they count bags otherwise."""
    bag = nn.EmbeddingBag(50, 8, mode=mode, include_last_offset=True).requires_grad_(False)
    with _Compared() as compared:
        bag(torch.tensor([1, 2, 4, 5, 1]), torch.tensor([0, 2, 3, 5]))
    assert compared.found == []


def _has_gradient(loss: Tensor) -> bool:
    """Whether torch has a gradient for the types of a loss."""
    try:
        loss.sum().backward()
    except RuntimeError:
        return False
    return True


LOSSES = (
    F.mse_loss,
    F.smooth_l1_loss,
    F.huber_loss,
    F.soft_margin_loss,
    F.l1_loss,
    F.binary_cross_entropy_with_logits,
)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_losses_of_two_types_are_of_that_which_their_kernels_give(loss: Callable[..., Tensor], reduction: str) -> None:
    """Some are of the type of the predictions, others of that of both together, and so are their gradients."""
    for dtype, other in permutations((torch.bfloat16, torch.float16, torch.float32, torch.float64), 2):
        x, target = torch.rand(3, 4, dtype=dtype, requires_grad=True), torch.rand(3, 4, dtype=other)
        has_gradient = _has_gradient(loss(x, target, reduction=reduction))
        with _Compared() as compared:
            found = loss(x, target, reduction=reduction).sum()
            if has_gradient:
                found.backward()
        assert compared.found == [], (dtype, other)


def test_a_part_put_into_repeated_numbers_is_laid_out_as_kernels_do() -> None:
    """What repeats numbers, as the gradient of a sum does, is written out; what has all of them stays as it is."""
    repeated = (torch.ones(()).expand(4, 6, 6), torch.ones(6, 1).expand(4, 6, 6), torch.ones(4, 6, 6).transpose(1, 2))
    with _Compared() as compared:
        for whole in repeated:
            torch.slice_scatter(whole, torch.zeros(4, 6, 2), 2, 0, 2)
            torch.select_scatter(whole, torch.zeros(4, 6), 2, 0)
            torch.diagonal_scatter(whole, torch.zeros(4, 6), 0, 1, 2)
    assert compared.found == []


def test_permuted_operands_are_laid_out_as_kernels_do() -> None:
    """Losses, sums of exponentials, powers, quotients and unpooling, forward and backward, of permuted operands."""
    torch.manual_seed(0)
    rows = torch.randn(6, 4).t().requires_grad_()
    goal = torch.randn(6, 4).t()
    image = _channels_last(torch.float32).requires_grad_()
    with _Compared() as compared:
        for loss in (F.smooth_l1_loss, F.huber_loss, F.mse_loss, F.l1_loss):
            loss(rows, goal).backward()
        F.logsigmoid(rows).sum().backward()
        (F.log_softmax(rows, 1) * goal).sum().backward()
        (2**rows).sum().backward()
        torch.div(rows, 2.0, rounding_mode="floor").sum().backward()
        torch.copysign(rows, torch.tensor(-1.0)).sum().backward()
        torch.normal(goal, goal.abs())
        torch.normal(0.0, goal.abs())
        torch.normal(goal, 1.0)
        pooled, places = F.max_pool2d(image, 2, return_indices=True)
        F.max_unpool2d(pooled, places, (2, 2)).square().sum().backward()
        F.pad(image, (1, 1, 1, 1), mode="replicate").square().sum().backward()
        F.pad(image, (1, 1, 1, 1), mode="reflect").square().sum().backward()
        volume = torch.randn(2, 4, 4, 4, 4).contiguous(memory_format=torch.channels_last_3d).requires_grad_()
        F.pad(volume, (1,) * 6, mode="replicate").square().sum().backward()
        F.pad(volume, (1,) * 6, mode="reflect").square().sum().backward()
        (F.group_norm(torch.randn(8, 16, 4, 4).requires_grad_(), 4) * image.detach()).sum().backward()
    assert compared.found == []


def test_kernels_of_a_gpu_lay_out_otherwise() -> None:
    """Few channels are upsampled in their format; padding drops it; normalisation keeps what torch says in training."""
    aten = torch.ops.aten
    image = torch.empty(2, 3, 4, 4, device="meta").to(memory_format=torch.channels_last)
    wide = torch.empty(2, 3, 8, 8, device="meta")
    upsampled = as_kernels_lay_out(aten.upsample_bilinear2d.default, (image, [8, 8], False), wide)
    assert isinstance(upsampled, Tensor)
    assert upsampled.is_contiguous(memory_format=torch.channels_last)
    assert as_kernels_lay_out(aten.reflection_pad2d.default, (image, [2, 2, 2, 2]), wide) is wide

    rows = torch.empty(6, 5, 4, device="meta").transpose(1, 2)
    normalised = (rows, torch.empty(4, device="meta"))
    assert as_kernels_lay_out(aten.native_batch_norm.default, (), normalised) is normalised
    for training in (True, False):
        for given, has_format in (rows, False), (image, training):
            found = as_kernels_lay_out(
                aten.native_batch_norm_backward.default, (None,) * 7 + (training,), (given, normalised[1])
            )
            assert isinstance(found, tuple)
            assert found[0].is_contiguous(memory_format=torch.channels_last if has_format else torch.contiguous_format)
