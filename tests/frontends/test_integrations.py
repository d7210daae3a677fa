"""Trainers of other libraries train within a budget, with their own loops and the bits that they have without it."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import outgrow
from outgrow.errors import InvalidQuantity
from outgrow.frontends import dynamo
from outgrow.frontends.parts.shared_budget import Shared
from outgrow.frontends.platforms import on_cpu
from outgrow.frontends.preparing.machines import described_machine
from outgrow.units import MIB

BUDGET = 150 * MIB
STEPS = 4

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def known_machine(
    disk_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    planned_parts: None,  # noqa: ARG001
    plans_found_quickly: None,  # noqa: ARG001
) -> Iterator[None]:
    """A machine whose rates need no measuring, no known costs, and parts that run as planned."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(disk_folder / "cache"))
    monkeypatch.setattr(on_cpu, "this_machine", lambda _folder: described_machine("xeon-2core-disk"))
    yield
    dynamo.forget()


def rewritten(waits: Callable[[Shared], int]) -> bool:
    """Whether some part within the budget needed a plan."""
    return bool(dynamo.budgets()) and all(map(waits, dynamo.budgets()))


def test_hugging_face(disk_folder: Path, waits: Callable[[Shared], int]) -> None:
    """A causal language model with Hugging Face's own loop, schedule and clipping."""
    transformers = pytest.importorskip("transformers")
    huggingface = pytest.importorskip("outgrow.frontends.huggingface")
    texts = torch.randint(0, 500, (4 * STEPS, 128), generator=torch.Generator().manual_seed(1))
    data = [{"input_ids": text, "labels": text} for text in texts]

    def trained(callbacks: Sequence[object]) -> tuple[list[float], list[Tensor]]:
        transformers.set_seed(0)
        config = transformers.GPT2Config(n_layer=3, n_embd=128, n_head=4, vocab_size=500, n_positions=128)
        model = transformers.GPT2LMHeadModel(config)
        arguments = transformers.TrainingArguments(
            output_dir=str(disk_folder / "trainer"),
            max_steps=STEPS,
            per_device_train_batch_size=4,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = transformers.Trainer(model=model, args=arguments, train_dataset=data, callbacks=callbacks)
        trainer.train()
        assert model._compiled_call_impl is None
        return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry], list(model.parameters())

    expected = trained([])
    found = trained([huggingface.BudgetCallback(BUDGET, offload_dir=disk_folder)])
    assert rewritten(waits)
    assert found[0] == expected[0]
    assert all(map(torch.equal, found[1], expected[1]))


def test_lightning(disk_folder: Path, monkeypatch: pytest.MonkeyPatch, waits: Callable[[Shared], int]) -> None:
    """A module that logs, with a validation; the strategy as an object and by its name."""
    lightning = pytest.importorskip("lightning")
    ours = pytest.importorskip("outgrow.frontends.lightning")

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            blocks = [module for _ in range(4) for module in (nn.Linear(256, 256), nn.BatchNorm1d(256), nn.ReLU())]
            self.model = nn.Sequential(*blocks, nn.Dropout(0.1), nn.Linear(256, 10))
            self.losses: list[float] = []

        def training_step(self, batch: tuple[Tensor, Tensor], _number: int) -> Tensor:
            loss = F.cross_entropy(self.model(batch[0]), batch[1])
            self.log("loss", loss)
            return loss

        def validation_step(self, batch: tuple[Tensor, Tensor], _number: int) -> None:
            self.losses.append(float(F.cross_entropy(self.model(batch[0]), batch[1])))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    def trained(**options: object) -> tuple[list[float], list[Tensor]]:
        lightning.seed_everything(0, verbose=False)
        module = Module()
        loader = DataLoader(TensorDataset(torch.randn(4096, 256), torch.randint(0, 10, (4096,))), batch_size=1024)
        trainer = lightning.Trainer(
            max_epochs=1,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=disk_folder,
            **options,
        )
        trainer.fit(module, loader, loader)
        assert module.model._compiled_call_impl is None
        return module.losses, list(module.parameters())

    expected = trained()
    monkeypatch.setenv("OUTGROW_MEMORY_BUDGET", str(BUDGET))
    for strategy in (ours.BudgetStrategy(BUDGET, offload_dir=disk_folder, accelerator=None), "outgrow"):
        found = trained(strategy=strategy)
        assert rewritten(waits)
        assert found[0] == expected[0]
        assert all(map(torch.equal, found[1], expected[1]))


def test_an_optimizer_that_accelerate_has_wrapped_is_the_one_within() -> None:
    """The wrapper has the groups and the state of the optimizer, and nothing of its own."""
    accelerate = pytest.importorskip("accelerate")

    def trained(compiled: Callable[..., Any]) -> list[Tensor]:
        torch.manual_seed(0)
        accelerator = accelerate.Accelerator(cpu=True)
        model = nn.Linear(8, 8)
        model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))

        def step(x: Tensor) -> Tensor:
            loss = model(x).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            return loss

        run = compiled(step, model=model, optimizer=optimizer, memory_budget="4GiB")
        return [*(run(torch.randn(4, 8)).detach() for _ in range(3)), *model.parameters()]

    assert all(map(torch.equal, trained(outgrow.compile), trained(lambda step, **_options: step)))


def test_lightning_finds_what_lies_in_containers() -> None:
    """Nobody calls a list or a dictionary of modules, but what is in them."""
    ours = pytest.importorskip("outgrow.frontends.lightning")
    one, two, three = nn.Linear(1, 1), nn.Linear(1, 1), nn.Sequential(nn.Linear(1, 1))
    module = nn.Module()
    module.nets = nn.ModuleDict({"one": one, "more": nn.ModuleList([two])})
    module.three = three
    assert [*ours._called(module)] == [one, two, three]


def test_lightning_leaves_metrics_alone() -> None:
    """What they compute is small, and they compute it in many ways."""
    metrics = pytest.importorskip("torchmetrics")
    ours = pytest.importorskip("outgrow.frontends.lightning")
    module = nn.Module()
    module.net, module.error = nn.Linear(2, 2), metrics.MeanSquaredError()
    module.scores = metrics.MetricCollection({"error": metrics.MeanAbsoluteError()})
    assert list(ours._called(module)) == [module.net]


def test_lightning_needs_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an argument, or in the environment."""
    ours = pytest.importorskip("outgrow.frontends.lightning")
    monkeypatch.delenv("OUTGROW_MEMORY_BUDGET", raising=False)
    with pytest.raises(InvalidQuantity, match="OUTGROW_MEMORY_BUDGET"):
        ours.BudgetStrategy()
    with pytest.raises(InvalidQuantity, match="bananas"):
        ours.BudgetStrategy("8 bananas")
