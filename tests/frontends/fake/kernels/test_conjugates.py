"""A conjugate is computed where torch only marks it; what would see the mark is refused."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from outgrow.errors import Uncapturable
from outgrow.frontends.tracing.capture import capture


def captured(step: Callable[[Tensor, Tensor], object], shape: tuple[int, ...] = (4, 4)) -> list[str]:
    x = torch.zeros(shape, dtype=torch.complex64)
    return [op.operator for op in capture(step, [], [], (x, x.clone())).graph.ops]


def test_a_conjugate_is_an_op_of_its_own() -> None:
    """Element by element, through views, and in batches of products on the CPU."""
    assert captured(lambda x, y: x.conj() * y) == ["aten._conj_physical.default", "aten.mul.Tensor"]
    assert captured(lambda x, y: x.conj().T * y) == ["aten._conj_physical.default", "aten.mul.Tensor"]
    batched = captured(lambda x, y: torch.bmm(x, y.mH), (2, 4, 4))
    assert batched == ["aten._conj_physical.default", "aten.bmm.default"]


def test_a_product_takes_what_the_mark_was_made_of() -> None:
    """Libraries add up in another order then; a conjugate of a conjugate has no mark."""
    products = {
        "mm": lambda x, y: x @ y.mH,
        "addmm": lambda x, y: torch.addmm(x, x.conj().T, y.conj()[:, :4]),
        "mv": lambda x, y: x.conj() @ y[0],
        "dot": lambda x, y: x[0] @ y.conj()[0],
    }
    for name, step in products.items():
        assert captured(step)[-1] == f"outgrow.{name}.default"
    assert captured(lambda x, y: x @ y.conj().T.conj())[-1] == "aten.mm.default"


def test_a_factorisation_that_takes_the_mark_is_refused() -> None:
    """What it gives lies by the mark."""
    with pytest.raises(Uncapturable, match="gives a conjugate of shape"):
        captured(lambda x, y: torch.linalg.solve_triangular(x.conj(), y, upper=True))


def test_a_write_through_a_conjugate_is_refused() -> None:
    """It would write into what it was made from."""

    def step(x: Tensor, y: Tensor) -> Tensor:
        x = x * 2
        x.conj().add_(y)
        return x

    with pytest.raises(Uncapturable, match="gives a conjugate"):
        captured(step)


def test_a_conjugate_may_be_copied() -> None:
    """As into the other half of a spectrum; what is copied into may be no conjugate."""

    def step(x: Tensor, y: Tensor) -> Tensor:
        whole = torch.zeros(4, 8, dtype=x.dtype)
        whole[:, :4] = x
        whole[:, 4:] = y.conj().flip(1)
        return whole

    def through(x: Tensor, y: Tensor) -> Tensor:
        x = x * 2
        x.conj().copy_(y.conj())
        return x

    assert captured(step)[-1] == "aten.copy_.default"
    with pytest.raises(Uncapturable, match="gives a conjugate"):
        captured(through)


def test_a_conjugate_is_not_read_after_a_write_to_its_tensor() -> None:
    """In eager mode it would see the write; one that is not read any more does not matter, as of a weight."""

    def step(x: Tensor, y: Tensor, *, again: bool) -> Tensor:
        x = x * 2
        conjugate = x.conj()
        y = conjugate * y
        x.mul_(2)
        return conjugate * y if again else x * y

    assert captured(partial(step, again=False))[-1] == "aten.mul.Tensor"
    with pytest.raises(Uncapturable, match="of a tensor that was written since"):
        captured(partial(step, again=True))
