"""Does a trace whose calls were put into another order compute the same, and are exchanges begun before they end?"""

from pathlib import Path

import pytest
import torch
from torch import Tensor, fx

from outgrow.frontends.workers.divisible import Divisible, divisible
from outgrow.frontends.workers.exchange_order import NOMINAL, Pace, in_order
from outgrow.frontends.workloads.loading import load_workload_function
from outgrow.ir.flight import flights
from outgrow.ir.machine import Device, LinkRates, Machine, Peers
from outgrow.planning.partition import options
from outgrow.planning.partition.partition import partition
from outgrow.planning.partition.shares import Shares

FAMILIES = Path(__file__).parents[3] / "benchmarks" / "workloads" / "families.py"
AMPLE = 1e15
SLOW = Pace(1e-6, 1e-12, 1e-12, 1e-6)
"""Workers that hardly hear of each other."""


@pytest.fixture(autouse=True)
def _cut_however_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "SMALL_BYTES", 0)


def job_of(family: str) -> Divisible:
    """The step of a small model, on tensors without memory."""
    return divisible(load_workload_function(f"{FAMILIES}:{family}"), {})


def inputs_of(graph: fx.Graph) -> list[object]:
    """Tensors that tell if one is taken for another; numbers that name a place are all small."""
    found: list[object] = []
    for node in graph.find_nodes(op="placeholder"):
        like = node.meta["val"]
        if not isinstance(like, Tensor):
            found.append(0.1)
        elif like.dtype.is_floating_point:
            found.append(torch.rand(like.shape, dtype=like.dtype) + 0.1)
        else:
            found.append(torch.zeros(like.shape, dtype=like.dtype))
    return found


@pytest.mark.parametrize("pace", [NOMINAL, SLOW], ids=["nominal", "slow"])
@pytest.mark.parametrize("family", ["perceptron", "image", "text", "series"])
def test_another_order_computes_the_same(family: str, pace: Pace) -> None:
    """To the last bit: writes in place, views and random numbers keep their order."""
    job = job_of(family)
    shares = Shares(job.step, partition(job.step, 4, memory_bytes=AMPLE))
    ordered, early = in_order(job.traced.module.graph, shares, pace)
    names = [node.name for node in job.traced.module.graph.nodes]
    others = [node.name for node in ordered.nodes]
    assert sorted(names) == sorted(others)
    assert pace is NOMINAL or (names != others and early)
    given = inputs_of(job.traced.module.graph)
    found: list[list[object]] = []
    for graph in (None, ordered):
        torch.manual_seed(0)
        own = [item.clone() if isinstance(item, Tensor) else item for item in given]
        run = fx.Interpreter(job.traced.module, graph=graph).run(*own, enable_io_processing=False)
        found.append([*run, *own])
    for one, other in zip(*found, strict=True):
        if isinstance(one, Tensor):
            assert torch.equal(one.nan_to_num(), other.nan_to_num())
        else:
            assert one == other


def test_other_calls_run_while_something_is_on_its_way() -> None:
    """In the step of one worker there are ops between the beginning of an exchange and its end."""
    job = job_of("perceptron")
    shares = Shares(job.step, partition(job.step, 4, memory_bytes=AMPLE))
    spans = {span for spans in flights(job.of_worker(shares, 0, NOMINAL).graph).values() for span in spans}
    assert spans
    assert any(end - begin > 1 for begin, end in spans)


def test_the_pace_of_a_machine_is_that_of_its_slowest_exchange() -> None:
    """Between the first worker and the last; one worker alone exchanges nothing."""
    device, link = Device("toy", 2e9, 1e8, 1e-3), LinkRates(1.0, 1.0)
    machine = Machine("toy", device, link, peers=(Peers(2, 1e5), Peers(2, 1e6)))
    assert Pace.of(machine, 4) == Pace(1e-3, 1e-9, 1e-8, 1e-5)
    assert Pace.of(machine, 2) == Pace(1e-3, 1e-9, 1e-8, 1e-6)
    assert Pace.of(machine, 1).received_byte > 0
