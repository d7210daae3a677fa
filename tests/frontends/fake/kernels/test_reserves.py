"""What a library keeps for the backward pass is asked of its kernel, once for arguments of one form."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from outgrow.errors import Uncapturable
from outgrow.frontends.fake.fakes import FakeMode
from outgrow.frontends.fake.kernels import reserves
from outgrow.frontends.fake.kernels.reserves import with_reserve, with_seeds
from outgrow.frontends.tracing.capture import capture


def test_the_kernel_is_asked_once() -> None:
    """The fake result has the size that the kernel's has; layouts tell forms apart, contents do not."""
    seen: list[torch.Tensor] = []

    def kernel(x: torch.Tensor, *others: object) -> tuple[torch.Tensor, ...]:
        assert others == (None, (3, 4), True, 0.1)
        seen.append(x)
        return x, x, x, torch.empty(4096, dtype=torch.uint8)

    x = torch.ones(2, 3, 4, 4)
    fake = (x, x, x, torch.empty(0, dtype=torch.uint8))
    for tensor in (x, x + 1, x.to(memory_format=torch.channels_last)):
        *_, kept = with_reserve(kernel, (tensor, None, [3, 4], True, 0.1), fake)
        assert isinstance(kept, torch.Tensor)
        assert (kept.shape, kept.dtype) == ((4096,), torch.uint8)
    assert [tensor.stride() for tensor in seen] == [(48, 16, 4, 1), (48, 1, 12, 3)]


def test_numbers_of_attention_are_where_the_kernel_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed and offset of a GPU's kernel are in memory of the host; other results stay as they are."""
    monkeypatch.setattr(reserves, "_seeds_device", lambda _home: torch.device("cpu"))
    for home in ("cuda", "cpu"):
        with FakeTensorMode():
            wide, number = torch.empty(2, 3, device=home), torch.empty((), dtype=torch.int64, device=home)
            found = with_seeds(None, (), (wide, wide, number, number, 7))
        assert found[:2] == (wide, wide)
        numbers = [item for item in found[2:4] if isinstance(item, torch.Tensor)]
        assert [(item.device.type, item.dtype) for item in numbers] == [("cpu", torch.int64)] * 2
        assert found[4] == 7


def test_a_recurrent_layer_of_cudnn_is_refused_where_it_trains() -> None:
    """Nobody says how much it keeps for its backward pass; one that does not train keeps nothing."""

    def layer(*, trains: bool) -> tuple[torch.Tensor, ...]:
        with FakeMode():
            x, state = torch.empty(4, 5, 8, device="cuda"), torch.empty(1, 4, 16, device="cuda")
            weights = [torch.empty(64, wide, device="cuda") for wide in (8, 16)]
            sizes, flags = (2, 16, 0, 1), (True, 0.0, trains, False)
            return torch.ops.aten._cudnn_rnn.default(x, weights, 2, None, state, state, *sizes, *flags, [], None)

    assert layer(trains=False)[0].shape == (4, 5, 16)
    with pytest.raises(Uncapturable, match=r"cudnn\.enabled = False"):
        layer(trains=True)


@pytest.mark.cuda
def test_a_recurrent_layer_of_a_gpu_says_what_to_do() -> None:
    """It looks at the memory of its weights, and is refused there; without cuDNN it is captured."""
    with torch.backends.cudnn.flags(enabled=False):
        model = torch.nn.GRU(8, 16, batch_first=True).cuda()
    x = torch.ones(4, 5, 8, device="cuda")

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x)[0].square().mean()
        loss.backward()
        return loss

    with pytest.raises(Uncapturable, match=r"cudnn\.enabled = False"):
        capture(step, [model], [], (x,))
    with torch.backends.cudnn.flags(enabled=False):
        assert capture(step, [model], [], (x,)).graph.ops
