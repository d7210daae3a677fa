"""When does a run look whether a guess was right? Before it changes what is not put back where it ends there.

A *guess* (`frontends.fake.looks.guessing`) needs only what the step decides by. However late Python decides, be it
after the updates, the guess and all that it waits for go before the first op that updates parameters or optimizer
state, adds to gradients of before, or writes to the batch: then a call may be repeated. A step that decides by what one
of these ops leaves is refused. Gradients that it sets to zero before all decisions it sets to zero again.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from torch import fx

from outgrow.analysis.precedence import predecessors
from outgrow.analysis.updates import updated
from outgrow.errors import Uncapturable
from outgrow.frontends.fake.looks.guessing import CHECKS, Guess
from outgrow.frontends.user.refusals import DROP_IN
from outgrow.ir.graph import Graph, Op, Ref, Role

_ZERO = "aten.zero_.default"
_UPDATED = "of parameters or optimizer state that the step has updated"
_CHANGED = {
    Role.GRADIENT: "of gradients of a step before that it has added to (begin with zero_grad(), before it decides)",
    Role.INPUT: "of a batch that the step has written to",
}
_TOO_LATE = (
    "the step decides by what it has made {}, which is not undone where it goes another way; decide before that, or "
    "after the step"
)


def is_guess(node: fx.Node) -> bool:
    """Whether a call checks a guess."""
    return node.target in CHECKS


def at_stake(graph: Graph, op: Op) -> list[str]:
    """Return what `op` updates, and what it writes of gradients, batch and tensors outside that were there before."""
    given = [name for name in graph.written(op) if name not in graph.born_at]
    return [*updated(graph, op), *(name for name in given if graph.storages[name].role in _CHANGED)]


def _zeroed_first(graph: Graph, names: Collection[str]) -> set[str]:
    """Return the gradients of before that nobody looks at until they are set to zero, ahead of ops of these names."""
    found, touched = set[str](), set[str]()
    for op, storages in zip(graph.ops, graph.touched_at, strict=True):
        if op.name in names:
            break
        new = [name for name in storages if name not in touched and graph.storages[name].role is Role.GRADIENT]
        if op.operator == _ZERO:
            found.update(name for name in new if op.arguments == (Ref(name),))
        touched.update(storages)
    return found


def guesses_first(graph: Graph, names: Collection[str], guesses: Sequence[Guess], put_back: Collection[str]) -> Graph:
    """Return a graph whose `guesses`, ops of these names in their order, are before all that changes what is at stake.

    What is `put_back` where a run ends early is not. Raises `Uncapturable`, naming the line of a decision by what was
    changed.
    """
    if not guesses:
        return graph
    before, ops = predecessors(graph), graph.ops
    safe = {*put_back, *_zeroed_first(graph, names)}
    changed = {at: found for at, op in enumerate(ops) if (found := {*at_stake(graph, op)} - safe)}
    early: set[int] = set()
    checking = [at for at, op in enumerate(ops) if op.name in names]
    assert len(checking) == len(guesses), "each guess is checked"
    for number, last in enumerate(checking):
        waiting = [last]
        while waiting:
            at = waiting.pop()
            if at in changed:
                what = _CHANGED.get(graph.storages[min(changed[at])].role, _UPDATED)
                raise Uncapturable(f"{guesses[number].line}: {_TOO_LATE.format(what)}{DROP_IN}")
            if at not in early:
                early.add(at)
                waiting += before[at]
    first = min(changed, default=len(ops))
    moved = sorted(range(len(ops)), key=lambda at: (at >= first and at not in early, at))
    return replace(graph, instructions=tuple([ops[at] for at in moved]))
