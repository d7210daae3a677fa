"""Does a model train whose weights and optimizer state do not fit? GPT-2 with AdamW, in core and on the disk, for real.

    python benchmarks/heavy_state.py [--only TEXT] [--resume]

Each row is a process of its own, which makes the model and takes some steps on one text of 128 tokens. In core that
takes `state_bytes`: weights, gradients and both averages. The other rows get a share of that for all their steps, the
first one, which makes the averages, among them; and a quarter of the share for the weights while the model is made.

    building     the high water of the process beyond its baseline while the model is made (`outgrow.build`)
    peak         the same in the step that takes most
    written      bytes that a step writes to the disk: a disk wears out
    saving       what the high water rises to while model and optimizer are saved to a file

Goals: losses and every bit of weights and averages as in core, and a peak within the budget.
"""

import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from statistics import median

from main_job import ROOT, digest
from rows import Goal, Row, of_all, told_by_a_process, write_rows

LENGTH = 128
STEPS, WARM = 6, 3


@dataclass(frozen=True)
class Squeezed:
    """A size of GPT-2, and one over the share of its state that it gets (0: in core)."""

    size: str
    share: int

    @property
    def name(self) -> str:
        """The size and the share."""
        return f"gpt2 {self.size}, {f'1/{self.share} of its state' if self.share else 'in core'}"


SQUEEZED = tuple(Squeezed(size, share) for size in ("small", "medium") for share in (0, 2, 3))


def measured(item: Squeezed) -> Row:
    """Return what the process of a row tells."""
    return {"size": item.size, "share": item.share, **told_by_a_process(__file__, item.size, item.share)}


def served(size: str, share: int) -> Row:
    """Make the model, train it, save it, and tell."""
    sys.path.insert(0, str(ROOT / "benchmarks" / "workloads"))
    import torch

    import outgrow
    from outgrow.frontends.preparing.warmup import warm_up
    from outgrow.runtime.process import high_water_bytes, reset_high_water

    gpt2 = import_module("gpt2")
    shape = gpt2.SHAPES[size]
    baseline = warm_up()
    with torch.device("meta"):
        state = 4 * sum(parameter.nbytes for parameter in gpt2.Gpt2(shape).parameters())
    budget = state // share if share else 0
    reset_high_water()
    torch.manual_seed(0)
    begin = time.perf_counter()
    model = outgrow.build(lambda: gpt2.Gpt2(shape), memory_budget=budget // 4 if budget else state)
    building = {"build_seconds": time.perf_counter() - begin, "build_bytes": high_water_bytes() - baseline}
    peak = 0
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens, following = torch.randint(gpt2.VOCABULARY, (2, 1, LENGTH))

    def written(tokens: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), following.flatten())
        loss.backward()
        optimizer.step()
        return loss

    compiled = outgrow.compile(written, model=model, optimizer=optimizer, memory_budget=budget) if budget else None
    step = compiled or written
    seconds: list[float] = []
    losses: list[str] = []
    for _ in range(STEPS):
        reset_high_water()
        begin = time.perf_counter()
        losses.append(float(step(tokens, following).detach()).hex())
        seconds.append(time.perf_counter() - begin)
        peak = max(peak, compiled.process_bytes if compiled else high_water_bytes() - baseline)
    trace = compiled.traces.measured if compiled else None
    reset_high_water()
    with tempfile.TemporaryFile(dir=ROOT) as file:
        torch.save((model.state_dict(), optimizer.state_dict()), file)
    return {
        "state_bytes": state,
        "budget_bytes": budget,
        **building,
        "peak_bytes": peak,
        "step_seconds": seconds,
        "written_bytes": 0 if trace is None else trace.bytes_out,
        "read_bytes": 0 if trace is None else trace.bytes_in,
        "saving_bytes": high_water_bytes() - baseline,
        "losses": losses,
        "digest": digest(model, optimizer),
    }


def told(row: Row) -> str:
    """What is printed of a row."""
    peak, budget, state, written = (row[f"{key}_bytes"] / 1e9 for key in ("peak", "budget", "state", "written"))
    seconds, loss = median(row["step_seconds"][WARM:]), float.fromhex(row["losses"][-1])
    return (
        f"peak {peak:.2f} GB of {budget:.2f}, state {state:.2f}, {seconds:.2f} s a step, {written:.2f} GB written, "
        f"loss {loss:.4f}"
    )


def goals(rows: Sequence[Row]) -> list[Goal]:
    """Return what is asked of all rows, and whether it is met."""
    in_core = {row["size"]: row for row in rows if not row["share"]}
    squeezed = [row for row in rows if row["share"] and row["size"] in in_core]
    same = [all(row[key] == in_core[row["size"]][key] for key in ("losses", "digest")) for row in squeezed]
    within = [row["peak_bytes"] <= row["budget_bytes"] for row in squeezed]
    return [
        of_all("bits as in core", "all rows", same),
        of_all("peak within the budget", "all rows", within),
    ]


if __name__ == "__main__":
    write_rows("heavy_state", SQUEEZED, measured, told, served=served)
