"""What lives is found without getting in the way of other threads."""

import gc
from collections.abc import Iterator

from torch import nn

from outgrow.frontends.user.living import living


class Own(nn.Linear):
    """A module of a type of its own."""


def test_all_objects_of_some_kinds_are_found() -> None:
    """Those of types that are derived from them as well, and no others."""
    modules = [nn.Linear(2, 2), Own(2, 2), nn.ReLU()]
    found = {id(item) for item in living(nn.Linear)}
    assert [id(item) in found for item in modules] == [True, True, False]
    expected = {id(item) for item in gc.get_objects() if isinstance(item, nn.Module)}
    assert {id(item) for item in living(nn.Module)} == expected


def test_a_tuple_may_be_built_meanwhile() -> None:
    """CPython refuses to let a tuple grow that anybody else has a hold of, be it in a list that is garbage by then."""

    def numbers() -> Iterator[int]:
        for at in range(100):
            if at % 20 == 5:
                living(nn.Module)
                living(dict, list)
            yield at

    assert tuple(numbers()) == tuple(range(100))
