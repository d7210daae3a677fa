"""What does the code of a function read by name? Variables, and the attributes and words behind them.

The instructions are gone through once, in their order, with a stack of values as the function would have it. Of each
value it is known on which paths it may have been read: `self`, and of that `config`. A path stays known in a local
variable, and as an argument of a call; where two ways meet (`one if flag else other`), both count. So does a word that
`getattr(value, "word")`, `value.get("word")` or `"word" in value` names, and `vars(value)` is `value.__dict__`. What is
imported within the function is on a path from its module on.

What is reached by an index is on the path of each entry, and so is what a loop finds, also one over `zip(container,
other)`, or within a comprehension. What is reached by a slice is on no path, but the container is used as a whole then.
What is written by an index is as if `update` was called. Of what the code only asks whether it is there, or empty, the
truth is used.
"""

import dis
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from types import CodeType

from outgrow.frontends.user.reach.values import (
    GOING_THROUGH,
    OF_KINDS,
    UNKNOWN,
    Path,
    Paths,
    Value,
    built,
    entry_of,
    gone_through,
    named_by_word,
)

SUPER = "super()"
"""Stands in a path for `super()` of the value before, in a method of it."""
IMPORT = "import"
"""Begins a path of what is imported; the name of the module, with dots before it if it is a relative one, is next."""
_LONGEST = 12
"""Attributes of attributes are followed this far."""
_VARIABLES = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLOSURE", "LOAD_FAST")
_PAIRS = frozenset(("LOAD_FAST_LOAD_FAST", "LOAD_FAST_BORROW_LOAD_FAST_BORROW"))
_ATTRIBUTES = frozenset(("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "BINARY_SUBSCR"))
_IDLE = frozenset(("CACHE", "COPY_FREE_VARS", "EXTENDED_ARG", "MAKE_CELL", "NOP", "NOT_TAKEN", "PRECALL", "RESUME"))
_ENDS = frozenset(("RAISE_VARARGS", "RERAISE", "RETURN_CONST", "RETURN_VALUE"))
_LEAPS = ("JUMP_FORWARD", "JUMP_BACKWARD")
_LEAVING = ("POP_", "JUMP_", "DELETE_", "PUSH_", "LOAD_")
"""Instructions that take values from the stack, or put some there, and leave the others as they were."""
_ASKING = frozenset(("IS_OP", "TO_BOOL", "UNARY_NOT"))
"""Instructions that ask, as jumps do, no more than the truth of a value, or which one it is."""
_IS_NULL_BELOW = sys.version_info < (3, 13)
"""Where a name is loaded to be called, the mark for that lies below it."""
_PASSING_ON = frozenset(
    (
        *("BUILD_LIST", "BUILD_SET", "BUILD_TUPLE", "FOR_ITER", "GET_ITER", "MAKE_FUNCTION"),
        *("SET_FUNCTION_ATTRIBUTE", "UNPACK_SEQUENCE"),
    )
)
"""Instructions of whose results it is known what is in them."""
_ITERATED = ".0"
"""The variable of a comprehension in which is what it goes through."""
_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))


@dataclass(frozen=True, slots=True)
class CallSite:
    """A call of what is on a path, with the paths of its arguments, by position and by name."""

    callee: Path
    positions: tuple[Paths, ...]
    keywords: tuple[tuple[str, Paths], ...]


@dataclass(frozen=True, slots=True)
class Reads:
    """All that a code reads by name, and what of that it calls.

    Of what it hands on, loops over or compares any part may count: it is used as a `whole`. Of what it has `asked`, the
    truth counts.
    """

    paths: Paths
    calls: tuple[CallSite, ...]
    whole: Paths
    asked: Paths


@cache
def reads(code: CodeType) -> Reads:
    """Return what a code reads; of functions that are defined in it, only what is not local to them."""
    return _Walk(code).reads()


class _Walk:
    """Goes through a code once."""

    def __init__(self, code: CodeType) -> None:
        self.code = code
        self.cells = frozenset((*code.co_cellvars, *code.co_freevars))
        self.stack: list[Value] = []
        self.arriving: dict[int, list[Value]] = {}
        self.local: dict[str, Paths] = {}
        self.keywords: tuple[str, ...] = ()
        self.inner: dict[CodeType, Value] = {}
        self.paths: dict[Path, None] = {}
        self.calls: dict[CallSite, None] = {}
        self.whole: dict[Path, None] = {}
        self.asked: dict[Path, None] = {}

    def reads(self) -> Reads:
        goes_on = True
        for item in dis.get_instructions(self.code):
            there = self.arriving.pop(item.offset, None)
            if there is not None:
                self.stack = _merged(self.stack, there) if goes_on else there
            self._visit(item)
            goes_on = item.opname not in _ENDS and not item.opname.startswith(_LEAPS)
        for code in self.inner:
            self._add_inner(reads(code), partial(self._all_from_inner, code))
        return Reads(tuple(self.paths), tuple(self.calls), tuple(self.whole), tuple(self.asked))

    def _add_inner(self, inner: Reads, here: Callable[[Paths], Paths]) -> None:
        """Add what a function reads that is defined in this one."""
        self._note(here(inner.paths))
        self.whole |= dict.fromkeys(here(inner.whole))
        self.asked |= dict.fromkeys(here(inner.asked))
        for call in inner.calls:
            keywords = [(name, here(paths)) for name, paths in call.keywords]
            self._note_call(here((call.callee,)), tuple(map(here, call.positions)), tuple(keywords))

    def _visit(self, item: dis.Instruction) -> None:
        kind = item.opname
        if kind in _IDLE:
            return
        if kind in ("LOAD_CONST", "KW_NAMES"):
            self._constant(item)
        elif kind.startswith(_VARIABLES):
            self._load(item)
        elif kind in _ATTRIBUTES or item.argrepr == "[]":
            self._part(item)
        elif kind.startswith("STORE_") and kind != "STORE_SLICE":
            self._store(item)
        elif kind in ("CALL", "CALL_KW"):
            self._call(item)
        elif kind in _PASSING_ON:
            self._pass_on(item)
        elif kind == "IMPORT_NAME":
            self._import(item.argval)
        elif kind == "IMPORT_FROM":
            self._push((self.stack[-1] if self.stack else UNKNOWN).below(item.argval))
        else:
            self._move(item)

    def _constant(self, item: dis.Instruction) -> None:
        constant = self.code.co_consts[item.arg or 0]
        if item.opname == "KW_NAMES":
            self.keywords = constant
            return
        self.stack.append(Value(constant=constant))
        if isinstance(constant, CodeType):
            self.inner.setdefault(constant, UNKNOWN)

    def _load(self, item: dis.Instruction) -> None:
        is_fast = item.opname.startswith("LOAD_FAST")
        if item.opname in _PAIRS:
            self.stack += [self._variable(name, is_fast=True) for name in item.argval]
        else:
            self._push(self._variable(item.argval, is_fast=is_fast), _effect(item) - 1)
            if item.opname == "LOAD_CLOSURE" or (is_fast and item.argval in self.cells):
                self.stack[-1] = UNKNOWN  # the variable itself, for a function that is defined here

    def _part(self, item: dis.Instruction) -> None:
        """Read an attribute, that of `super()`, or an entry."""
        if item.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            owner = self._pop()
            self._use(replace(owner, paths=()))
            self._push(owner.below(item.argval), _effect(item))
        elif item.opname == "LOAD_SUPER_ATTR":
            owner, _, _ = self._pop(), self._pop(), self._pop()
            self._push(owner.below(SUPER).below(item.argval), _effect(item) + 2)
        else:
            key, owner = self._pop(), self._pop()
            self._use(key, *((owner,) if isinstance(key.constant, slice) else ()))
            self._push(owner.below(key.constant))

    def _import(self, name: str) -> None:
        """Read a module: the one that is named, or, if nothing is to be taken from it, the package in which it is."""
        taken, level = self._pop().constant, self._pop().constant
        dots = "." * level if isinstance(level, int) else ""
        self._push(Value((Path(is_local=False, names=(IMPORT, dots + (name if taken else name.partition(".")[0]))),)))

    def _store(self, item: dis.Instruction) -> None:
        match item.opname:
            case "STORE_ATTR":
                self._note(self._pop().below(item.argval).paths)
                self._use(self._pop())
            case "STORE_SUBSCR":
                key, owner = self._pop(), self._pop()
                self._use(key)
                self._note(owner.below(key.constant if isinstance(key.constant, str) else "update").paths)
                self._use(self._pop())
            case "STORE_FAST_LOAD_FAST":
                self._keep(item.argval[0], is_fast=True)
                self.stack.append(self._variable(item.argval[1], is_fast=True))
            case "STORE_FAST_STORE_FAST":
                self._keep(item.argval[0], is_fast=True)
                self._keep(item.argval[1], is_fast=True)
            case kind:
                self._keep(item.argval, is_fast=kind.startswith("STORE_FAST"))

    def _move(self, item: dis.Instruction) -> None:
        """Let an instruction move values on the stack, jump, or make others of them."""
        count = item.arg or 0
        if item.opname == "COPY":
            self.stack.append(self.stack[-count] if count <= len(self.stack) else UNKNOWN)
        elif item.opname == "SWAP":
            if count <= len(self.stack):
                self.stack[-1], self.stack[-count] = self.stack[-count], self.stack[-1]
        elif item.opname.startswith("BUILD_") and not count:  # which takes nothing
            self.stack.append(UNKNOWN)
        elif item.opcode in _JUMPS:
            self._ask(*_taken(self.stack, item))
            there = _after(self.stack, item, jump=True)
            known = self.arriving.get(item.argval)
            self.arriving[item.argval] = there if known is None else _merged(known, there)
            self.stack = _after(self.stack, item, jump=False)
        else:
            taken = _taken(self.stack, item)
            if item.opname == "CONTAINS_OP" and len(taken) == 2:
                self._search(*taken)
            elif item.opname in _ASKING:
                self._ask(*taken)
            elif item.opname != "POP_TOP":
                self._use(*taken)
            self.stack = _after(self.stack, item, jump=False)
            if item.opname == "BUILD_SLICE" and self.stack:
                self.stack[-1] = Value(constant=slice(None))

    def _pass_on(self, item: dis.Instruction) -> None:
        """Let an instruction make a value of which it is known what is in it, or take one apart."""
        before, count = [*self.stack], item.arg or 0
        last = before[-1] if before else UNKNOWN
        match item.opname:
            case "GET_ITER":
                self._note(last.each().paths)
                self.stack[-1:] = [Value(items=last.each())]
            case "UNPACK_SEQUENCE":
                self._note(last.each().paths)
                self.stack[-1:] = last.taken_apart(count)[::-1]
            case "FOR_ITER":
                self._move(item)
                self.stack = [*before, *[UNKNOWN] * (_effect(item) - 1), last.each()]
            case "MAKE_FUNCTION" | "SET_FUNCTION_ATTRIBUTE":
                self._move(item)
                self.stack[-1:] = [Value(constant=last.constant)]
            case _:
                self._move(item)
                self.stack[-1:] = [built(before[len(before) - count :])]

    def _search(self, owner: Value, item: Value) -> None:
        """Ask whether something is in a value."""
        self._use(replace(owner, paths=()))
        if isinstance(item.constant, str):
            self._note(owner.below(item.constant).paths)
            return
        self._use(item)
        method = owner.below("__contains__").paths
        self._note(method)
        self._note_call(method, (item.paths,), ())

    def _call(self, item: dis.Instruction) -> None:
        keywords, self.keywords = self.keywords, ()
        if item.opname == "CALL_KW":
            constant = self._pop().constant
            keywords = constant if isinstance(constant, tuple) else ()
        values = [self._pop() for _ in range(item.arg or 0)][::-1]
        called = (self._pop(), self._pop())
        self._define(called, values)
        callee = (*called[0].paths, *called[1].paths)
        named = named_by_word(callee, values)
        if named is not None:
            self._use(*values[1:])
            self._push(named)
            return
        if callee in OF_KINDS:
            self._ask(*values[:1])
        self._use(Value(callee))
        through = gone_through(callee, values)
        if through is None or callee not in GOING_THROUGH:
            self._hand(callee, values, keywords)
        else:
            self._note(path for value in values for path in value.each().paths)
        is_super = Path(is_local=False, names=("super",)) in callee and self.code.co_argcount > 0 and not values
        owner = self._variable(self.code.co_varnames[0], is_fast=True) if is_super else UNKNOWN
        entry = through or entry_of(callee, values)
        if entry is None:
            self.stack.append(owner.below(SUPER))
        else:
            self._push(entry)

    def _hand(self, callee: Paths, values: Sequence[Value], keywords: Sequence[str]) -> None:
        """Hand values to what is called; of one that is on no path, what is in it is used as a whole."""
        given = [value.paths for value in values]
        by_position = len(given) - len(keywords)
        self._use(*(replace(value, paths=() if callee else value.paths) for value in values))
        self._note_call(callee, tuple(given[:by_position]), tuple(zip(keywords, given[by_position:], strict=False)))

    def _define(self, called: Sequence[Value], given: Sequence[Value]) -> None:
        """Note what a comprehension goes through, which it is called with."""
        for value in called:
            if isinstance(value.constant, CodeType) and _ITERATED in value.constant.co_varnames:
                items = [item.items for item in (*called, *given) if item.items is not None]
                self.inner[value.constant] = items[0] if items else UNKNOWN

    def _variable(self, name: str, *, is_fast: bool) -> Value:
        is_local = is_fast or name in self.code.co_cellvars
        return Value((Path(is_local, (name,)), *(self.local.get(name, ()) if is_local else ())))

    def _keep(self, name: str, *, is_fast: bool) -> None:
        """Keep the path of a value in a variable, if that is local; another one is changed from here."""
        value = self._pop()
        self._use(replace(value, paths=()))
        if is_fast or name in self.code.co_cellvars:
            self.local[name] = tuple(dict.fromkeys((*self.local.get(name, ()), *value.paths)))
        else:
            self._use(value)
            self._note((Path(is_local=False, names=(name,)),))

    def _from_inner(self, code: CodeType, path: Path) -> Iterator[Path]:
        """Yield what a path of a function that is defined here is to this one."""
        name, *rest = path.names
        if not path.is_local:
            yield from Value(self._variable(name, is_fast=False).paths).along(rest)
        elif name == _ITERATED and rest:
            yield from self.inner[code].along(rest[1:])

    def _all_from_inner(self, code: CodeType, paths: Paths) -> Paths:
        return tuple([found for path in paths for found in self._from_inner(code, path)])

    def _push(self, value: Value, beside: int = 0) -> None:
        """Put a value on the stack, beside others that mark how it is called."""
        value = replace(value, paths=tuple([path for path in value.paths if len(path.names) <= _LONGEST]))
        self._note(value.paths)
        self.stack += [*[UNKNOWN] * beside, value] if _IS_NULL_BELOW else [value, *[UNKNOWN] * beside]

    def _pop(self) -> Value:
        return self.stack.pop() if self.stack else UNKNOWN

    def _use(self, *values: Value) -> None:
        """Note that values are used as a whole, and what is known to be in them."""
        for value in values:
            self.whole |= dict.fromkeys(value.paths)
            self._use(*([] if value.items is None else [value.items]), *value.parts)

    def _ask(self, *values: Value) -> None:
        """Note that it is asked whether there are values, or whether they are empty."""
        for value in values:
            self.asked |= dict.fromkeys(value.paths)

    def _note(self, paths: "Iterator[Path] | Paths") -> None:
        self.paths |= dict.fromkeys(paths)

    def _note_call(self, callee: Paths, positions: tuple[Paths, ...], keywords: tuple[tuple[str, Paths], ...]) -> None:
        self.calls |= {CallSite(path, positions, keywords): None for path in callee}


def _effect(item: dis.Instruction, *, jump: bool = False) -> int:
    return dis.stack_effect(item.opcode, item.arg, jump=jump)


def _after(stack: Sequence[Value], item: dis.Instruction, *, jump: bool) -> list[Value]:
    """Return the stack after an instruction of which nothing is known but how many values it takes or gives."""
    effect = _effect(item, jump=jump)
    found = [*stack[: len(stack) + effect]] if effect < 0 else [*stack, *[UNKNOWN] * effect]
    changed = len(found) - 1 if effect <= 0 else len(stack) - 1
    if changed >= 0 and not item.opname.startswith(_LEAVING):
        found[changed] = UNKNOWN
    return found


def _taken(stack: Sequence[Value], item: dis.Instruction) -> list[Value]:
    """Return the values that an instruction takes from the stack, then the one of which it makes another."""
    effect = _effect(item, jump=False)
    taken = list(stack[len(stack) + effect :]) if effect < 0 else []
    changed = len(stack) - len(taken) - 1
    return [*taken, stack[changed]] if changed >= 0 and not item.opname.startswith(_LEAVING) else taken


def _merged(one: list[Value], other: list[Value]) -> list[Value]:
    """Return the stack where two ways meet."""
    if len(one) != len(other):
        return one
    return [*map(Value.merged, one, other)]
