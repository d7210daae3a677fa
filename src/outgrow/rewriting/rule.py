"""What is a law? A function from a graph and a decision to the rewritten graph, with its condition.

The docstring of every law states, in IR text, `rewrite:` the left side, `->`, the right side, the decision
between them as `with:`, and `provided:` and `because:` in words. The tests parse these blocks and apply the law
to the left side. Where the condition does not hold, the law raises `NotApplicable`. A law does not verify the
graph: `derive` does, before and after each.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from outgrow.errors import NotApplicable
from outgrow.ir.graph import Argument, Graph, Instruction, Op, Ref
from outgrow.plan import Decision

Apply: TypeAlias = Callable[[Graph, Decision], Graph]


@dataclass(frozen=True, slots=True)
class Law:
    """A named law: `decision` is the type of decision that it carries out."""

    name: str
    decision: type
    apply: Apply


def require(condition: bool, law: str, reason: str) -> None:
    """Raise `NotApplicable`, naming the law and the reason, unless the condition holds."""
    if not condition:
        raise NotApplicable(f"{law} does not apply: {reason}.")


def position_of(graph: Graph, op: str, law: str) -> int:
    """Return the position of an op; raise `NotApplicable` if the graph has none of this name."""
    require(op in graph.op_positions, law, f"the graph has no op {op}")
    return graph.op_positions[op]


def with_instructions(graph: Graph, instructions: tuple[Instruction, ...]) -> Graph:
    """Return the graph with other instructions and the same storages and values."""
    return replace(graph, instructions=instructions)


def renamed(argument: Argument, names: dict[str, str]) -> Argument:
    """Return the argument with its values renamed."""
    if isinstance(argument, Ref):
        return Ref(names.get(argument.value, argument.value))
    if isinstance(argument, tuple):
        return tuple(renamed(item, names) for item in argument)
    return argument


def reading(op: Op, names: dict[str, str]) -> Op:
    """Return the op with the values that it reads renamed."""
    return replace(
        op,
        arguments=tuple(renamed(argument, names) for argument in op.arguments),
        keywords=tuple((key, renamed(argument, names)) for key, argument in op.keywords),
    )


def returning(op: Op, names: dict[str, str]) -> Op:
    """Return the op with its results renamed."""
    return replace(op, results=tuple(name and names.get(name, name) for name in op.results))
