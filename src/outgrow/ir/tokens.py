"""How is one line of IR text read, token by token?

A token is a word (a name or a number), a string as JSON writes it, a value name `%word` or `%"string"`, or a
mark of punctuation. A `Line` is a cursor over the tokens of a line. Its methods read what the grammar of
`ir.text` calls names, numbers and arguments, and say by line and column where the text stops being that.
"""

import json
import re
from collections.abc import Callable
from math import inf, nan
from typing import NoReturn, TypeVar

from outgrow.errors import GraphSyntaxError, InvalidQuantity
from outgrow.ir.graph import Argument, Like, Ref, Symbol
from outgrow.units import parse_bytes

T = TypeVar("T")

_TOKEN = re.compile(
    r"""\s*(
      %?"(?:[^"\\]|\\.)*" | %[\w.$]+
    | -?(?:nan|inf|\d[\d.]*(?:e[-+]\d+)?)[-+][\w.]+(?:(?<=\de)[-+]\d+)?j
    | -?[\w.$]+(?:(?<=\d[eE])[-+]\d+)?
    | \#.* | \S )""",
    re.VERBOSE,
)
_BARE_NAME = re.compile(r"[\w.$]+")
_LITERALS = {"None": None, "True": True, "False": False, "nan": nan, "inf": inf, "-inf": -inf}
_CLOSING = {"[": "]", "(": ")"}


def spelled(name: str) -> str:
    """Return a name as text: bare, or in quotes where it has characters that would end it.

    >>> spelled("layers.0.weight"), spelled("cuda:0")
    ('layers.0.weight', '"cuda:0"')
    """
    return name if _BARE_NAME.fullmatch(name) else json.dumps(name)


class Line:
    """A cursor over the tokens of one line."""

    def __init__(self, content: str, number: int) -> None:
        self.content = content
        self.number = number
        self.tokens: list[str] = _TOKEN.findall(content)
        if self.tokens and self.tokens[-1][0] == "#":
            self.tokens.pop()
        self.at = 0

    def fail(self, message: str, *, back: int = 0) -> NoReturn:
        """Raise `GraphSyntaxError` at the token that stands `back` before the next one."""
        starts = [match.start(1) for match in _TOKEN.finditer(self.content)]
        column = starts[self.at - back] if self.at - back < len(starts) else len(self.content)
        raise GraphSyntaxError(message, line=self.number, column=column + 1)

    def _found(self) -> str:
        return repr(self.peek()) if self.peek() else "the end of the line"

    def peek(self, ahead: int = 0) -> str:
        """The token `ahead` of the next one, or "" past the end of the line."""
        at = self.at + ahead
        return self.tokens[at] if at < len(self.tokens) else ""

    def take(self) -> str:
        token = self.peek()
        self.at += 1
        return token

    def accept(self, token: str) -> bool:
        if self.peek() != token:
            return False
        self.at += 1
        return True

    def expect(self, token: str) -> None:
        if not self.accept(token):
            self.fail(f"expected {token!r}, found {self._found()}")

    def end(self) -> None:
        if self.peek():
            self.fail(f"expected the end of the line, found {self._found()}")

    def name(self) -> str:
        return self._named(self.take(), "a name")

    def value_name(self) -> str:
        token = self.take()
        return self._named(token[1:] if token[:1] == "%" else "", "a value, such as %x")

    def _named(self, token: str, what: str) -> str:
        if _BARE_NAME.fullmatch(token):
            return token
        if len(token) > 1 and token[0] == '"':
            return self.string(token)
        self.at -= 1
        return self.fail(f"expected {what}, found {self._found()}")

    def string(self, token: str) -> str:
        try:
            return str(json.loads(token))
        except json.JSONDecodeError:
            return self.fail(f"{token} is not a string as JSON writes it", back=1)

    def integer(self) -> int:
        token = self.take()
        try:
            return int(token)
        except ValueError:
            self.at -= 1
            return self.fail(f"expected a whole number, found {self._found()}")

    def integers(self) -> tuple[int, ...]:
        self.expect("[")
        return self._until("]", self.integer)

    def size(self) -> int:
        token = self.take()
        try:
            return int(token) if token.isdecimal() else parse_bytes(token, what="size")
        except InvalidQuantity as error:
            self.fail(str(error), back=1)

    def sequence(self, item: Callable[[], T]) -> tuple[T, ...]:
        items = [item()]
        while self.accept(","):
            items.append(item())
        return tuple(items)

    def _until(self, closing: str, item: Callable[[], T]) -> tuple[T, ...]:
        items: list[T] = []
        while not self.accept(closing):
            items.append(item())
            if self.peek() != closing:
                self.expect(",")
        return tuple(items)

    def arguments(self) -> tuple[tuple[Argument, ...], tuple[tuple[str, Argument], ...]]:
        self.expect("(")
        positional: list[Argument] = []
        keywords: list[tuple[str, Argument]] = []
        while not self.accept(")"):
            if self.peek(1) == "=":
                key = self.name()
                self.expect("=")
                keywords.append((key, self.argument()))
            elif keywords:
                self.fail("a positional argument after a keyword")
            else:
                positional.append(self.argument())
            if self.peek() != ")":
                self.expect(",")
        return tuple(positional), tuple(keywords)

    def argument(self) -> Argument:
        if self.accept("like"):
            return Like(self.value_name())
        token = self.take()
        match token[:1]:
            case "%":
                self.at -= 1
                return Ref(self.value_name())
            case ":":
                return Symbol(self.name())
            case '"' if len(token) > 1:
                return self.string(token)
            case "[" | "(":
                return self._until(_CLOSING[token], self.argument)
            case _:
                return _LITERALS[token] if token in _LITERALS else self._number(token)

    def _number(self, token: str) -> int | float | complex:
        kinds: tuple[Callable[[str], int | float | complex], ...] = (int, float, complex)
        for kind in kinds:
            try:
                return kind(token)
            except ValueError:
                continue
        self.at -= 1
        return self.fail(f"expected an argument, found {self._found()}")
