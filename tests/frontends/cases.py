"""Which calls of ATen's operators does the catalogue have to get right? One list for each family, all small and odd."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torch._ops import OpOverload

import outgrow.frontends.workers.batch_norms  # noqa: F401  # its operators are cases
from outgrow.frontends.tracing.names import completed, resolve_operator, symbol_name
from outgrow.ir.graph import Symbol
from outgrow.operators.tdl import Argument, Operand, OperatorCall

Given: TypeAlias = "Tensor | int | float | bool | torch.dtype | tuple[Given, ...] | None"


@dataclass(frozen=True)
class Case:
    """A call and the tensors that it is made on; it has a way to be cut along each of these variables."""

    call: OperatorCall
    operands: tuple[Tensor, ...]
    cuts: tuple[str, ...]

    @property
    def name(self) -> str:
        """The operator and its shapes."""
        shapes = " ".join("x".join(map(str, operand.shape)) for operand in self.operands)
        return f"{self.call.operator.removeprefix('aten.')} {shapes}"


def case(operator: str, *arguments: Given, cuts: str) -> Case:
    """Return the case of an operator on arguments, whose results have the shapes that it gives."""
    operands: list[Tensor] = []
    name = operator if operator.startswith("outgrow.") else f"aten.{operator}"
    function = resolve_operator(name)
    assert isinstance(function, OpOverload)
    given, _ = completed(function, arguments, {})
    described = _described(given, operands)
    found = function(*_listed(arguments))
    results: Sequence[object] = found if isinstance(found, tuple | list) else (found,)
    shapes = tuple(tuple(item.shape) if isinstance(item, Tensor) else None for item in results)
    return Case(OperatorCall(name, described, shapes), tuple(operands), tuple(cuts.split()))


def _described(arguments: Sequence[object], operands: list[Tensor]) -> tuple[Argument, ...]:
    found: list[Argument] = []
    for item in arguments:
        if isinstance(item, Tensor):
            found.append(Operand(len(operands), tuple(item.shape)))
            operands.append(item)
        elif isinstance(item, tuple | list):
            found.append(_described(item, operands))
        elif isinstance(item, torch.dtype):
            found.append(Symbol(symbol_name(item)))
        else:
            assert item is None or isinstance(item, int | float)
            found.append(item)
    return tuple(found)


def _listed(arguments: tuple[Given, ...]) -> list[object]:
    return [_listed(item) if isinstance(item, tuple) else item for item in arguments]


def drawn(*shape: int) -> Tensor:
    """Random numbers in double precision."""
    return torch.randn(shape, dtype=torch.float64)


def elementwise() -> Iterator[Case]:
    """Equal shapes, broadcasting in both directions, and numbers."""
    x = drawn(3, 5, 7)
    yield case("add.Tensor", x, drawn(3, 5, 7), cuts="i0 i1 i2")
    yield case("mul.Tensor", x, drawn(7), cuts="i0 i1 i2")
    yield case("sub.Tensor", drawn(5, 1), x, cuts="i0 i1 i2")
    yield case("where.self", x > 0, x, drawn(3, 1, 7), cuts="i0 i1 i2")
    yield case("addcmul.default", x, x, drawn(1, 5, 1), cuts="i0 i1 i2")
    yield case("gelu.default", x, cuts="i0 i1 i2")
    yield case("leaky_relu_backward.default", x, x, 0.1, False, cuts="i0 i1 i2")
    yield case("add.Scalar", x, 2.0, cuts="i0 i1 i2")


def products() -> Iterator[Case]:
    """Matrices, alone, in batches, and with something added."""
    x, y = drawn(5, 7), drawn(7, 6)
    yield case("mm.default", x, y, cuts="i k j")
    yield case("bmm.default", drawn(4, 5, 7), drawn(4, 7, 6), cuts="n i k j")
    yield case("addmm.default", drawn(6), x, y, cuts="i k j")
    yield case("addmm.default", drawn(5, 6), x, y, cuts="i k j")
    yield case("baddbmm.default", drawn(4, 1, 6), drawn(4, 5, 7), drawn(4, 7, 6), cuts="n i k j")


def convolutions() -> Iterator[Case]:
    """One to three dimensions; strides, padding, dilation, groups; gradients together and one by one."""
    nothing = (False, (0, 0), 1)
    x, w, bias = drawn(4, 6, 9, 11), drawn(8, 6, 3, 3), drawn(8)
    yield case("convolution.default", x, w, bias, (1, 1), (1, 1), (1, 1), *nothing, cuts="b co ci i0 i1")
    yield case("convolution.default", x, w, None, (2, 3), (1, 2), (2, 1), *nothing, cuts="b co ci i0 i1")
    yield case("convolution.default", x, w, None, (1, 1), (0, 0), (1, 1), *nothing, cuts="b co ci i0 i1")
    grouped = drawn(8, 3, 3, 3)
    yield case("convolution.default", x, grouped, bias, (1, 1), (1, 1), (1, 1), False, (0, 0), 2, cuts="b co i0 i1")
    depthwise = drawn(6, 1, 3, 3)
    yield case("convolution.default", x, depthwise, None, (1, 1), (1, 1), (1, 1), False, (0, 0), 6, cuts="b co i0 i1")
    yield case("convolution.default", drawn(2, 4, 9), drawn(6, 4, 3), None, (2,), (1,), (1,), False, (0,), 1, cuts="i0")
    spread = ((2, 2), (1, 1), (1, 1), True, (1, 1), 1)
    y, kernels = drawn(4, 8, 18, 22), drawn(6, 8, 3, 3)
    yield case("convolution.default", x, kernels, bias, *spread, cuts="b co ci")
    yield case("convolution_backward.default", y, x, kernels, (8,), *spread, (True, True, True), cuts="b ci co")
    space = (1, 1, 1)
    volume, kernel = drawn(2, 3, 5, 6, 7), drawn(4, 3, 3, 3, 3)
    solid = (space, space, space, False, (0, 0, 0), 1)
    yield case("convolution.default", volume, kernel, None, *solid, cuts="b co ci i0 i1 i2")
    yield case(
        "convolution_backward.default", drawn(2, 4, 5, 6, 7), volume, kernel, (4,), *solid, (True, True, True), cuts="b"
    )
    for stride, mask, cuts in (
        (1, (True, True, True), "b"),
        (2, (True, False, False), "b ci co"),
        (2, (False, True, True), "b co i0 i1"),
        (3, (False, True, False), "b co ci i0 i1"),
    ):
        shape = [(size + 2 - 3) // stride + 1 for size in (9, 11)]
        step = ((stride, stride), (1, 1), (1, 1))
        yield case("convolution_backward.default", drawn(4, 8, *shape), x, w, (8,), *step, *nothing, mask, cuts=cuts)
    y, paired = drawn(4, 8, 9, 11), drawn(8, 2, 3, 3)
    given = (y, drawn(4, 8, 9, 11), paired, (8,), (1, 1), (1, 1), (1, 1), False, (0, 0), 4)
    yield case("convolution_backward.default", *given, (True, False, False), cuts="b c")
    yield case("convolution_backward.default", *given, (False, True, True), cuts="b co i0 i1")


def reductions() -> Iterator[Case]:
    """Over some dimensions and over all, kept and not."""
    x = drawn(3, 5, 7)
    yield case("sum.dim_IntList", x, (0, 2), cuts="i0 i1 i2")
    yield case("sum.dim_IntList", x, (-1,), True, cuts="i0 i1 i2")
    yield case("sum.default", x, cuts="i0 i1 i2")
    yield case("mean.dim", x, (1,), True, cuts="i0 i1 i2")
    yield case("mean.default", x, cuts="i0 i1 i2")
    yield case("amax.default", x, (1,), cuts="i0 i1 i2")
    yield case("amin.default", x, (2,), True, cuts="i0 i1 i2")


def normalisations() -> Iterator[Case]:
    """Each with its gradients, and softmax along different dimensions."""
    x, y = drawn(4, 5, 6), drawn(4, 5, 6)
    weight, bias = drawn(6), drawn(6)
    yield case("_softmax.default", x, -1, False, cuts="i0 i1")
    yield case("_log_softmax.default", x, 1, False, cuts="i0 i2")
    yield case("_softmax_backward_data.default", y, x.softmax(0), 0, torch.float64, cuts="i1 i2")
    _, mean, spread = torch.ops.aten.native_layer_norm(x, [6], weight, bias, 1e-5)
    yield case("native_layer_norm.default", x, (6,), weight, bias, 1e-5, cuts="i0 i1")
    yield case("native_layer_norm.default", x, (5, 6), None, None, 1e-5, cuts="i0")
    mask = (True, True, True)
    given = (y, x, (6,), mean, spread, weight, bias, mask)
    yield case("native_layer_norm_backward.default", *given, cuts="i0 i1")
    image, arriving, scale, shift = drawn(4, 6, 3, 5), drawn(4, 6, 3, 5), drawn(6), drawn(6)
    yield case("native_group_norm.default", image, scale, shift, 4, 6, 15, 2, 1e-5, cuts="b")
    _, mean, spread = torch.ops.aten.native_group_norm(image, scale, shift, 4, 6, 15, 2, 1e-5)
    backward = "native_group_norm_backward.default"
    yield case(backward, arriving, image, mean, spread, scale, 4, 6, 15, 2, mask, cuts="b")
    yield case("native_batch_norm.default", image, scale, shift, None, None, True, 0.1, 1e-5, cuts="c")
    _, mean, spread = torch.ops.aten.native_batch_norm(image, scale, shift, None, None, True, 0.1, 1e-5)
    given = (arriving, image, scale, None, None, mean, spread, True, 1e-5, mask)
    yield case("native_batch_norm_backward.default", *given, cuts="c")
    yield case("outgrow.centred_squares.default", image, mean, 60, cuts="c i0 i2 i3")
    yield case("outgrow.batch_normalised.default", image, scale, shift, mean, spread, 1e-5, cuts="c i0 i2 i3")
    yield case("outgrow.batch_normalised.default", image, None, None, mean, spread, 1e-5, cuts="c i0 i2 i3")
    yield case("outgrow.batch_norm_sums.default", *given[:2], mean, spread, cuts="c i0 i2 i3")
    sums = (scale, shift, 60)
    yield case("outgrow.batch_norm_gradient.default", *given[:2], scale, mean, spread, *sums, cuts="c i0 i2 i3")


def shapes() -> Iterator[Case]:
    """Dimensions joined, divided, exchanged, made, and put behind each other."""
    x = drawn(4, 6, 10)
    yield case("view.default", x, (24, 10), cuts="i0 i1")
    yield case("view.default", x, (4, 6, 2, 5), cuts="i0 i1 i2")
    yield case("view.default", x, (4, 60), cuts="i0 i1")
    yield case("view.default", x, (2, 2, 3, 2, 10), cuts="i0 i2 i4")
    yield case("view.default", drawn(4, 1, 6), (4, 6, 1), cuts="i0 i1")
    yield case("_unsafe_view.default", x, (8, 3, 10), cuts="i2")
    yield case("permute.default", x, (2, 0, -2), cuts="i0 i1 i2")
    yield case("transpose.int", x, 0, -1, cuts="i0 i1 i2")
    yield case("t.default", drawn(4, 6), cuts="i0 i1")
    yield case("expand.default", drawn(4, 1, 6), (3, 4, 5, 6), cuts="i0 i1 i2 i3")
    yield case("unsqueeze.default", x, 1, cuts="i0 i2 i3")


def joining() -> Iterator[Case]:
    """Parts behind and beside each other, taken apart and put together, and gradients of parts."""
    x = drawn(4, 6, 10)
    yield case("cat.default", (x, drawn(4, 2, 10), x), 1, cuts="i0 i2")
    yield case("cat.default", (drawn(0), x), 1, cuts="")
    yield case("stack.default", (x, x), -1, cuts="i0 i1 i2")
    yield case("split.Tensor", x, 4, 1, cuts="i0 i2")
    yield case("split_with_sizes.default", x, (1, 9), 2, cuts="i0 i1")
    yield case("unbind.int", x, 1, cuts="i0 i2")
    yield case("select.int", x, 1, 2, cuts="i0 i2")
    yield case("slice.Tensor", x, 2, 1, 9223372036854775807, 2, cuts="i0 i1 i2")
    yield case("slice.Tensor", x, 1, -4, 5, cuts="i0 i1 i2")
    yield case("slice_backward.default", drawn(4, 3, 10), (4, 6, 10), 1, 2, 5, 1, cuts="i0 i2")
    yield case("select_backward.default", drawn(4, 10), (4, 6, 10), 1, 2, cuts="i0 i2")


def making() -> Iterator[Case]:
    """One number everywhere."""
    yield case("full.default", (4, 6), 2.0, cuts="i0 i1")
    yield case("new_zeros.default", drawn(3), (4, 6), cuts="i0 i1")


def lookups() -> Iterator[Case]:
    """Rows of a table, and what arrives for them."""
    numbers = torch.randint(0, 9, (4, 5))
    yield case("embedding.default", drawn(9, 6), numbers, cuts="i0 i1 c")
    yield case("embedding_dense_backward.default", drawn(4, 5, 6), numbers, 9, -1, False, cuts="i0 i1 c")
    yield case("embedding_dense_backward.default", drawn(4, 5, 6), numbers, 9, -1, True, cuts="c")


def pools() -> Iterator[Case]:
    """The largest and the mean of a window, and their gradients."""
    x = drawn(3, 4, 8, 8)
    yield case("max_pool2d_with_indices.default", x, (2, 2), (2, 2), cuts="b c")
    y, numbers = torch.ops.aten.max_pool2d_with_indices(x, [2, 2], [2, 2])
    windows = ((2, 2), (2, 2), (0, 0), (1, 1), False)
    yield case("max_pool2d_with_indices_backward.default", y, x, *windows, numbers, cuts="b c")
    yield case("avg_pool2d.default", x, (3, 3), (2, 2), (1, 1), cuts="b c")
    yield case("_adaptive_avg_pool2d.default", x, (2, 2), cuts="b c")
    yield case("avg_pool3d.default", drawn(2, 3, 6, 6, 6), (2, 2, 2), cuts="b c")


def attention() -> Iterator[Case]:
    """Several heads, one mask for all, and the gradients."""
    q, k, v = drawn(2, 3, 5, 4), drawn(2, 3, 7, 4), drawn(2, 3, 7, 4)
    name = "_scaled_dot_product_flash_attention_for_cpu"
    yield case(f"{name}.default", q, k, v, 0.0, False, cuts="b h")
    out, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, False)
    yield case(f"{name}_backward.default", drawn(2, 3, 5, 4), q, k, v, out, sums, 0.0, False, cuts="b h")


def losses() -> Iterator[Case]:
    """The mean and the sum over examples and over places, some of which do not count; and what is left of each."""
    x, target = drawn(5, 7).log_softmax(1), torch.tensor([1, 6, -100, 0, 3])
    plane, classes = drawn(2, 7, 4, 3).log_softmax(1), torch.randint(0, 7, (2, 4, 3))
    total = torch.tensor(4.0, dtype=torch.float64)
    y, z = drawn(5, 7), drawn(5, 7)
    yield case("mse_loss_backward.default", y, z, z + 1, 0, cuts="i0 i1")
    yield case("mse_loss.default", y, z, cuts="i0 i1")
    yield case("smooth_l1_loss.default", y, z, 0, 0.5, cuts="i0 i1")
    yield case("huber_loss.default", y, z, 2, 0.5, cuts="i0 i1")
    yield case("binary_cross_entropy.default", y.sigmoid(), z.sigmoid(), drawn(7).abs(), 1, cuts="i0 i1")
    yield case("mse_loss_backward.default", drawn(), y, z, 1, cuts="i0 i1")
    yield case("smooth_l1_loss_backward.default", drawn(), y, z, 2, 1.0, cuts="i0 i1")
    yield case("nll_loss_forward.default", x[0], target[0], None, 1, -100, cuts="")
    for reduction in (0, 1, 2):
        yield case("nll_loss_forward.default", x, target, None, reduction, -100, cuts="i0")
    yield case("nll_loss_forward.default", x, target, drawn(7).abs(), 1, -100, cuts="i0")
    yield case("nll_loss_backward.default", drawn(), x, target, None, 1, -100, total, cuts="i0")
    yield case("nll_loss2d_forward.default", plane, classes, None, 1, -100, cuts="i0 i1 i2")
    yield case("nll_loss2d_backward.default", drawn(), plane, classes, None, 1, -100, total, cuts="i0 i1 i2")


FAMILIES = (
    joining,
    making,
    attention,
    losses,
    elementwise,
    products,
    convolutions,
    reductions,
    normalisations,
    shapes,
    lookups,
    pools,
)


def cases() -> Iterator[Case]:
    """Yield every case of every family."""
    torch.manual_seed(0)
    for family in FAMILIES:
        yield from family()
