"""How does Lightning's `Trainer` keep within a budget? By a strategy.

    Trainer(strategy=BudgetStrategy("8GiB"), ...)
    Trainer(strategy="outgrow", ...)    # the budget is that of the environment variable OUTGROW_MEMORY_BUDGET

It trains on the first of the trainer's devices. The string is known once this module is imported. The loop is the
trainer's own; the module and those that it is made of run by parts (`frontends.dynamo`) until the trainer is done.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import SingleDeviceStrategy, StrategyRegistry
from torch import nn
from torchmetrics import Metric, MetricCollection

from outgrow.errors import InvalidQuantity
from outgrow.frontends.dynamo import InPlace
from outgrow.frontends.preparing.settings import Settings

_VARIABLE = "OUTGROW_MEMORY_BUDGET"


class BudgetStrategy(SingleDeviceStrategy):
    """Train on one device within a memory budget; arguments are as for `outgrow.compile`."""

    strategy_name = "outgrow"

    def __init__(
        self,
        memory_budget: float | str | None = None,
        *,
        offload_dir: str | Path | None = None,
        disk_budget: float | str | None = None,
        planner: str = "search",
        kernels: str = "eager",
        **kwargs: Any,
    ) -> None:
        """Make a strategy.

        Raises `InvalidQuantity` for a size that is none, or if there is none here nor in the environment, `TierFailure`
        for a folder that cannot be used, `ValueError` for an unknown planner or other kernels, and `TypeError` for a
        folder that is no path.
        """
        super().__init__(**kwargs)
        self.parallel_devices: list[torch.device] = [self._root_device] if "device" in kwargs else []
        budget = memory_budget if memory_budget is not None else os.environ.get(_VARIABLE)
        if budget is None:
            raise InvalidQuantity(
                f'no memory budget: write BudgetStrategy("8GiB"), or set {_VARIABLE} before strategy="outgrow"'
            )
        settings = Settings.of(
            budget, offload_dir=offload_dir, disk_budget=disk_budget, planner=planner, kernels=kernels
        )
        self._in_place = InPlace(settings)

    @property
    def root_device(self) -> torch.device:
        """The device that was given, or the first of the trainer's, which it tells its strategy."""
        return self.parallel_devices[0] if self.parallel_devices else super().root_device

    def setup(self, trainer: Trainer) -> None:
        """Let the module and those that its steps call run by parts."""
        super().setup(trainer)
        for module in self._modules():
            self._in_place.compile(module)

    def post_training_step(self) -> None:
        """Warn if no module runs by parts."""
        super().post_training_step()
        self._in_place.check()

    def teardown(self) -> None:
        """Let the modules run as they did before."""
        self._in_place.release()
        super().teardown()

    def _modules(self) -> tuple[nn.Module, ...]:
        """Return the trainer's module and its children: a step calls either."""
        module = self.lightning_module
        return () if module is None else (module, *_called(module))


def _called(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the children of a module but metrics; of a list or a dictionary among them, which nobody calls, its own."""
    for child in module.children():
        if isinstance(child, Metric | MetricCollection):
            continue
        if isinstance(child, nn.ModuleList | nn.ModuleDict):
            yield from _called(child)
        else:
            yield child


StrategyRegistry.register("outgrow", BudgetStrategy, description="trains within a memory budget")
