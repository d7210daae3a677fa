"""How does a step that saves and restores the generator's state become ops? By operators that do both.

`torch.utils.checkpoint` draws the numbers of its region twice: it reads the state of torch's generator before the
first run, and sets it before the second. Both go past torch's dispatcher, so a trace does not see them. While a step is
captured, `torch.get_rng_state` and `torch.set_rng_state` are such operators; like every draw they write the storage
"generator", and so keep their places. So are the same functions of `torch.cuda`, for the generator of a GPU, whose
state is bytes of the host too.

A generator's own methods, and functions that were imported by name, remain what they are. So that what they do is seen,
the generator goes on by one number at every draw that is traced, and so does a copy of it. If the two differ in the
end, somebody has set the state, or another thread has drawn.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

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
_read_cuda, _write_cuda = torch.cuda.get_rng_state, torch.cuda.set_rng_state
_CUDA_STATE_BYTES = 16
"""A seed and how far it has been drawn from."""


def _read_of_gpu(index: int, device: torch.device | None = None) -> Tensor:
    if device is not None and device.type == "meta":
        return torch.empty(_CUDA_STATE_BYTES, dtype=torch.uint8, device=device)
    return _read_cuda(index)


def _write_of_gpu(state: Tensor, index: int) -> None:
    _write_cuda(state, index)


_LIBRARY.define("read_cuda_generator(int index, *, Device? device=None) -> Tensor", tags=_DRAWS)
_LIBRARY.impl("read_cuda_generator", _read_of_gpu, "BackendSelect")
_LIBRARY.define("write_cuda_generator(Tensor state, int index) -> ()", tags=_DRAWS)
_LIBRARY.impl("write_cuda_generator", _write_of_gpu, "CPU")
_LIBRARY.impl("write_cuda_generator", lambda _state, _index: None, "Meta")


def _traced_read(device: int | str | torch.device = "cuda") -> Tensor:
    return torch.ops.outgrow.read_cuda_generator(_index(device))


def _traced_write(new_state: Tensor, device: int | str | torch.device = "cuda") -> None:
    torch.ops.outgrow.write_cuda_generator(new_state, _index(device))


def _index(device: int | str | torch.device) -> int:
    found = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    return torch.cuda.current_device() if found.index is None else found.index


@contextmanager
def generator_traced() -> Iterator[Callable[[], None]]:
    """Let reading and setting the state be operators; refuse a step that changes it in another way.

    What is yielded is to be called at every draw. Raises `Uncapturable` for `torch.manual_seed` and its relatives, and
    for a state that is set past the operators, with the state put back.
    """
    generators = _generators()
    before = [generator.get_state() for generator in generators]
    copies = [_copy(generator) for generator in generators]

    def drawn() -> None:
        with _disable_current_modes():
            for generator in (*generators, *copies):
                _draw(generator)

    try:
        with ExitStack() as stack:
            for module in (torch, torch.random):
                stack.enter_context(patch.object(module, "get_rng_state", torch.ops.outgrow.read_generator))
                stack.enter_context(patch.object(module, "set_rng_state", torch.ops.outgrow.write_generator))
            for module in (torch.cuda, torch.cuda.random):
                stack.enter_context(patch.object(module, "get_rng_state", _traced_read))
                stack.enter_context(patch.object(module, "set_rng_state", _traced_write))
            yield drawn
        pairs = zip(generators, copies, strict=True)
        if not all(torch.equal(generator.get_state(), copy.get_state()) for generator, copy in pairs):
            raise Uncapturable(
                "the step seeds torch's generator, or sets its state by another name than torch.set_rng_state, which "
                "the captured step would not repeat; seed it before the step, and save and restore its state by "
                "torch.get_rng_state() and torch.set_rng_state(state) (if another thread draws from the generator: "
                "call the step once before that thread begins)"
            )
    finally:
        for generator, state in zip(generators, before, strict=True):
            generator.set_state(state)


def _generators() -> list[torch.Generator]:
    """The generators from which the process draws: that of the CPU, and of the GPU if there is one."""
    beside = [torch.cuda.default_generators[torch.cuda.current_device()]] if torch.cuda.is_initialized() else []
    return [torch.default_generator, *beside]


def _copy(generator: torch.Generator) -> torch.Generator:
    copy = torch.Generator(generator.device)
    copy.set_state(generator.get_state())
    return copy


def _draw(generator: torch.Generator) -> None:
    """Let a generator go on; one of a GPU in steps of four, without the GPU."""
    if generator.device.type == "cpu":
        torch.rand((), generator=generator, device=generator.device)
    else:
        generator.set_offset(generator.get_offset() + 4)
