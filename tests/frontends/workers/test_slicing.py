"""Does every way to cut an operator, run in pieces and put together, give what the operator gives?"""

import pytest

from outgrow.frontends.workers.slicing import worst_error
from outgrow.operators.catalogue import CATALOGUE, making
from outgrow.operators.strategies import strategies
from tests.frontends.cases import Case, cases

TOLERANCE = 1e-12
WORKERS = (2, 3, 4)
CASES = tuple(cases())


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_pieces_give_the_whole(case: Case) -> None:
    """For all variables that are expected and any other, and for workers whose parts are not equal."""
    assert set(case.cuts) <= {strategy.cut for strategy in strategies(case.call)}
    for workers in WORKERS:
        for strategy in strategies(case.call, workers):
            assert worst_error(case.call, strategy, workers, case.operands) <= TOLERANCE, (strategy, workers)


def test_every_family_of_the_catalogue_has_cases() -> None:
    """An operator that is described by a function of its own is called at least once; those alike share a function."""
    described = {id(CATALOGUE[case.call.operator].describe) for case in CASES}
    left = {name for name, entry in CATALOGUE.items() if id(entry.describe) not in described}
    alike = {"aten.mean.default", "aten.prod.default", "aten.sum.default"}
    are_random = {name for name, entry in CATALOGUE.items() if entry.describe is making.drawn}
    assert left <= alike | are_random
