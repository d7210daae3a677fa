"""Contents that are the same in every call are followed, wherever they are."""

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from outgrow.frontends.fake.arguments import Invoked
from outgrow.frontends.fake.looks.literals import Literals


class _Followed(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.literals = Literals()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN204
        return self.literals.followed(Invoked(func, args, kwargs or {}), lambda: func(*args, **(kwargs or {})))


def test_what_is_filled_like_a_tensor_of_a_device_is_known_there() -> None:
    """It meets literals that were made on that device; a tensor that only lends its kind may be of any size."""
    batch = torch.empty(1 << 50, dtype=torch.int64, device="meta")
    with _Followed() as followed:
        positions = torch.arange(4, device="meta")
        known = [positions + batch.new_zeros(4), positions + torch.zeros_like(positions)]
    assert all(isinstance(item, Tensor) and followed.literals.knows(item) for item in known)
    assert not followed.literals.knows(batch)
