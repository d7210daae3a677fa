"""A derived graph against the captured one, given what is known of torch's operators."""

from collections.abc import Mapping

from outgrow.ir.graph import Graph
from outgrow.ir.stand_ins import numbered
from outgrow.ir.verify import verify
from outgrow.rewriting.derive import LEEWAY


def verify_derived(
    graph: Graph, captured: Graph, *, capacity_bytes: int | None = None, workspace: Mapping[str, int] | None = None
) -> None:
    """Raise `InvalidGraph` unless `graph` is valid and equivalent to `captured`, given what the operators admit."""
    reference = numbered(captured, LEEWAY)
    verify(graph, capacity_bytes=capacity_bytes, workspace=workspace or {}, captured=reference)
