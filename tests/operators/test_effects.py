"""Does the table of hidden writes tell training from evaluation?"""

import pytest

from outgrow.ir.graph import Ref
from outgrow.operators.effects import hidden_writes

TENSORS = tuple(Ref(name) for name in ("x", "weight", "bias", "mean", "var"))


@pytest.mark.parametrize(("training", "expected"), [(True, (3, 4)), (False, ())])
def test_batch_norm_writes_its_statistics_only_in_training(training: bool, expected: tuple[int, ...]) -> None:
    """Running mean and variance are written if the flag says so."""
    assert hidden_writes("aten.native_batch_norm.default", (*TENSORS, training, 0.1, 1e-5)) == expected


def test_absent_statistics_are_not_written() -> None:
    """A batch norm without running statistics writes nothing."""
    assert hidden_writes("aten.native_batch_norm.default", (*TENSORS[:3], None, None, True)) == ()
