"""A workload that is built without memory has the tensors that it would have with memory."""

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor

from outgrow import Workload
from outgrow.frontends.workloads.unallocated import build_unallocated


class Counting(nn.Module):
    """What makes its tensors of literals, as batch norms and causal masks do."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.scale = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]) / 2)
        self.register_buffer("mask", torch.tril(torch.ones(3, 3)) * torch.tensor(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x) * self.scale @ self.get_buffer("mask")


def on_meta() -> Workload:
    """A workload whose model is made without memory, and then given some, as large models are."""
    with torch.device("meta"):
        counting = Counting()
        model = nn.Sequential(nn.Linear(3, 3).requires_grad_(False), counting)
    model.to_empty(device="cpu")
    counting.norm.reset_parameters()
    return Workload(model, torch.optim.SGD(model.parameters()), model, batches=[(torch.ones(4, 3),)])


def test_a_model_made_on_meta_is_given_memory() -> None:
    """It has the parameters and buffers of a model that is built as ever, on the device that was asked for."""
    real = on_meta().model.state_dict(keep_vars=True)
    found = build_unallocated(on_meta, {}).model.state_dict(keep_vars=True)
    assert list(found) == list(real)
    for name, tensor in found.items():
        assert (tensor.shape, tensor.dtype, tensor.device) == (real[name].shape, real[name].dtype, real[name].device)
        assert isinstance(tensor, FakeTensor)
        assert isinstance(tensor, nn.Parameter) == isinstance(real[name], nn.Parameter)
        assert tensor.requires_grad == real[name].requires_grad
