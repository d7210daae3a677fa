"""A refusal names the user's line, and that of a library behind it."""

import sys
from pathlib import Path

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from outgrow.errors import Uncapturable
from outgrow.frontends.tracing.capture import capture
from outgrow.frontends.user import refusals


def test_the_line_of_a_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is what "this" is, and the user's is where to look for who calls it."""
    installed = tmp_path / "installed"
    (installed / "masks").mkdir(parents=True)
    (installed / "masks" / "__init__.py").write_text("def is_whole(x):\n    return bool(x.relu().all())\n")
    monkeypatch.syspath_prepend(str(installed))
    beginnings = refusals._beginnings((str(installed),))
    monkeypatch.setattr(refusals, "_PACKAGES", beginnings)
    monkeypatch.setattr(refusals, "_LIBRARIES", (*refusals._LIBRARIES, *beginnings))
    from masks import is_whole  # type: ignore[import-not-found]

    model = torch.nn.Linear(2, 2)
    with pytest.raises(Uncapturable) as refused:
        capture(lambda x: model(x) if is_whole(model(x)) else x, [model], [], (torch.ones(1, 2),))
    assert "test_refusals.py:" in str(refused.value)
    assert ", in masks/__init__.py:2: `return bool(x.relu().all())`: this needs the content" in str(refused.value)
    del sys.modules["masks"]


def test_packed_sequences_are_refused_wherever_they_are_packed() -> None:
    """In the step or before it, for a layer or to be padded: what to give instead is told."""
    layer, x, lengths = torch.nn.LSTM(4, 4), torch.ones(3, 2, 4), torch.tensor([3, 2])
    packed = pack_padded_sequence(x, lengths)

    def packing(x: torch.Tensor, lengths: torch.Tensor) -> PackedSequence:
        return pack_padded_sequence(x, lengths)

    for step, given in ((packing, (x, lengths)), (layer, (packed,)), (pad_packed_sequence, (packed,))):
        with pytest.raises(Uncapturable, match="give the layer padded sequences"):
            capture(step, [layer], [], given)
