"""A refusal names the user's line, and that of a library behind it."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.distributions import VonMises
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from outgrow.errors import Uncapturable
from outgrow.frontends.tracing.capture import capture
from outgrow.frontends.user import refusals


def test_the_line_of_a_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is what "this" is, and the user's is where to look for who calls it."""
    installed = tmp_path / "installed"
    (installed / "masks").mkdir(parents=True)
    (installed / "masks" / "__init__.py").write_text("def is_whole(x):\n    return int(x.relu().all()) > 0\n")
    monkeypatch.syspath_prepend(str(installed))
    beginnings = refusals._beginnings((str(installed),))
    monkeypatch.setattr(refusals, "_PACKAGES", beginnings)
    monkeypatch.setattr(refusals, "_LIBRARIES", (*refusals._LIBRARIES, *beginnings))
    from masks import is_whole  # type: ignore[import-not-found]

    model = torch.nn.Linear(2, 2)
    with pytest.raises(Uncapturable) as refused:
        capture(lambda x: model(x) if is_whole(model(x)) else x, [model], [], (torch.ones(1, 2),))
    assert "test_refusals.py:" in str(refused.value)
    assert ", in masks/__init__.py:2: `return int(x.relu().all()) > 0`: float(), int() or" in str(refused.value)
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


def drawn_until_accepted(y: torch.Tensor) -> torch.Tensor:
    return VonMises(y[0], y[0].exp()).sample()


def nested(y: torch.Tensor) -> torch.Tensor:
    return torch.nested.nested_tensor([y, y[:1]], layout=torch.jagged).values()


def nested_of_rows(y: torch.Tensor) -> torch.Tensor:
    return torch.nested.as_nested_tensor([y, y[:1]]).to_padded_tensor(0.0)


def beside_stream(y: torch.Tensor) -> torch.Tensor:
    y.record_stream(torch.Stream(device="cpu"))
    return y


@pytest.mark.parametrize(
    ("way", "remedy"),
    [
        (lambda y: y * float(y.sum()), r"float\(\).*by the tensor, or loss\.item\(\), itself, or return it"),
        (drawn_until_accepted, "draw them outside of the step"),
        (nested, "take padded tensors and their masks"),
        (nested_of_rows, "take padded tensors and their masks"),
        (torch.ops.aten._pin_memory, "pin batches outside of the step"),
        (beside_stream, "copy batches on other streams outside of the step"),
    ],
)
def test_a_refusal_says_what_to_do(way: Callable[[torch.Tensor], torch.Tensor], remedy: str) -> None:
    """For numbers of the step, samples drawn until they are accepted, nested tensors, pinned memory and streams."""
    layer = torch.nn.Linear(4, 4)
    with pytest.raises(Uncapturable, match=rf"test_refusals\.py:.*{remedy}"):
        capture(lambda x: way(layer(x)), [layer], [], (torch.ones(2, 4),))
