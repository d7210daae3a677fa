"""How does a training step, as the user wrote it, become a graph?

    step --trace--> nodes on fake tensors --convert--> Graph --assembly--> Captured

The step is run once without contents (`frontends.tracing.trace`); its nodes become ops on storages
(`frontends.tracing.convert`), and these, with the slots of what the step reads and writes, a `Captured` step
(`frontends.tracing.assembly`).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch.utils._pytree as pytree
from torch import nn
from torch.optim import Optimizer

from outgrow.errors import Uncapturable
from outgrow.frontends.fake.looks.guessing import NOTHING_TOLD, Told
from outgrow.frontends.tracing.assembly import captured_from
from outgrow.frontends.tracing.captured import Captured
from outgrow.frontends.tracing.trace import trace
from outgrow.frontends.tracing.traced import Traced
from outgrow.frontends.user.left.attributes import next_step
from outgrow.frontends.user.left.changes import Change
from outgrow.frontends.user.left.counts import OTHERWISE, Did, counted
from outgrow.frontends.user.left.gathered import GoingOn
from outgrow.frontends.user.left.refusing import Left, Read
from outgrow.frontends.user.left.renewed import made_anew
from outgrow.frontends.user.reach.locations import Location
from outgrow.frontends.user.refusals import DROP_IN
from outgrow.frontends.user.training.state import Training
from outgrow.frontends.user.unseen.drawn import living_generators
from outgrow.frontends.user.unseen.escapes import check_nothing_is_kept, older_objects_apart, taken_out_on_failure


def capture(
    step: Callable[..., object],
    models: Sequence[nn.Module],
    optimizers: Sequence[Optimizer],
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    moving: Collection[GoingOn] = (),
    told: Told = NOTHING_TOLD,
    counting: Collection[Location] = (),
) -> Captured:
    """Capture one call of `step` as a graph. Nothing of the step's size is computed or allocated, and no state changes.

    Three arguments say what earlier captures, and earlier attempts of this call, have shown:

        moving      numbers of optimizers that other calls change: the graph reads them anew in each call, and what the
                    step asks of one becomes a guard
        told        answers to what the step decides by numbers that are there only when it runs: earlier attempts of
                    the call have found them. Others are guessed
        counting    where numbers are that other captured steps count up: they may be any, unless this step looks at one

    Nothing is computed but for four exceptions: what is made of literals alone is computed
    (`frontends.fake.looks.literals`: 16 MiB of larger ones at most), a recurrent layer, or a cuDNN batch normalisation,
    runs once on memory without contents, to see how much its kernel keeps (`frontends.fake.kernels.reserves`), an
    operator on small tensors with ambiguous layouts runs on zeros (`frontends.fake.kernels.ambiguous`), and a
    `GradScaler` is given its tensors, as its first use does.

    Raises `Uncapturable`, naming the user's line, where the step looks at the contents of tensors, and where
    it does something that a graph could not repeat. An error of the step itself is raised as it is.
    """
    training, leaves = Training(tuple(models), tuple(optimizers)), pytree.tree_leaves((tuple(args), dict(kwargs or {})))

    def traced_anew(living: Sequence[object]) -> Traced:
        return trace(step, training, args, kwargs or {}, living, moving, told)

    return captured_by(step, traced_anew, lambda traced: captured_from(traced, leaves), counting)


def captured_by(
    step: Callable[..., object],
    traced_anew: Callable[[Sequence[object]], Traced],
    assembled: Callable[[Traced], Captured],
    counting: Collection[Location] = (),
) -> Captured:
    """Trace `step` and return what is `assembled` of the trace.

    Two checks follow: that no fake tensor of the trace is still held by anybody, and that the next step does not read
    what this one leaves in attributes without contents.

    `traced_anew` traces the step, given the generators of random numbers that there are: a second time if the step
    leaves values in attributes, or puts containers somewhere, or numbers are counted, by it or by others.

    Raises `Uncapturable` as `capture` does.
    """
    living = living_generators()  # the collector looks past them in the block
    with older_objects_apart():
        return _captured_by(step, partial(traced_anew, living), assembled, counting)


def _captured_by(
    step: Callable[..., object],
    traced_anew: Callable[[], Traced],
    assembled: Callable[[Traced], Captured],
    counting: Collection[Location],
) -> Captured:
    traced = traced_anew()
    mode, environment, left = traced.mode, traced.shape_env, traced.left
    did = _did(traced, is_compared=bool(counting))
    did_beside = _did_beside_attributes(traced) if left else did
    with taken_out_on_failure(mode, environment, traced.outside):
        captured = assembled(traced)
        del traced
        if mode is not None:
            check_nothing_is_kept(mode, environment, step)
        captured = replace(captured, outside=captured.outside.let_go())
    counts = counted(did, lambda: _did(traced_anew(), is_compared=True), counting)
    if counts:
        captured = captured.counting(counts)
    captured = _leaving(captured, did_beside, left, traced_anew) if left else captured
    return replace(captured, anew=made_anew(did, lambda: _did(traced_anew())))


def _leaving(captured: Captured, did: Did, left: Sequence[Left], traced_anew: Callable[[], Traced]) -> Captured:
    """Return a captured step that has `left` something in attributes, once the next step is known not to read it."""
    nodes = {item.key: item.node for item in left}

    def next_did(settled: Sequence[Change], not_to_read: Sequence[Left]) -> Did:
        with next_step(settled, not_to_read) as check_unmoved:
            traced = traced_anew()
            check_unmoved(traced.settled)
            again = {item.key: item.node for item in traced.left}
            nodes.update((key, "") for key, node in nodes.items() if again.get(key) != node)
            return _did_beside_attributes(traced)

    settled = captured.settled
    has_settled = {id(item.location.held) for item in settled}
    with_state = {id(item.owner) for item in left if item.depend}
    state = [item for item in left if item.depend or id(item.owner) in with_state & has_settled]
    remade = [item for item in left if id(item.owner) in has_settled - with_state]
    try:
        if remade:
            try:
                next_did(settled, [*state, *remade])
            except Read as refusal:
                owners = {id(item.owner) for item in remade}
                if refusal.owner not in owners:
                    raise
                settled = tuple(item for item in settled if id(item.location.held) not in owners)
        found = next_did(settled, state) if state else did
    except Read as refusal:
        raise Uncapturable(str(refusal)) from refusal
    overwritten = [item for item in state if item.count]
    if overwritten:
        is_alike = _is_alike(did, found if not settled else None, lambda: next_did((), state))
        _check_told(overwritten, is_alike=is_alike)
        overwritten = [
            replace(item, is_alike=is_alike, node=nodes[item.key] if is_alike else "") for item in overwritten
        ]
    return replace(captured, settled=settled, overwritten=tuple(overwritten))


def _is_alike(did: Did, found: Did | None, next_did: Callable[[], Did]) -> bool:
    """Whether the next step does what this one `did`, if nothing else has changed than that something is left there."""
    try:
        return (found or next_did()).beside(()) == did.beside(())
    except OTHERWISE:
        return False


def _check_told(left: Sequence[Left], *, is_alike: bool) -> None:
    """Refuse a step that the next one is not like, if signatures do not tell what is in containers."""
    inside = next((item for item in left if item.is_inside), None)
    if inside is not None and not is_alike:
        raise Uncapturable(
            f"the next step does something else because of what this one leaves in {inside.of}, where no call shows it "
            f"to the next one; keep it in a buffer that the step writes with copy_, or pass it as an argument{DROP_IN}"
        )


def _did(traced: Traced, *, is_compared: bool = False) -> Did:
    """Return what a step did when it was traced, with its program if that is to be compared."""
    found = Did("", traced.returned, traced.changed, traced.settled)
    return replace(found, program=traced.module.code) if is_compared or found.numbers() else found


def _did_beside_attributes(traced: Traced) -> Did:
    """Return what a step did when it was traced, but for results that it leaves in attributes."""
    returned = traced.returned[: len(traced.returned) - traced.in_attributes]
    return Did(traced.program_beside_attributes(), returned, traced.changed, traced.settled)
