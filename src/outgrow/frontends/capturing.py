"""How is a call of a step captured? As one graph: of compiled kernels where asked for, on a mesh this worker's part."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import torch
import torch.utils._pytree as pytree
from torch import fx
from torch._ops import OpOverload

from outgrow.errors import Uncapturable
from outgrow.frontends.entry import Arguments
from outgrow.frontends.fake.looks.guessing import NOTHING_TOLD, Told
from outgrow.frontends.lowering.inductor import by_kernels
from outgrow.frontends.preparing.settings import Settings
from outgrow.frontends.tracing.assembly import captured_from
from outgrow.frontends.tracing.capture import capture, captured_by
from outgrow.frontends.tracing.captured import Captured
from outgrow.frontends.tracing.trace import trace
from outgrow.frontends.tracing.traced import Traced
from outgrow.frontends.user.left.counts import Count
from outgrow.frontends.user.left.gathered import GoingOn
from outgrow.frontends.user.reach.locations import Location
from outgrow.frontends.user.training.devices import device_of, home_of
from outgrow.frontends.user.training.set_data import sets_data
from outgrow.frontends.user.training.state import Training
from outgrow.frontends.workers.workers import Workers, check_replaceable, one_by_one
from outgrow.ir.graph import Graph, Role
from outgrow.remarks import remark

_UNTRAINED = (
    "The step changes no parameter, so nothing is trained. Does it call optimizer.step(), while there are gradients?"
)


class Capturing:
    """A step, and how its calls become graphs."""

    def __init__(
        self,
        step: Callable[..., object],
        training: Training,
        settings: Settings,
        progress: Callable[[str, float], None],
        workers: Workers | None,
    ) -> None:
        self.step, self.training, self.settings, self.workers = step, training, settings, workers
        self._progress, self._home = progress, home_of(training)
        self._moving = frozenset[GoingOn]()

    def captured(self, arguments: Arguments, counts: Collection[Count], told: Told = NOTHING_TOLD) -> Captured:
        """Return the step as a graph, of which numbers that others count are a part if it looks at them.

        Some guesses are `told`. Remarks one that never trains anything.
        """
        self._progress("capture", 0.0)
        counting = [count.location for count in counts]
        captured = self._traced(arguments, told, counting).looking_at(counts)
        self._moving |= captured.moving
        self._check_home(captured)
        if self.settings.kernels != "eager":
            self._progress("compile", 0.0)
        captured = by_kernels(captured, self.settings.kernels)
        if not captured.guesses:  # else it may be one way that the step goes of several: it leaves a batch out
            _remark_untrained(captured.graph, self.training)
        return captured

    def _traced(self, arguments: Arguments, told: Told, counting: Collection[Location]) -> Captured:
        """Return the step as a graph: all of it, or the part of this worker."""
        training, workers = self.training, self.workers
        args, kwargs = arguments.args, arguments.kwargs
        if workers is None:
            models, optimizers = training.models, training.optimizers
            return capture(self.step, models, optimizers, args, kwargs, self._moving, told, counting)
        leaves = arguments.leaves
        check_replaceable(training)

        def traced_anew(living: Sequence[object]) -> Traced:
            with one_by_one(training):
                return trace(self.step, training, args, kwargs, living, self._moving, told=None)

        def part(traced: Traced) -> Captured:
            _check_divisible(traced)
            own = workers.divided(traced, training, leaves, self.settings.budget_bytes)
            return replace(captured_from(own, leaves), spreads=workers.spreads)

        captured = captured_by(self.step, traced_anew, part, counting)
        workers.cut(training)
        return captured

    def _check_home(self, captured: Captured) -> None:
        """Refuse a step whose tensors are not where they were when it was compiled: its platform is of that device."""
        home = device_of((home_of(self.training), captured.device))
        if home != self._home:
            raise Uncapturable(
                f"the tensors of the step are on {home}, and those of its model were on {self._home} when the step was "
                "compiled; compile it after moving the model"
            )


def _check_divisible(traced: Traced) -> None:
    """Refuse what no mesh divides: looks beyond the batch, results as large as contents say, `.data` that is set."""
    asked = next((item for item in traced.questions if not item.of_batch), None)
    if asked is not None:
        raise Uncapturable(
            f"{asked.line or 'the step'}: this looks at what is in a buffer, or in a tensor outside, and a process of "
            "a mesh may have only a part of it; keep it as one number in a buffer of its own, or look at it outside of "
            "the step"
        )
    if sets_data(traced.module):
        raise Uncapturable(
            "the step sets the .data of a tensor, which no mesh can divide; write into it (under torch.no_grad(), with "
            "copy_)"
        )
    chooses = next(filter(_is_sized_by_content, traced.module.graph.nodes), None)
    if chooses is not None:
        raise Uncapturable(
            f"the step has a result of {chooses.target} that is as large as contents say, which no mesh can divide; "
            "weigh with the mask instead, for example with torch.where"
        )


def _is_sized_by_content(node: fx.Node) -> bool:
    """Whether a result is as large as contents say; indices that are numbers find as many places as there are."""
    operator = node.target
    if not isinstance(operator, OpOverload) or torch.Tag.dynamic_output_shape not in operator.tags:
        return False
    if operator is not torch.ops.aten.index.Tensor:
        return True
    indices = [item for item in pytree.tree_leaves(node.args[1]) if isinstance(item, fx.Node)]
    return any(item.meta["val"].dtype in (torch.bool, torch.uint8) for item in indices)


def _remark_untrained(graph: Graph, training: Training) -> None:
    """Warn of a step that runs nothing, or leaves neither new parameters nor gradients for its optimizers."""
    if not graph.ops:
        remark("The step runs no operator of torch, so nothing is trained.")
        return
    roles = {graph.storages[name].role for names in graph.written_at for name in names if name in graph.outliving}
    if training.optimizers and not roles & {Role.PARAMETER, Role.GRADIENT}:
        remark(_UNTRAINED)
