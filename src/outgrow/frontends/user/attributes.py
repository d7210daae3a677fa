"""What do modules and optimizers keep in their attributes? What a step leaves there counts: its Python runs once.

    numbers, flags, words   are part of the signature, so every call with one signature leaves the same ones: they are
                            put back after the capture, and set after each call as the captured step left them
    values of the step      have no content while it is captured: the attributes are put back as they were

So a mask that a module would make only once is made in every step. What depends on the batch or on weights, such as a
hidden state, must not be read by the next step: to find out, the step is traced again with an object in its place that
refuses to be read.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn, TypeGuard

import torch
import torch.utils._pytree as pytree
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.types import py_sym_types

from outgrow.errors import Uncapturable
from outgrow.frontends.user.refusals import DROP_IN

_HELD_ELSEWHERE = ("_parameters", "_buffers", "_modules", "state", "param_groups")
"""Attributes that are a module's tables of tensors and modules, or an optimizer's."""
_CONTAINERS = (list, dict, set)
_PLAIN = (bool, int, float, str)
_SHAPES_ALONE = ("_like", "new_", "empty", "sym_")
"""Parts of the names of operators whose results do not depend on the contents of their operands."""

Container = list[object] | dict[object, object] | set[object]


@dataclass(frozen=True, slots=True)
class Number:
    """A number, flag or word in an attribute of a module or an optimizer, as a step leaves it there."""

    owner: object
    name: str
    value: bool | float | str

    def leave(self) -> None:
        """Set it as the step does."""
        vars(self.owner)[self.name] = self.value


@dataclass(frozen=True, slots=True)
class Kept:
    """Values of a step that a module or an optimizer keeps in an attribute: these tensors."""

    owner: object
    name: str
    tensors: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Left:
    """An attribute of a module or an optimizer in which `count` values depend on what a step was given."""

    owner: object
    name: str
    count: int


@dataclass(frozen=True)
class Attributes:
    """The attributes of objects before a step, copies of the containers among them, and tensors without content."""

    owners: tuple[object, ...]
    before: tuple[dict[str, object], ...]
    containers: tuple[tuple[Container, Container], ...]
    known: frozenset[int]

    @staticmethod
    def of(owners: Iterable[object]) -> "Attributes":
        """Note what is there."""
        each = tuple({id(owner): owner for owner in owners}.values())
        before = tuple(dict(vars(owner)) for owner in each)
        named = [pair for copy in before for pair in copy.items() if pair[0] not in _HELD_ELSEWHERE]
        held = [item for _, item in named if isinstance(item, _CONTAINERS)]
        copies = tuple((item, item.copy()) for item in held if type(item) in _CONTAINERS)
        known = frozenset(id(leaf) for copy in before for leaf in _leaves(copy) if isinstance(leaf, FakeTensor))
        return Attributes(each, before, copies, known)

    def put_back(self) -> None:
        """Put back what has no content, and numbers; nothing else."""
        for container, copy in self.containers:
            if _has_fresh(container, copy):
                _fill(container, copy)
        for owner, copy in zip(self.owners, self.before, strict=True):
            _put_back_attributes(vars(owner), copy)

    def put_back_all(self) -> None:
        """Put back everything."""
        for container, copy in self.containers:
            _fill(container, copy)
        for owner, copy in zip(self.owners, self.before, strict=True):
            vars(owner).clear()
            vars(owner).update(copy)

    def numbers(self) -> tuple[Number, ...]:
        """Return the numbers, flags and words that have changed."""
        return tuple(
            Number(owner, name, value)
            for owner, copy in zip(self.owners, self.before, strict=True)
            for name, value in vars(owner).items()
            if _is_plain(value) and copy.get(name) is not value
        )

    def kept(self) -> tuple[Kept, ...]:
        """Return the values of the step that attributes hold now."""
        found: list[Kept] = []
        for owner in self.owners:
            for name in [name for name in vars(owner) if name not in _HELD_ELSEWHERE]:
                tensors = [leaf for leaf in _leaves(vars(owner)[name]) if isinstance(leaf, FakeTensor)]
                fresh = tuple(tensor for tensor in tensors if id(tensor) not in self.known)
                found += [Kept(owner, name, fresh)] if fresh else []
        return tuple(found)


@contextmanager
def attributes_kept(owners: Iterable[object]) -> Iterator[Attributes]:
    """Put attributes back that have no content at the end, or are numbers: `settle` leaves these after each call."""
    attributes = Attributes.of(owners)
    try:
        yield attributes
    finally:
        attributes.put_back()


def dependent(kept: Sequence[Kept], nodes: Sequence[object]) -> tuple[Left, ...]:
    """Return which kept values depend on inputs or random numbers; `nodes` are those of their tensors, in order."""
    rest = iter(nodes)
    found = [(item, [_depends(next(rest)) for _ in item.tensors]) for item in kept]
    return tuple(Left(item.owner, item.name, len(depend)) for item, depend in found if any(depend))


def _depends(node: object) -> bool:
    waiting, seen = [node], set[object]()
    while waiting:
        item = waiting.pop()
        if not isinstance(item, fx.Node) or item in seen:
            continue
        seen.add(item)
        if item.op == "placeholder" or (isinstance(item.target, torch._ops.OpOverload) and _draws(item.target)):
            return True
        if not any(part in str(item.target) for part in _SHAPES_ALONE):
            waiting += item.all_input_nodes
    return False


def _draws(operator: torch._ops.OpOverload) -> bool:
    return torch.Tag.nondeterministic_seeded in operator.tags


@contextmanager
def not_to_be_read(left: Sequence[Left]) -> Iterator[None]:
    """Put objects that refuse to be read where values are kept, as the next step would see them; undo it at the end."""
    attributes = Attributes.of(item.owner for item in left)
    for item in left:
        table, refusing = vars(item.owner), _Refusing(f"{type(item.owner).__name__}.{item.name}")
        match table.get(item.name):
            case list():
                table[item.name] = [refusing] * item.count
            case dict() as there:
                table[item.name] = dict.fromkeys(there, refusing) or {"": refusing}
            case _:
                table[item.name] = refusing
    try:
        yield
    finally:
        attributes.put_back_all()


class _Refusing:
    """Stands for a value of an earlier step; whoever looks at it is refused."""

    def __init__(self, name: str) -> None:
        self.__dict__["_name"] = name

    def _refuse(self, *_args: object, **_kwargs: object) -> NoReturn:
        name = self.__dict__["_name"]
        raise Uncapturable(
            f"the step reads what an earlier call left in {name}, where the captured step leaves nothing; pass it as "
            f"an argument and return it, or keep it in a buffer that the step writes with copy_{DROP_IN}"
        )

    @classmethod
    def __torch_function__(
        cls, _function: object, _types: object, args: Sequence[object] = (), kwargs: Mapping[str, object] | None = None
    ) -> NoReturn:
        found = [leaf for leaf in pytree.tree_leaves((args, kwargs or {})) if isinstance(leaf, _Refusing)]
        found[0]._refuse()

    __getattr__ = __bool__ = __len__ = __iter__ = __getitem__ = __float__ = __int__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __matmul__ = _refuse
    __rmatmul__ = __neg__ = __pow__ = __lt__ = __le__ = __gt__ = __ge__ = __iadd__ = __isub__ = __imul__ = _refuse


def _has_fresh(container: Container, copy: Container) -> bool:
    known = {id(leaf) for leaf in _leaves(copy)}
    return any(_is_empty(leaf) and id(leaf) not in known for leaf in _leaves(container))


def _fill(container: Any, copy: Any) -> None:
    container.clear()
    match container, copy:
        case (list(), list()):
            container.extend(copy)
        case (dict(), dict()) | (set(), set()):
            container.update(copy)
        case _:
            raise AssertionError("a copy is of the same kind")


def _put_back_attributes(attributes: dict[str, object], copy: Mapping[str, object]) -> None:
    for name, value in list(attributes.items()):
        is_new = name not in copy or copy[name] is not value
        if is_new and name not in _HELD_ELSEWHERE and (_is_plain(value) or any(map(_is_empty, _leaves(value)))):
            del attributes[name]
            if name in copy:
                attributes[name] = copy[name]


def _leaves(value: object) -> list[object]:
    return pytree.tree_leaves(list(value) if isinstance(value, set) else value)


def _is_plain(value: object) -> TypeGuard[bool | float | str]:
    return type(value) in _PLAIN


def _is_empty(value: object) -> bool:
    return isinstance(value, (FakeTensor, *py_sym_types))
