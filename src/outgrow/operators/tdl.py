"""What does an operator compute? A tensor is a function from coordinates to values, and is written as one.

    place      = variables times whole numbers, place // n, place % n, and a constant, added up      2 * i + d - 1
    expression = x[place, ...]                      an element of an operand; ALL of a dimension where no place is known
               | expression + expression
               | applied(expression, ...)           a function of values that looks at nothing else; so is `*`
               | Sum((variable, ...), expression)   Max, Min and Prod likewise
    result     = (variable or ALL, ...) -> expression

A convolution in one dimension, of stride 2 and padding 1, is

    OperatorResult.at((b, co, i), Sum((ci, d), x[b, ci, 2 * i + d - 1] * w[co, ci, d]))

A description says where values come from, not what is done to them; the operator itself does that. Results of one
operator share their variables. A dimension of a result that is ALL, or whose size is one and whose place is 0, cannot
be cut. What is read beyond the bounds of an operand is the operator's padding.

The language is that of Tofu (M. Wang, C. Huang, J. Li, "Supporting Very Large Models using Automatic Dataflow Graph
Partitioning", EuroSys 2019, https://arxiv.org/abs/1807.08887, section 4.1), with // and % beside, so that grouped
convolutions and views are described exactly.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, cached_property
from typing import TypeAlias

from outgrow.ir.graph import Symbol

# Places -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Variable:
    """A coordinate of a result, or one that a reduction goes over."""

    name: str


@dataclass(frozen=True, slots=True)
class Floor:
    """A place divided by a number, rounded down."""

    of: "Place"
    by: int


@dataclass(frozen=True, slots=True)
class Remainder:
    """What is left of a place when it is divided by a number."""

    of: "Place"
    by: int


Atom: TypeAlias = Variable | Floor | Remainder


@dataclass(frozen=True)
class Place:
    """A position along a dimension: multiples of atoms, in a fixed order, and a constant.

    Equal places have equal forms as far as `//` and `%` let go of what they divide without remainder.

    >>> i, d = indices("i d")
    >>> (2 * i + d - 1) - d == 2 * i - 1
    True
    >>> (8 * i + d) // 4 == 2 * i + d // 4, (8 * i + d + 5) % 4 == (d + 1) % 4
    (True, True)
    """

    terms: tuple[tuple[Atom, int], ...] = ()
    constant: int = 0

    def __add__(self, other: "Place | int") -> "Place":
        """Add two places."""
        if isinstance(other, int):
            return Place(self.terms, self.constant + other) if other else self
        factors = dict(self.terms)
        for atom, factor in other.terms:
            factors[atom] = factors.get(atom, 0) + factor
        return Place(_ordered(factors), self.constant + other.constant)

    __radd__ = __add__

    def __mul__(self, factor: int) -> "Place":
        """Multiply by a number."""
        return Place(_ordered({atom: factor * old for atom, old in self.terms}), factor * self.constant)

    __rmul__ = __mul__

    def __sub__(self, other: "Place | int") -> "Place":
        """Subtract a place."""
        return self + other * -1

    def __floordiv__(self, by: int) -> "Place":
        """Divide by a positive number and round down."""
        whole = Place(tuple((atom, factor // by) for atom, factor in self.terms if factor % by == 0))
        rest = Place(tuple((atom, factor) for atom, factor in self.terms if factor % by), self.constant % by)
        whole = whole + self.constant // by
        return whole + Place(((Floor(rest, by), 1),)) if rest.terms else whole

    def __mod__(self, by: int) -> "Place":
        """Return the remainder of a division by a positive number."""
        rest = Place(tuple((atom, factor) for atom, factor in self.terms if factor % by), self.constant % by)
        return Place(((Remainder(rest, by), 1),)) if rest.terms else rest

    @cached_property
    def variable(self) -> str | None:
        """The name of the variable that the place is, if it is nothing else."""
        match self:
            case Place(((Variable(name), 1),), 0):
                return name
            case _:
                return None

    @cached_property
    def variables(self) -> frozenset[str]:
        """The names of all variables in it."""
        found: set[str] = set()
        for atom, _ in self.terms:
            found |= {atom.name} if isinstance(atom, Variable) else atom.of.variables
        return frozenset(found)

    def shifted(self, name: str, by: int) -> "Place":
        """Return the place with a number added to a variable."""
        if name not in self.variables:
            return self
        found = Place((), self.constant)
        for atom, factor in self.terms:
            found = found + _shifted(atom, name, by) * factor
        return found


def _ordered(factors: Mapping[Atom, int]) -> tuple[tuple[Atom, int], ...]:
    found = [(atom, factor) for atom, factor in factors.items() if factor]
    return tuple(found) if len(found) < 2 else tuple(sorted(found, key=lambda term: _spelled(term[0])))


_spelled = cache(repr)


def _shifted(atom: Atom, name: str, by: int) -> Place:
    match atom:
        case Variable(own):
            return Place(((atom, 1),), by if own == name else 0)
        case Floor(of, number):
            return of.shifted(name, by) // number
        case Remainder(of, number):
            return of.shifted(name, by) % number


@cache
def indices(names: str) -> tuple[Place, ...]:
    """Return a variable for each name.

    >>> [place.variable for place in indices("b co ci")]
    ['b', 'co', 'ci']
    """
    return tuple(Place(((Variable(name), 1),)) for name in names.split())


@cache
def numbered(name: str, count: int) -> tuple[Place, ...]:
    """Return `count` variables, each called by the name and a number.

    >>> [place.variable for place in numbered("i", 2)]
    ['i0', 'i1']
    """
    return indices(" ".join(f"{name}{at}" for at in range(count)))


# Expressions --------------------------------------------------------------------------------------------------------


class All:
    """All of a dimension; there is one instance, `ALL`."""


ALL = All()


class Expression:
    """A value at some coordinates."""

    __slots__ = ()

    def __add__(self, other: "Expression") -> "Expression":
        """Add values, each of which can stand without the other."""
        return Added((self, other))

    def __mul__(self, other: "Expression") -> "Expression":
        """Make a value of two."""
        return Applied((self, other))


@dataclass(frozen=True, slots=True)
class Element(Expression):
    """An element of operand number `operand`, or all elements along the dimensions whose place is None."""

    operand: int
    places: tuple[Place | None, ...]


@dataclass(frozen=True, slots=True)
class Added(Expression):
    """A sum of a few values."""

    parts: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Applied(Expression):
    """Some function of values."""

    parts: tuple[Expression, ...]


class Reducer(StrEnum):
    """How values become one, in whatever order."""

    SUM = "sum"
    MAX = "max"
    MIN = "min"
    PROD = "prod"


@dataclass(frozen=True, slots=True)
class Reduced(Expression):
    """The values at all places of some variables, made one."""

    by: Reducer
    over: tuple[str, ...]
    of: Expression


def applied(*parts: Expression) -> Expression:
    """Return some function of values."""
    return Applied(parts)


def reduced(by: Reducer, over: Sequence[Place], of: Expression) -> Expression:
    """Return values made one over variables; over none, the value itself."""
    names = tuple(place.variable or "" for place in over)
    assert all(names), "a reduction goes over variables"
    return Reduced(by, names, of) if names else of


def Sum(over: Sequence[Place], of: Expression) -> Expression:  # noqa: N802 - as the papers write it
    """Return the sum over variables."""
    return reduced(Reducer.SUM, over, of)


def elements(expression: Expression) -> tuple[Element, ...]:
    """Return every element that an expression reads, in order."""
    match expression:
        case Element():
            return (expression,)
        case Added(parts) | Applied(parts):
            return tuple([element for part in parts for element in elements(part)])
        case Reduced(_, _, of):
            return elements(of)
        case _:
            raise AssertionError(f"{expression} is no expression")


# Operators ----------------------------------------------------------------------------------------------------------

Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor that an operator is called with: its position among the tensors, and its shape."""

    position: int
    shape: Shape

    def __getitem__(self, places: "tuple[Place | All | int, ...] | Place | All | int") -> Element:
        """Return the element at some places."""
        given = places if isinstance(places, tuple) else (places,)
        assert len(given) == len(self.shape), f"operand {self.position} has {len(self.shape)} dimensions"
        return Element(self.position, tuple(map(_place, given)))


def _place(given: Place | All | int) -> Place | None:
    match given:
        case All():
            return None
        case int():
            return Place((), given)
        case Place():
            return given


Argument: TypeAlias = "Operand | Symbol | int | float | bool | str | tuple[Argument, ...] | None"


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """A call of an operator on tensors of known shapes; `shapes` are those of its results, None for one it has not.

    The arguments are all that the operator has a place for, defaults included; `keywords` have none.
    """

    operator: str
    arguments: tuple[Argument, ...]
    shapes: tuple[Shape | None, ...]
    keywords: tuple[tuple[str, Argument], ...] = ()

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The tensors among the arguments, in order."""
        return (*_operands(self.arguments), *self.named_operands)

    @property
    def named_operands(self) -> tuple[Operand, ...]:
        """Those among them that are given by keyword."""
        return tuple(_operands([argument for _, argument in self.keywords])) if self.keywords else ()


def _operands(arguments: Sequence[Argument]) -> list[Operand]:
    found: list[Operand] = []
    for argument in arguments:
        if isinstance(argument, Operand):
            found.append(argument)
        elif isinstance(argument, tuple):
            found += _operands(argument)
    return found


@dataclass(frozen=True)
class OperatorResult:
    """A result: the variable of each of its dimensions, None for one that cannot be cut, and the value there."""

    dims: tuple[str | None, ...]
    value: Expression

    @cached_property
    def elements(self) -> tuple[Element, ...]:
        """Every element that is read for the value, in order."""
        return elements(self.value)

    @staticmethod
    def at(places: Sequence[Place | All | int], value: Expression) -> "OperatorResult":
        """Return the result whose element at some places is a value."""
        return OperatorResult(tuple(place.variable if isinstance(place, Place) else None for place in places), value)


@dataclass(frozen=True)
class Description:
    """What an operator computes: its results, None for one it does not give, and shapes of these and of operands."""

    results: tuple[OperatorResult | None, ...]
    result_shapes: tuple[Shape | None, ...]
    shapes: Mapping[int, Shape]

    @cached_property
    def extents(self) -> Mapping[str, int]:
        """How far each variable goes: as far as the dimension of a result, else as that of an operand."""
        found: dict[str, int] = {}
        for result, shape in zip(self.results, self.result_shapes, strict=True):
            if result is not None and shape is not None:
                _extend(found, zip(result.dims, shape, strict=True))
        of_results = frozenset(found)
        for operand, places in self.places.items():
            for along, size in zip(places, self.shapes[operand], strict=True):
                names = [place.variable for place in along if place is not None]
                _extend(found, [(name, size) for name in names if name not in of_results])
        return found

    @cached_property
    def elements(self) -> tuple[Element, ...]:
        """Every element that is read for any of the results, in order."""
        return tuple([element for result in self.results if result is not None for element in result.elements])

    @cached_property
    def places(self) -> Mapping[int, tuple[tuple[Place | None, ...], ...]]:
        """Where each operand is read, dimension by dimension; None: everywhere. One object is listed once."""
        read: dict[int, dict[int, Element]] = {}
        for element in self.elements:
            read.setdefault(element.operand, {})[id(element)] = element
        return {operand: _along([item.places for item in found.values()]) for operand, found in read.items()}

    @cached_property
    def depending(self) -> Mapping[str, tuple[tuple[int, int], ...]]:
        """The operands, and dimensions of these, where some place depends on a variable, by its name."""
        found: dict[str, dict[tuple[int, int], None]] = {}
        for operand, places in self.places.items():
            for dim, along in enumerate(places):
                for name in sorted({name for place in along if place is not None for name in place.variables}):
                    found.setdefault(name, {})[operand, dim] = None
        return {name: tuple(at) for name, at in found.items()}

    @cached_property
    def read(self) -> Mapping[int, tuple[tuple[int, int], ...]]:
        """The operands that are read, and all of each: a range for each dimension."""
        return {operand: tuple([(0, size) for size in self.shapes[operand]]) for operand in self.places}

    @cached_property
    def box(self) -> Mapping[str, tuple[int, int]]:
        """The range of each variable."""
        return {name: (0, extent) for name, extent in self.extents.items()}


def _along(read: Sequence[tuple[Place | None, ...]]) -> tuple[tuple[Place | None, ...], ...]:
    if len(read) == 1:
        return tuple([(place,) for place in read[0]])
    return tuple([tuple({id(place): place for place in along}.values()) for along in zip(*read, strict=True)])


def described(call: OperatorCall, results: Sequence[OperatorResult | None]) -> Description:
    """Return the description of a call that gives these results."""
    return Description(tuple(results), call.shapes, {operand.position: operand.shape for operand in call.operands})


def _extend(extents: dict[str, int], found: Iterable[tuple[str | None, int]]) -> None:
    for name, size in found:
        if name is not None:
            known = extents.setdefault(name, size)
            assert known == size, f"{name} goes to {known} and to {size}"
