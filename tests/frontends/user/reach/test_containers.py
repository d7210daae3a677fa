"""Dataclasses are opened, and made again as they were, without their constructors; other objects are told apart."""

from collections import UserDict
from dataclasses import dataclass, field

import pytest
import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from outgrow.errors import Uncapturable
from outgrow.frontends.tracing.capture import capture
from outgrow.frontends.user.reach.containers import check_open, open_containers


@dataclass
class Mean:
    """Divides when it is made, and notes something that is no field."""

    total: Tensor
    count: int
    mean: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.total = self.total / self.count
        self.mean = self.total * 2
        self.note = "made"


@dataclass(frozen=True, slots=True)
class Point:
    """Has no table of attributes."""

    x: Tensor
    name: str = "p"


class Encoded(UserDict[str, Tensor]):
    """A batch as tokenizers make it, with a number, and something that is none."""

    def __init__(self, entries: dict[str, Tensor]) -> None:
        super().__init__(entries)
        self.length, self.encodings = 2, [object()]


class Batch:
    """No container that anybody knows."""

    def __init__(self, x: Tensor) -> None:
        self.x = x


@pytest.mark.parametrize("value", [Mean(torch.ones(2), 4), Point(torch.ones(2))], ids=["computes", "slots"])
def test_a_dataclass_is_made_again_as_it_was(value: object) -> None:
    """Its constructor is not called again; all that it holds is there, fields or not."""
    open_containers(value)
    leaves, structure = pytree.tree_flatten(value)
    assert any(isinstance(leaf, Tensor) for leaf in leaves)
    again = pytree.tree_unflatten(leaves, structure)
    assert type(again) is type(value)
    assert pytree.tree_leaves(again) == leaves
    assert repr(again) == repr(value)


def test_a_step_may_return_a_dataclass_that_computes() -> None:
    """What it computes is part of the step, once."""
    found = capture(lambda x: Mean(x.sum(), 4), [], [], (torch.ones(2),))
    returned = found.unflatten([torch.full((), 5.0)] * len(found.graph.results))
    assert isinstance(returned, Mean)
    assert (float(returned.total), returned.note) == (5.0, "made")


def test_a_dictionary_of_another_type_may_hold_a_batch() -> None:
    """It is made again with what is in it, and without what nobody can compare."""
    value, other = Encoded({"x": torch.ones(2)}), Encoded({"x": torch.zeros(2)})
    open_containers(value)
    leaves, structure = pytree.tree_flatten(value)
    again = pytree.tree_unflatten(leaves, structure)
    assert (type(again), dict(again), again.length) == (Encoded, dict(value), 2)
    assert not hasattr(again, "encodings")
    assert structure == pytree.tree_structure(other)
    found = capture(lambda batch: batch["x"].sum(), [], [], (value,))
    assert len(found.batch_leaves) == 1


def test_an_argument_that_holds_tensors_has_to_be_open() -> None:
    """Its tensors would be the same in every call; what has tensors of its own, such as a module, may hold them."""
    with pytest.raises(Uncapturable, match="a Batch holds tensors; pass them"):
        capture(lambda batch: batch.x.sum(), [], [], (Batch(torch.ones(2)),))
    check_open([nn.Linear(2, 2), torch.optim.SGD([torch.ones(1)], lr=0.1)], "")
