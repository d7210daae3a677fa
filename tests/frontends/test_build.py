"""A model that is built on the disk is the model, to the last bit, and trains."""

import gc
from pathlib import Path

import pytest
import torch
from torch import nn

import outgrow
from outgrow.errors import InvalidQuantity, TierFailure
from outgrow.frontends.build import _rested
from outgrow.runtime import arena
from outgrow.runtime.resting import SpillFile, extent_of, resident_bytes
from outgrow.units import MIB
from tests.frontends.training import WIDTH
from tests.runtime.memory import open_spill_files

pytestmark = pytest.mark.skipif(not arena.is_available(), reason="storages change places by compiled code")
LAYERS, BUDGET = 10, 6 * MIB


def deep() -> nn.Sequential:
    """Layers of 4 MiB each, two of them with one weight, and a rule of initialisation that comes afterwards."""
    torch.manual_seed(0)
    model = nn.Sequential(*[module for _ in range(LAYERS) for module in (nn.Linear(1024, 1024), nn.Tanh())])
    model.append(nn.Linear(1024, 1024))
    model[-1].weight = model[0].weight
    model.apply(initialised)
    return model


def initialised(module: nn.Module) -> None:
    """Fill the weights of a layer."""
    if isinstance(module, nn.Linear):
        nn.init.xavier_normal_(module.weight)


def resting(model: nn.Module) -> int:
    """How many parameters of a model rest on the disk."""
    return sum(extent_of(parameter.untyped_storage()) is not None for parameter in model.parameters())


class Watched:
    """Storages go to the disk as ever, counted."""

    times = 0

    def __call__(self, storage: torch.UntypedStorage, file: SpillFile) -> int:
        freed = _rested(storage, file)
        self.times += freed > 0
        return freed


def test_a_model_that_is_made_already_is_refused() -> None:
    """It is in memory, and the remedy is told."""
    with pytest.raises(TypeError, match=r"function is a Linear.*in memory.*outgrow\.build\(lambda"):
        outgrow.build(nn.Linear(2, 2), memory_budget=BUDGET)


def test_a_model_built_on_the_disk_has_the_same_bits(disk_folder: Path) -> None:
    """Its parameters take no more memory than they may, and the generator is where it is after an ordinary start."""
    plain = deep()
    after = torch.get_rng_state()
    built = outgrow.build(deep, memory_budget=BUDGET, offload_dir=disk_folder)
    assert torch.equal(torch.get_rng_state(), after)
    large = [parameter for parameter in built.parameters() if parameter.nbytes >= MIB]
    assert resident_bytes(item.untyped_storage() for item in large) <= BUDGET
    assert resting(built) > LAYERS // 2
    assert built[-1].weight is built[0].weight
    for name, parameter in built.named_parameters():
        assert torch.equal(parameter, plain.get_parameter(name)), name


@pytest.mark.parametrize("is_swapped", [False, True])
def test_what_a_module_makes_anew_of_its_parameters_counts(
    disk_folder: Path, monkeypatch: pytest.MonkeyPatch, is_swapped: bool
) -> None:
    """Converted in the function, parameters take no more memory at any time, whichever way torch exchanges them."""
    set_swapped = torch.__future__.set_swap_module_params_on_conversion
    monkeypatch.setattr("outgrow.frontends.build._rested", watched := Watched())

    def half() -> nn.Sequential:
        return deep().to(torch.bfloat16)

    plain, apply = half(), nn.Module._apply
    set_swapped(is_swapped)
    try:
        built = outgrow.build(half, memory_budget=BUDGET, offload_dir=disk_folder)
    finally:
        set_swapped(False)
    assert nn.Module._apply is apply
    assert resident_bytes(item.untyped_storage() for item in built.parameters() if item.nbytes >= MIB) <= BUDGET
    assert watched.times > 1.5 * LAYERS, "both those of the first type and those of the second have left"
    assert built[-1].weight is built[0].weight
    for name, parameter in built.named_parameters():
        assert torch.equal(parameter, plain.get_parameter(name)), name


def test_a_model_without_memory_is_made_on_the_disk(disk_folder: Path) -> None:
    """A model of the meta device is given memory within the budget, and what is written there stays."""

    def made() -> nn.Sequential:
        with torch.device("meta"):
            model = deep()
        model.to_empty(device="cpu")
        torch.manual_seed(0)
        return model.apply(initialised)

    built = outgrow.build(made, memory_budget=BUDGET, offload_dir=disk_folder)
    assert resident_bytes(item.untyped_storage() for item in built.parameters() if item.nbytes >= MIB) <= BUDGET
    torch.manual_seed(0)
    first = torch.empty(1024, 1024)
    nn.init.xavier_normal_(first)
    assert torch.equal(built.get_parameter("0.weight"), first)


def test_a_model_built_on_the_disk_trains(disk_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a budget below what its weights alone take, it leaves the bits of the eager training."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(disk_folder / "cache"))
    x = torch.randn(8, 1024)

    def trained(model: nn.Module, budget: int | None) -> list[torch.Tensor]:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = (model(x) - x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        if budget is None:
            return [step(x).detach() for _ in range(3)]
        ours = outgrow.compile(step, model=model, optimizer=optimizer, memory_budget=budget, offload_dir=disk_folder)
        return [ours(x).detach() for _ in range(3)]

    plain = deep()
    expected = trained(plain, None)
    sums = [int(parameter.detach().view(torch.int32).sum()) for parameter in plain.parameters()]
    weights = sum(parameter.nbytes for parameter in plain.parameters())
    del plain
    gc.collect()
    files = open_spill_files()
    built = outgrow.build(deep, memory_budget=BUDGET, offload_dir=disk_folder)
    found = trained(built, 2 * weights)  # of the four times that the training takes
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert [int(parameter.detach().view(torch.int32).sum()) for parameter in built.parameters()] == sums
    assert open_spill_files() == files + 1, "the step goes on with the file in which the model was built"
    del built
    gc.collect()
    assert open_spill_files() == files


def test_what_fits_stays_in_memory(disk_folder: Path) -> None:
    """With room for all parameters no file is made."""
    files = open_spill_files()
    built = outgrow.build(lambda: nn.Linear(WIDTH, WIDTH), memory_budget="1GiB", offload_dir=disk_folder)
    assert resting(built) == 0
    assert open_spill_files() == files


def test_refusals(disk_folder: Path) -> None:
    """A size that is none, a disk budget that is too small, and a function that fails: said, and nothing stays."""
    files = open_spill_files()
    with pytest.raises(InvalidQuantity):
        outgrow.build(deep, memory_budget="some", offload_dir=disk_folder)
    with pytest.raises(TierFailure, match="disk budget"):
        outgrow.build(deep, memory_budget=BUDGET, offload_dir=disk_folder, disk_budget="8MiB")
    with pytest.raises(ZeroDivisionError):
        outgrow.build(lambda: 1 / 0, memory_budget=BUDGET, offload_dir=disk_folder)
    assert resting(deep()) == 0, "models are built as ever afterwards"
    assert open_spill_files() == files


@pytest.mark.cuda
@pytest.mark.parametrize("is_moved", [False, True])
def test_a_model_built_for_a_gpu_rests_in_memory_of_the_host(is_moved: bool, disk_folder: Path) -> None:
    """Made there or moved there, it has its bits, takes no more of the GPU than it may, and trains."""
    home = torch.device("cuda", 0)

    def made() -> nn.Sequential:
        if is_moved:
            return deep().to(home)
        with home:
            return deep()

    plain = made()
    built = outgrow.build(made, memory_budget=BUDGET, offload_dir=disk_folder)
    assert resident_bytes(item.untyped_storage() for item in built.parameters() if item.nbytes >= MIB) <= BUDGET
    assert resting(built) > LAYERS // 2
    for name, parameter in built.named_parameters():
        assert parameter.device == home
        assert torch.equal(parameter, plain.get_parameter(name)), name
    x = torch.randn(8, 1024, device=home)

    def trained(model: nn.Module, budget: str | None) -> list[torch.Tensor]:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

        def step(x: torch.Tensor) -> torch.Tensor:
            loss = (model(x) - x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        run = step if budget is None else outgrow.compile(step, model=model, optimizer=optimizer, memory_budget=budget)
        return [run(x) for _ in range(3)]

    found, expected = trained(built, "100MiB"), trained(plain, None)
    assert all(map(torch.equal, found, expected))
    assert all(map(torch.equal, built.parameters(), plain.parameters()))
