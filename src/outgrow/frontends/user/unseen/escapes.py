"""What does a step keep that has no content? While it is captured, a loss that it appends to a list is no number.

What modules keep of a forward pass in their attributes, such as a mask or a loss that they add up, is put back as it
was (`frontends.user.left.attributes`). Anything else that is still there when the capture is over is refused: the
step's Python does not run again, so nobody would ever fill it in. After a refusal it is taken out of dictionaries,
lists and caches of functions, since the step could not run in eager mode with it.
"""

import gc
import inspect
import sys
from bdb import Bdb
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from threading import get_ident
from traceback import walk_stack
from types import CellType, FunctionType
from typing import Any

from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.types import py_sym_types

from outgrow.errors import Uncapturable
from outgrow.frontends.user.left.outside import Outside
from outgrow.frontends.user.living import living
from outgrow.frontends.user.reach.functions import names_of

_TABLES, _LISTS = frozenset((dict, OrderedDict, defaultdict)), frozenset((list, deque, set))
_CACHED = type(cache(lambda: None))
_EMPTY = frozenset((FakeTensor, *py_sym_types))
"""Types of what has no content."""
_apart: list[int] = []
"""The threads for which the collector looks past older objects; if there is none, the program has frozen what is."""


@contextmanager
def older_objects_apart() -> Iterator[None]:
    """Let the garbage collector look past what is there when the block begins; it is long, and no trace made it.

    So it costs nothing to look for what a trace has left, and to collect its garbage at the end. A program that has
    frozen objects itself keeps them frozen.
    """
    if gc.get_freeze_count():
        yield
        return
    own = get_ident()
    _apart.append(own)
    gc.freeze()
    try:
        yield
        gc.collect()
    finally:
        gc.unfreeze()
        _apart.remove(own)


def _all_in_sight() -> None:
    """Let the garbage collector see again what `older_objects_apart` has let it look past."""
    if _apart:
        gc.unfreeze()


def check_nothing_is_kept(mode: FakeTensorMode, environment: ShapeEnv, step: Callable[..., object]) -> None:
    """Raise `Uncapturable` if a tensor of a mode, or a number of its environment, is held by anybody.

    The trace must be gone by now.
    """
    if not _kept(mode, environment):
        return
    gc.collect()  # the garbage of the trace
    if not _kept(mode, environment):
        return
    _all_in_sight()
    _forget_what_debuggers_have_shown()
    gc.collect()  # and that of what was there before
    found = _kept(mode, environment)
    if found:
        item = found[0]
        what = f"a tensor of shape {tuple(item.shape)}" if isinstance(item, FakeTensor) else "a number"
        raise Uncapturable(
            f"the step keeps {what} {_place(item, step)}, which has no content while the step is captured, and the "
            "step's Python does not run again; return it from the step, and keep what the step returns. If it is made "
            "once and kept, call what makes it once before the first step. If this step alone reads it, as what a hook "
            "has noted, empty the container before the step ends (with clear())"
        )


def _forget_what_debuggers_have_shown() -> None:
    """Let debuggers that have stopped in the step, and gone on, let go of its variables; they look them up anew."""
    for debugger in living(Bdb):
        vars(debugger).pop("curframe_locals", None)


@contextmanager
def taken_out_on_failure(mode: FakeTensorMode | None, environment: ShapeEnv | None, outside: Outside) -> Iterator[None]:
    """Where the block fails, leave nothing of a mode, if it is given, in the containers of the program."""
    try:
        yield
    except BaseException:
        if mode is not None and environment is not None:
            outside.belongings.put_back()
            _take_out(mode, environment)
        raise


def _take_out(mode: FakeTensorMode, environment: ShapeEnv) -> None:
    """Take what has no content out of containers, and clear the caches of functions that hold any of it."""
    for holder in _objects():
        kind: type = type(holder)
        if kind in _TABLES and not _EMPTY.isdisjoint(map(type, holder.values())):
            for key in [key for key, item in holder.items() if _is_of(item, mode, environment)]:
                del holder[key]
        elif kind in _LISTS and not _EMPTY.isdisjoint(map(type, holder)):
            stay = [item for item in holder if not _is_of(item, mode, environment)]
            holder.clear()
            holder.update(stay) if kind is set else holder.extend(stay)
        elif kind is _CACHED and any(_is_of(item, mode, environment) for item in gc.get_referents(holder)):
            holder.cache_clear()


def _objects() -> list[Any]:
    """Return containers and caches; of objects that the program has frozen, all that can be reached."""
    _all_in_sight()
    return _reached(gc.get_objects()) if gc.get_freeze_count() else living(*_TABLES, *_LISTS, _CACHED)


def _reached(found: list[Any]) -> list[Any]:
    """Return these objects, and what can be reached from them, from modules and from functions that run."""
    found += [sys.modules, *(frame for frame, _ in walk_stack(None))]
    known = set(map(id, found))
    for holder in found:  # which grows meanwhile
        items = [item for item in gc.get_referents(holder) if gc.is_tracked(item) and id(item) not in known]
        known.update(map(id, items))
        found += items
    return found


def _kept(mode: FakeTensorMode, environment: ShapeEnv) -> list[object]:
    return [item for item in living(*_EMPTY) if _is_of(item, mode, environment)]


def _is_of(item: object, mode: FakeTensorMode, environment: ShapeEnv) -> bool:
    if type(item) is FakeTensor:
        return getattr(item, "fake_mode", None) is mode  # another thread may be in the middle of making one
    if type(item) in _EMPTY:
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
            keys = [key for key, value in holder.items() if value is item]
            if keys and isinstance(keys[0], str):
                return f"as `{keys[0]}`"
            found = f"in a {type(holder).__name__}, by the key {keys[0]!r}" if keys else found
        elif isinstance(holder, CellType) and id(item) in names:
            return f"as `{names[id(item)]}`"
        elif isinstance(holder, list | tuple | set | deque) and len(gc.get_referrers(holder)) > 1:
            found = f"in a {type(holder).__name__}"
    return found


def _names(step: Callable[..., object]) -> dict[int, str]:
    """Return the names of what a function sees beyond its own variables, by identity."""
    function = inspect.unwrap(step)
    if not isinstance(function, FunctionType):
        return {}
    return {id(value): name for name, value in names_of(function).items()}
