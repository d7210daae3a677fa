"""What does a step do to its tensors? It is run once on tensors that have shapes and no contents.

The step is called as it is, with the user's own models and optimizers; `frontends.fake.fakes` exchanges their
tensors for fake ones below autograd. The floats of the optimizers' parameter groups are exchanged for
symbols, so that a changed learning rate is an input and a branch on `weight_decay != 0` is a guard. Whatever
the run left behind (gradients, new optimizer state) is noted and taken away again.

It does not see Python: a number that the step closes over is a constant of the trace, which is right while it is the
same (`frontends.user.left.outside`). What the step leaves in attributes, and in what it names outside, is left after
each call as the captured one left it, or made of the results of each (`frontends.user.left.gathered`), as is what it
prints (`frontends.user.left.said`); what it does to objects that are not looked into happens once.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from threading import RLock
from typing import TypeAlias
from unittest.mock import patch

import torch
import torch.utils._pytree as pytree
from torch import Tensor, fx, nn
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.fx.experimental.proxy_tensor import make_fx
from torch.optim import LBFGS, SparseAdam
from torch.optim.optimizer import Optimizer
from torch.utils.hooks import RemovableHandle

from outgrow.errors import Uncapturable
from outgrow.frontends.fake.eager.eager_ways import as_in_eager
from outgrow.frontends.fake.fakes import FakeMode, Twins, fake_mode
from outgrow.frontends.fake.generator import generator_traced
from outgrow.frontends.fake.kernels.sums import Sums
from outgrow.frontends.fake.looks.guessing import NOTHING_TOLD, Guessing, Told
from outgrow.frontends.fake.looks.questions import Looks
from outgrow.frontends.tracing.dependence import dependent
from outgrow.frontends.tracing.names import DETACHES
from outgrow.frontends.tracing.noticed import Noticed, without_graphs
from outgrow.frontends.tracing.results import results_of, returning
from outgrow.frontends.tracing.substitutes import Substitutes
from outgrow.frontends.tracing.traceable import made_traceable
from outgrow.frontends.tracing.traced import Traced, numbers_going_on
from outgrow.frontends.user.functions import seen_by_modes
from outgrow.frontends.user.left.attributes import Kept, attribute, attributes_kept, left_by
from outgrow.frontends.user.left.counts import OTHERWISE
from outgrow.frontends.user.left.gathered import Gathering, GoingOn, PlaceSlot
from outgrow.frontends.user.left.outside import Outside
from outgrow.frontends.user.left.refusing import Left
from outgrow.frontends.user.left.said import Saying
from outgrow.frontends.user.left.taken import arguments_in_place, nothing_taken, warn_of_given
from outgrow.frontends.user.reach.containers import check_open, open_containers
from outgrow.frontends.user.reach.helpers import helpers_noted
from outgrow.frontends.user.reach.hooks import before_optimizers
from outgrow.frontends.user.reach.reach import reached
from outgrow.frontends.user.refusals import ANOMALY, DROP_IN, refusals
from outgrow.frontends.user.training.devices import check_devices
from outgrow.frontends.user.training.plain import Numbers, check_unchanged, numbers_in, numbers_of, plain_state
from outgrow.frontends.user.training.schedules import schedulers_put_off
from outgrow.frontends.user.training.state import (
    GradientSlot,
    StateSlot,
    Training,
    hyper_parameters,
    preserved,
    put,
    state_tensors,
    trained,
)
from outgrow.frontends.user.unseen.drawn import living_generators, nothing_drawn
from outgrow.frontends.user.unseen.escapes import taken_out_on_failure
from outgrow.frontends.user.unseen.signals import in_users_code, signals_waiting
from outgrow.frontends.user.unseen.unfinished import finished
from outgrow.frontends.user.unseen.unseen import nothing_moved, nothing_unseen

_one_at_a_time = RLock()
"""Only one thread traces at a time: what is exchanged during a trace is exchanged for all threads."""
_TOLD_ONE_BY_ONE = 4
"""So often a step is traced with one number more that it is told, before it is told all."""
_NOT_ONE_GRAPH: Mapping[type[Optimizer], str] = {
    LBFGS: f"decides by the losses that it sees how often it calls the model, so its step is no graph{DROP_IN}",
    SparseAdam: "updates the rows that a sparse gradient names, so the shapes of its step are contents; plans hold "
    "dense tensors only. Train what is sparse by a step of its own in eager mode, or take Adam and sparse=False",
}
_DIVIDING = frozenset({"DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule"})
"""Names of torch's classes that divide a model among processes; to import them takes time."""


def trace(
    step: Callable[..., object],
    training: Training,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    living: Sequence[object] | None = None,
    moving: Collection[GoingOn] = (),
    told: Told | None = NOTHING_TOLD,
) -> Traced:
    """Run `step` once on fake tensors and return what it did.

    `living` are the generators that there are, if they were looked for already; other calls change what is `moving`.
    Some of its guesses are `told`; if that is None it may not guess.

    Raises `Uncapturable` where the step looks at contents or changes what no captured step repeats, and for tensors on
    a device that `frontends.user.training.devices` refuses; errors of the step pass.
    """
    open_containers((tuple(args), dict(kwargs)))
    leaves, call_structure = pytree.tree_flatten((tuple(args), dict(kwargs)))
    check_open(leaves, "pass them to the step as they are, or in a dict, list, tuple or dataclass")
    with _one_at_a_time:
        living = living_generators() if living is None else living
        traced_with = partial(_trace, step, training, leaves, call_structure, living)
        guessing = Guessing(told)
        with ExitStack() as stack:
            stack.push(guessing.may_be_wrong)
            return _as_told(traced_with, guessing, moving)
        return _as_told(traced_with, guessing.otherwise(), moving)


_Tracing: TypeAlias = Callable[[Guessing, Looks, frozenset[int], frozenset[GoingOn]], Traced]


def _as_told(traced_with: _Tracing, guessing: Guessing, moving: Collection[GoingOn]) -> Traced:
    """Return a trace in which a step is told as few of the numbers that it looks at as it needs to know."""
    looks = Looks()
    for _ in range(_TOLD_ONE_BY_ONE):
        try:
            return _going_on(traced_with, guessing, looks, moving)
        except OTHERWISE:
            if not looks.concealed:
                raise
        looks = looks.more_told()
    return _going_on(traced_with, guessing, Looks(tells_all=True), moving)


def _going_on(traced_with: _Tracing, guessing: Guessing, looks: Looks, moving: Collection[GoingOn]) -> Traced:
    """Return a trace in which symbols stand for numbers that change, if the step does the same then.

    These are numbers of optimizers, and what it gathers outside, which may be lists as well.
    """
    traced, going_on = _as_it_runs(partial(traced_with, guessing), looks), frozenset[GoingOn]()
    while not (changing := traced.changing(moving)) <= going_on:
        if traced.outside.belongings.have_results():
            break  # it is refused, and another trace would find them
        going_on |= changing
        try:
            found = _as_it_runs(partial(traced_with, guessing.again()), looks.anew(), going_on)
        except OTHERWISE:  # what it asks of a symbol is another's error, and a number has an answer
            break
        if not found.account.is_like(traced.account):
            break
        traced = found
    return traced


def _as_it_runs(
    traced_with: Callable[[Looks, frozenset[int], frozenset[GoingOn]], Traced],
    looks: Looks,
    going_on: frozenset[GoingOn] = frozenset(),
) -> Traced:
    """Return a trace in which sums of gradients are made in place, or out of place, as in eager mode."""
    apart = frozenset[int]()
    while (traced := traced_with(looks, apart, going_on)).shared:
        looks, apart = looks.anew(), apart | traced.shared
    return traced


def _trace(
    step: Callable[..., object],
    training: Training,
    leaves: Sequence[object],
    call_structure: pytree.TreeSpec,
    living: Sequence[object],
    guessing: Guessing,
    looks: Looks,
    apart: frozenset[int],
    going_on: frozenset[GoingOn],
) -> Traced:
    before, owners = state_tensors(training), [*training.owners()]
    outside, gathering, intact = _found_outside(step, training, leaves, call_structure, going_on)
    home = check_devices(before, leaves)
    _check_traceable(training)
    caches_casts = torch.is_autocast_cache_enabled()
    with ExitStack() as stack:
        signals = stack.enter_context(signals_waiting())
        mode = stack.enter_context(_fakes([*before.values(), *leaves], outside))
        hyper = {**hyper_parameters(training), **numbers_in(numbers_going_on(going_on), training), **gathering.hyper}
        used = Substitutes.of(mode, before, leaves, hyper, looks, guessing.begun(partial(_hanging, before, training)))
        fakes, twins = used.fakes, used.fakes.twins
        twins.sums, twins.begins = Sums(apart), signals.heard
        call_args, call_kwargs = pytree.tree_unflatten(fakes.leaves, call_structure)
        run, saying = Noticed(), Saying()

        def traced(_inputs: object) -> list[object]:
            arguments = (call_args, call_kwargs)
            with seen_by_modes(), as_in_eager(mode, caches_casts=caches_casts), arguments_in_place(arguments):
                returned = finished(in_users_code(step, *call_args, **call_kwargs))
            schedulers.ended(returned)
            attributes.warn_of_opaque()
            warn_of_given(pytree.tree_unflatten(fakes.leaves, call_structure), arguments)
            results = gathering.results()
            run.leaves(returned, results, saying)
            gathered = gathering.numbers(saying.calls, (returned, [*results.values()]))
            found = [
                *run.ended(before, state_tensors(training), fakes.batch, data),
                *run.made(Numbers.between(numbers, numbers_of(training)).also(gathered)),
            ]
            run.settled, run.exchanged = attributes.settled(), attributes.exchanged()
            run.kept, run.changed = attributes.kept(), gathering.changed(run.numbers)
            return [*found, *without_graphs(value for item in run.kept for value in item.values)]

        attributes = stack.enter_context(attributes_kept(owners))
        stack.enter_context(nothing_drawn(step, owners, living))
        stack.enter_context(_side_effects_undone(training, twins, outside))
        data = stack.enter_context(nothing_unseen(before, twins.twin, fakes.given, home))
        twins.drawn = stack.enter_context(generator_traced())
        schedulers = stack.enter_context(schedulers_put_off())
        helpers = stack.enter_context(helpers_noted(_modules(owners), [*outside.modules(), *_modules(leaves)]))
        for slot, number in zip(hyper, used.symbols, strict=True):
            put(slot, number, training)
        stack.enter_context(_gradients_noted(training, run))
        plain, numbers, flags = plain_state(training), numbers_of(training), trained(training)
        one_thread = torch.autograd.set_multithreading_enabled(False)
        for context in (
            made_traceable(),
            intact,
            gathering.taking(),
            saying.listening(),
            _quiet(),
            refusals(),
            mode,
            twins,
            one_thread,
        ):
            stack.enter_context(context)
        stack.enter_context(_use_lazy_graph_module(should_use=True))  # no Python can call aten.random_.from
        with twins.sums.watched(), nothing_moved(fakes.tensors, data):
            module = _traced_by(traced)([*fakes.tensors.values(), *used.symbols])
        check_unchanged(plain, plain_state(training))
        return Traced.of(
            used,
            run,
            module,
            mode=_own(mode, [*before.values(), *leaves]),
            schedulers=tuple(schedulers.waiting),
            flags={slot: flag for slot, flag in trained(training).items() if flag is not flags.get(slot)},
            left=_left(run, module, twins),
            outside=replace(gathering.rest, helpers=tuple(helpers.values())),
        )


def _traced_by(traced: Callable[[object], list[object]]) -> Callable[[object], fx.GraphModule]:
    return make_fx(traced, _allow_non_fake_inputs=True, _error_on_data_dependent_ops=False)


def _modules(values: Iterable[object]) -> list[nn.Module]:
    return [value for value in values if isinstance(value, nn.Module)]


def _found_outside(
    step: Callable[..., object],
    training: Training,
    leaves: Sequence[object],
    call_structure: pytree.TreeSpec,
    going_on: Collection[GoingOn],
) -> tuple[Outside, Gathering, AbstractContextManager[None]]:
    """Return what a step finds outside, what it gathers there, and a context in which it must take nothing there."""
    found = reached(step, training.models, training.optimizers, *pytree.tree_unflatten(leaves, call_structure))
    signed = frozenset(map(id, training.owners()))
    outside = Outside.of(found, signed)
    elsewhere = (location for location in found.locations if not location.is_within(signed))
    return outside, Gathering(outside, tuple(elsewhere), going_on), nothing_taken(found.locations, signed, leaves)


@contextmanager
def _fakes(tensors: Sequence[object], outside: Outside) -> Iterator[FakeMode]:
    """Yield the mode of fake tensors; if it was made for this run, nothing of it is left where that fails."""
    with fake_mode(tensors) as mode, taken_out_on_failure(_own(mode, tensors), mode.shape_env, outside):
        yield mode


def _own(mode: FakeMode, tensors: Sequence[object]) -> FakeMode | None:
    """Return the mode if it was made for this run: no tensor of the program is of it."""
    return None if any(isinstance(item, FakeTensor) for item in tensors) else mode


def _left(run: Noticed, module: fx.GraphModule, twins: Twins) -> tuple[Left, ...]:
    """Return what the step leaves in attributes.

    All that they keep are the last results of its module so far; from now on those are that each call can leave there.
    """
    results, values = results_of(module.graph), [value for item in run.kept for value in item.values]
    own, kept = results[: len(run.outputs)], results[len(run.outputs) :]
    sources = [node.args[0] if isinstance(node, fx.Node) and node.target in DETACHES else node for node in kept]
    left = left_by(run.kept, sources, partial(dependent, module), twins.fakes)
    staying = [item for item, found in zip(run.kept, left, strict=True) if found.node]
    nodes = dict(zip(map(id, values), kept, strict=True))
    run.keeps({_slot(item): item.values[0] for item in staying})
    returning(module.graph, [*own, *(nodes[id(item.values[0])] for item in staying)])
    return (*left, *run.exchanged)


def _slot(kept: Kept) -> PlaceSlot:
    """Return where each call leaves a value that an attribute keeps."""
    place = attribute(kept.owner, kept.name)
    return PlaceSlot(place.key, place, type(kept.owner), is_used=False)


def _quiet() -> AbstractContextManager[object]:
    """Return a context in which torch does not log errors that are raised and reported anyway."""
    return patch.object(logging.getLogger(fake_tensor.__name__), "disabled", True)  # noqa: FBT003


def _check_traceable(training: Training) -> None:
    """Refuse what divides a model among processes, optimizers whose steps are no graph, and a mode that looks."""
    for owner in training.owners():
        divides = [kind.__name__ for kind in type(owner).__mro__ if kind.__name__ in _DIVIDING]
        if divides:
            raise Uncapturable(
                f"{divides[0]} exchanges gradients where the step cannot see it; give the model as it is, and a mesh "
                "to outgrow.compile, which divides the step among its processes"
            )
    for optimizer in training.optimizers:
        for kind, reason in _NOT_ONE_GRAPH.items():
            if isinstance(optimizer, kind):
                raise Uncapturable(f"{kind.__name__} {reason}")
    if torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled():
        raise Uncapturable(ANOMALY)


def _hanging(before: Mapping[StateSlot, Tensor], training: Training) -> list[StateSlot]:
    """Return the slots in which the gradients hang that hung there before the step."""
    slots = state_tensors(training).items()
    return [slot for slot, tensor in slots if isinstance(slot, GradientSlot) and tensor is before.get(slot)]


def _gradients_noted(training: Training, run: Noticed) -> RemovableHandle:
    """Return a context that notes what hangs in `p.grad` where an optimizer makes its step, which has to be named."""

    def note(optimizer: Optimizer) -> None:
        if optimizer not in training.optimizers:
            raise Uncapturable(
                f"the step uses an optimizer ({type(optimizer).__name__}) that was not named; "
                "name every optimizer: optimizer=[first, second]"
            )
        parameters = (p for group in optimizer.param_groups for p in group["params"])
        run.gradients += [p.grad for p in parameters if p.grad is not None]

    return before_optimizers(note)


@contextmanager
def _side_effects_undone(training: Training, twins: Twins, outside: Outside) -> Iterator[None]:
    """Take away what the run leaves in models, optimizers, tensors, numbers outside, and the autocast cache."""
    known = {id(parameter) for model in training.models for parameter in model.parameters()}
    torch.clear_autocast_cache()
    try:
        with preserved(training):
            yield
    finally:
        outside.put_back()
        torch.clear_autocast_cache()
        strays = [t for t in twins.originals.values() if id(t) not in known and _has_fake_gradient(t)]
        for tensor in strays:
            tensor.grad = None
    if strays:
        raise Uncapturable(
            f"the step computes the gradient of a tensor of shape {tuple(strays[0].shape)} that no model owns as a "
            "parameter; name every module that is trained: model=[model, loss_module]; a buffer has to be a parameter"
        )


def _has_fake_gradient(tensor: Tensor) -> bool:
    return tensor.is_leaf and tensor.requires_grad and isinstance(tensor.grad, FakeTensor)
