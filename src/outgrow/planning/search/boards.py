"""What is searched on? Boards: orders of the step, each under one choice of the free rewrites.

    order            the captured one; the lean one as well (`planning.order.lean`), if it differs
    stalls           where ops stall because they write over an operand (`operators.stalls`): one more board for each
                     order, on which they do not
    concatenations   where they go by operand: one more board, on which they do not, since a result that fills operand
                     by operand is held for longer. If that board has ample room, it takes the place of the first
    re-use           where a result is written over an operand from which something could be built again: one more
                     board, on which it is not (`free.reuse`). If that board has ample room, it takes the place of the
                     first

A board is yielded only if it has plans, that is, if its floor is within the capacity. Room is ample where the capacity
is twice the floor.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from threading import Event

from outgrow.operators.stalls import slowdown
from outgrow.plan import ByOperand, Decision
from outgrow.planning.floor import require_feasible
from outgrow.planning.free.free import Freed
from outgrow.planning.free.reuse import spoiling_ops
from outgrow.planning.order.lean import Orders
from outgrow.planning.problem import Problem
from outgrow.planning.search.annealing import Conditions, Trial, best_of, conditions_of, tried
from outgrow.planning.search.choice import PLAIN, SwapRule
from outgrow.planning.search.contracted import Contraction, contracted
from outgrow.planning.search.sequence import Policy
from outgrow.planning.search.space import Space, space_of

_WORK = 60_000_000
"""Ops walked over in one search, as some seconds allow; fewer in a large step, where each takes longer."""
_LARGE = 16_000
"""In a step of this many ops, walking over each takes twice as long: more gaps are open at a time."""
_ROOMY = 2
"""Room is ample where the capacity is so many times the floor: no op is then in the way of what moves while it runs."""
ENOUGH = 1e-4
"""A plan at most this share slower than its arithmetic is not improved further."""


@dataclass(frozen=True)
class Board:
    """What there is to decide, and what it costs; `free` are the decisions that were made before.

    `is_wanted` is clear once nobody waits for the result any more. A contracted board knows its `contraction`.
    """

    space: Space
    free: tuple[Decision, ...]
    is_wanted: Event
    contraction: Contraction | None = None

    @cached_property
    def conditions(self) -> Conditions:
        """The conditions of the space."""
        return conditions_of(self.space)

    @property
    def enough(self) -> float:
        """A step that takes at most these seconds is not worth a search."""
        return self.space.arithmetic_seconds * (1 + ENOUGH)

    @property
    def ops(self) -> int:
        """The ops of the board as a whole."""
        return len(self.whole.space.tables.op_seconds)

    @cached_property
    def whole(self) -> "Board":
        """The board that this one was contracted from, or else itself."""
        found = self.contraction
        return self if found is None else replace(self, space=found.whole, contraction=None)

    @property
    def affordable(self) -> int:
        """Trials that one search can afford.

        Half of what a trial takes goes by what rests, which is as much on a contracted board: so it takes less time
        than one on the whole board, but not in proportion to the ops.
        """
        ops = (len(self.space.tables.op_seconds) + self.ops) / 2
        return int(_WORK / (max(ops, 1) * (1 + ops / _LARGE)))

    def tried(self, policy: Policy, rule: SwapRule = PLAIN) -> Trial:
        """Return what a policy costs."""
        self.check_wanted()
        return tried(self.conditions, policy, rule)

    def best_of(self, policy: Policy, rules: Sequence[SwapRule], best: Trial) -> Trial:
        """Return the best of the trials of a policy under some rules; `best`, unless one beats it."""
        self.check_wanted()
        return best_of(self.conditions, policy, rules, best)

    def contracted(self) -> "Board":
        """Return the board on which only what is large is seen."""
        contraction = contracted(self.space)
        return replace(self, space=contraction.space, contraction=contraction)

    def check_wanted(self) -> None:
        """Raise `CancelledError` once nobody waits for the result."""
        if not self.is_wanted.is_set():
            raise CancelledError


def boards(problem: Problem, orders: Orders, freed: Freed, is_wanted: Event) -> Iterator[list[Board]]:
    """Yield the boards of the captured order, then those of the lean one, if it is another.

    `freed` is the captured graph after free rewrites. Raises `Infeasible` at the end if there is none.
    """
    ways: list[Freed] = []
    for ordered, moves in orders:
        own = replace(problem, graph=ordered)
        ways.append(orders.freed(own) if moves else freed)
        if ways[-1].floor_bytes <= problem.budget.capacity_bytes:
            board = _board(own, ways[-1], moves, is_wanted)
            first, *others = _with_whole_concatenations(board, orders, moves)
            for group in ([first, *_unstalled(first, orders, moves)], others):
                if group:
                    yield [found for one in group for found in _sparing(one, orders, moves)]
    lowest = min(ways, key=attrgetter("floor_bytes"))
    if lowest.floor_bytes > problem.budget.capacity_bytes:
        require_feasible(problem, lowest.graph)


def _board(problem: Problem, freed: Freed, moves: tuple[Decision, ...], is_wanted: Event) -> Board:
    return Board(space_of(problem, freed.graph), (*moves, *freed.decisions), is_wanted)


def _with_whole_concatenations(board: Board, orders: Orders, moves: tuple[Decision, ...]) -> list[Board]:
    """Return a board, and the one on which no op goes by operand, if they differ; that one alone in ample room."""
    if not any(isinstance(decision, ByOperand) for decision in board.free):
        return [board]
    return _with_alternative(board, replace(board.space.problem, in_turn=False), orders, moves)


def _unstalled(board: Board, orders: Orders, moves: tuple[Decision, ...]) -> Iterator[Board]:
    """Yield the board on which no op stalls, if one does on this board, and the other has plans at all."""
    graph = board.space.graph
    if all(slowdown(graph.values, op) == 1 for op in graph.ops):
        return
    other, _ = _alternative(board, replace(board.space.problem, stalls=False), orders, moves)
    if other is not None:
        yield other


def _sparing(board: Board, orders: Orders, moves: tuple[Decision, ...]) -> list[Board]:
    """Return a board, and the one on which more can be built again, if they differ; that one alone in ample room."""
    problem = board.space.problem
    spoilers = spoiling_ops(problem, board.space.graph, board.free)
    return _with_alternative(board, replace(problem, sparing=spoilers), orders, moves) if spoilers else [board]


def _with_alternative(board: Board, problem: Problem, orders: Orders, moves: tuple[Decision, ...]) -> list[Board]:
    """Return a board and that of a problem with other free rewrites.

    The board alone where the other does not differ from it or has no plans; the other alone where it has ample room.
    """
    other, floor = _alternative(board, problem, orders, moves)
    if other is None or other.free == board.free:
        return [board]
    return [other] if _ROOMY * floor <= problem.budget.capacity_bytes else [board, other]


def _alternative(
    board: Board, problem: Problem, orders: Orders, moves: tuple[Decision, ...]
) -> tuple[Board | None, int]:
    """Return the board of a problem with other free rewrites, if it has plans at all, and its floor in bytes."""
    freed = orders.freed(problem)
    is_possible = freed.floor_bytes <= problem.budget.capacity_bytes
    return _board(problem, freed, moves, board.is_wanted) if is_possible else None, freed.floor_bytes
