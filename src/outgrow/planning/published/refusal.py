"""What does a published method say where it finds no plan, although the floor allows one?

Each method moves or rebuilds only some storages. What the others hold, with all of these away, is the smallest
budget for which that method has a plan.
"""

from collections.abc import Sequence

import numpy as np

from outgrow.errors import Infeasible
from outgrow.ir.graph import Op
from outgrow.planning.arrays import Integers
from outgrow.planning.problem import Problem
from outgrow.units import format_bytes, round_up_to_mib


def refusal(
    problem: Problem, method: str, limits: str, needed: Integers | Sequence[int], ops: Sequence[Op]
) -> Infeasible:
    """Return the error to raise: `needed` are bytes at each of `ops` at the method's best, `limits` says why."""
    step = int(np.argmax(needed))
    required = int(needed[step]) + problem.budget.overhead_bytes
    return Infeasible(
        f"{method} finds no plan within {format_bytes(problem.budget.limit_bytes)}: {limits}, and at its best "
        f"{ops[step].name} ({ops[step].operator}) is reached with {format_bytes(required)}. "
        f"Raise the budget to {round_up_to_mib(required)}, or choose the planner search.",
        floor_bytes=required,
        culprit=ops[step].name,
        because=limits,
    )
