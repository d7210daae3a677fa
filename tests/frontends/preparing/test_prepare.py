"""Is a workload planned without being built in memory, as if it had been?"""

from pathlib import Path

import pytest
import torch

from outgrow.analysis.cost import Cost
from outgrow.errors import Infeasible, Uncapturable
from outgrow.frontends.preparing.ahead import How, KnownMachine, plan_captured
from outgrow.frontends.preparing.machines import described_machine, machine_names
from outgrow.frontends.tracing.capture import capture
from outgrow.frontends.workloads.loading import built, load_workload_function
from outgrow.frontends.workloads.steps import capture_workload
from outgrow.ir.machine import Device, LinkRates, Machine
from outgrow.ir.text import print_graph
from outgrow.plan import Budget
from outgrow.planning.planner import planned
from outgrow.planning.problem import Problem
from outgrow.report.summary import summary_of
from tests.planning.normalised import normalised
from tests.workloads import DEEP, written

V100 = KnownMachine(described_machine("v100-pcie3"))


def test_the_captured_graph_is_that_of_the_real_workload(tmp_path: Path) -> None:
    """Built with fake tensors or with real ones, the step is the same graph, to the letter."""
    function = load_workload_function(f"{written(tmp_path)}:perceptron")
    workload = built(function, {})
    real = capture(workload.step, [workload.model], [workload.optimizer], tuple(workload.batches[0]))
    assert print_graph(capture_workload(function, {}).graph) == print_graph(real.graph)


@pytest.mark.parametrize(
    "conversion",
    [".double()", ".to(memory_format=torch.channels_last)", '.to("cpu")', ".half()", ".bfloat16()"],
)
def test_a_module_can_be_converted_without_data(tmp_path: Path, conversion: str) -> None:
    """`Module.to` and its relatives work while a workload is built for a plan, in place as ever."""
    text = f"""\
import torch, outgrow
from torch import nn

def workload():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    weight = model[0].weight
    model{conversion}
    assert model[0].weight is weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        loss = model(x.to(weight.dtype)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return outgrow.Workload(model, optimizer, step, batches=[(torch.randn(2, 3, 8, 8),)])
"""
    function = load_workload_function(f"{written(tmp_path, text)}:workload")
    workload = built(function, {})
    real = capture(workload.step, [workload.model], [workload.optimizer], tuple(workload.batches[0]))
    assert print_graph(capture_workload(function, {}).graph) == print_graph(real.graph)


@pytest.mark.usefixtures("plans_found_quickly")
def test_a_plan_says_what_training_would_take(tmp_path: Path) -> None:
    """Below what the step takes in core there is a plan within the budget, and nothing has been measured."""
    function = load_workload_function(f"{written(tmp_path)}:perceptron")
    budget = 100 << 20
    summary = summary_of(plan_captured(capture_workload(function, DEEP), V100, budget, How()), "toy")
    assert summary.predicted.peak_bytes + summary.overhead_bytes <= budget < summary.in_core_peak_bytes
    assert summary.predicted.seconds >= summary.bound_seconds > 0
    assert summary.measured is None
    assert summary.machine == "v100-pcie3"


def test_a_model_larger_than_any_memory_is_planned(tmp_path: Path) -> None:
    """Nothing is allocated: a batch of 128 TiB is no obstacle."""
    function = load_workload_function(f"{written(tmp_path)}:perceptron")
    with pytest.raises(Infeasible, match="below the floor"):
        plan_captured(capture_workload(function, {"rows": 1 << 35, "width": 1 << 10}), V100, 1 << 40, How())


def test_content_that_is_not_there_is_named(tmp_path: Path) -> None:
    """A function that looks at its data cannot be planned; the refusal says where, and why planning is
    otherwise.
    """
    text = "import torch\n\ndef workload():\n    return torch.ones(3).sum().item()\n"
    function = load_workload_function(f"{written(tmp_path, text)}:workload")
    with pytest.raises(Uncapturable, match=r"built without data. .*toy.py:4"):
        capture_workload(function, {})
    assert torch.ones(3).sum().item() == 3


@pytest.mark.parametrize("name", machine_names())
def test_every_described_machine_can_be_read(name: str) -> None:
    """Each file has the name that it says, and rates that are positive."""
    machine = described_machine(name)
    assert machine.name == name
    assert machine.device.flops_per_second > machine.device.bytes_per_second > 0
    assert min(machine.link.out_bytes_per_second, machine.link.in_bytes_per_second) > 0


def test_an_op_that_stalls_tells_what_it_takes_as_captured() -> None:
    """At this budget the normalisation is written over an operand, which takes 1.4 times as long; its cost does not."""
    graph = normalised()
    costs = {op.name: Cost(1.0) for op in graph.ops}
    machine = Machine("toy", Device("toy", 1e9, 1e9), LinkRates(1e6, 1e6))
    problem = Problem(graph, costs, machine, Budget(200), minimum_bytes=4)
    prepared = planned(problem)
    assert prepared.simulated.seconds == pytest.approx(7.4, abs=0.01)
    seen = prepared.costs_in(prepared.simulated)
    assert {name: cost.seconds for name, cost in seen.items()} == pytest.approx(dict.fromkeys(costs, 1.0))
    assert prepared.replayed(prepared.simulated).seconds == pytest.approx(prepared.simulated.seconds)
