"""Where sizes depend on contents, an op is tried on operands that give results of the captured sizes."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from outgrow.frontends.preparing import rehearsal
from outgrow.frontends.preparing.rehearsal import Rehearsal
from outgrow.frontends.tracing.capture import capture
from outgrow.ir.graph import Graph, Op
from outgrow.runtime.program import Call
from outgrow.runtime.results import results_of
from tests.runtime.stand_in import StandIn

X = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
MASK, ROW = X > 0.3, X[:, 0] > X[:, 0].median()
LABELS, TIMES = (X[:, 1] * 4).long().abs(), (X[:, 2] * 2).long().abs()
FLAGS = torch.tensor([True, False, True, True, False, True, False, True, False, False])


def written(x: Tensor, mask: Tensor) -> Tensor:
    z = torch.zeros_like(x)
    z[mask] = x[mask] * 2
    return z


def learnt(x: Tensor, mask: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    loss = (x[mask] ** 2).sum() + (x.masked_select(mask) ** 3).sum()
    return torch.autograd.grad(loss, [x])[0]


def crossed(x: Tensor, row: Tensor) -> Tensor:
    z = torch.zeros(8, 2, 16)
    z[torch.arange(8), :, row] = x[:8, :2]
    z[row[:8], :, torch.zeros(1, dtype=torch.long)] = x[: int(row[:8].sum()), :2]
    z[torch.arange(8).unsqueeze(1), 0, row] = x[:8, :1]
    z[:, row[:2], 1] = x[:8, : int(row[:2].sum())]
    return z


CASES: dict[str, tuple[Callable[..., object], Tensor, Tensor]] = {
    "written": (written, X, MASK),
    "rows written": (written, X, ROW),
    "of a strided mask": (written, X.T, MASK.T),
    "of a broadcast mask": (lambda x, row: written(x, row[:, None].expand(16, 8)), X, ROW),
    "of a mask that is broadcast to the left": (lambda x, row: written(x.T, row.expand(8, 16)), X, ROW),
    "of a mask that overlaps itself": (lambda x, flags: written(x[:8, :3], flags.unfold(0, 3, 1)), X, FLAGS),
    "of masks that overlap": (lambda x, flags: x[:6, :6][flags[:6], flags[2:8]], X, FLAGS),
    "learnt": (learnt, X, MASK),
    "added": (lambda x, m: x.index_put((m,), x[m], accumulate=True), X, MASK),
    "beside numbers": (lambda x, row: x[torch.arange(16).unsqueeze(1), row[:8]], X, ROW),
    "beside one number": (lambda x, row: x[2, row[:8]] + x[torch.tensor([3]), row[:8]], X, ROW),
    "side by side and not": (crossed, X, ROW),
    "found": (lambda _, m: m.nonzero(), X, MASK),
    "found numbers": (lambda x, m: (x * m).nonzero(), X, MASK),
    "selected by some": (lambda x, m: x.masked_select(m[:1]), X, MASK),
    "selected of some": (lambda x, m: x[:1].masked_select(m), X, MASK),
    "different": (lambda _, n: torch.unique(n, return_inverse=True, return_counts=True), X, LABELS),
    "different in any order": (lambda _, n: torch.ops.aten._unique.default(n, return_inverse=True), X, LABELS),
    "different fractions": (lambda _, n: torch.unique(n * 0.5), X, LABELS),
    "others of the different": (lambda _, n: torch.unique(n, return_inverse=True)[1], X, LABELS),
    "counted": (lambda _, n: torch.bincount(n), X, LABELS),
    "repeated": (lambda x, n: x.repeat_interleave(n, 0), X, TIMES),
    "repeated so often": (lambda x, n: x.repeat_interleave(n, 0, output_size=int(n.sum())), X, TIMES),
}


@pytest.mark.parametrize("case", CASES)
def test_an_op_is_tried_with_results_of_the_captured_sizes(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what it needs would be understated, or it would be given sizes that do not go together."""
    step, *args = CASES[case]
    captured = capture(step, [], [], args)
    made, sizes = rehearsal.call_of, list[tuple[str, object, object]]()

    def noted(graph: Graph, op: Op, stand_ins: dict[str, Tensor]) -> Call:
        call = made(graph, op, stand_ins)

        def function(*given: object, **named: object) -> object:
            found = call.function(*given, **named)
            for name, item in zip(op.results, results_of(found), strict=False):
                if name is not None and isinstance(item, Tensor):
                    sizes.append((op.operator, tuple(item.shape), graph.values[name].shape))
            return found

        return replace(call, function=function)

    monkeypatch.setattr(rehearsal, "_KNOWN", {})
    monkeypatch.setattr(rehearsal, "call_of", noted)
    Rehearsal(StandIn(), directed=False).costs(captured.graph, (), lambda _share: None)
    assert sizes
    assert [item for item in sizes if item[1] != item[2]] == []
