"""How does Hugging Face's `Trainer` keep within a budget? By one callback.

    Trainer(model=model, ..., callbacks=[BudgetCallback("8GiB")])

The loop is the trainer's own. The model runs by parts (`frontends.dynamo`) while the trainer trains and evaluates it,
and is an ordinary module again afterwards. Of an exception that ends a training callbacks are not told: then the model
runs by parts until `on_train_end()` is called, or another training under a budget is done.
"""

from collections.abc import Mapping
from pathlib import Path

from torch import nn
from transformers import TrainerCallback

from outgrow.frontends.dynamo import InPlace
from outgrow.frontends.preparing.settings import Settings


class BudgetCallback(TrainerCallback):
    """Put a trainer's model under a memory budget; arguments are as for `outgrow.compile`."""

    def __init__(
        self,
        memory_budget: float | str,
        *,
        offload_dir: str | Path | None = None,
        disk_budget: float | str | None = None,
        planner: str = "search",
        kernels: str = "eager",
    ) -> None:
        """Make a callback.

        Raises `InvalidQuantity` for a size that is none, `TierFailure` for a folder that cannot be used, `ValueError`
        for an unknown planner or other kernels, and `TypeError` for a folder that is no path.
        """
        settings = Settings.of(
            memory_budget, offload_dir=offload_dir, disk_budget=disk_budget, planner=planner, kernels=kernels
        )
        self._in_place = InPlace(settings)

    def on_train_begin(self, *_about: object, **kwargs: object) -> None:
        """Let the model run by parts."""
        self._in_place.compile(_model(kwargs))

    def on_step_end(self, *_about: object, **_kwargs: object) -> None:
        """Warn if the model does not run by parts."""
        self._in_place.check()

    def on_train_end(self, *_about: object, **_kwargs: object) -> None:
        """Let the model run as it did before."""
        self._in_place.release()


def _model(told: Mapping[str, object]) -> nn.Module:
    model = told["model"]
    assert isinstance(model, nn.Module), "a trainer tells its callbacks the model"
    return model
