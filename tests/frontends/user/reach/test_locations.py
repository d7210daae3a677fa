"""A location is read as Python looks attributes up, and written where a number belongs."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
from torch import nn

from outgrow.frontends.user.reach.locations import MISSING, Location, of_class


class Plain:
    """An object with a number of its class, and one of its own."""

    shared = 1.0

    def __init__(self) -> None:
        self.own = 2.0

    @property
    def computed(self) -> float:
        raise AssertionError("nobody asks for it")


class Derived(Plain):
    """Has a number from the class above."""


@dataclass(slots=True, frozen=True)
class Slotted:
    """A number in a slot."""

    own: float = 2.0


class Named(NamedTuple):
    """A number in a tuple."""

    own: float = 2.0


class Table(dict[str, float]):
    """A dictionary with an attribute."""

    def __init__(self) -> None:
        super().__init__(entry=1.0)
        self.own = 2.0


def location(value: object, name: str) -> Location:
    return Location.holding("value", value).below((name,))


@pytest.mark.parametrize(
    ("value", "name", "found", "own"),
    [
        (Plain(), "own", 2.0, 2.0),
        (Plain(), "shared", 1.0, MISSING),
        (Derived(), "shared", 1.0, MISSING),
        (Plain, "shared", 1.0, 1.0),
        (Derived, "shared", 1.0, MISSING),
        (Slotted(), "own", 2.0, 2.0),
        (Named(), "own", 2.0, 2.0),
        (Named(), "other", MISSING, MISSING),
        ({"own": 2.0}, "own", 2.0, 2.0),
        (Plain(), "other", MISSING, MISSING),
        (nn.Linear(1, 1), "in_features", 1, 1),
    ],
)
def test_a_number_may_be_of_an_object_or_of_its_class(value: object, name: str, found: object, own: object) -> None:
    """The class counts where the object has no such attribute."""
    assert (location(value, name).read(), location(value, name).own()) == (found, own)


@pytest.mark.parametrize("make", [Plain, Derived, Slotted, dict, lambda: type("Made", (Derived,), {})])
def test_a_number_is_written_where_it_belongs_and_goes_again(make: Any) -> None:
    """To the object itself, even where its class has another; into a slot; and into a class."""
    value = make()
    at = location(value, "own" if isinstance(value, Slotted) else "shared")
    before, own = at.read(), at.own()
    at.write(3.0)
    assert (at.read(), at.own()) == (3.0, 3.0)
    at.write(own)
    assert (at.read(), at.own()) == (before, own)
    assert Plain.shared == 1.0


def test_another_tuple_takes_the_place_of_one_that_gets_another_number() -> None:
    """What others have of it stays as it was; it is the same one where there is nothing to change."""
    table = {"value": (named := Named())}
    at = Location(table, ("value", "own"))
    at.write(named.own)
    assert table["value"] is named
    at.write(3.0)
    assert (table["value"], named) == (Named(3.0), Named(2.0))


def test_attributes_of_a_dictionary_are_no_entries() -> None:
    """But where an entry has the name, it is meant."""
    value = Table()
    at, entry = (location(value, name).by_attributes() for name in ("own", "entry"))
    at.write(3.0)
    entry.write(4.0)
    assert (value.own, value["entry"], list(value)) == (3.0, 4.0, ["entry"])
    value["own"] = 5.0
    assert location(value, "own").by_attributes().read() == 5.0


def test_no_code_of_the_users_runs() -> None:
    """A property is not asked."""
    assert isinstance(location(Plain(), "computed").read(), property)


def test_a_class_that_is_made_where_no_module_has_a_name_is_the_users() -> None:
    """`exec` in an empty dictionary; what is in Python's own classes is not looked at."""
    names: dict[str, Any] = {}
    exec("class Made:\n    shared = 1.0", names)
    assert names["Made"].__module__ == "builtins"
    assert location(names["Made"](), "shared").read() == 1.0
    assert list(of_class([], "append")) == []


def test_what_hangs_in_a_signed_module_is_signed() -> None:
    """But neither what is of its class, nor what an object holds that signatures do not look into."""

    class Module(nn.Module):
        shared = 1.0

        def __init__(self) -> None:
            super().__init__()
            self.rate, self.table, self.plain, self.slotted = 1.0, {"rate": 1.0}, Plain(), Slotted()

    module = Module()
    signed = frozenset({id(module)})
    root = Location.holding("module", module)
    assert all(root.below(path).is_signed(signed) for path in (("rate",), ("table", "rate"), ("slotted", "own")))
    assert not any(root.below(path).is_signed(signed) for path in (("shared",), ("plain", "own")))
    assert not root.below(("rate",)).is_signed(frozenset())
