"""A refusal names the user's line, and says what to do instead."""

import json
from collections.abc import Callable
from decimal import Decimal
from random import Random

import numpy as np
import pytest
import torch
from torch.distributions import VonMises
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from outgrow.errors import Uncapturable
from outgrow.frontends.tracing.capture import capture


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
        (lambda y: y[y.argmax().item() % 2], r"look up with the tensor itself, by index_select"),
        (drawn_until_accepted, "draw them outside of the step"),
        (nested, "take padded tensors and their masks"),
        (nested_of_rows, "take padded tensors and their masks"),
        (torch.ops.aten._pin_memory, "pin batches outside of the step"),
        (beside_stream, "copy batches on other streams outside of the step"),
    ],
)
def test_a_refusal_says_what_to_do(way: Callable[[torch.Tensor], torch.Tensor], remedy: str) -> None:
    """For numbers and indices, samples drawn until they are accepted, nested tensors, pinned memory and streams."""
    layer = torch.nn.Linear(4, 4)
    with pytest.raises(Uncapturable, match=rf"test_refusals\.py:.*{remedy}"):
        capture(lambda x: way(layer(x)), [layer], [], (torch.ones(2, 4),))


NUMBER_NEEDED: dict[str, Callable[[int], object]] = {
    "a seed of Python's": Random,
    "a seed of torch's": torch.Generator().manual_seed,
    "a key": {1: 2.0}.get,
    "a decimal": Decimal,
    "a function of NumPy": np.sqrt,
    "a quotient and a rest": lambda number: divmod(number, 2),
    "JSON": json.dumps,
}


@pytest.mark.parametrize("needs", NUMBER_NEEDED.values(), ids=NUMBER_NEEDED)
def test_what_needs_a_number_is_refused_with_the_line(needs: Callable[[int], object]) -> None:
    """Python and libraries cannot take what stands for a number, and say so in errors of all kinds."""

    def step(x: torch.Tensor) -> torch.Tensor:
        needs(torch.randint(3, ()).item())  # type: ignore[arg-type]
        return x * 2

    with pytest.raises(Uncapturable, match=r"test_refusals\.py:.*needs the content of a tensor"):
        capture(step, [], [], (torch.ones(2),))
