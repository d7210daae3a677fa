"""Are tensors with corrected strides still the results of the ops that made them?"""

import pytest
import torch
from torch import Tensor

from outgrow.frontends import fakes
from outgrow.frontends.capture import capture


def test_a_corrected_layout_is_no_op_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fresh tensor whose strides are put right is the result of its operator, not a new tensor."""

    def odd(fake: Tensor) -> Tensor:
        return torch.empty_strided(fake.shape, (1, 7), dtype=fake.dtype) if fake.shape == (4, 1) else fake

    monkeypatch.setattr(fakes, "like_a_kernel", odd)
    graph = capture(lambda x: torch.relu(x).exp(), [], [], (torch.zeros(4, 1),)).graph
    assert [op.operator for op in graph.ops] == ["aten.relu.default", "aten.exp.default"]
    assert graph.values["exp"].strides == (1, 7)
