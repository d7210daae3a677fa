"""Who owns the loop over steps? `outgrow.compile` makes a `Step`, which is called like the user's own function.

At the first call with a signature (shapes, dtypes, state, flags: `frontends.tracing.signature`) the step is captured
and planned from what is known of its ops' costs. While the plan runs, ops without a measured cost are observed; at the
next call the plan is made again from the observed costs and the overhead that the process showed, and kept.

    call -> signature -> captured? -> planned? -> run -> observe
                             |           ^                  |
                             +-- capture +------------------+  once more

Where the captured step fits twice over, the user's function is called as it is; where it just fits, the captured graph
runs without a rewrite.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from inspect import iscoroutinefunction, isgeneratorfunction
from pathlib import Path
from time import perf_counter
from typing import Generic, NoReturn, ParamSpec, TypeVar, cast, overload

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.optim import Optimizer
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode_stack

from outgrow.analysis.timeline import Trace
from outgrow.errors import OutOfTurn, ReplayMismatch, Uncapturable
from outgrow.frontends import calls
from outgrow.frontends.capturing import Capturing
from outgrow.frontends.entries import Entries
from outgrow.frontends.entry import Arguments, Entry, Served
from outgrow.frontends.fake.looks.guessing import Misguessed, Told
from outgrow.frontends.guided import GuidedPlanning
from outgrow.frontends.one_thread import one_thread
from outgrow.frontends.platforms.on_device import platform_of
from outgrow.frontends.preparing.settings import Settings
from outgrow.frontends.preparing.warmup import warm_up
from outgrow.frontends.torn import Whole
from outgrow.frontends.user.functions import seen_by_modes, unseen_by_modes
from outgrow.frontends.user.refusals import DROP_IN
from outgrow.frontends.user.training.devices import CPU, home_of
from outgrow.frontends.user.training.state import Training, local, state_tensors
from outgrow.frontends.workers.workers import Received, Workers
from outgrow.frontends.workloads.workload import Workload
from outgrow.ir.graph import Graph
from outgrow.plan import Plan
from outgrow.planning.problem import silent
from outgrow.remarks import remark
from outgrow.report.plans import PlansReport
from outgrow.report.summary import Measured, Summary, Traces, summary_of
from outgrow.runtime.device import BesideHost
from outgrow.runtime.recording import Recording

__all__ = ["Step", "compile", "compile_workload"]


_MOST_LOSSES = 10_000
"""How many losses are kept: the last ones."""

_MOST_WAYS = 16
"""So many ways a step may try in one call."""
_MANY_WAYS = (
    "in this call the step has decided otherwise {} times than it was guessed that it would by what it computes; write "
    "it with tensor operations such as torch.where, or do it outside of the step"
)
_OTHER_WAY = "by what it computes the step goes another way here than was guessed, which is refused: {}"
_UNDECIDED = (
    "{}: the step was repeated with the same numbers, and decided otherwise by what it computes. Let it run with "
    "deterministic operators (torch.use_deterministic_algorithms)."
)

P = ParamSpec("P")
R = TypeVar("R")


class Step(Generic[P, R]):
    """A training step under a memory budget; call it like the function it was made of.

    `plan`, `traces`, `derived` and `derivation` describe the call that came last, and `process_bytes` is the most that
    the process took in it beyond its baseline; `plans` lists what was captured, `shared` says what a mesh exchanges.
    Use it from one thread. `close` frees the spill file, which is also freed when the process ends, however it ends.
    """

    def __init__(
        self,
        step: Callable[P, R],
        training: Training,
        settings: Settings,
        *,
        name: str,
        baseline_bytes: int | None = None,
        progress: Callable[[str, float], None] = silent,
        workers: Workers | None = None,
        device: BesideHost | None = None,
    ) -> None:
        """Without `baseline_bytes` it is what the process takes now, less the tensors of the step.

        Without a device the step runs on the one on which its tensors are.
        """
        platform = self._platform = platform_of(settings, home_of(training), device)
        if baseline_bytes is None:
            warm_up(settings.kernels)
            baseline_bytes = platform.baseline_bytes([*map(local, state_tensors(training).values())])
        self._step, self._name, self._baseline_bytes, self._progress = step, name, baseline_bytes, progress
        self._training, self._whole, self._workers = training, Whole(training), workers
        self._guided = GuidedPlanning(
            training,
            settings,
            platform,
            baseline_bytes,
            progress,
            as_written=settings.kernels == "eager" and workers is None,
        )
        capturing = Capturing(step, training, settings, progress, workers)
        self._entries = Entries(capturing, self._guided, platform)
        self._recording: Recording | None = None
        self._losses: deque[float | Tensor] = deque(maxlen=_MOST_LOSSES)
        self._ran_as_written = False
        self.process_bytes = 0

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run one step.

        Raises `Infeasible` below the floor, `Uncapturable` if the step cannot become a graph, `TierFailure` if the
        disk fails, `DeviceLost` if the GPU does, `TornState` after a failure that left parameters half updated, and
        `OutOfTurn` while another thread runs a step that shares modules, weights or an optimizer with this one. Within
        a step that is being captured it is part of that one.
        """
        if get_proxy_mode() is not None:
            return self._step(*args, **kwargs)
        together = nullcontext() if self._workers is None else self._workers.together()
        with one_thread(self._training), self._platform.busy(), unseen_by_modes():
            self._whole.check()
            with together:
                return self._called(*args, **kwargs)

    def _called(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Carry out a call; again, with the right answers, where a run finds that guesses were wrong.

        A run checks its guesses before it updates anything (`frontends.tracing.guesses`), so it can be repeated.
        """
        told = self._entries.begun()
        for _ in range(_MOST_WAYS):
            try:
                return self._attempted(told, *args, **kwargs)
            except Misguessed as found:
                wrong = found.numbers
            except Uncapturable as refusal:
                if told.likely:
                    told = Told(told.certain)  # what is likely is a way that the call may not go
                    continue
                if not told.certain:
                    raise
                raise Uncapturable(f"{told.certain[-1].line}: {_OTHER_WAY.format(refusal)}") from refusal
            if min(wrong) < len(told.certain):
                raise ReplayMismatch(_UNDECIDED.format(told.certain[min(wrong)].line))
            told = self._entry.captured.otherwise(*wrong)
        raise Uncapturable(f"{told.certain[-1].line}: {_MANY_WAYS.format(_MOST_WAYS)}{DROP_IN}")

    def _attempted(self, told: Told, *args: P.args, **kwargs: P.kwargs) -> R:
        """Carry out a call by a step some of whose guesses are `told`; raises `Misguessed` where another is wrong."""
        arguments = Arguments(args, kwargs)
        served = self._entries.ready(arguments, told)
        entry = served.entry
        self._recording = None  # what is recorded is of another call until this one has succeeded
        self._progress("step", 0.0)
        self._ran_as_written = entry.runnable.runs_as_written
        if self._ran_as_written:
            returned = self._run_as_written(served, *args, **kwargs)
        else:
            with _beneath_modes(is_captured=served.given is not None):
                returned = cast("R", self._run_program(served, arguments))
        self._losses += _losses(returned)
        return returned

    def _run_as_written(self, served: Served, *args: P.args, **kwargs: P.kwargs) -> R:
        self._entries.come_home()
        self._guided.begins_as_written(served.entry)
        self._platform.reset_high_water()
        begin = self._platform.moment()
        with seen_by_modes():
            returned = self._step(*args, **kwargs)
        end = self._platform.moment()
        self.process_bytes = self._platform.high_water_bytes() - self._baseline_bytes
        self._recording = Recording(begin, perf_counter(), end, memory=[(begin, max(0, self.process_bytes), 0)])
        self._entries.note_as_written(served, Arguments(args, kwargs), self.process_bytes)
        return returned

    def _run_program(self, served: Served, arguments: Arguments) -> object:
        entry = served.entry
        program, runs = entry.runnable.program, entry.runs
        given = served.given
        if given is None:  # of a new entry, or of one that ran as it is written
            given = entry.captured.given(self._training, arguments.leaves)
        feed = calls.Feed(given, program, self._training)
        self._guided.begins(given, entry)
        capacity = entry.runnable.capacity_bytes if runs.room_bytes is None else runs.room_bytes
        calls.let_go(given, self._training)
        spill = self._platform.make_ready(program, given.tensors, capacity)
        memory = self._platform.memory(program, is_timed=self._guided.looks_at(entry))
        if self._workers is not None:
            self._workers.go()
        observe = self._platform.observes and not runs.observed
        run = calls.made_ready(feed, spill, memory, capacity, observe=observe)
        completed = False
        try:
            outcome = calls.carried_out(feed, calls.repeating(feed, run, runs.noted))
            calls.put_results(feed, outcome)
            completed = True
        finally:
            if run.progress.updating and not completed:
                self._whole.tear()
        returned = calls.settle(feed, outcome)
        self.process_bytes = outcome.high_water_bytes - self._baseline_bytes
        self._recording = outcome.recording
        self._guided.note(given, entry, outcome, self.process_bytes)
        return returned

    @property
    def plan(self) -> Summary:
        """The figures of the current plan, and of the last step; printed, a table.

        If the step was called as it is written, the table has what it took and leaves the plan out.
        """
        planned, trace = self._entry.runnable.planned, self._trace
        measured = replayed = None
        if trace is not None:
            losses = tuple(map(float, self._losses))
            measured = Measured(trace.peak_bytes, self.process_bytes, trace.seconds, losses)
            replayed = planned.replayed(trace)
        summary = summary_of(planned, self._name, measured, replayed)
        floor = self._entries.floor_bytes(self._entry)
        return replace(summary, floor_bytes=floor, ran_as_written=self._ran_as_written)

    @property
    def plans(self) -> PlansReport:
        """Which plans there are, one for each kind of batch, and what they cost; printed, a table."""
        return self._entries.report()

    @property
    def current(self) -> Plan:
        """The plan that ran last."""
        return self._entry.runnable.planned.plan

    @property
    def traces(self) -> Traces:
        """The step in core, as simulated, and as it ran last."""
        planned, trace = self._entry.runnable.planned, self._trace
        return Traces(planned.in_core, planned.replayed(trace) if trace else planned.simulated, trace)

    @property
    def captured(self) -> Graph:
        """The graph of the step as it was written."""
        return self._entry.captured.graph

    @property
    def derived(self) -> Graph:
        """The rewritten graph that runs."""
        return self._entry.runnable.planned.derived

    @property
    def derivation(self) -> str:
        """Every law that was applied, one line each."""
        return str(self._entry.runnable.planned.derivation)

    @property
    def shared(self) -> Received:
        """What the processes of the mesh exchange. Raises `OutOfTurn` without a mesh, and before the first call."""
        if self._workers is None or self._workers.shares is None:
            raise OutOfTurn("The step shares nothing yet. Give compile a mesh, and call the step once.")
        return self._workers.shared

    @property
    def _trace(self) -> Trace | None:
        """What was measured; on a device the host waits for the end of the step."""
        return None if self._recording is None else self._recording.trace

    @property
    def _entry(self) -> Entry:
        last = self._entries.last
        if last is None:
            raise OutOfTurn("The step has not been called yet, or not since its plan made room. Call it once.")
        return last

    def __reduce__(self) -> NoReturn:
        """Raise `TypeError`: a copy would have the model of this one, or none of its plans."""
        raise TypeError(
            "A compiled step cannot be copied or pickled. Copy model and optimizer, and compile the copy's step."
        )

    def close(self) -> None:
        """Give the disk space back; weights and optimizer state that rest there come back to memory.

        The step can be called again; it reserves space anew. What the machine has no memory for stays on the disk, with
        a warning, until the model goes. Raises `DeviceLost` where the GPU has failed.
        """
        with self._platform.failing():
            self._entries.close()


@contextmanager
def _beneath_modes(*, is_captured: bool) -> Iterator[None]:
    """Run a program without the dispatch modes that are active: what they did to operators was captured with these.

    Modes of functions do not see what outgrow calls either (`unseen_by_modes`), which matters to none that chooses a
    device.
    """
    modes, of_functions = _get_current_dispatch_mode_stack(), _get_current_function_mode_stack()
    watching = [*modes, *(mode for mode in of_functions if not isinstance(mode, DeviceContext))]
    if watching and is_captured:
        remark(
            f"{type(watching[0]).__name__} saw the operators of this step when it was captured; of those that a plan "
            "runs it sees none"
        )
    with _disable_current_modes() if modes else nullcontext():
        yield


def _losses(returned: object) -> list[float | Tensor]:
    """The returned scalar as a loss to report, if there is a real one; on a device it is not waited for."""
    if not isinstance(returned, Tensor) or returned.numel() != 1 or returned.is_complex():
        return []
    return [float(returned.detach()) if returned.device.type == "cpu" else returned.detach().clone()]


@overload
def compile(
    step: None = None,
    *,
    model: nn.Module | Sequence[nn.Module],
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    memory_budget: float | str,
    offload_dir: str | Path | None = None,
    disk_budget: float | str | None = None,
    host_budget: float | str | None = None,
    planner: str = "search",
    kernels: str = "eager",
    mesh: DeviceMesh | None = None,
) -> Callable[[Callable[P, R]], Step[P, R]]: ...


@overload
def compile(
    step: Callable[P, R],
    *,
    model: nn.Module | Sequence[nn.Module],
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    memory_budget: float | str,
    offload_dir: str | Path | None = None,
    disk_budget: float | str | None = None,
    host_budget: float | str | None = None,
    planner: str = "search",
    kernels: str = "eager",
    mesh: DeviceMesh | None = None,
) -> Step[P, R]: ...


def compile(
    step: Callable[P, R] | None = None,
    *,
    model: nn.Module | Sequence[nn.Module],
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    memory_budget: float | str,
    offload_dir: str | Path | None = None,
    disk_budget: float | str | None = None,
    host_budget: float | str | None = None,
    planner: str = "search",
    kernels: str = "eager",
    mesh: DeviceMesh | None = None,
) -> Step[P, R] | Callable[[Callable[P, R]], Step[P, R]]:
    """Put a training step under a memory budget; a decorator, or a function of the step.

    `model` is the module that the step uses, or a sequence of all of them; `optimizer` is one, a sequence, or None for
    a step that updates nothing. `planner` is "search", or one of the published ones that `outgrow compare` lists.

    `memory_budget` limits what the process takes for the step beyond its baseline: parameters, gradients, optimizer
    state, activations, inputs, workspace. Sizes are bytes or strings such as "8GiB". What does not fit rests in a
    file in `offload_dir` (default: the user's cache folder), of at most `disk_budget` bytes. With
    `kernels="inductor"` operators that follow each other are compiled into one where that is possible: a plan then
    gives the bits of these kernels in core, which are not always those of eager.

    For a model on a GPU the budget is one of its memory, as torch's allocator and outgrow take it, and what does not
    fit rests in locked memory of the host. With a `host_budget` at most so many bytes of it are taken, and above
    64 MiB the rest goes to the file; without one there is no file. State that rests between steps goes there only if
    the GPU reads memory that is not locked. This has not run on a GPU yet.

    With a `mesh` of one dimension every process of it runs a part of the step, under a budget of its own, and has part
    of every tensor: parameters and optimizer state are DTensors after the first call. All processes run the same script
    with the same seed and pass the whole batch. Results are those of one process up to the order of sums.

    Raises `InvalidQuantity` for a size that is none, `TierFailure` if `offload_dir` cannot be used, `TypeError` for a
    step that is no function, a model that is no module, an optimizer or a mesh that is none or an `offload_dir` that is
    no path, and `ValueError` for an unknown planner, unknown kernels, a `host_budget` for a model on the CPU, a
    `disk_budget` without one above 64 MiB for a model on a GPU, or a mesh for one, of several dimensions, of another
    device than the CPU, or without this process. Calls raise `Divided` where processes of the mesh do not agree,
    `PeerLost` where one has ended, and `DeviceFull` where others have taken the memory of a GPU.
    """
    training = _training(model, optimizer)
    settings = Settings.of(
        memory_budget,
        offload_dir=offload_dir,
        disk_budget=disk_budget,
        host_budget=host_budget,
        planner=planner,
        kernels=kernels,
    )

    def made(function: Callable[P, R]) -> Step[P, R]:
        if not callable(function):
            raise TypeError(
                f"step is a {type(function).__name__}, not a function. Give the function that runs one step."
            )
        if isinstance(function, nn.Module):
            raise TypeError(
                f"step is a {type(function).__name__}, which is a module. Give the function that runs one step, with "
                "loss, backward() and optimizer.step(); for the model alone there is "
                'torch.compile(model, backend="outgrow", options={"memory_budget": ...}).'
            )
        if isgeneratorfunction(function) or iscoroutinefunction(function):
            raise TypeError("step is a generator or a coroutine. Give a function that returns once the step has run.")
        if isinstance(function, Step):
            raise TypeError("step has been compiled already. Give compile the function that it was made of.")
        workers = None if mesh is None else Workers(mesh)
        home = home_of(training)
        if workers is not None and home != CPU:
            raise ValueError(
                f"A mesh divides steps of models on the CPU, and the model is on {home}. Leave the mesh out, or move "
                "the model."
            )
        return Step(function, training, settings, name=getattr(function, "__name__", "step"), workers=workers)

    return made if step is None else made(step)


def _training(model: object, optimizer: object) -> Training:
    """Return what is trained; raises `TypeError` for what is no module or no optimizer."""
    models = _sequence(model, nn.Module, "model", "the nn.Module that is trained")
    optimizers = () if optimizer is None else _sequence(optimizer, Optimizer, "optimizer", "the torch.optim.Optimizer")
    if not models:
        raise TypeError("model is empty. Give the nn.Module that is trained, or a sequence of them.")
    return Training(models, tuple(map(_within, optimizers)))


def _within(optimizer: Optimizer) -> Optimizer:
    """Return the optimizer in a wrapper that has nothing of its own, such as accelerate's or Fabric's; else itself."""
    inner = getattr(optimizer, "optimizer", None)
    if not isinstance(inner, Optimizer) or inner is optimizer:
        return optimizer
    has_own = inner.param_groups is not optimizer.param_groups or inner.state is not optimizer.state
    return optimizer if has_own else _within(inner)


T = TypeVar("T")


def _sequence(given: object, kind: type[T], what: str, remedy: str) -> tuple[T, ...]:
    """Return one thing of a kind, or a sequence of them, as a tuple."""
    items: list[T] = []
    for item in tuple(given) if isinstance(given, Sequence) and not isinstance(given, kind) else (given,):
        if not isinstance(item, kind):
            raise TypeError(f"{what} is a {type(item).__name__}. Give {remedy}, or a sequence of them.")
        items.append(item)
    return tuple(items)


def compile_workload(
    workload: Workload,
    *,
    memory_budget: float | str,
    offload_dir: str | Path | None = None,
    disk_budget: float | str | None = None,
    planner: str = "search",
    kernels: str = "eager",
    name: str = "",
    baseline_bytes: int | None = None,
    progress: Callable[[str, float], None] = silent,
) -> Step[..., Tensor]:
    """Put a workload's step under a memory budget; `baseline_bytes` is what `warm_up` returned before it was built.

    For a model on a GPU, whose memory that does not tell, the baseline is taken now.
    """
    training = Training((workload.model,), (workload.optimizer,))
    baseline_bytes = baseline_bytes if home_of(training) == CPU else None
    settings = Settings.of(
        memory_budget, offload_dir=offload_dir, disk_budget=disk_budget, planner=planner, kernels=kernels
    )
    return Step(workload.step, training, settings, name=name, baseline_bytes=baseline_bytes, progress=progress)
