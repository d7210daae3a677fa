"""A call that another capture would be right for has another signature, and only such a call."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import outgrow
from outgrow.frontends.signature import signature


def model_with_a_number() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.1))


def exchange(model: nn.Sequential) -> None:
    model[2] = nn.Identity()


CHANGES: dict[str, Callable[[Any], object]] = {
    "a probability": lambda model: setattr(model[2], "p", 0.5),
    "a momentum": lambda model: setattr(model[1], "momentum", 0.5),
    "a layer": exchange,
    "a hook": lambda model: model[0].register_forward_hook(lambda *_: None),
    "a hook of a weight": lambda model: model[0].weight.register_hook(lambda gradient: gradient),
    "a flag": lambda model: model.eval(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_what_a_forward_pass_may_look_at_is_signed(change: Callable[[nn.Sequential], object]) -> None:
    """Numbers and hooks of modules too: a capture has them as they were."""
    model = model_with_a_number()

    def step(x: Tensor) -> Tensor:
        return model(x)

    before = signature(step, [model], [], (torch.ones(2, 4),), {})
    assert signature(step, [model], [], (torch.zeros(2, 4),), {}) == before
    change(model)
    assert signature(step, [model], [], (torch.ones(2, 4),), {}) != before


def test_a_number_that_changes_in_every_call_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is another step, which is captured and planned: once that is plain, it is said once, with what to do."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = model_with_a_number()
    step = outgrow.compile(
        lambda x, weight: model(x).sum() * weight, model=model, memory_budget="8GiB", offload_dir=tmp_path
    )

    def calls() -> None:
        for number in range(7):
            step(torch.ones(2, 4), 1.0 / (1 + number))

    with pytest.warns(UserWarning, match=r"captured and planned 5 times .* Pass it as a tensor") as said:
        calls()
    assert len(said) == 1


def test_a_step_is_compiled_once(tmp_path: Path) -> None:
    """What has been compiled is no function to capture."""
    model = model_with_a_number()
    step = outgrow.compile(lambda x: model(x).sum(), model=model, memory_budget="8GiB", offload_dir=tmp_path)
    with pytest.raises(TypeError, match="has been compiled already"):
        outgrow.compile(step, model=model, memory_budget="8GiB", offload_dir=tmp_path)
