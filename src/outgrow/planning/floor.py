"""What is the smallest budget? The floor: what some op needs at once, whatever else is away.

    need(k) = sizes of the storages that op k touches + its workspace
            + sizes of the live storages that may not leave the device, then or ever; on an anchored device, also of
              those that will live on when the step ends
    floor   = max over ops k of need(k)

Storages that `leaving` does not name never leave, and no storage leaves while it is in flight. Of the others, what is
on the device when the step begins, and is not stowed, may not leave before its first use (to the end, if no op uses
it), and what is there when the step ends may not leave after its last use.
Any budget at or above the floor has a plan: everything that op k does not touch is away while it runs.
"""

from itertools import pairwise

from outgrow.analysis.liveness import lifetimes, peak_bytes
from outgrow.errors import Infeasible
from outgrow.ir.flight import flights, is_in_flight
from outgrow.ir.graph import Graph, Op
from outgrow.planning.leaving import leaving, stowing
from outgrow.planning.problem import Problem
from outgrow.units import format_bytes, round_up_to_mib


def needs(problem: Problem, graph: Graph) -> list[int]:
    """Return need(k) in bytes for each op of `graph`, a rewriting of the problem's graph."""
    ops = graph.ops
    may_leave = leaving(problem, graph)
    may_stow = stowing(graph, may_leave)
    fixed = [0] * (len(ops) + 1)
    moving: dict[str, int] = {}
    lives = lifetimes(graph)
    for name, life in lives.items():
        size = graph.storages[name].size_bytes
        moving[name] = size if name in may_leave else 0
        if name in may_stow:
            continue
        is_free = name in may_leave and life.uses
        is_anchored = problem.anchored and name in graph.kept
        fixed[0 if is_anchored else max(life.birth, 0)] += size
        fixed[min(life.uses[0] if is_free else life.death + 1, len(ops))] -= size
        if is_free and life.death == len(ops) and life.uses[-1] + 1 < len(ops):
            fixed[life.uses[-1] + 1] += size
    for name, flown in flights(graph).items():
        for one, other in pairwise(lives[name].uses):
            if is_in_flight(flown, one, other):
                fixed[one + 1] += moving[name]
                fixed[other] -= moving[name]
    workspace = problem.workspace
    found: list[int] = []
    held = 0
    for step, (op, touched) in enumerate(zip(ops, graph.touched_at, strict=True)):
        held += fixed[step]
        found.append(held + sum([moving[name] for name in touched]) + workspace.get(op.captured, 0))
    return found


def needed_bytes(problem: Problem) -> int:
    """Return what the captured step needs as it is: its peak.

    On an anchored device, what the step makes and leaves has room of its own, which is added to the peak.
    """
    graph = problem.graph
    born = sum(graph.storages[name].size_bytes for name in graph.kept & graph.born_at.keys())
    return peak_bytes(graph, problem.workspace) + (born if problem.anchored else 0)


def floor_of(problem: Problem, graph: Graph) -> tuple[int, Op | None]:
    """Return the floor in bytes and the op that sets it; without ops, the bytes that the step is given, and None."""
    found = needs(problem, graph)
    if not found:
        return peak_bytes(graph, problem.workspace), None
    step = max(range(len(found)), key=found.__getitem__)
    return found[step], graph.ops[step]


def in_the_way(problem: Problem, graph: Graph) -> list[Op]:
    """Return the ops that need more than half of the floor, in order.

    Only these are worth taking apart: of two parts of the op that sets the floor one needs at least half of the floor,
    which is as much as any other op needs.
    """
    found = needs(problem, graph)
    floor = max(found, default=0)
    return [op for op, need in zip(graph.ops, found, strict=True) if 2 * need > floor]


def require_feasible(problem: Problem, graph: Graph) -> None:
    """Raise `Infeasible`, naming floor, op and remedies, if the budget is below the floor."""
    floor, op = floor_of(problem, graph)
    budget = problem.budget
    if budget.capacity_bytes >= floor:
        return
    overhead, needed = budget.overhead_bytes, floor + budget.overhead_bytes
    of_tensors = f"{format_bytes(floor)} {f'while {op.name} runs' if op else 'for what the step is given'}"
    of_process = f" and {format_bytes(overhead)} that the process takes beside tensors" if overhead else ""
    or_else = ", or make the batch smaller" if overhead <= floor else ""
    raise Infeasible(
        f"Budget {format_bytes(budget.limit_bytes)} is below the floor. The step needs {format_bytes(needed)}: "
        f"{of_tensors}{of_process}. Raise the budget to {round_up_to_mib(needed)}{or_else}.",
        floor_bytes=needed,
        culprit=op.name if op else "",
        because="below the floor of every plan",
    )
