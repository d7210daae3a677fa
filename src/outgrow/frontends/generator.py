"""How does a step that saves and restores the generator's state become ops? By operators that do both.

`torch.utils.checkpoint` draws the numbers of its region twice: it reads the state of torch's generator before the
first run, and sets it before the second. Both go past torch's dispatcher, so a trace does not see them. While a step is
captured `torch.get_rng_state` and `torch.set_rng_state` are these operators; like every draw they write the storage
"generator", and so keep their places.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import torch
from torch import Tensor

from outgrow.errors import Uncapturable

_LIBRARY = torch.library.Library("outgrow", "DEF")
_DRAWS = (torch.Tag.nondeterministic_seeded,)
_read_state, _write_state = torch.get_rng_state, torch.set_rng_state
_STATE_BYTES = _read_state().numel()


def _read(device: torch.device | None = None) -> Tensor:
    if device is not None and device.type == "meta":  # how fake tensors ask for the shape of what has no operands
        return torch.empty(_STATE_BYTES, dtype=torch.uint8, device=device)
    return _read_state()


_LIBRARY.define("read_generator(*, Device? device=None) -> Tensor", tags=_DRAWS)
_LIBRARY.impl("read_generator", _read, "BackendSelect")
_LIBRARY.define("write_generator(Tensor state) -> ()", tags=_DRAWS)
_LIBRARY.impl("write_generator", _write_state, "CPU")
_LIBRARY.impl("write_generator", lambda _state: None, "Meta")


@contextmanager
def generator_traced() -> Iterator[None]:
    """Let reading and setting the state be operators; refuse a step that changes it in another way.

    Raises `Uncapturable` for `torch.manual_seed` and its relatives, with the state put back.
    """
    before = _read_state()
    try:
        with ExitStack() as stack:
            for module in (torch, torch.random):
                stack.enter_context(patch.object(module, "get_rng_state", torch.ops.outgrow.read_generator))
                stack.enter_context(patch.object(module, "set_rng_state", torch.ops.outgrow.write_generator))
            yield
        if not torch.equal(_read_state(), before):
            raise Uncapturable(
                "the step seeds torch's generator, which the captured step would not repeat; seed it before the step"
            )
    finally:
        _write_state(before)
