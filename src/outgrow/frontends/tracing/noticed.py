"""What is noticed of a step that is traced? What it returns, and which tensors hang in slots when it ends."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import torch.utils._pytree as pytree
from torch import Tensor
from torch.types import py_sym_types

from outgrow.errors import Uncapturable
from outgrow.frontends.tracing.leaf import Kind, Leaf
from outgrow.frontends.user.left.attributes import Kept
from outgrow.frontends.user.left.changes import Change
from outgrow.frontends.user.left.gathered import ListSlot, PlaceSlot
from outgrow.frontends.user.left.refusing import Left
from outgrow.frontends.user.left.said import CallSlot, Saying
from outgrow.frontends.user.reach.containers import check_open, open_containers
from outgrow.frontends.user.training.plain import Numbers
from outgrow.frontends.user.training.set_data import SetData
from outgrow.frontends.user.training.state import (
    BatchSlot,
    BufferSlot,
    GradientSlot,
    GroupSlot,
    HeldSlot,
    OptimizerSlot,
    StateSlot,
    title,
)

Output: TypeAlias = Leaf | StateSlot | None
"""A leaf of what the step returns, the slot of a tensor that is new there, or None: a gradient that stays."""
LeavingSlot: TypeAlias = ListSlot | PlaceSlot | CallSlot
"""Where a step leaves results outside."""


@dataclass(slots=True)
class Noticed:
    """What is seen while the step runs; the fields are those of `frontends.tracing.traced.Traced`."""

    outputs: list[Output] = field(default_factory=list)
    returned: list[object] = field(default_factory=list)
    values: object = None
    structure: pytree.TreeSpec | None = None
    structure_of_gathered: pytree.TreeSpec | None = None
    born: dict[StateSlot, Tensor] = field(default_factory=dict)
    rebound: dict[StateSlot, Tensor] = field(default_factory=dict)
    emptied: tuple[StateSlot, ...] = ()
    gradients: list[Tensor] = field(default_factory=list)
    settled: tuple[Change, ...] = ()
    kept: tuple[Kept, ...] = ()
    exchanged: tuple[Left, ...] = ()
    changed: tuple[Change, ...] = ()
    numbers: Numbers = field(default_factory=Numbers)
    gathered: Mapping[LeavingSlot, object] = field(default_factory=dict[LeavingSlot, object])
    said: tuple[object, ...] = ()
    said_from: int = 0
    in_attributes: int = 0
    slots: Mapping[int, HeldSlot] = field(default_factory=dict[int, HeldSlot])
    """The slots of tensors that hang in them when the step ends, or were given, by identity."""

    def leaves(self, returned: object, results: Mapping[ListSlot | PlaceSlot, object], saying: Saying) -> None:
        """Note what the step returns, where it leaves results, and what it says."""
        self.values, self.gathered, self.said = returned, {**results, **saying.calls}, saying.heard()
        self.said_from = len(pytree.tree_leaves((returned, [*results.values()])))

    def ended(
        self,
        before: Mapping[StateSlot, Tensor],
        after: Mapping[StateSlot, Tensor],
        batch: Mapping[int, Tensor],
        data: SetData,
    ) -> list[object]:
        """Note what the step has left, and what hangs in slots `after` it; return the outputs among that."""
        return without_graphs([*self._returned(after, batch), *self._hanging(before, after, data)])

    def _returned(self, after: Mapping[StateSlot, Tensor], batch: Mapping[int, Tensor]) -> list[object]:
        given: dict[int, HeldSlot] = {id(tensor): BatchSlot(at) for at, tensor in batch.items()}
        self.slots = given | {id(tensor): slot for slot, tensor in after.items()}
        gathered = [*self.gathered.values()]
        open_containers((self.values, gathered))
        check_open((self.values, gathered), "return them in a dict, list, tuple or dataclass")
        leaves, self.structure = pytree.tree_flatten(self.values)
        others, self.structure_of_gathered = pytree.tree_flatten(gathered)
        return self._outputs((*leaves, *others))

    def keeps(self, results: Mapping[PlaceSlot, object]) -> None:
        """Note results that the step leaves in attributes, each of which is an output."""
        self.in_attributes = len(results)
        self.gathered = {**self.gathered, **results}
        self.structure_of_gathered = pytree.tree_structure([*self.gathered.values()])
        self._outputs(results.values())

    def _outputs(self, leaves: Iterable[object]) -> list[object]:
        found: list[object] = []
        for at, leaf in enumerate(leaves, len(self.returned)):
            if isinstance(leaf, str) and "FakeTensor(" in leaf:
                raise Uncapturable(
                    "the step returns text that it made of a tensor, whose content is not there while the step is "
                    "captured; return the tensor, and make text of it after the step"
                )
            is_output = isinstance(leaf, (Tensor, *py_sym_types))
            self.returned.append(None if is_output else leaf)
            if is_output:
                self.outputs.append(Leaf(at, Kind.of(leaf, self.slots.get(id(leaf)))))
                found.append(leaf)
        return found

    def _hanging(
        self, before: Mapping[StateSlot, Tensor], after: Mapping[StateSlot, Tensor], data: SetData
    ) -> list[Tensor]:
        found: list[Tensor] = []
        for slot, tensor in after.items():
            stays = before.get(slot) is tensor
            may_be_put = isinstance(slot, (BufferSlot, GradientSlot, OptimizerSlot))
            if not (stays or may_be_put or (isinstance(slot, GroupSlot) and slot not in before)):
                raise Uncapturable(
                    f"the step exchanges the tensor of {title(slot)}; write into it (copy_), or do this outside"
                    if slot in before
                    else f"the step makes {title(slot)}; make it before, for example by calling the model once"
                )
            if not stays:
                self.born[slot] = tensor
            elif tensor in data:
                self.rebound[slot] = tensor.detach()
            is_other = not stays or slot in self.rebound
            if is_other or isinstance(slot, GradientSlot):
                self.outputs.append(slot if is_other else None)
                found.append(tensor)
        self.emptied = tuple(slot for slot in before if slot not in after)
        return found

    def made(self, numbers: Numbers) -> Iterable[object]:
        """Note what became of numbers; return those that are made of symbols, which are outputs."""
        self.numbers = numbers
        self.outputs += numbers.made
        return numbers.made.values()


def without_graphs(values: Iterable[object]) -> list[object]:
    """Return tensors, from which no backward pass can go back, and numbers."""
    return [value.detach() if isinstance(value, Tensor) else value for value in values]
