"""How does a training step, as the user wrote it, become a graph?

    step --trace--> nodes on fake tensors --convert--> Graph --assembly--> Captured

The step is run once without contents (`frontends.tracing.trace`); its nodes become ops on storages
(`frontends.tracing.convert`), and these, with the slots of what the step reads and writes, a `Captured` step
(`frontends.tracing.assembly`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch.utils._pytree as pytree
from torch import nn
from torch.optim import Optimizer

from outgrow.errors import Uncapturable
from outgrow.frontends.tracing.assembly import captured_from
from outgrow.frontends.tracing.captured import Captured
from outgrow.frontends.tracing.trace import Traced, trace
from outgrow.frontends.user.attributes import Contents, Left, Read, Settled, next_step
from outgrow.frontends.user.counts import Did, counted
from outgrow.frontends.user.drawn import living_generators
from outgrow.frontends.user.escapes import check_nothing_is_kept, older_objects_apart, taken_out_on_failure
from outgrow.frontends.user.state import Training


def capture(
    step: Callable[..., object],
    models: Sequence[nn.Module],
    optimizers: Sequence[Optimizer],
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
) -> Captured:
    """Capture one call of `step` as a graph. Nothing of the step's size is computed or allocated, and no state changes.

    Four exceptions: what is made of literals alone is computed (`frontends.fake.literals`: 16 MiB of larger ones at
    most), a recurrent layer, or a cuDNN batch normalisation, runs once on memory without contents, to see how much its
    kernel keeps (`frontends.fake.reserves`), an operator on small tensors with ambiguous layouts runs on zeros
    (`frontends.fake.ambiguous`), and a `GradScaler` is given its tensors, as its first use does.

    Raises `Uncapturable`, naming the user's line, where the step looks at the contents of tensors, and where
    it does something that a graph could not repeat. An error of the step itself is raised as it is.
    """
    training, leaves = Training(tuple(models), tuple(optimizers)), pytree.tree_leaves((tuple(args), dict(kwargs or {})))

    def traced_anew(living: Sequence[object]) -> Traced:
        return trace(step, training, args, kwargs or {}, living)

    return captured_by(step, traced_anew, lambda traced: captured_from(traced, leaves))


def captured_by(
    step: Callable[..., object],
    traced_anew: Callable[[Sequence[object]], Traced],
    assembled: Callable[[Traced], Captured],
) -> Captured:
    """Return what is `assembled` of a trace of `step`, once nothing without contents is kept, and nothing left is read.

    `traced_anew` traces the step, given the generators of random numbers that there are: a second time if the step
    leaves values in attributes.

    Raises `Uncapturable` as `capture` does.
    """
    living = living_generators()  # the collector looks past them in the block
    with older_objects_apart():
        return _captured_by(step, partial(traced_anew, living), assembled)


def _captured_by(
    step: Callable[..., object], traced_anew: Callable[[], Traced], assembled: Callable[[Traced], Captured]
) -> Captured:
    traced = traced_anew()
    mode, environment, left, did = traced.mode, traced.shape_env, traced.left, _did(traced)
    with taken_out_on_failure(mode, environment, traced.outside):
        captured = assembled(traced)
        del traced
        if mode is not None:
            check_nothing_is_kept(mode, environment, step)
        captured = replace(captured, outside=captured.outside.let_go())
    counts = counted(did, lambda: _did(traced_anew(), is_anew=True))
    if counts:
        captured = captured.counting(counts)
    if not left:
        return captured

    def trace_next(settled: Sequence[Settled | Contents], not_to_read: Sequence[Left]) -> None:
        with next_step(settled, not_to_read) as check_unmoved:
            check_unmoved(traced_anew().settled)

    owners = {id(item.owner) for item in left}
    apart = tuple(item for item in captured.settled if id(item.owner) not in owners)
    if len(apart) < len(captured.settled):
        try:
            trace_next(captured.settled, left)
        except Read:
            captured = replace(captured, settled=apart)
    state = [item for item in left if item.depend]
    if state:
        try:
            trace_next(captured.settled, state)
        except Read as refusal:
            raise Uncapturable(str(refusal)) from refusal
    return replace(captured, overwritten=tuple(item for item in state if item.count))


def _did(traced: Traced, *, is_anew: bool = False) -> Did:
    """Return what a step did when it was traced, with its program if that is to be compared."""
    found = Did("", traced.returned, traced.changed, traced.settled)
    return replace(found, program=traced.module.code) if is_anew or found.numbers() else found
