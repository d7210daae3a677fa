"""What code reads by name is known with the attributes behind it, also where it goes through variables and calls."""

from collections.abc import Callable
from typing import Any

import pytest

from outgrow.frontends.user.reach.reads import SUPER, Path, reads

GLOBAL: Any = None


class Named:
    """Functions that read `self.first.rate`."""

    def attribute(self: Any) -> object:
        return self.first.rate

    def variable(self: Any) -> object:
        first = self.first
        return 2 * first.rate

    def two_variables(self: Any) -> object:
        other, first = self.other, self.first
        return other, first.rate

    def entry(self: Any) -> object:
        return self["first"]["rate"]

    def set_there(self: Any) -> None:
        self.first.rate = 1.0

    def added_there(self: Any) -> None:
        self.first["rate"] += 1.0

    def one_of_two(self: Any, flag: Any) -> object:
        return (self.first if flag else self.other).rate

    def chosen(self: Any, given: Any) -> object:
        chosen = given or self.first
        return chosen.rate

    def in_a_loop(self: Any) -> object:
        first = self.first
        return sum(first.rate for _ in range(3))

    def in_a_function(self: Any) -> object:
        first = self.first

        def inner() -> object:
            return first.rate

        return inner()

    def in_a_block(self: Any) -> object:
        with self.other:
            first = self.first
        try:
            return first.rate
        finally:
            self.other.close()


NAMED = {name: function for name, function in vars(Named).items() if callable(function)}


def paths(function: Callable[..., object]) -> set[str]:
    return {".".join(path.names) for path in reads(function.__code__).paths}


@pytest.mark.parametrize("function", NAMED.values(), ids=NAMED.keys())
def test_a_path_is_followed_through_the_code(function: Callable[..., object]) -> None:
    """Through variables of its own, branches, blocks, and functions that are defined in it."""
    assert "self.first.rate" in paths(function)
    assert "self.rate" not in paths(function)


def test_what_is_no_name_ends_a_path() -> None:
    """A slice, an operation, and what a call returns."""

    def function(given: Any) -> object:
        return given[1:].one, given.list()[1].two, (given.first + given.other).three, given.made().four

    assert paths(function) == {"given", "given.list", "given.first", "given.other", "given.made"}


def test_an_index_leads_to_each_entry() -> None:
    """So does `get` of a key that no word names; what is searched for a key is asked for it."""

    def function(given: Any, key: Any) -> object:
        given.some[key] += 1
        return given[0].one[key].two, given.get(key).three, key in given.other

    assert paths(function) >= {"given.[].one.[].two", "given.[].three", "given.some.[]", "given.other.__contains__"}
    whole = {".".join(path.names) for path in reads(function.__code__).whole}
    assert whole.isdisjoint(("given", "given.some", "given.other"))


def test_a_call_is_known_with_what_it_is_given() -> None:
    """By position and by name; what is on no path is nothing."""

    def function(given: Any) -> object:
        return GLOBAL.call(given.first, 2, given.made(), rate=given.rate, other=1)

    callee = Path(is_local=False, names=("GLOBAL", "call"))
    (call,) = (call for call in reads(function.__code__).calls if call.callee == callee)
    assert call.positions == ((Path(is_local=True, names=("given", "first")),), (), ())
    assert dict(call.keywords) == {"rate": (Path(is_local=True, names=("given", "rate")),), "other": ()}


def test_a_method_of_super_is_one() -> None:
    """Of the object that the method is called for."""

    class Derived(Named):
        def attribute(self: Any) -> object:
            return super().attribute()

    assert f"self.{SUPER}.attribute" in paths(Derived.attribute)
