"""Which memory has DLPack told others of? Torch notes it for NumPy alone, so outgrow notes it for DLPack as well.

Torch marks a storage as unresizable when NumPy has its address, and `runtime.resting` leaves such a one where it is.
Once exports are noted, the ways of Python to an exporter of DLPack give that mark, too; libraries that ask torch from
C, by `__dlpack_c_exchange_api__`, go by unseen.
"""

from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import torch
from torch import Tensor
from torch.utils import dlpack

_WAYS = ((Tensor, "__dlpack__"), (torch, "to_dlpack"), (dlpack, "to_dlpack"))


@cache
def note_exports() -> None:
    """From now on mark the memory of tensors on the CPU that are exported by DLPack."""
    for owner, name in _WAYS:
        setattr(owner, name, _noting(vars(owner)[name]))


def _noting(export: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(export)
    def noted(tensor: Tensor, *args: Any, **options: Any) -> Any:
        exported = export(tensor, *args, **options)
        if tensor.device.type == "cpu" and tensor.layout is torch.strided:
            torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).numpy()  # which gives the mark
        return exported

    return noted
