"""Is a step, read as calls on named tensors, the step that was traced?"""

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from outgrow.frontends.tracing.trace import trace
from outgrow.frontends.user.training.state import Training
from outgrow.frontends.workers.dataflow import dataflow_of, divisible_dataflow
from outgrow.operators.catalogue import entry_of
from outgrow.operators.dataflow import Dataflow
from outgrow.planning.partition.partition import partition
from tests.frontends.features import Make, named, single_points


def linear() -> Dataflow:
    """The dataflow of a linear layer's training."""
    model = nn.Linear(8, 6)
    optimizer = SGD(model.parameters(), lr=0.1)

    def step(x: Tensor) -> Tensor:
        loss = model(x).view(2, 2, 6).sum()
        loss.backward()
        optimizer.step()
        return loss

    return dataflow_of(trace(step, Training((model,), (optimizer,)), (torch.ones(4, 8),), {}))


def test_a_write_in_place_keeps_the_name() -> None:
    """A parameter is one tensor before and after its update, and lasts."""
    step = linear()
    assert {name for name, tensor in step.tensors.items() if tensor.lasting} == {"model.weight", "model.bias"}
    writing = [node for node in step.nodes if "model.weight" in node.results]
    assert [node.call.operator for node in writing] == ["aten.add_.Tensor"]


def test_a_view_knows_what_it_views() -> None:
    """It has dimensions of its own, and no memory."""
    step = linear()
    view = next(node for node in step.nodes if node.call.operator == "aten.view.default")
    (source,), (name,) = view.operands, view.results
    assert name is not None
    assert step.tensors[name].shape == (2, 2, 6)
    assert step.tensors[name].viewed == step.tensors[source].viewed == source


def test_how_sums_of_single_points_lie_is_no_matter_of_division() -> None:
    """A view that says so would keep them whole."""
    job = single_points()
    traced = trace(job.step, Training(job.models, job.optimizers), job.batch(), {})
    assert any("as_strided" in node.call.operator for node in dataflow_of(traced).nodes)
    assert not any("as_strided" in node.call.operator for node in divisible_dataflow(traced).nodes)


@pytest.mark.parametrize(("name", "make"), list(named()), ids=[name for name, _ in named()])
def test_every_step_can_be_divided(name: str, make: Make) -> None:
    """Operands come before they are used; a worker holds no more than one device, and receives no less than nothing."""
    torch.manual_seed(0)
    job = make()
    step = dataflow_of(trace(job.step, Training(job.models, job.optimizers), job.batch(), {}))
    known = {tensor for tensor in step.tensors if tensor not in {r for node in step.nodes for r in node.results}}
    known |= {tensor.name for tensor in step.tensors.values() if tensor.lasting}
    for node in step.nodes:
        assert known.issuperset(node.operands), (name, node.name)
        assert [operand.shape for operand in node.call.operands] == [step.tensors[n].shape for n in node.operands]
        known.update(result for result in node.results if result is not None)
    found = partition(step, 2)
    assert found.communicated_bytes >= 0
    assert found.lasting_bytes_per_worker <= sum(t.size_bytes for t in step.tensors.values() if t.lasting)
    assert all(entry_of(operator) is None for operator in found.whole)
