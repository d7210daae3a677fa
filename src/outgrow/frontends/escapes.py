"""What does a step keep that has no content? While it is captured, a loss that it appends to a list is no number.

What modules keep of a forward pass in their attributes, such as a mask or a loss that they add up, is put back as it
was. Anything else that is still there when the capture is over is refused: the step's Python does not run again, so
nobody would ever fill it in.
"""

import gc
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import CellType, FunctionType

import torch.utils._pytree as pytree
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.types import py_sym_types

from outgrow.errors import Uncapturable

_HELD_ELSEWHERE = ("_parameters", "_buffers", "_modules")
"""What of a module has tables of its own."""
_CONTAINERS = (list, dict, set)


@contextmanager
def attributes_kept(models: Iterable[nn.Module]) -> Iterator[None]:
    """Put attributes of modules that have no content at the end back as they were."""
    modules = list(dict.fromkeys(module for model in models for module in model.modules()))
    before = [(vars(module), dict(vars(module))) for module in modules]
    containers = [(item, item.copy()) for _, copy in before for item in copy.values() if type(item) in _CONTAINERS]
    try:
        yield
    finally:
        for container, copy in containers:
            _put_back(container, copy)
        for attributes, copy in before:
            _put_back_attributes(attributes, copy)


def _put_back(container: list[object] | dict[object, object] | set[object], copy: object) -> None:
    """Let a container have what it had, if it has something without content that is new."""
    known = {id(leaf) for leaf in pytree.tree_leaves(_plain(copy))}
    if not any(_is_empty(leaf) and id(leaf) not in known for leaf in pytree.tree_leaves(_plain(container))):
        return
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
        if is_new and name not in _HELD_ELSEWHERE and any(map(_is_empty, pytree.tree_leaves(_plain(value)))):
            del attributes[name]
            if name in copy:
                attributes[name] = copy[name]


def _plain(value: object) -> object:
    return list(value) if isinstance(value, set) else value


def _is_empty(value: object) -> bool:
    return isinstance(value, (FakeTensor, *py_sym_types))


def check_nothing_is_kept(mode: FakeTensorMode, environment: ShapeEnv, step: Callable[..., object]) -> None:
    """Raise `Uncapturable` if a tensor of a mode, or a number of its environment, is held by anybody.

    The trace must be gone by now.
    """
    if not _kept(mode, environment):
        return
    gc.collect()
    found = _kept(mode, environment)
    if found:
        item = found[0]
        what = f"a tensor of shape {tuple(item.shape)}" if isinstance(item, FakeTensor) else "a number"
        raise Uncapturable(
            f"the step keeps {what} {_place(item, step)}, which has no content while the step is captured, and the "
            "step's Python does not run again; return it from the step, and keep what the step returns"
        )


def _kept(mode: FakeTensorMode, environment: ShapeEnv) -> list[object]:
    return [item for item in gc.get_objects() if _is_of(item, mode, environment)]


def _is_of(item: object, mode: FakeTensorMode, environment: ShapeEnv) -> bool:
    if type(item) is FakeTensor:
        return item.fake_mode is mode
    if type(item) in py_sym_types:
        node = vars(item).get("node")
        return isinstance(node, SymNode) and node.shape_env is environment
    return False


def _place(item: object, step: Callable[..., object]) -> str:
    """Return by which name a step knows what holds something, or of which kind that is."""
    names = _names(step)
    found = "somewhere"
    for holder in gc.get_referrers(item):
        if id(holder) in names:
            return f"in `{names[id(holder)]}`"
        if isinstance(holder, dict):
            keys = [key for key, value in holder.items() if value is item and isinstance(key, str)]
            if keys:
                return f"as `{keys[0]}`"
        elif isinstance(holder, CellType) and id(item) in names:
            return f"as `{names[id(item)]}`"
        elif isinstance(holder, list | tuple | set) and len(gc.get_referrers(holder)) > 1:
            found = f"in a {type(holder).__name__}"
    return found


def _names(step: Callable[..., object]) -> dict[int, str]:
    """Return the names of what a function sees beyond its own variables, by identity."""
    function = inspect.unwrap(step)
    if not isinstance(function, FunctionType):
        return {}
    seen = inspect.getclosurevars(function)
    return {id(value): name for table in (seen.globals, seen.nonlocals) for name, value in table.items()}
