"""What do modules keep in their attributes? What a step leaves there counts, since its Python does not run again.

    numbers, flags, words   are part of the signature, so every call with one signature leaves the same ones: they are
                            set after each call as the captured step left them
    values of the step      have no content while it is captured: the attributes are put back as they were

So a mask that a module would make only once is made in every step. What depends on the batch or on weights, such as a
hidden state, must not be read by the next step: to find out, the step is traced again with an object in its place that
refuses to be read.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
import torch.utils._pytree as pytree
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.types import py_sym_types

from outgrow.errors import Uncapturable
from outgrow.frontends.refusals import DROP_IN

_HELD_ELSEWHERE = ("_parameters", "_buffers", "_modules")
"""Attributes of a module that are its tables of tensors and modules."""
_CONTAINERS = (list, dict, set)
_PLAIN = (bool, int, float, str)
_SHAPES_ALONE = ("_like", "new_", "empty", "sym_")
"""Parts of the names of operators whose results do not depend on the contents of their operands."""

Container = list[object] | dict[object, object] | set[object]


@dataclass(frozen=True, slots=True)
class Number:
    """A number, flag or word in an attribute of a module, as a step leaves it there."""

    module: nn.Module
    name: str
    value: bool | float | str

    def leave(self) -> None:
        """Set it as the step does."""
        vars(self.module)[self.name] = self.value


@dataclass(frozen=True, slots=True)
class Kept:
    """Values of a step that a module keeps in an attribute: these tensors."""

    module: nn.Module
    name: str
    tensors: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Left:
    """An attribute of a module, in which `count` values depend on what a step was given."""

    module: nn.Module
    name: str
    count: int


@dataclass(frozen=True)
class Attributes:
    """The attributes of modules before a step, copies of the containers among them, and tensors without content."""

    modules: tuple[nn.Module, ...]
    before: tuple[dict[str, object], ...]
    containers: tuple[tuple[Container, Container], ...]
    known: frozenset[int]

    @staticmethod
    def of(models: Iterable[nn.Module]) -> "Attributes":
        """Note what is there."""
        modules = tuple(dict.fromkeys(module for model in models for module in model.modules()))
        before = tuple(dict(vars(module)) for module in modules)
        held = [item for copy in before for item in copy.values() if isinstance(item, _CONTAINERS)]
        copies = tuple((item, item.copy()) for item in held if type(item) in _CONTAINERS)
        known = frozenset(id(leaf) for copy in before for leaf in _leaves(copy) if isinstance(leaf, FakeTensor))
        return Attributes(modules, before, copies, known)

    def put_back(self) -> None:
        """Put back what has no content, and nothing else."""
        for container, copy in self.containers:
            if _has_fresh(container, copy):
                _fill(container, copy)
        for module, copy in zip(self.modules, self.before, strict=True):
            _put_back_attributes(vars(module), copy)

    def put_back_all(self) -> None:
        """Put back everything."""
        for container, copy in self.containers:
            _fill(container, copy)
        for module, copy in zip(self.modules, self.before, strict=True):
            vars(module).clear()
            vars(module).update(copy)

    def numbers(self) -> tuple[Number, ...]:
        """Return the numbers, flags and words that have changed."""
        pairs = zip(self.modules, self.before, strict=True)
        return tuple(
            Number(module, name, value)
            for module, copy in pairs
            for name, value in vars(module).items()
            if isinstance(value, _PLAIN) and type(value) in _PLAIN and copy.get(name) is not value
        )

    def kept(self) -> tuple[Kept, ...]:
        """Return the values of the step that attributes hold now."""
        found: list[Kept] = []
        for module in self.modules:
            for name in [name for name in vars(module) if name not in _HELD_ELSEWHERE]:
                tensors = [leaf for leaf in _leaves(vars(module)[name]) if isinstance(leaf, FakeTensor)]
                fresh = tuple(tensor for tensor in tensors if id(tensor) not in self.known)
                found += [Kept(module, name, fresh)] if fresh else []
        return tuple(found)


@contextmanager
def attributes_kept(models: Iterable[nn.Module]) -> Iterator[Attributes]:
    """Put attributes of modules that have no content at the end back as they were."""
    attributes = Attributes.of(models)
    try:
        yield attributes
    finally:
        attributes.put_back()


def dependent(kept: Sequence[Kept], nodes: Sequence[object]) -> tuple[Left, ...]:
    """Return which kept values depend on inputs or random numbers; `nodes` are those of their tensors, in order."""
    rest = iter(nodes)
    found = [(item, [_depends(next(rest)) for _ in item.tensors]) for item in kept]
    return tuple(Left(item.module, item.name, len(depend)) for item, depend in found if any(depend))


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
    attributes = Attributes.of(item.module for item in left)
    for item in left:
        table, refusing = vars(item.module), _Refusing(f"{type(item.module).__name__}.{item.name}")
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
        if is_new and name not in _HELD_ELSEWHERE and any(map(_is_empty, _leaves(value))):
            del attributes[name]
            if name in copy:
                attributes[name] = copy[name]


def _leaves(value: object) -> list[object]:
    return pytree.tree_leaves(list(value) if isinstance(value, set) else value)


def _is_empty(value: object) -> bool:
    return isinstance(value, (FakeTensor, *py_sym_types))
