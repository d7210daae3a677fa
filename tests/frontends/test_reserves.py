"""What a library keeps for the backward pass is asked of its kernel, once for arguments of one form."""

import torch

from outgrow.frontends.reserves import with_reserve


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
