"""What does a step say? What it prints and logs is said after each call, with the numbers of that call.

    print(f"step {self.steps}: {loss.item():.3f}")
    log.info("norm %s", norm)

The step's Python runs once. So calls of `print`, and records of loggers, in lines of the user's are noted when the step
is captured, and made after each run. Numbers and tensors that they are given are results of the graph, as what the step
returns is.

A number has no text while the step is captured. Where a text of it is a part of what such a call is given, as the code
on that line says, a mark stands for it until the call is made. Any other text of it is refused: nobody would know where
it has gone.
"""

import ast
import builtins
import linecache
import logging
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import islice, product
from numbers import Number
from types import FrameType
from typing import Any, NamedTuple, TypeAlias
from unittest.mock import patch

import torch.utils._pytree as pytree
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.types import py_sym_types

from outgrow.errors import Uncapturable
from outgrow.frontends.user.left.attributes import has_results
from outgrow.frontends.user.lines import NO_LINE, is_of_a_library, present_line
from outgrow.frontends.user.own_thread import in_own_thread
from outgrow.frontends.user.refusals import CONTENT, DROP_IN

_MARK, _MARKED = "\ue000{}\ue001", re.compile("\ue000(\\d+)\ue001")
"""Stands for a number in a text, by the number of the mark: in private characters, which no text of people has."""
_LEVELS = frozenset(("debug", "info", "warning", "error", "critical", "exception", "log"))
"""Methods of loggers."""
_OF_TEXT = (ast.JoinedStr, ast.FormattedValue, ast.Constant, ast.BinOp, ast.Tuple, ast.GeneratorExp, ast.ListComp)
_Place: TypeAlias = tuple[tuple[int, int], tuple[int, int]]
"""Line and column of a begin, and of an end."""


class _Text(NamedTuple):
    """A text with marks, and for each of them the number that it stands for, and how that is to be written."""

    marked: str
    numbers: tuple[object, ...]
    formats: tuple[str, ...]

    def filled(self, numbers: Iterable[object]) -> str:
        """Return the text with these numbers; where one is None, a mark stays."""
        pairs = zip(numbers, self.formats, strict=True)
        texts = iter([_MARK if number is None else format(number, form) for number, form in pairs])
        return _MARKED.sub(lambda _: next(texts), self.marked)


@dataclass(frozen=True, slots=True)
class _AsItWas:
    """Stands for an object that may be another by the time of the call."""

    text: str
    shown: str

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return self.shown


@dataclass(frozen=True, slots=True)
class CallSlot:
    """A call that is made after each run of the step, by its number among these."""

    number: int
    function: Callable[..., object] = field(compare=False)

    def still_fits(self) -> bool:
        """Whether the call can be made: always."""
        return True

    def leave(self, given: Any) -> None:
        """Make the call, given what one of the step was given."""
        args, named = pytree.tree_map(_filled, given, is_leaf=_is_text)
        self.function(*args, **named)


def _is_text(item: object) -> bool:
    return isinstance(item, _Text)


def _filled(item: object) -> object:
    return item.filled(item.numbers) if isinstance(item, _Text) else item


class Saying:
    """What a step says while it is traced."""

    def __init__(self) -> None:
        self.calls: dict[CallSlot, object] = {}
        """The calls that were noted, with what they were given."""
        self._marks: list[tuple[object, str, str]] = []
        self._said: set[int] = set()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Note what the block says, in this thread. Raises `Uncapturable` if a text of a number goes elsewhere."""
        with ExitStack() as stack:
            for owner, name, ours in ((builtins, "print", self._printing), (logging.Logger, "handle", self._logging)):
                own = getattr(owner, name)
                stack.enter_context(patch.object(owner, name, in_own_thread(ours(own), own)))
            for kind, name in product(py_sym_types, ("__str__", "__repr__", "__format__")):
                stack.enter_context(patch.object(kind, name, self._text_of(kind), create=True))
            stack.enter_context(patch.object(FakeTensor, "__format__", _format_of, create=True))
            yield
        lost = next((line for at, (*_, line) in enumerate(self._marks) if at not in self._said), None)
        if lost is not None:
            raise Uncapturable(f"{lost}: {CONTENT}{DROP_IN}")

    def _printing(self, own: Callable[..., None]) -> Callable[..., None]:
        def printed(*given: object, **named: object) -> None:
            if is_of_a_library(sys._getframe(2).f_code.co_filename):
                own(*given, **named)
            else:
                self._note(own, tuple(map(self._kept, given)), named)

        return printed

    def _logging(self, own: Callable[[logging.Logger, logging.LogRecord], None]) -> Callable[..., None]:
        def handled(logger: logging.Logger, record: logging.LogRecord) -> None:
            if is_of_a_library(record.pathname):
                own(logger, record)
                return
            args = record.args if isinstance(record.args, tuple) else (record.args,) if record.args else ()
            rest = {name: value for name, value in vars(record).items() if name not in ("msg", "args", "exc_info")}
            if record.exc_info:  # its frames have tensors without contents
                rest["exc_text"] = logging.Formatter().formatException(record.exc_info)
            results = {name: self._kept(value) for name, value in rest.items() if has_results(value)}
            rest |= dict.fromkeys(results)
            said = (results, self._kept(record.msg), *map(self._kept, args))
            self._note(partial(_logged, logger, rest), said, {})

        return handled

    def _note(self, function: Callable[..., object], given: tuple[object, ...], named: Mapping[str, object]) -> None:
        self.calls[CallSlot(len(self.calls), function)] = (given, dict(named))

    def _kept(self, item: object) -> object:
        """Return what an item is when the call is made: as it is now, with results that are then known."""
        if isinstance(item, str) and _MARKED.search(item):
            marks = [int(mark) for mark in _MARKED.findall(item)]
            self._said.update(marks)
            numbers, formats = zip(*(self._marks[mark][:2] for mark in marks), strict=True)
            return _Text(item, numbers, formats)
        if has_results(item):
            return pytree.tree_map_only(Tensor, _as_it_is, item)
        if isinstance(item, dict) and item:  # whose entries a text may name
            return {name: self._kept(value) for name, value in item.items()}
        found = item if isinstance(item, Number | str | None) else _AsItWas(str(item), repr(item))
        if "FakeTensor(" in str(found):
            raise Uncapturable(f"{present_line() or NO_LINE}: {CONTENT}{DROP_IN}")
        return found

    def heard(self) -> tuple[object, ...]:
        """Return what would be said with the numbers of this call, as far as they are known."""
        return tuple(map(_told, pytree.tree_leaves([*self.calls.values()], is_leaf=_is_text)))

    def _text_of(self, kind: Any) -> Callable[..., str]:
        """Return what makes a text of a number: a mark, where it is clear what becomes of it. Libraries get torch's."""
        own: Callable[[object], str] = kind.__repr__

        def text(number: object, form: str = "") -> str:
            frame = sys._getframe(1)
            if frame.f_code is _format_of.__code__:
                frame = sys._getframe(2)
            if is_of_a_library(frame.f_code.co_filename):
                return own(number)
            if not _is_said(frame):
                raise TypeError(f"a text of it was passed to {kind.__name__}")
            self._marks.append((number, form, present_line() or NO_LINE))
            return _MARK.format(len(self._marks) - 1)

        return text


def _format_of(tensor: Tensor, form: str) -> str:
    """Return what torch makes of a tensor in a text: of one number, that."""
    return object.__format__(tensor, form) if tensor.dim() else format(tensor.item(), form)


def _as_it_is(tensor: Tensor) -> Tensor:
    """Return what a tensor is now: the step may write over it."""
    return tensor.detach().clone()


def _told(item: object) -> object:
    """Return what is known of something that is said."""
    if isinstance(item, _Text):
        return item.filled(map(_known, item.numbers))
    return str(_known(item))


def _known(item: object) -> object:
    """Return the number for which a symbol stands, and None for what is not there yet."""
    if isinstance(item, py_sym_types):
        return item.node.hint
    return None if isinstance(item, Tensor) else item


def _is_said(frame: FrameType) -> bool:
    """Whether the text that a frame is about to make is a part of what it gives to `print`, or to a logger."""
    positions = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))
    line, end_line, column, end_column = positions
    if line is None or end_line is None or column is None or end_column is None:
        return False
    place = (line, column), (end_line, end_column)
    source = "".join(linecache.getlines(frame.f_code.co_filename, frame.f_globals))
    return any(_is_text_at(place, given) for given in _said_in(source))


@lru_cache(maxsize=8)
def _said_in(source: str) -> tuple[ast.expr, ...]:
    """Return all that a source gives to `print`, or to a logger, by position."""
    try:
        nodes = [*ast.walk(ast.parse(source))]
    except SyntaxError:  # cells of a notebook have other than Python in them
        return ()
    return tuple(given for node in nodes if isinstance(node, ast.Call) and _says(node.func) for given in node.args)


def _says(function: ast.expr) -> bool:
    if isinstance(function, ast.Name):
        return function.id == "print"
    return isinstance(function, ast.Attribute) and function.attr in _LEVELS


def _is_text_at(place: _Place, given: ast.expr) -> bool:
    """Whether something at a place in what is given, of which a text is made, goes into nothing but a larger text."""
    begin, end = place
    nodes = [(node, *_place_of(node)) for node in ast.walk(given) if isinstance(node, ast.expr)]
    around = [(node, first, last) for node, first, last in nodes if first <= begin and end <= last]
    return bool(around) and all(_makes_text(node) for node, *itself in around if (*itself,) != place)


def _place_of(node: ast.expr) -> _Place:
    return (node.lineno, node.col_offset), (node.end_lineno or node.lineno, node.end_col_offset or 0)


def _makes_text(node: ast.expr) -> bool:
    if not isinstance(node, ast.Call):
        return isinstance(node, _OF_TEXT)
    function = node.func
    if isinstance(function, ast.Attribute):
        return isinstance(function.value, ast.Constant) and function.attr in ("format", "join")
    return isinstance(function, ast.Name) and function.id in ("format", "repr", "str")


def _logged(
    logger: logging.Logger, rest: Mapping[str, object], results: Mapping[str, object], message: object, *args: object
) -> None:
    """Let a logger handle a record of now, of which the `rest` is as it was noted."""
    record = logging.LogRecord("", 0, "", 0, message, args, None)
    times = {name: vars(record)[name] for name in ("created", "msecs", "relativeCreated")}
    logger.handle(logging.makeLogRecord({**rest, **results, **times, "msg": record.msg, "args": record.args}))
