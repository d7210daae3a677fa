"""What did a step do while it was traced? The record that `frontends.tracing.trace` returns."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import NoneType

import sympy
import torch.utils._pytree as pytree
from torch import Tensor, fx
from torch.optim.lr_scheduler import LRScheduler

from outgrow.frontends.fake.fakes import FakeMode
from outgrow.frontends.fake.looks.counters import Counted
from outgrow.frontends.fake.looks.guessing import Guess
from outgrow.frontends.fake.looks.questions import Question
from outgrow.frontends.tracing.leaf import Leaf
from outgrow.frontends.tracing.likeness import Account
from outgrow.frontends.tracing.noticed import LeavingSlot, Noticed, Output
from outgrow.frontends.tracing.results import results_of, returning
from outgrow.frontends.tracing.substitutes import Substitutes
from outgrow.frontends.user.left.changes import Change, Changed
from outgrow.frontends.user.left.gathered import GoingOn, ListSlot, PlaceSlot
from outgrow.frontends.user.left.outside import Outside
from outgrow.frontends.user.left.refusing import Left
from outgrow.frontends.user.reach.configuration import NUMBERS, content
from outgrow.frontends.user.training.guards import Symbols
from outgrow.frontends.user.training.plain import Numbers, NumberSlot
from outgrow.frontends.user.training.state import OutsideSlot, ParameterSlot, Slot, StateSlot


@dataclass(frozen=True, slots=True)
class Traced:
    """One run of a step: its nodes, what its inputs and outputs are, and what it assumed.

    The placeholders of `module` are `tensors`, then `hyper`; its results are `outputs`.
    """

    module: fx.GraphModule
    mode: FakeMode | None
    """The mode of the fake tensors, if it was made for this run."""
    tensors: Mapping[Slot, Tensor]
    hyper: Mapping[NumberSlot, float]
    """Numbers that are inputs: rates, and those of `numbers` that change from call to call."""
    numbers: Numbers
    symbols: tuple[sympy.Symbol, ...]
    """What stood for `hyper`, in the same order."""
    counters: Mapping[sympy.Symbol, tuple[Counted, float]]
    """The counters of the state that the step looked at, and what they were."""
    questions: tuple[Question, ...]
    """What the step asked of its batch, of buffers, and of tensors outside."""
    guesses: tuple[Guess, ...]
    """What the step takes for granted until it runs."""
    held: frozenset[StateSlot]
    """The slots of gradients that must stay until the guesses have been checked."""
    shape_env: Symbols
    originals: Mapping[int, Tensor]
    """The real tensors, by the identity of their fake twins."""
    outputs: tuple[Output, ...]
    structure: pytree.TreeSpec
    """That of what the step returns."""
    structure_of_gathered: pytree.TreeSpec | None
    """That of the list of what it leaves where it has `gathered`."""
    returned: tuple[object, ...]
    """The leaves of what it returns and of that, with None for those that are outputs."""
    born: Mapping[StateSlot, Tensor]
    """Tensors that are new in their slots."""
    rebound: Mapping[StateSlot, Tensor]
    """The contents of tensors that stay in their slots and whose `.data` was set."""
    begun: Mapping[StateSlot, float]
    """The numbers in new tensors whose content is known."""
    emptied: tuple[StateSlot, ...]
    """The slots that lost their tensors."""
    gradients: tuple[Tensor, ...]
    """The tensors that were in `p.grad` when an optimizer made its step."""
    schedulers: tuple[LRScheduler, ...]
    """Those whose steps follow every call."""
    flags: Mapping[ParameterSlot, bool]
    """Parameters that are trained from then on, or no more."""
    settled: tuple[Change, ...]
    """What the step leaves in attributes."""
    left: tuple[Left, ...]
    """Attributes in which it leaves values that have no content while it is captured."""
    outside: Outside
    """What it found elsewhere: numbers, things and helpers."""
    changed: tuple[Change, ...]
    """What of that it has changed."""
    gathered: tuple[LeavingSlot, ...]
    """Where it leaves results outside, and calls that say some."""
    said: tuple[object, ...]
    """What these say, as far as it is known."""
    said_from: int
    """The number of the first leaf of `returned` that is theirs, or is left in attributes."""
    in_attributes: int
    """How many of the last leaves, which are the last outputs, are left in attributes."""
    shared: frozenset[int]
    """The numbers of sums of gradients that it made otherwise than eager mode (`frontends.fake.kernels.sums`)."""

    @staticmethod
    def of(
        used: Substitutes,
        run: Noticed,
        module: fx.GraphModule,
        *,
        mode: FakeMode | None,
        schedulers: tuple[LRScheduler, ...],
        flags: Mapping[ParameterSlot, bool],
        left: tuple[Left, ...],
        outside: Outside,
    ) -> "Traced":
        """Return what a step has done in a run, by a module of what it used; the rest is as the fields say."""
        assert run.structure is not None, "the step ran"
        twins, number = used.fakes.twins, used.literals.number
        return Traced(
            module=module,
            mode=mode,
            tensors=used.fakes.tensors,
            hyper=used.hyper,
            numbers=run.numbers,
            symbols=used.expressions,
            counters=used.counters.seen,
            questions=tuple(used.asking.questions),
            guesses=tuple(used.guessing.made),
            held=frozenset(used.guessing.held),
            shape_env=used.shape_env,
            originals=twins.originals,
            outputs=tuple(run.outputs),
            structure=run.structure,
            structure_of_gathered=run.structure_of_gathered,
            returned=tuple(run.returned),
            born=run.born,
            rebound=run.rebound,
            begun={slot: known for slot, item in run.born.items() if (known := number(item)) is not None},
            emptied=run.emptied,
            gradients=tuple(map(twins.twin, run.gradients)),
            schedulers=schedulers,
            flags=flags,
            settled=run.settled,
            left=left,
            outside=outside,
            changed=run.changed,
            gathered=tuple(run.gathered),
            said=run.said,
            said_from=run.said_from,
            in_attributes=run.in_attributes,
            shared=twins.sums.shared(module),
        )

    def program_beside_attributes(self) -> str:
        """Return the program of the step if it left no results in attributes."""
        graph = fx.Graph()
        graph.output(graph.graph_copy(self.module.graph, {}))
        returning(graph, results_of(graph)[: len(self.outputs) - self.in_attributes])
        return graph.python_code("self").src

    @property
    def account(self) -> Account:
        """What the step did, to be compared with what it did in another trace."""
        is_said = [isinstance(item, Leaf) and item.index >= self.said_from for item in self.outputs]
        outputs = [item.index if isinstance(item, Leaf) else item for item in self.outputs]
        outputs = [None if said else item for item, said in zip(outputs, is_said, strict=True)]
        returned = enumerate(self.returned[: self.said_from])
        constants = {at: item for at, item in returned if type(item) in NUMBERS} | {"said": self.said}
        left = dict(map(_left_alike, (*self.settled, *self.changed)))
        return Account(self.module, outputs, {**left, **constants, **self.numbers.placed})

    def changing(self, moving: Collection[GoingOn]) -> frozenset[GoingOn]:
        """Return what changes from call to call, and could be no part of the step; other calls change the `moving`."""
        numbers = self.numbers.changed(numbers_going_on(moving))
        others = (slot for slot in moving if isinstance(slot, OutsideSlot | ListSlot | PlaceSlot))
        used = (slot for slot in self.gathered if isinstance(slot, ListSlot | PlaceSlot) and slot.is_used)
        return numbers.union(used, others)


def _left_alike(item: Change) -> tuple[object, object]:
    """Return where something is left, and what: a number itself, or None, where a symbol might stand for a number."""
    if isinstance(item, Changed) and type(item.value) in (int, float, NoneType):
        return OutsideSlot.at(item.location, 0), item.value
    return item.location.key, content(item.value)


def numbers_going_on(going_on: Iterable[GoingOn]) -> list[NumberSlot]:
    """Return those that are numbers of the user; the others tell what a step gathers."""
    return [slot for slot in going_on if not isinstance(slot, ListSlot | PlaceSlot)]
