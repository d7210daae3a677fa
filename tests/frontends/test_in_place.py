"""Every form that writes over an operand computes the bits of the operator that it stands for."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest
import torch
from torch import nn
from torch.optim import SGD

from outgrow.errors import ReplayMismatch
from outgrow.frontends.lowering.lower import function_of
from outgrow.frontends.tracing.names import resolve_operator
from outgrow.ir.graph import Op, Ref
from outgrow.ir.stand_ins import Form
from outgrow.operators.in_place import IDLE, IN_PLACE
from outgrow.operators.rows import JOINT
from outgrow.runtime import arena
from outgrow.runtime.medium import OnDisk
from outgrow.runtime.over_operands import placed
from outgrow.runtime.spill import Spill
from tests.frontends.steps import Job
from tests.frontends.within import Within, differences, eager, left_by

aten = torch.ops.aten
Arguments = tuple[object, ...]
_TENSORS = {"add", "sub", "mul", "div"}
_SCALARS: dict[str, Arguments] = {
    "hardtanh_backward": (-1.0, 1.0),
    "_log_softmax": (-1, False),
    "_softmax": (-1, False),
    "leaky_relu_backward": (0.01, False),
    "softplus_backward": (1.0, 20.0),
    "threshold_backward": (0.0,),
}


def _normalised(first: torch.Tensor, other: torch.Tensor) -> dict[str, Arguments]:
    """The arguments of the backward of normalisations, from a gradient and an input of 4 x 8 x 6 x 7."""
    weight, bias = torch.rand(8).to(first.dtype), torch.rand(8).to(first.dtype)
    row = torch.rand(7).to(first.dtype)
    _, mean, deviation = aten.native_batch_norm(other, weight, bias, None, None, True, 0.1, 1e-5)
    _, row_mean, row_deviation = aten.native_layer_norm(other, [7], row, row, 1e-5)
    _, group_mean, group_deviation = aten.native_group_norm(other.contiguous(), weight, bias, 4, 8, 42, 2, 1e-5)
    every = [True, True, True]
    return {
        "native_batch_norm_backward": (weight, None, None, mean, deviation, True, 1e-5, every),
        "native_layer_norm_backward": ([7], row_mean, row_deviation, row, row, every),
        "native_group_norm_backward": (group_mean, group_deviation, weight, 4, 8, 42, 2, every),
        "_softmax_backward_data": (-1, first.dtype),
        "_log_softmax_backward_data": (-1, first.dtype),
    }


def _of_cross_entropy(logits: torch.Tensor) -> Arguments:
    """The arguments of the backward of a cross entropy of 32 x 42 logits."""
    kept, target = aten._log_softmax(logits, 1, False), torch.randint(42, (32,))
    _, total = aten.nll_loss_forward(kept, target, None, 1, -100)
    return torch.ones((), dtype=logits.dtype), kept, target, None, 1, -100, total, 1, logits.dtype


def _arguments(operator: str, layout: torch.memory_format, dtype: torch.dtype) -> Arguments:
    torch.manual_seed(0)
    name = operator.split(".")[1]
    first, other = (torch.randn(4, 8, 6, 7).to(dtype, memory_format=layout) for _ in range(2))
    if operator == JOINT:
        return _of_cross_entropy(first.reshape(32, 42))
    normalised = _normalised(first, other)
    if name in normalised:
        return (first, other, *normalised[name])
    weight, bias, row = torch.rand(8).to(dtype), torch.rand(8).to(dtype), torch.rand(7).to(dtype)
    forward: dict[str, Arguments] = {
        "native_batch_norm": (weight, bias, None, None, True, 0.1, 1e-5),
        "native_layer_norm": ([7], row, row, 1e-5),
        "native_group_norm": (weight, bias, 4, 8, 42, 2, 1e-5),
    }
    if name in forward:
        return (first, *forward[name])
    others = (other,) if name in _TENSORS or name.endswith("_backward") else ()
    return (first, *others, *_SCALARS.get(name, ()))


@pytest.fixture(scope="module")
def _with_arena() -> Iterator[None]:
    assert arena.install()
    yield
    arena.keep_at_most(0)


_CASES = [(operator, form) for operator in sorted(IN_PLACE) for form in IN_PLACE[operator]]


@pytest.mark.usefixtures("_with_arena")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["contiguous", "channels last"])
@pytest.mark.parametrize(("operator", "form"), _CASES, ids=[form.operator for _, form in _CASES])
def test_the_form_gives_the_same_bits(
    operator: str, form: Form, layout: torch.memory_format, dtype: torch.dtype
) -> None:
    """Over 4 x 8 x 6 x 7 random numbers, the first result lies in the operand; all equal what the operator returns."""
    arguments = _arguments(operator, layout, dtype)
    expected = _all(resolve_operator(operator)(*_copies(arguments)))
    op = Op("form", form.operator, tuple(Ref(str(at)) for at in range(len(arguments))))
    if expected[0].stride() != _tensor(arguments[form.operand]).stride():
        pytest.skip("the operator lays its result out otherwise than its operand")
    found = _all(function_of(op)(*arguments))
    assert found[0].data_ptr() == _tensor(arguments[form.operand]).data_ptr()
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))
        assert one.stride() == other.stride()


_OTHERWISE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "channels of a larger one": lambda x: torch.cat([x, x, x], 1)[:, 8:16],
    "channels last": lambda x: x.to(memory_format=torch.channels_last),
    "every second": lambda x: torch.stack([x, x], -1)[..., 1],
    "spread": lambda x: x[:1, :, :, :1].expand(x.shape),
    "transposed": lambda x: x.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
}


@pytest.mark.usefixtures("_with_arena")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("otherwise", list(_OTHERWISE))
@pytest.mark.parametrize(
    ("operator", "form"),
    [(operator, form) for operator, form in _CASES if form.strided],
    ids=[form.operator for _, form in _CASES if form.strided],
)
def test_a_strided_form_gives_the_same_bits_beside_another_layout(
    operator: str, form: Form, otherwise: str, dtype: torch.dtype
) -> None:
    """The operand written over lies as the result does elsewhere; the other one lies otherwise."""
    given = list(_arguments(operator, torch.contiguous_format, dtype))
    given[1 - form.operand] = _OTHERWISE[otherwise](_tensor(given[1 - form.operand]))
    expected = _all(resolve_operator(operator)(*given))[0]
    operand = torch.empty_like(expected).copy_(_tensor(given[form.operand]))
    assert torch.equal(operand, _tensor(given[form.operand]))
    given[form.operand] = operand
    expected = _all(resolve_operator(operator)(*given))[0].clone()
    if expected.stride() != operand.stride():
        pytest.skip("the operator lays its result out otherwise than its operand")
    op = Op("form", form.operator, tuple(Ref(str(at)) for at in range(len(given))))
    found = _all(function_of(op)(*given))[0]
    assert found.data_ptr() == operand.data_ptr()
    assert found.stride() == expected.stride()
    assert torch.equal(found.contiguous().view(torch.uint8), expected.contiguous().view(torch.uint8))


def _spectra() -> Job:
    """Products and quotients of complex numbers that lie otherwise, or are repeated."""
    model = nn.Linear(16, 32)
    optimizer = SGD(model.parameters(), 0.05, momentum=0.9)

    def step(x: torch.Tensor) -> torch.Tensor:
        z = torch.view_as_complex(model(x).unflatten(-1, (16, 2)))
        spectrum = torch.fft.fft(z, dim=1)
        found = spectrum * z.conj() + z / (1 + spectrum.abs()) + torch.exp(z) * spectrum[0]
        loss = torch.view_as_real(found).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return Job(step, (model,), (optimizer,), lambda: (torch.randn(6, 33, 16),))


def _quotients() -> Job:
    """Quotients of which the last few fill no register."""
    model = nn.Linear(2, 69, bias=False)
    optimizer = SGD(model.parameters(), 0.05)

    def step(x: torch.Tensor) -> torch.Tensor:
        z = torch.view_as_complex(next(model.parameters()))
        found = torch.stack([(z + x) / x, (z - x) / x, (z + 2 * x) / x])
        loss = torch.view_as_real(found).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return found.detach()

    return Job(step, (model,), (optimizer,), lambda: (torch.randn(69, dtype=torch.complex64),))


@pytest.mark.parametrize("make", [_spectra, _quotients])
def test_complex_numbers_have_the_bits_of_eager(make: Callable[[], Job], disk_folder: Path) -> None:
    """Whatever is written over what, within two budgets."""
    expected = left_by(make, eager)
    spill = Spill(OnDisk(disk_folder))
    try:
        for share in (0.5, 0.0):
            assert differences(left_by(make, Within(share, spill)), expected) == []
    finally:
        spill.close()


@pytest.mark.usefixtures("_with_arena")
@pytest.mark.parametrize(("operator", "form"), _CASES, ids=[form.operator for _, form in _CASES])
def test_the_form_gives_the_same_bits_in_deterministic_mode(operator: str, form: Form) -> None:
    """Torch fills there what a kernel makes, and where a result is placed an operand lies."""
    torch.use_deterministic_algorithms(mode=True)
    try:
        test_the_form_gives_the_same_bits(operator, form, torch.contiguous_format, torch.float32)
    finally:
        torch.use_deterministic_algorithms(mode=False)


@pytest.mark.usefixtures("_with_arena")
def test_threads_do_not_let_each_other_fill_an_operand() -> None:
    """One is done with its kernel after another has begun: that one's result still lies over what it reads."""
    x, rest, others_begun, others_over = torch.randn(1 << 10, 1 << 10), ([1 << 10], None, None, 1e-5), Event(), Event()
    expected, own, others = aten.native_layer_norm.default(x, *rest)[0], x.clone(), x.clone()

    def slow(operand: torch.Tensor) -> object:
        others_begun.set()
        assert others_over.wait(60)
        return aten.native_layer_norm.default(operand, *rest)

    def quick(operand: torch.Tensor) -> object:
        run.submit(placed(slow, 0, 0), others).add_done_callback(results.append)
        assert others_begun.wait(60)
        return aten.native_layer_norm.default(operand, *rest)

    results = list[Future[object]]()
    torch.use_deterministic_algorithms(mode=True)
    try:
        with ThreadPoolExecutor(1) as run:
            found = placed(quick, 0, 0)(own)
            others_over.set()
        assert torch.equal(_all(found)[0], expected)
        assert torch.equal(_all(results[0].result())[0], expected)
        assert torch._C._get_deterministic_fill_uninitialized_memory()
    finally:
        torch.use_deterministic_algorithms(mode=False)


@pytest.mark.usefixtures("_with_arena")
@pytest.mark.parametrize("operator", sorted(IDLE))
def test_idle_tensors_take_no_memory(operator: str) -> None:
    """What the operator makes and never touches does not count: the arena rises by the result alone."""
    grad, x = torch.randn(4, 8, 256, 256), torch.randn(4, 8, 256, 256)
    arguments = (grad, x, *_normalised(torch.randn(4, 8, 6, 7), torch.randn(4, 8, 6, 7))["native_batch_norm_backward"])
    call = function_of(Op("idle", operator))
    arena.rise_bytes()
    found = _all(call(*arguments))
    assert arena.rise_bytes() == grad.nbytes
    assert torch.equal(found[0], _all(resolve_operator(operator)(*arguments))[0])


@pytest.mark.usefixtures("_with_arena")
@pytest.mark.parametrize("operator", ["aten.mul.Tensor", "aten.native_layer_norm.default"])
def test_a_result_keeps_the_memory_of_its_operand(operator: str) -> None:
    """A result that somebody holds stays as it is, though the operand is gone and others ask for memory."""
    first, other = torch.randn(2, 1 << 18), torch.randn(2, 1 << 18)
    row = torch.rand(1 << 18)
    is_product = operator == "aten.mul.Tensor"
    arguments: Arguments = (first, other) if is_product else (other, [1 << 18], row, row, 1e-5)
    expected = _all(resolve_operator(operator)(*arguments))[0]
    form = next(form for form in IN_PLACE[operator] if form.operator.startswith("over"))
    call = function_of(Op("form", form.operator, tuple(Ref(str(at)) for at in range(len(arguments)))))
    found = _all(call(*arguments))[0]
    del arguments, other
    others = [torch.zeros(2, 1 << 18) for _ in range(3)]
    assert torch.equal(found, expected)
    assert not any(torch.any(item) for item in others)


@pytest.mark.usefixtures("_with_arena")
def test_a_kernel_that_makes_its_result_elsewhere_is_found_out() -> None:
    """A result that was made before the arena was asked lies elsewhere, and nobody reads it."""
    made = torch.zeros(1 << 20)
    with pytest.raises(ReplayMismatch, match="made its result elsewhere"):
        placed(lambda _: made, 0, 0)(torch.ones(1 << 20))


@pytest.mark.usefixtures("_with_arena")
def test_a_gradient_that_was_not_asked_for_is_no_result() -> None:
    """Where the mask leaves the first gradient out there is nothing to place, with and without the arena."""
    arguments = _arguments("aten.native_batch_norm_backward.default", torch.contiguous_format, torch.float32)
    found = placed(aten.native_batch_norm_backward.default, 0, 1)(*arguments[:-1], [False, True, True])
    assert isinstance(found, tuple)
    assert found[0] is None


def test_without_the_arena_the_result_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Right, with more memory."""
    monkeypatch.setattr(arena, "is_installed", lambda: False)
    function: Callable[..., object] = aten.gelu.default
    first = torch.randn(8)
    expected = aten.gelu.default(first)
    found = placed(function, 0, 0)(first)
    assert found is first
    assert torch.equal(first, expected)
    kept = torch.randn(8)
    assert placed(function, None, 0)(kept) is not kept


def _tensor(argument: object) -> torch.Tensor:
    assert isinstance(argument, torch.Tensor)
    return argument


def _copies(arguments: Arguments) -> Arguments:
    return tuple(argument.clone() if isinstance(argument, torch.Tensor) else argument for argument in arguments)


def _all(returned: object) -> list[torch.Tensor]:
    return [_tensor(item) for item in (returned if isinstance(returned, tuple) else (returned,))]
