"""What is measured in one process of `gpu.py`? A training in core and then by outgrow, or one as a rival has it.

In core first: losses, seconds, and a hash of every bit of the state after the last step. Then everything is deleted,
and with the same seed the training is made anew. From then on torch's allocator may reserve no more than the budget
beyond what it holds in vain, and so it is for rivals. Within the budget as many steps are taken as in core. The first
ones plan; seconds are medians of the last ones, each from one `synchronize` to the next, and `reserved_bytes` is the
most that was reserved in these.

Below the floor a budget is raised to a little above it. Where the limit itself ends a row, it is made again without.
Operators that are not deterministic are refused; where that ends a row in core, they run, and where there is no
deterministic kernel all the same, any may run (`deterministic` says which it was). Facts are told as soon as they are
known, so that of a process that dies they remain.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from statistics import median
from typing import Any

import torch
from gpu_grounds import Ground, outgrown_on
from gpu_trainings import TRAININGS, Training, step_of
from torch import Tensor

from outgrow.analysis.timeline import Lane, Trace
from outgrow.errors import DeviceFull, Infeasible
from outgrow.frontends.compile import Step
from outgrow.frontends.platforms.on_device import OnDevice

WARM, TIMED = 2, 5
"""Steps before those that are timed, and these."""
PLANNING = 4
"""Steps of outgrow before the timed ones: the first plans, the next ones may plan again, and the last makes a score."""
TRIES = 9
"""So often is a budget raised to the floor that is named, or a limit left out."""
ABOVE_FLOOR = 1.02

Tell = Callable[..., None]
"""Takes facts by name, and writes them down at once."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A row: a training with its settings, the ratio of what it takes in core to the budget, and who makes it.

    The budget, and how deterministic kernels are (torch's name of the mode), are known after our own row.
    """

    workload: str
    settings: Mapping[str, int]
    over: float
    who: str = "ours"
    budget_bytes: int = 0
    deterministic: str = "error"

    def made(self, device: torch.device) -> Training:
        """Return the training, on a device."""
        return TRAININGS[self.workload](device, **self.settings)


# Steps, and the bits that they leave ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Taken:
    """Of some steps: losses, seconds, and the most bytes that tensors took and that were reserved."""

    losses: tuple[str, ...]
    seconds: tuple[float, ...]
    bytes: tuple[tuple[int, int], ...]

    @property
    def usual_seconds(self) -> float:
        """The median of the timed steps, which are the last ones."""
        return median(self.seconds[-TIMED:])

    @property
    def tensor_bytes(self) -> int:
        """The most that tensors took in a timed step."""
        return max(tensors for tensors, _ in self.bytes[-TIMED:])

    @property
    def reserved_bytes(self) -> int:
        """The most that was reserved in a timed step."""
        return max(reserved for _, reserved in self.bytes[-TIMED:])


def take(ground: Ground, step: Callable[..., Tensor], batch: tuple[Tensor, ...], number: int) -> Taken:
    """Take some steps with one batch."""
    losses: list[str] = []
    seconds: list[float] = []
    most: list[tuple[int, int]] = []
    for _ in range(number):
        ground.begin()
        ground.wait()
        begin = time.perf_counter()
        loss = step(*batch)
        ground.wait()
        seconds.append(time.perf_counter() - begin)
        most.append(ground.taken())
        losses.append(float(loss.detach()).hex())
        del loss
    return Taken(tuple(losses), tuple(seconds), tuple(most))


def on(device: torch.device, batch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return a batch on a device."""
    return tuple(item.to(device) for item in batch)


def bits(training: Training) -> dict[str, str]:
    """Return hashes of every bit of parameters, buffers and optimizer state, by name."""
    found = dict(held(training))

    def of_one(tensor: Tensor) -> str:
        return sha256(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data).hexdigest()

    with ThreadPoolExecutor() as pool:
        return dict(zip(found, pool.map(of_one, found.values()), strict=True))


def held(training: Training) -> Iterator[tuple[str, Tensor]]:
    """Yield parameters, buffers and optimizer state, by name."""
    yield from training.model.named_parameters()
    yield from training.model.named_buffers()
    for name, parameter in training.model.named_parameters():
        state = training.optimizer.state[parameter].items()
        yield from ((f"{key} of {name}", value) for key, value in state if isinstance(value, Tensor))


class Phases:
    """How long each part of the work before a step took, all told: capture, compilation, rehearsal, plan."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._name, self._begin = "", time.perf_counter()

    def __call__(self, name: str, _share: float) -> None:
        """Note what is done from now on."""
        now = time.perf_counter()
        if self._name:
            self.seconds[self._name] = self.seconds.get(self._name, 0.0) + now - self._begin
        self._name, self._begin = "" if name == "step" else name, now


MODES = ("error", "warn", "default")
"""Torch's names: operators without a deterministic kernel are refused, or may run, or all kernels may be any."""
NO_KERNEL = ("deterministic", "unable to find")
"""What torch says where an operator, or a convolution in cuDNN, has no deterministic kernel."""


def be_deterministic(mode: str) -> None:
    """Have the same bits from the same step, as far as the mode goes."""
    torch.set_deterministic_debug_mode(mode)
    torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]
    torch.backends.cudnn.benchmark = False
    torch.backends.cuda.enable_cudnn_sdp(enabled=False)  # where others are refused it is left out, and so it is always


@contextmanager
def any_kernels() -> Iterator[None]:
    """Let torch choose kernels as it does for users, also those of cuDNN for attention, which it prefers on Hopper."""
    mode = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("default")
    torch.backends.cuda.enable_cudnn_sdp(enabled=True)
    try:
        yield
    finally:
        be_deterministic(MODES[::-1][mode])


# A row ------------------------------------------------------------------------------------------------------------


def outgrown(ground: Ground, asked: Asked, tell: Tell) -> None:
    """Take the steps in core and then within the budget, or the first feasible one above it, and compare them."""
    expected = in_core(ground, asked, tell)
    in_core_bytes = expected["in_core_peak_bytes"]
    budget, is_limited = int(in_core_bytes / asked.over), True
    for _ in range(TRIES):
        tell(budget_bytes=budget, over=in_core_bytes / budget, is_limited=is_limited)
        try:
            found = within(ground, asked, budget, is_limited=is_limited)
        except Infeasible as refusal:
            budget, is_limited = int(ABOVE_FLOOR * refusal.floor_bytes), True
            tell(floor_bytes=refusal.floor_bytes, floor_is_set_by=refusal.culprit)
        except (torch.OutOfMemoryError, DeviceFull) as full:
            if not is_limited:
                raise
            is_limited = False
            tell(limit_was_too_low=str(full).splitlines()[0])
        else:
            agreed = same(ground, asked, found, expected)
            tell(**found, **agreed)
            return
    raise RuntimeError(f"no plan after {TRIES} budgets, the last of {budget} bytes")


def in_core(ground: Ground, asked: Asked, tell: Tell) -> dict[str, Any]:
    """Take the steps where there is room; nothing of them is left."""
    for mode in MODES[MODES.index(asked.deterministic) :]:
        be_deterministic(mode)
        try:
            found = _in_core(ground, asked)
        except RuntimeError as refusal:
            told = str(refusal)
            if mode == MODES[-1] or not any(words in told.lower() for words in NO_KERNEL):
                raise
            tell(not_deterministic=told.splitlines()[0])
        else:
            tell(deterministic=mode, **found)
            return found
    raise AssertionError("in the last mode no kernel is refused")


def _in_core(ground: Ground, asked: Asked) -> dict[str, Any]:
    ground.limit(None)
    training = asked.made(ground.device)
    step, batch = step_of(training.loss, training.optimizer), on(ground.device, training.batch)
    taken = take(ground, step, batch, PLANNING + TIMED)
    found = {
        "in_core_seconds": taken.usual_seconds,
        "in_core_step_seconds": taken.seconds,
        "in_core_reserved_bytes": taken.reserved_bytes,
        "losses": [float.fromhex(loss) for loss in taken.losses],
        "in_core_losses": taken.losses,
        "in_core_bits": bits(training),
        "state_bytes": sum(tensor.nbytes for _, tensor in held(training)),
    }
    found["default_in_core_seconds"] = _by_default(ground, training, step, batch)
    return {**found, "in_core_peak_bytes": ground.in_core_bytes(training, taken.tensor_bytes)}


def _by_default(
    ground: Ground, training: Training, step: Callable[..., Tensor], batch: tuple[Tensor, ...]
) -> float | None:
    """Return the seconds of a step as users have it: kernels of any kind, the optimizer on all tensors at once.

    None if that has no room.
    """
    for group in training.optimizer.param_groups:
        group["foreach"] = None
    with any_kernels(), suppress(torch.OutOfMemoryError):
        return take(ground, step, batch, WARM + TIMED).usual_seconds
    return None


def within(ground: Ground, asked: Asked, budget_bytes: int, *, is_limited: bool) -> dict[str, Any]:
    """Take the steps within a budget. Raises `Infeasible` below the floor, torch's own error where the limit is hit."""
    ground.limit(None)
    training = asked.made(ground.device)
    baseline = ground.limit(budget_bytes if is_limited else None)
    phases, device = Phases(), ground.beside()
    refused = device.refusals()
    with closing(outgrown_on(ground, training, budget_bytes, progress=phases)) as step:
        taken = take(ground, step, on(ground.device, training.batch), PLANNING + TIMED)
        summary = json.loads(step.plan.to_json())
        elsewhere, link = misplaced(step), link_seconds(step.traces.simulated)
    return {
        "baseline_bytes": baseline,
        "peak_bytes": summary["measured"].pop("peak_bytes"),
        "reserved_bytes": taken.reserved_bytes,
        "own_reserved_bytes": taken.reserved_bytes - baseline,
        "predicted_reserved_bytes": summary["predicted"]["peak_bytes"] + summary["overhead_bytes"],
        "predicted_seconds": summary["predicted"]["seconds"],
        "link_seconds": link,
        "seconds": taken.usual_seconds,
        "step_seconds": taken.seconds,
        "first_call_seconds": taken.seconds[0],
        "planning_seconds": summary["planning_seconds"],
        "phase_seconds": phases.seconds,
        "refused_allocations": device.refusals() - refused,
        "misplaced": elsewhere,
        "own_losses": taken.losses,
        "own_bits": bits(training),
        "summary": {**summary, "measured": {**summary["measured"], "losses": []}},
    }


def link_seconds(trace: Trace) -> float:
    """Return for how long the busier direction of the link is in use: no step is quicker that moves as much."""
    copies = ([span for span in trace.spans if span.lane is lane] for lane in (Lane.OUT, Lane.IN))
    return max(sum(span.end - span.begin for span in found) for found in copies)


def misplaced(step: Step[..., Tensor]) -> int | None:
    """Return how many results were born elsewhere and copied, over all runs; None if they were not within an arena."""
    platform = step._platform  # noqa: SLF001 - it is not a figure for users
    return platform._arena.misplaced if isinstance(platform, OnDevice) else None  # noqa: SLF001 - it is not a figure for users


def same(ground: Ground, asked: Asked, found: dict[str, Any], expected: Mapping[str, Any]) -> dict[str, Any]:
    """Return whether all losses and all of the state have equal bits; if not, whether those of eager steps have."""
    own_losses, own = found.pop("own_losses"), found.pop("own_bits")
    losses = own_losses == expected["in_core_losses"]
    state = own == expected["in_core_bits"]
    if losses and state:
        return {"bitwise": True}
    again = _in_core(ground, asked)
    repeats = all(again[key] == expected[key] for key in ("in_core_losses", "in_core_bits"))
    others = [name for name, told in own.items() if told != expected["in_core_bits"][name]]
    about = {"others": len(others), "first_others": others[:8], "eager_repeats": repeats}
    about |= {"losses_differ_by": [_apart(*pair) for pair in zip(own_losses, expected["in_core_losses"], strict=True)]}
    return {"bitwise": False, "losses_are_equal": losses, "state_is_equal": state, **about}


def _apart(one: str, other: str) -> float:
    return abs(float.fromhex(one) - float.fromhex(other))
