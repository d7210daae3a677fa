"""Do the errors carry what a caller needs to go on?"""

import outgrow
from outgrow import errors
from outgrow.errors import GraphSyntaxError, Infeasible, InvalidGraph, OutgrowError


def test_every_error_is_a_refusal_of_the_package() -> None:
    """One except clause catches all of them, and each can be had from the package."""
    found = [item for item in vars(errors).values() if isinstance(item, type)]
    assert all(issubclass(item, OutgrowError) for item in found)
    assert {item.__name__ for item in found} <= set(outgrow.__all__)


def test_errors_carry_their_figures() -> None:
    """The floor, the broken invariant and the place in a text are attributes, not only words."""
    infeasible = Infeasible("too small", floor_bytes=64, culprit="mm")
    assert (infeasible.floor_bytes, infeasible.culprit) == (64, "mm")
    invalid = InvalidGraph("wrong", invariant=4, position=2)
    assert (invalid.invariant, invalid.position) == (4, 2)
    syntax = GraphSyntaxError("what?", line=1, column=2)
    assert (syntax.line, syntax.column, str(syntax)) == (1, 2, "line 1, column 2: what?")


def test_a_refusal_of_more_words_carries_the_same() -> None:
    """What is said beside a refusal changes none of its figures."""
    refusal = Infeasible("too small", floor_bytes=64, culprit="mm", because="below")
    longer = refusal.saying("Later steps need more.")
    assert str(longer) == "too small Later steps need more."
    assert vars(longer) == vars(refusal)
