"""In which order are variables eliminated? The one next whose elimination makes the table of fewest entries.

Variables that a cost depends on together are neighbours. Eliminating one makes all of its neighbours each other's
neighbours, since its cost depends on all of them; fixing one only removes it. The sizes of the tables follow from who
is whose neighbour, not from any cost, so the order is known before the first table is made.
"""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod


@dataclass(frozen=True, slots=True)
class Order:
    """The variables, first to last; `beside`, each one's neighbours at its turn; which are fixed, not eliminated."""

    variables: tuple[int, ...]
    beside: tuple[frozenset[int] | set[int], ...]
    fixed: frozenset[int]


def elimination_order(sizes: Sequence[int], scopes: Iterable[Sequence[int]], most_entries: int) -> Order:
    """Return the order for variables with `sizes` choices, and costs that depend on the variables of each scope.

    Where each variable left would make a table of more than `most_entries`, the one with most neighbours is fixed.
    """
    beside: list[set[int]] = [set() for _ in sizes]
    for scope in scopes:
        for variable in scope:
            beside[variable].update(scope)
    for variable, found in enumerate(beside):
        found.discard(variable)
    entries = [prod([sizes[other] for other in found], start=size) for size, found in zip(sizes, beside, strict=True)]
    waiting = [(count, variable) for variable, count in enumerate(entries)]
    heapq.heapify(waiting)
    order: dict[int, None] = {}
    fixed: list[int] = []
    while waiting:
        count, variable = heapq.heappop(waiting)
        if variable in order:
            continue
        if entries[variable] > count:
            heapq.heappush(waiting, (entries[variable], variable))
            continue
        if count > most_entries:
            heapq.heappush(waiting, (count, variable))
            variable = max((v for v in range(len(sizes)) if v not in order), key=lambda item: len(beside[item]))
            fixed.append(variable)
        order[variable] = None
        for other in _left(variable, beside, entries, sizes, is_fixed=count > most_entries):
            heapq.heappush(waiting, (entries[other], other))
    return Order(tuple(order), tuple(beside), frozenset(fixed))


def _left(
    variable: int, beside: Sequence[set[int]], entries: list[int], sizes: Sequence[int], *, is_fixed: bool
) -> list[int]:
    """Remove a variable; unless it is fixed, make its neighbours each other's. Return those whose table got smaller."""
    around, size = beside[variable], sizes[variable]
    fewer: list[int] = []
    for other in around:
        own = beside[other]
        own.remove(variable)
        before = entries[other]
        count = before // size
        if len(around) > 1 and not is_fixed:
            new = around - own
            if len(new) > 1:
                new.remove(other)
                own |= new
                count *= prod([sizes[item] for item in new])
        entries[other] = count
        if count < before:
            fewer.append(other)
    return fewer
