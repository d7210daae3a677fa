"""Where torch takes another way while it is traced, a captured step has the bits of eager, or is refused."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from outgrow.errors import Uncapturable
from outgrow.frontends.fake.eager.twice import IS_OLD
from outgrow.frontends.tracing.capture import capture
from outgrow.frontends.user.training.state import Training
from tests.frontends.bits import same_bits
from tests.frontends.replay import replay

Way = Callable[[Tensor], Tensor]
EXTREME: tuple[Way, ...] = (
    lambda x: x.max(),
    lambda x: torch.min(input=x),
    lambda x: x.median() * -3,
    lambda x: torch.nanmedian(x.bfloat16()),
    lambda x: x.max() * math.inf,
    lambda x: (x - x.detach()).max(),
    lambda x: torch.where(x > 1, math.nan, x).min(),
    lambda x: torch.max(x, 2 * x).sum() + x.max(1).values.sum() + x.median(0)[0].sum(),
)


def left(way: Way, x: Tensor, *, times: int, captured: bool) -> list[Tensor]:
    """The result, and the gradient of the weight: of the result, or of the squares of the gradients of that."""
    weight = nn.ParameterList([x.clone()])

    def step() -> Tensor:
        result = way(weight[0] * 1.0)
        if times == 1:
            result.sum().backward()
        else:
            (gradient,) = torch.autograd.grad(result.sum(), [weight[0]], create_graph=True)
            gradient.square().sum().backward()
        return result.detach()

    if captured:
        found: Any = replay(capture(step, (weight,), ()), Training((weight,), ()), (), {})
    else:
        found = step()
    gradient = weight[0].grad
    assert gradient is not None
    return [found, gradient]


def check(way: Way, x: Tensor, times: int = 1) -> None:
    """Compare to the last bit, the signs of zeros included."""
    expected, found = (left(way, x, times=times, captured=captured) for captured in (False, True))
    assert all(same_bits(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("way", range(len(EXTREME)))
def test_one_of_all_elements(way: int) -> None:
    """The largest, the least, the median: also where an infinite gradient arrives, of ties, and of NaN."""
    check(EXTREME[way], torch.randn(5, 7))


def test_its_gradient_is_differentiated_again() -> None:
    """It goes where the element is."""
    check(lambda x: x.square().max() + x.square().min(), torch.randn(5, 7), times=2)


@pytest.mark.parametrize("ignored", [0.0, 0.3])
@pytest.mark.parametrize("shape", [(200, 11), (4, 11, 9, 5), (11,)])
def test_smoothed_cross_entropies_of_weighted_classes(shape: tuple[int, ...], ignored: float) -> None:
    """Of many pictures and of one, some of whose pixels do not count; under autocast, too."""
    weight = torch.rand(11) + 0.1
    target = torch.randint(0, 11, shape[:1] + shape[2:] if len(shape) > 1 else ())
    target = torch.where(torch.rand(target.shape) < ignored, 255, target)

    def loss(x: Tensor) -> Tensor:
        return functional.cross_entropy(x, target, weight, ignore_index=255, label_smoothing=0.1)

    def loss_of_halves(x: Tensor) -> Tensor:
        with torch.autocast("cpu"):
            return loss(x.bfloat16())

    for way in (loss, loss_of_halves):
        check(way, torch.randn(shape))


LOSSES: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    functional.cross_entropy,
    lambda x, y: functional.cross_entropy(x, y, torch.linspace(1, 2, 11), ignore_index=255, reduction="sum"),
    lambda x, y: functional.cross_entropy(x, y.clamp(max=10), label_smoothing=0.1),
    lambda x, y: functional.nll_loss(x.log_softmax(-1), y, ignore_index=255),
    lambda x, y: nn.NLLLoss(reduction="none", ignore_index=255)(x.log_softmax(-1), y).square().sum(),
)


@pytest.mark.parametrize("way", range(len(LOSSES)))
@pytest.mark.parametrize("shape", [(200, 11), (11,)])
def test_labels_may_be_bytes(shape: tuple[int, ...], way: int) -> None:
    """As pictures of digits have them; some do not count."""
    target = torch.randint(0, 11, shape[:-1], dtype=torch.uint8)
    if way in (1, 3, 4) and target.dim():
        target[::3] = 255
    check(lambda x: LOSSES[way](x, target), torch.randn(shape))


@pytest.mark.skipif(IS_OLD, reason="torch 2.13 and newer")
@pytest.mark.parametrize("zeros", [0, 1, 2])
@pytest.mark.parametrize("way", [lambda x: x.prod(), lambda x: x.prod(-1)])
def test_a_product_is_differentiated_twice(way: Way, zeros: int) -> None:
    """Nothing is divided by zero on the way that is not taken."""
    x = torch.rand(3, 4) + 0.5
    x.view(-1)[:zeros] = 0
    check(way, x, times=2)


def test_a_product_of_nothing() -> None:
    """Nothing has a gradient."""
    check(lambda x: x[:0].prod() + x.sum(), torch.randn(2, 2))


ONCE: tuple[Way, ...] = (
    lambda x: x.cumprod(0),
    lambda x: torch.cumprod(x, -1),
    lambda x: torch.det(2 * x),
    lambda x: torch.linalg.det(x) + x.det(),
)


@pytest.mark.skipif(not IS_OLD, reason="older than torch 2.13")
@pytest.mark.parametrize(("way", "times"), [(lambda x: x.cumprod(0), 1), (lambda x: x.prod(), 2)])
def test_an_older_torch_traces_other_bits(way: Way, times: int) -> None:
    """It is refused, in the user's line."""
    with pytest.raises(Uncapturable, match=r"test_eager_ways.py:\d+: .*the gradient of torch\.(cum)?prod"):
        left(way, torch.rand(4, 4) + 0.5, times=times, captured=True)


@pytest.mark.skipif(IS_OLD, reason="torch 2.13 or newer")
def test_a_cumulative_product_of_complex_numbers_traces_other_bits() -> None:
    """It is refused, in the user's line, and told what to do."""
    x = torch.randn(5, 5, 2)
    with pytest.raises(Uncapturable, match=r"test_eager_ways.py:\d+: .*torch.cumprod of complex64 .* to complex128"):
        left(lambda x: torch.view_as_complex(x).cumprod(0).abs(), x, times=1, captured=True)
    check(lambda x: torch.view_as_complex(x.double()).cumprod(0).abs(), x)


@pytest.mark.parametrize("way", ONCE[2:] if IS_OLD else ONCE)
def test_a_gradient_that_may_not_be_differentiated_again(way: Way) -> None:
    """It is refused, in the user's line; once it has the bits of eager."""
    x = torch.rand(4, 4) + 0.5
    check(way, x)
    with pytest.raises(Uncapturable, match=r"test_eager_ways.py:\d+: .*is itself differentiated"):
        left(way, x, times=2, captured=True)


VALUED: tuple[Way, ...] = (
    torch.linalg.svdvals,
    lambda x: torch.linalg.eigvalsh(x @ x.mT, UPLO="U"),
    torch.linalg.cond,
    lambda x: torch.linalg.norm(x, 2),
    lambda x: torch.linalg.matrix_norm(x, ord="nuc"),
    lambda x: torch.norm(x, "nuc") + x.norm("nuc"),
    lambda x: torch.linalg.matrix_rank(x) * x.sum(),
    lambda x: torch.linalg.svd(x).S + torch.linalg.eigh(x @ x.mT).eigenvalues,
)


@pytest.mark.parametrize("number", range(len(VALUED)))
def test_values_of_matrices(number: int) -> None:
    """With a gradient, and without one, where no vectors are computed."""
    way, x = VALUED[number], torch.randn(16, 16)

    def without(x: Tensor) -> Tensor:
        return way(x.detach()) + 0 * x.sum()

    check(without, x)
    check(way, x)


WITHIN: tuple[Way, ...] = (
    lambda x: torch.bilinear(x, x, torch.ones(2, 4, 4)),
    lambda x: functional.bilinear(input1=x, input2=x, weight=torch.ones(2, 4, 4)),
    torch.linalg.pinv,
    lambda x: x.pinverse(),
)


@pytest.mark.parametrize("way", WITHIN)
def test_autocast_within_a_kernel(way: Way) -> None:
    """It is refused, in the user's line; without autocast nothing is cast."""
    x = torch.rand(4, 4) + torch.eye(4)

    def cast(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return way(x).float()

    def uncast(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16), torch.autocast("cpu", enabled=False):
            return way(x)

    with pytest.raises(Uncapturable, match=r"test_eager_ways.py:\d+: .*under autocast torch\.\S+ casts also"):
        left(cast, x, times=1, captured=True)
    check(uncast, x)


def test_a_least_squares_solution_under_autocast() -> None:
    """It is refused as well."""

    def cast(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return torch.linalg.lstsq(x, x[:, :2], driver="gelsd").solution

    with pytest.raises(Uncapturable, match=r"under autocast torch\.linalg\.lstsq casts also"):
        left(cast, torch.eye(4), times=1, captured=True)


LARGEST, PRODUCT, DETERMINANT, LOSS = torch.max, Tensor.prod, torch.linalg.det, torch._C._nn.cross_entropy_loss  # pyright: ignore[reportAttributeAccessIssue]
HELD: tuple[Way, ...] = (
    lambda x: LARGEST(x) * math.inf,
    lambda x: PRODUCT(x, 1),
    lambda x: LOSS(x, torch.tensor([1, 2, 3, 1, 0]), torch.arange(1.0, 8.0), 1, 3, 0.1),
    fx.symbolic_trace(lambda x: torch.max(x) * math.inf + x.min() * math.inf + torch.prod(x, 1).sum()),
)


@pytest.mark.parametrize("number", range(len(HELD)))
def test_functions_that_were_looked_up_before(number: int) -> None:
    """By an import, by a module when it was made, or by whoever traced the model."""
    check(HELD[number], torch.randn(5, 7).round(decimals=1))


def test_a_refused_function_that_was_looked_up_before() -> None:
    """It is refused like any other."""
    with pytest.raises(Uncapturable, match="is itself differentiated"):
        left(DETERMINANT, torch.eye(4), times=2, captured=True)


@torch.library.custom_op("outgrow_tests::undescribed", mutates_args=())
def undescribed(x: Tensor) -> Tensor:
    """An operator that says nothing of its result."""
    return 2 * x


with warnings.catch_warnings():  # they are in beta state
    warnings.simplefilter("ignore")
    SPARSE = torch.eye(4).to_sparse_csr()
REFUSED: tuple[tuple[Way, str], ...] = (
    (lambda x: x + undescribed(x.detach()), "register_fake"),
    (lambda x: x.tensor_split(torch.tensor([1, 3]))[1], "needs the content of a tensor"),
    (lambda x: SPARSE @ x, "dense tensors only"),
)


def test_zeros_without_memory() -> None:
    """The derivative of sgn() and a second one of abs() have them; written otherwise not, and the same bits."""
    x = torch.randn(4, 4)
    with pytest.raises(Uncapturable, match=r"test_eager_ways.py:\d+: .*x.detach\(\).sign\(\)"):
        left(lambda x: (x * x).abs(), x, times=2, captured=True)
    check(lambda x: (x * x) * (x * x).detach().sign(), x, times=2)
    check(lambda x: x.abs(), x)
    with pytest.raises(Uncapturable, match=r"Write x.sgn\(\) as x.sign\(\)"):
        left(lambda x: x.sgn(), x, times=1, captured=True)
    check(lambda x: x.sign(), x)


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_no_fake_tensor_goes_through(number: int) -> None:
    """It is refused with what to do, not with an error of torch."""
    way, said = REFUSED[number]
    with pytest.raises(Uncapturable, match=said):
        left(way, torch.randn(4, 4), times=1, captured=True)
