"""Which functions of torch does a mode see? Those that the user's program calls, and none that outgrow calls.

A `TorchFunctionMode` that is active around a call sees each function of torch that Python calls, also getters of
tensors and operators, and may return what it likes in place of a result. What it does to the functions of a step is
captured with them. If it saw those by which a plan runs, too, it would do that twice; and what it returns in place of a
view of a weight has other memory than the weight.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch


@contextmanager
def unseen_by_modes() -> Iterator[None]:
    """Within it no mode of functions sees what this thread calls, but for the user's program (`seen_by_modes`)."""
    with torch._C.DisableTorchFunction() if torch._C._is_torch_function_mode_enabled() else nullcontext():
        yield


@contextmanager
def seen_by_modes() -> Iterator[None]:
    """Within it the modes of functions that are active see again what this thread calls."""
    with torch._C._EnableTorchFunction() if torch._C._is_torch_function_all_disabled() else nullcontext():
        yield


@contextmanager
def without_modes() -> Iterator[None]:
    """Within it no mode of functions is active, for what Dynamo has traced with those that are."""
    active = [torch._C._pop_torch_function_stack() for _ in range(torch._C._len_torch_function_stack())]
    try:
        yield
    finally:
        for mode in reversed(active):
            torch._C._push_on_torch_function_stack(mode)
