"""On what are the rows of `gpu.py` made? On the first GPU, or on the tests' stand-in for one, which limits nothing."""

import gc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Protocol
from unittest.mock import patch

import torch
from gpu_trainings import Training, step_of
from torch import Tensor

from outgrow.frontends.compile import Step
from outgrow.frontends.preparing.settings import Settings
from outgrow.frontends.user.training.state import Training as Trained
from outgrow.planning.problem import silent
from outgrow.runtime.device import BesideHost, Cuda
from outgrow.runtime.pages import taken_bytes

Progress = Callable[[str, float], None]
"""Is told what is done next, and how much of it is done."""


class Ground(Protocol):
    """The device on which rows are made."""

    device: torch.device

    def wait(self) -> None:
        """Let the host wait for the device."""
        ...

    def limit(self, budget_bytes: int | None) -> int:
        """Give back what nobody uses, and let no more be reserved than this beyond what is reserved in vain then.

        That is returned. None: all that there is.
        """
        ...

    def begin(self) -> None:
        """Let the marks of what was taken begin again."""
        ...

    def taken(self) -> tuple[int, int]:
        """Return the most bytes that tensors took, and that were reserved, since then."""
        ...

    def in_core_bytes(self, training: Training, most_bytes: int) -> int:
        """Return what a training takes in core, given the most bytes that its tensors took."""
        ...

    def beside(self) -> BesideHost:
        """Return the device as the runtime knows it."""
        ...


class Gpu:
    """The first GPU."""

    device = torch.device("cuda", 0)

    def wait(self) -> None:
        torch.cuda.synchronize(self.device)

    def limit(self, budget_bytes: int | None) -> int:
        gc.collect()
        self.wait()
        self.beside().give_back_all()
        total = torch.cuda.mem_get_info(self.device)[1]
        in_vain = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        share = 1.0 if budget_bytes is None else min(1.0, (in_vain + budget_bytes) / total)
        torch.cuda.set_per_process_memory_fraction(share, self.device)
        return in_vain

    def begin(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.device)

    def taken(self) -> tuple[int, int]:
        pages = taken_bytes(self.device)  # which torch's allocator does not count
        most = torch.cuda.max_memory_allocated(self.device), torch.cuda.max_memory_reserved(self.device)
        return most[0] + pages, most[1] + pages

    def in_core_bytes(self, training: Training, most_bytes: int) -> int:  # noqa: ARG002
        return most_bytes

    def beside(self) -> BesideHost:
        return Cuda(self.device)


class Beside:
    """The stand-in of the tests, whose memory is the host's: for the benchmark's own test, quick and without care."""

    device = torch.device("cpu")

    def __init__(self, stack: ExitStack) -> None:
        from outgrow.frontends.preparing import measure
        from outgrow.planning.search import search
        from outgrow.runtime import flights

        less = ((measure, "_MATRIX_BESIDE", 256), (measure, "_VECTOR_BYTES_BESIDE", 1 << 20))
        for module, name, value in (*less, (flights, "MEASURED_BYTES", 1 << 20), (search, "_MOST_TRIALS", 100)):
            stack.enter_context(patch.object(module, name, value))

    def wait(self) -> None:
        pass

    def limit(self, budget_bytes: int | None) -> int:  # noqa: ARG002
        gc.collect()
        return 0

    def begin(self) -> None:
        pass

    def taken(self) -> tuple[int, int]:
        return 0, 0

    def in_core_bytes(self, training: Training, most_bytes: int) -> int:  # noqa: ARG002
        step = outgrown_on(self, training, 1 << 40)
        step(*training.batch)
        return step.plan.in_core_peak_bytes

    def beside(self) -> BesideHost:
        from tests.runtime.stand_in import StandIn

        return StandIn()


def outgrown_on(
    ground: Ground, training: Training, budget_bytes: int, kernels: str = "eager", progress: Progress = silent
) -> Step[..., Tensor]:
    """Return the step of a training within a budget."""
    step = step_of(training.loss, training.optimizer)
    trained = Trained((training.model,), (training.optimizer,))
    settings = Settings.of(budget_bytes, kernels=kernels)
    return Step(step, trained, settings, name="step", device=ground.beside(), progress=progress)


@contextmanager
def ground_of(*, is_smoke: bool) -> Iterator[Ground]:
    """Yield the device."""
    with ExitStack() as stack:
        yield Beside(stack) if is_smoke else Gpu()
