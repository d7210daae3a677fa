"""What of a loop that cannot be captured whole? Dynamo cuts it into parts, and each part keeps within the budget.

    torch.compile(model, backend="outgrow", options={"memory_budget": "8GiB"})

Each part is planned and run by `frontends.parts`. Those of one budget share it, on each device by itself.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from types import FunctionType
from typing import TypeGuard
from weakref import WeakKeyDictionary

import torch
import torch.utils._pytree as pytree
from torch import Tensor, fx, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._dynamo import config as dynamo_config
from torch._dynamo.external_utils import wrap_inline
from torch.optim import Optimizer

from outgrow.errors import OutgrowError
from outgrow.frontends.parts.masks import look_as_in_eager
from outgrow.frontends.parts.parts import MOST_KINDS, Part
from outgrow.frontends.parts.shared_budget import Ready, Shared, by_itself
from outgrow.frontends.platforms.on_device import platform_of
from outgrow.frontends.preparing.settings import Settings
from outgrow.frontends.preparing.warmup import warm_up
from outgrow.frontends.user.living import living
from outgrow.frontends.user.training.devices import device_of
from outgrow.plan import Estimate
from outgrow.remarks import remark
from outgrow.report.parts import BudgetReport, PartReport, PartsReport
from outgrow.runtime.device import BesideHost

_OPTIONS = {"memory_budget", "offload_dir", "disk_budget", "planner", "kernels"}
_NO_PART = (
    "Dynamo found nothing in the model to compile, so its memory is not under the budget. It gives up on a function "
    "that breaks inside of a loop: move what the loop repeats into a module of its own. TORCH_LOGS=graph_breaks tells "
    "where. It never sees what a LightningModule calls below its children (self.net.encoder(x)), nor other methods of "
    "theirs (self.net.encode(x)): call the child itself, or make what is called one (self.encoder = self.net.encoder)."
)
_NO_RECURRENT = (
    "Dynamo compiles no nn.LSTM, nn.GRU and nn.RNN, nor all of the function that calls one, so their memory is not "
    "under the budget. Set torch._dynamo.config.allow_rnn = True before the training, and it does."
)
_SHARED: dict[Hashable, Shared] = {}
"""What parts share, by settings and device. Dynamo calls a backend for one part at a time, with nothing but options, so
parts of a budget find each other here.
"""
_BEFORE: WeakKeyDictionary[Callable[..., object], Callable[..., object] | None] = WeakKeyDictionary()
"""By what lets a module run by parts: what let it run before."""


def backend(
    module: fx.GraphModule, _example_inputs: Sequence[object], *, options: Mapping[str, object] | None = None
) -> Callable[..., object]:
    """Return what runs a part that Dynamo found; a backend of `torch.compile`.

    `options` are `memory_budget` (bytes, or a string such as "8GiB"), and if need be `offload_dir`, `disk_budget`,
    `planner` and `kernels`, all as for `outgrow.compile`. When it runs it raises `TypeError` for other options,
    `ValueError` for an unknown planner, unknown kernels, or a `disk_budget` for a model on a GPU, `InvalidQuantity` for
    a size that is none, `TierFailure` for a folder that cannot be used, `Infeasible` below the floor, `Uncapturable`,
    and `DeviceFull` where others have taken the memory of a GPU.
    """
    look_as_in_eager(backend)
    try:
        settings = _checked(dict(options or {}))
    except (OutgrowError, TypeError, ValueError) as error:
        return partial(_refused, error)
    return part_of(module, settings)


look_as_in_eager(backend)
dynamo_config.use_numpy_random_stream = True
"""Else Dynamo draws with torch's generator what a model draws with NumPy's, and seeds that in its place."""


def _refused(error: Exception, *_args: object) -> object:
    """Raise what was wrong when the part runs: what a backend raises before, Dynamo wraps in an error of its own."""
    raise error


def part_of(module: fx.GraphModule, settings: Settings, device: BesideHost | None = None) -> Part:
    """Return what runs a part, on a device that is given, or on the one where its inputs are.

    From then on Dynamo compiles as many kinds of calls as a part keeps plans for: what is beyond its limit runs in
    eager mode, outside of the budget.
    """
    dynamo_config.recompile_limit = max(dynamo_config.recompile_limit, MOST_KINDS)
    return Part(module, settings, partial(_shared, device=device))


class InPlace:
    """Lets modules run by parts from then on, for loops that are not the user's own."""

    def __init__(self, settings: Settings) -> None:
        """Raise `TierFailure` if the folder cannot be used and there is no GPU, whose parts need none."""
        if not torch.cuda.is_available():
            settings.require_disk()
        self._settings = settings
        self._before: list[tuple[nn.Module, Callable[..., object] | None]] = []
        self._has_parts = self._has_warned = self._has_told_recurrent = False

    def compile(self, module: nn.Module) -> None:
        """Let a module run by parts, also one that a loop which never ended has left running by its own."""
        look_as_in_eager(InPlace._part)
        if _leaves_recurrent(module) and not self._has_told_recurrent:
            self._has_told_recurrent = True
            remark(_NO_RECURRENT)
        before = module._compiled_call_impl
        if before is not None:
            before = _BEFORE.get(before, before)
        self._before.append((module, before))
        # Dynamo skips the frames of torch.nn's own modules unless they are wrapped; `module.compile` does not wrap them
        by_parts = torch.compile(_alone(wrap_inline(module._call_impl)), backend=self._part)
        module._compiled_call_impl, _BEFORE[by_parts] = by_parts, before

    def release(self) -> None:
        """Let modules run as they did before, and give back what is kept for their next runs."""
        while self._before:
            module, before = self._before.pop()
            module._compiled_call_impl = before
        for shared in _SHARED.values():
            shared.give_back()
            shared.platform.close()

    def _part(self, module: fx.GraphModule, _example_inputs: Sequence[object]) -> Part:
        self._has_parts = True
        return part_of(module, self._settings)

    def check(self) -> None:
        """Warn, once, if modules have run and none of them by parts."""
        if not (self._has_parts or self._has_warned):
            self._has_warned = True
            remark(_NO_PART)


def _leaves_recurrent(module: nn.Module) -> bool:
    """Whether Dynamo leaves modules in this one to eager mode since they are recurrent."""
    return not dynamo_config.allow_rnn and any(isinstance(inner, nn.RNNBase) for inner in module.modules())


def _alone(function: Callable[..., object]) -> FunctionType:
    """Return a function with code of its own: of all functions with the same code Dynamo compiles but a few."""
    assert isinstance(function, FunctionType), "torch wraps what it is given"
    code, defaults = function.__code__.replace(), function.__defaults__
    return FunctionType(code, function.__globals__, function.__name__, defaults, function.__closure__)


def _checked(options: Mapping[str, object]) -> Settings:
    unknown = sorted(options.keys() - _OPTIONS)
    if unknown or "memory_budget" not in options:
        raise TypeError(
            f"options of the backend are {', '.join(sorted(_OPTIONS))}, of which memory_budget is needed; "
            f'given: {", ".join(sorted(options)) or "none"}. For example options={{"memory_budget": "8GiB"}}'
        )
    return Settings.of(**options)  # pyright: ignore[reportArgumentType]


def _shared(settings: Settings, args: Sequence[object], device: BesideHost | None) -> Shared:
    """Return what the parts of one budget share."""
    home = device_of(arg.device for arg in args if isinstance(arg, Tensor))
    key = settings, device or home
    if key not in _SHARED:
        _SHARED[key] = _made_shared(settings, home, device)
    return _SHARED[key]


@torch.inference_mode(mode=False)
def _made_shared(settings: Settings, home: torch.device, device: BesideHost | None) -> Shared:
    """Return what parts will share; the first that runs says what the process held before the model.

    That may be an evaluation, outside of whose mode nobody could write what is made here.
    """
    another = partial(platform_of, settings, home, device)
    platform = another()
    warm_up(settings.kernels)
    baseline = platform.baseline_bytes(_trained())
    platform.reset_high_water()
    return Shared(settings, another, platform, baseline, platform.machine())


def _trained() -> list[Tensor]:
    """Return what all models and optimizers of the process hold, and every other tensor that wants a gradient."""
    found: list[object] = []
    for item in living(nn.Module, Optimizer, Tensor):
        if isinstance(item, nn.Module):
            found += vars(item).get("_buffers", {}).values()
        elif isinstance(item, Optimizer):
            found += pytree.tree_leaves(dict(item.state))
        elif _is_plain(item) and item.requires_grad:
            found += [item, item.grad if item.is_leaf else None]
    return [item for item in found if _is_plain(item)]


def _is_plain(item: object) -> TypeGuard[Tensor]:
    if not isinstance(item, Tensor) or type(item) not in (Tensor, nn.Parameter):
        return False
    return item.layout is torch.strided and not is_functorch_wrapped_tensor(item)


def budgets() -> tuple[Shared, ...]:
    """Return what the parts of each budget share, for every budget that a part has run under."""
    return tuple(_SHARED.values())


def parts() -> PartsReport:
    """Return what runs by parts in this process, below each budget: what each part takes, and what it leaves to others.

    Parts of `backend="outgrow"`, `BudgetCallback` and `BudgetStrategy` are all there, each once it has been called.
    """
    return PartsReport(tuple(found for shared in _SHARED.values() if (found := _reported(shared)).parts))


def _reported(shared: Shared) -> BudgetReport:
    shared.note()
    plans = (shared.plans[number] for number in sorted(shared.plans))
    rows = tuple(_row(shared, ready) for ready in plans if not ready.is_closed)
    return BudgetReport(shared.settings.budget_bytes, shared.machine.name, shared.taken_bytes, rows)


def _row(shared: Shared, ready: Ready) -> PartReport:
    in_core, as_planned = by_itself(ready)
    needed_bytes = ready.own_bytes if shared.is_apart else as_planned.peak_bytes
    return PartReport(
        begins=ready.origin.begins,
        shapes=ready.shapes,
        ops=len(ready.planned.graph.ops),
        runs=ready.runs + ready.as_written,
        in_core=Estimate(in_core.peak_bytes, in_core.seconds),
        planned=Estimate(needed_bytes, as_planned.seconds),
        left_bytes=ready.room.always_bytes + ready.room.waiting_bytes,
        bytes_swapped=as_planned.bytes_in + as_planned.bytes_out,
        seconds_recomputed=ready.planned.seconds_recomputed,
    )


def forget() -> None:
    """Drop compiled parts, Dynamo's and ours; what the process holds when the next one runs is its baseline."""
    torch._dynamo.reset()
    look_as_in_eager(backend)
    for shared in _SHARED.values():
        shared.give_back()
    _SHARED.clear()
