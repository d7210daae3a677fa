"""Which guesses of a call were wrong? A run that finds one goes on to the last one of its line, and tells all.

    for parameter in model.parameters():
        norm = parameter.grad.norm()
        if norm > 1: parameter.grad.div_(norm)       one decision for each, all by themselves

If each were found by a run of its own, the step would be captured for each of them. What is computed meanwhile is
thrown away, and so is an error of it: it may be something that the step would not do. Guesses of other lines are not
waited for, so where one decides early on, as whether the loss is finite, nothing else is computed in vain.
"""

from collections.abc import Sequence

from outgrow.errors import OutgrowError
from outgrow.frontends.fake.looks.guessing import CHECKS, Guess, Misguessed, last_of_line
from outgrow.runtime.execute import Outcome
from outgrow.runtime.program import Call
from outgrow.runtime.repeated import Running, execute

_OF_OPERATORS = (RuntimeError, IndexError, TypeError, ValueError)
"""Errors that operators raise."""


def executed(run: Running, guesses: Sequence[Guess]) -> Outcome:
    """Run every instruction of a step with these guesses and return what came of it.

    Raises `Misguessed` with the guesses that were found wrong.
    """
    try:
        return execute(run)
    except Misguessed as found:
        (first,) = found.numbers
    wrong = [first]
    _look_on(run, last_of_line(guesses, first), wrong)
    raise Misguessed(*wrong)


def _look_on(run: Running, last: int, wrong: list[int]) -> None:
    """Go on from a guess that was wrong to the `last` one that is looked at, and add the `wrong` ones."""
    instructions = run.program.instructions
    checking = [at for at, item in enumerate(instructions) if isinstance(item, Call) and item.function in CHECKS]
    stop = checking[last] + 1
    try:
        while run.position < stop:
            run.receive(())
            try:
                run.advance(stop)
            except Misguessed as found:
                wrong += found.numbers
    except OutgrowError:
        raise
    except _OF_OPERATORS:
        return
