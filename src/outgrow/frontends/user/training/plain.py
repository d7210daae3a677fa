"""What do models and optimizers keep that is no tensor? No step may change it, but for numbers of optimizers.

    state["step"] += 1
    step_size = group["lr"] / (1 - beta ** state["step"])

Numbers in the state of a parameter, and whole ones in parameter groups, are part of a captured step while it leaves
them as they are. Where it changes some, it is traced again with symbols for these: they are read anew before each call,
as rates are, and what the step makes of them is put back after it. What is a constant after the step, such as a number
that a step puts where none was, is the same after every call of that step.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, TypeGuard

import torch.utils._pytree as pytree
from torch import SymFloat, SymInt, Tensor
from torch.optim import Optimizer
from torch.types import py_sym_types

from outgrow.errors import Uncapturable
from outgrow.frontends.user.filling import differ
from outgrow.frontends.user.reach.configuration import NUMBERS
from outgrow.frontends.user.refusals import DROP_IN
from outgrow.frontends.user.training.state import (
    GroupSlot,
    OptimizerSlot,
    OutsideSlot,
    Training,
    entries_of,
    group_entries,
    parameters,
    title,
)

_OUTSIDE = "do this outside of the step (a learning rate: by a scheduler, whose scheduler.step() may stay in the step)"
_COUNTING = (
    "let the optimizer keep it in a tensor, such as torch.tensor(0.0), which it changes in place, as those of "
    f"torch.optim do{DROP_IN}"
)
_REFUSED = "the step changes {}, which the captured step would not repeat; {}"

Number: TypeAlias = int | float
NumberSlot: TypeAlias = OptimizerSlot | GroupSlot | OutsideSlot


@dataclass(frozen=True, slots=True)
class Numbers:
    """What became of the numbers of optimizers in a step.

    Those are `known` for which no symbols stood, `made` are new ones made of symbols, those that are `placed` are the
    same in every call, and those that are `untraced` have changed, though no symbols stood for them.
    """

    known: Mapping[NumberSlot, Number] = field(default_factory=dict[NumberSlot, Number])
    made: Mapping[NumberSlot, SymInt | SymFloat] = field(default_factory=dict[NumberSlot, SymInt | SymFloat])
    placed: Mapping[NumberSlot, Number | None] = field(default_factory=dict[NumberSlot, Number | None])
    untraced: frozenset[NumberSlot] = frozenset()

    @staticmethod
    def between(before: Mapping[NumberSlot, object], after: Mapping[NumberSlot, object]) -> "Numbers":
        """Return what a step has done to numbers, of which some may be symbols.

        Raises `Uncapturable` where it takes one away.
        """
        changed = {slot: number for slot, number in after.items() if before.get(slot) is not number}
        gone = next((slot for slot in before if slot not in after), None)
        if gone is not None:
            raise Uncapturable(_REFUSED.format(title(gone), _COUNTING))
        return Numbers(
            known={slot: number for slot, number in before.items() if _is_plain(number)},
            made={slot: number for slot, number in changed.items() if isinstance(number, SymInt | SymFloat)},
            placed={slot: number for slot, number in changed.items() if _is_plain(number)},
            untraced=frozenset(slot for slot in changed if type(before.get(slot)) in (int, float)),
        )

    def also(self, others: "Numbers") -> "Numbers":
        """Return what became of these and of others, of which none is known."""
        made, placed = {**self.made, **others.made}, {**self.placed, **others.placed}
        return Numbers(self.known, made, placed, self.untraced | others.untraced)

    def changed(self, moving: Collection[NumberSlot]) -> frozenset[NumberSlot]:
        """Return those for which symbols are to stand: those that have changed, and what is `moving` in other calls."""
        return self.untraced | {slot for slot in moving if type(self.known.get(slot)) in (int, float)}


def numbers_of(training: Training) -> dict[NumberSlot, object]:
    """Return every number, or symbol, in the state of a parameter, and every whole one in a parameter group."""
    slots = {id(parameter): slot for slot, parameter in parameters(training).items()}
    found: dict[NumberSlot, object] = {slot: item for slot, item in group_entries(training) if is_whole(item)}
    for index, optimizer in enumerate(training.optimizers):
        for parameter, entries in optimizer.state.items():
            if id(parameter) in slots:
                numbers = [(key, item) for key, item in entries_of(entries).items() if is_number(item)]
                found |= {OptimizerSlot(index, slots[id(parameter)], key): item for key, item in numbers}
    return found


def numbers_in(slots: Collection[NumberSlot], training: Training) -> dict[NumberSlot, Number]:
    """Return the numbers in some slots, in the order of the optimizers."""
    return {slot: item for slot, item in numbers_of(training).items() if slot in slots and _is_plain(item)}


def is_whole(item: object) -> bool:
    """Whether it is a whole number, or a symbol for one."""
    return type(item) is int or isinstance(item, SymInt)


def is_number(item: object) -> bool:
    """Whether it is a number, a truth value, or a symbol for a number."""
    return _is_plain(item) or isinstance(item, SymInt | SymFloat)


def _is_plain(item: object) -> TypeGuard[Number]:
    return type(item) in (bool, int, float)


def plain_state(training: Training) -> dict[str, object]:
    """Return what no step may change, but for tensors and numbers, by what to call it in a message."""
    found: dict[str, object] = {}
    for model, root in enumerate(training.models):
        for name, module in root.named_modules():
            if module._parameters or module._buffers:
                found[f"which module is {name!r} of model {model}"] = module
    owned = parameters(training)
    for slot, parameter in owned.items():
        for name, value in vars(parameter).items():
            told = value if type(value) in NUMBERS else id(value)
            found[f"{name!r} of parameter {slot.name!r} of model {slot.model}"] = told
    known = frozenset(map(id, owned.values()))
    for slot, value in group_entries(training):
        if not isinstance(value, Tensor) and not is_whole(value):
            found[title(slot)] = [*value] if type(value) is list else value
    for index, optimizer in enumerate(training.optimizers):
        found |= {f"{what} of optimizer {index}": value for what, value in _plain_entries(optimizer, known)}
        groups = tuple([tuple(map(id, group["params"])) for group in optimizer.param_groups])
        found[f"which parameters are in param_groups of optimizer {index}"] = groups
    return found


def _plain_entries(optimizer: Optimizer, known: frozenset[int]) -> Iterator[tuple[str, object]]:
    """Yield what an optimizer keeps that is neither tensor nor number in a parameter's state, by what to call it."""
    for at, (owner, entries) in enumerate(optimizer.state.items()):
        if not isinstance(entries, dict):
            yield f"state[{owner!r:.40}]", entries
        for key, value in entries_of(entries).items():
            if not isinstance(value, Tensor) and not (id(owner) in known and is_number(value)):
                yield f"state[{at}][{key!r}]", value


def check_unchanged(before: Mapping[str, object], after: Mapping[str, object]) -> None:
    """Raise `Uncapturable` for the first thing that is another one after a step (`plain_state`)."""
    for what in {**dict.fromkeys(after), **before}:
        old, new = before.get(what), after.get(what)
        is_symbolic = any(isinstance(item, py_sym_types) for item in pytree.tree_leaves((old, new)))
        if _are_apart(old, new) and (is_symbolic or type(old) is not type(new) or old != new):
            raise Uncapturable(_REFUSED.format(what, _COUNTING if what.startswith("state[") else _OUTSIDE))


def _are_apart(old: object, new: object) -> bool:
    """Whether two values are different objects, and not lists of the same ones."""
    return differ(old, new) if isinstance(old, list) and isinstance(new, list) else old is not new
