"""Are the workloads of the benchmarks what they are called, and can each be captured and planned?"""

import pytest
import torch
from rows import workload_function

from outgrow.errors import InvalidWorkload
from outgrow.frontends.preparing.ahead import How, KnownMachine, plan_captured
from outgrow.frontends.preparing.machines import described_machine
from outgrow.frontends.workloads.loading import built
from outgrow.frontends.workloads.steps import capture_workload
from outgrow.ir.graph import Role

V100 = KnownMachine(described_machine("v100-pcie3"))
AMPLE = 1 << 40

TINY: dict[str, dict[str, object]] = {
    "resnet.py:resnet50": {"batch": 2, "size": 32},
    "inception.py:inception_v3": {"batch": 2, "size": 75},
    "vgg.py:vgg16": {"batch": 2, "size": 32},
    "densenet.py:densenet121": {"batch": 2, "size": 32},
    "unet3d.py:unet3d": {"size": 16, "channels": 4},
    "isensee.py:isensee": {"size": 16, "channels": 2},
    "deeplab.py:deeplab_v3_plus": {"batch": 2, "size": 33},
    "pix2pixhd.py:pix2pixhd": {"size": 32},
    "bert.py:bert": {"size": "tiny", "batch": 2, "length": 8},
    "gpt2.py:gpt2": {"batch": 2, "length": 8},
    "lstm.py:lstm": {"batch": 2, "length": 3, "units": 8},
    "nmt.py:attention_nmt": {"batch": 2, "steps": 3, "units": 8, "vocabulary": 20},
    "irregular.py:darts": {"batch": 2, "size": 8, "channels": 4},
    "irregular.py:randwire": {"batch": 2, "size": 8, "channels": 4, "nodes": 8},
    "irregular.py:swiftnet": {"batch": 2, "size": 8, "channels": 4},
}
# Those whose weights and state take a few megabytes.
LIGHT = [name for name in TINY if name.startswith(("unet3d", "isensee", "lstm", "nmt", "irregular"))]


@pytest.mark.parametrize("name", TINY)
def test_each_workload_is_planned(name: str) -> None:
    """Where all of it fits nothing is rewritten, and the plan predicts what the step takes in core.

    The captured step is the one that repeats: the state of the optimizer is there from the start.
    """
    captured = capture_workload(workload_function(name), TINY[name])
    plan = plan_captured(captured, V100, AMPLE, How()).plan
    assert plan.predicted == plan.in_core
    storages = captured.graph.storages.values()
    assert plan.in_core.peak_bytes > sum(storage.size_bytes for storage in storages if storage.is_persistent)
    given = captured.slots.keys()
    kept = (Role.PARAMETER, Role.OPTIMIZER)
    held = {storage.name for storage in storages if storage.role in kept}
    assert held <= given
    assert len(held) > len([name for name in held if name.endswith(("weight", "bias"))])


@pytest.mark.parametrize("name", LIGHT)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_light_workloads_train(name: str, dtype: str) -> None:
    """With real tensors a step gives a finite loss and changes the parameters."""
    workload = built(workload_function(name), {**TINY[name], "dtype": dtype})
    before = [parameter.clone() for parameter in workload.model.parameters()]
    loss = workload.step(*workload.batches[0])
    assert loss.isfinite()
    changed = [not torch.equal(a, b) for a, b in zip(before, workload.model.parameters(), strict=True)]
    assert sum(changed) > len(changed) / 2


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_mixed_precision_halves_the_activations(dtype: str) -> None:
    """Under autocast the weights stay as they are and the results of convolutions have half the bytes."""
    graph = capture_workload(workload_function("resnet.py:resnet50"), {"batch": 2, "size": 32, "dtype": dtype}).graph
    convolutions = [op for op in graph.ops if op.operator == "aten.convolution.default"]
    dtypes = {graph.values[name].dtype for op in convolutions for name in op.results if name is not None}
    assert dtypes == {dtype}
    assert graph.values["model.head.weight"].dtype == "float32"


@pytest.mark.parametrize(
    ("name", "settings", "millions"),
    [
        ("resnet.py:resnet50", {}, 25.557),
        ("resnet.py:resnet", {"depth": 101}, 44.549),
        ("resnet.py:resnet", {"depth": 152}, 60.193),
        ("resnet.py:resnet", {"depth": 200}, 64.674),
        ("inception.py:inception_v3", {}, 23.835),
        ("vgg.py:vgg16", {}, 138.358),
        ("densenet.py:densenet121", {}, 7.979),
        ("unet3d.py:unet3d", {"modalities": 3}, 19.07),
        ("bert.py:bert", {}, 336.2),
        ("bert.py:bert", {"size": "base"}, 110.1),
        ("bert.py:bert", {"size": "tiny"}, 4.43),
        ("gpt2.py:gpt2", {}, 124.44),
        ("gpt2.py:gpt2", {"size": "medium"}, 354.82),
        ("gpt2.py:gpt2", {"size": "large"}, 774.03),
        ("gpt2.py:gpt2", {"size": "xl"}, 1557.61),
    ],
)
def test_models_have_the_published_number_of_parameters(
    name: str, settings: dict[str, object], millions: float
) -> None:
    """The number of parameters is that of the paper, or of its authors' program, to a thousandth."""
    function = workload_function(name)
    with torch.device("meta"):
        workload = built(function, settings)
    count = sum(parameter.numel() for parameter in workload.model.parameters())
    assert count / 1e6 == pytest.approx(millions, rel=1e-3)


@pytest.mark.parametrize("depth", [50, 101, 152, 200, 1001, 1202, 2000])
def test_a_residual_network_has_as_many_layers_as_it_says(depth: int) -> None:
    """Three convolutions a block, the first convolution and the linear layer make up the depth."""
    with torch.device("meta"):
        model = built(workload_function("resnet.py:resnet"), {"depth": depth}).model
    names = [name for name, _ in model.named_parameters() if name.endswith("weight") and "residual" in name]
    convolutions = [name for name in names if model.get_parameter(name).dim() == 4]
    assert len(convolutions) == depth - 2


def test_drawn_wiring_depends_on_the_seed_alone() -> None:
    """One seed gives one graph, another seed another."""
    function = workload_function("irregular.py:randwire")

    def operators(seed: int) -> list[str]:
        graph = capture_workload(function, {**TINY["irregular.py:randwire"], "nodes": 16, "seed": seed}).graph
        return [op.operator for op in graph.ops]

    assert operators(0) == operators(0) != operators(1)


def test_both_forms_of_a_norm_train_alike() -> None:
    """Written out operator by operator, an instance normalization is the fused one, up to its epsilon."""
    tiny = {**TINY["isensee.py:isensee"], "size": 32}
    written, fused = (first_loss("isensee.py:isensee", {**tiny, "norm": norm}) for norm in ("written", "fused"))
    assert written == pytest.approx(fused, rel=0.01)


def test_both_forms_of_a_loss_are_one_loss() -> None:
    """Judged word by word, the words of a translation cost what they cost at once."""
    tiny = TINY["nmt.py:attention_nmt"]
    at_once = first_loss("nmt.py:attention_nmt", {**tiny, "loss": "at once"})
    assert first_loss("nmt.py:attention_nmt", {**tiny, "loss": "word by word"}) == pytest.approx(at_once)


def first_loss(name: str, settings: dict[str, object]) -> float:
    workload = built(workload_function(name), settings)
    return workload.step(*workload.batches[0]).item()


def test_inference_has_the_forward_pass_alone() -> None:
    """The step of a cell in inference changes no parameter and has no operator of a backward pass."""
    settings = {**TINY["irregular.py:darts"], "inference": True}
    graph = capture_workload(workload_function("irregular.py:darts"), settings).graph
    assert not [op for op in graph.ops if "backward" in op.operator]
    persistent = [value for value in graph.values.values() if graph.storages[value.storage].is_persistent]
    assert {value.version for value in persistent} == {0}


@pytest.mark.parametrize(
    ("name", "settings", "reason"),
    [
        ("resnet.py:resnet50", {"dtype": "int8"}, "dtype 'int8' is unknown. Choose one of: float32, bfloat16, float16"),
        ("resnet.py:resnet", {"depth": 18}, "depth 18 is unknown. Choose one of: 50, 101, 152, 200, 1001, 1202, 2000"),
        ("vgg.py:vgg16", {"size": 50}, "size 50 is not a positive multiple of 32"),
        ("inception.py:inception_v3", {"size": 64}, "size 64 is below 75"),
        ("unet3d.py:unet3d", {"size": 12}, "size 12 is not a positive multiple of 8"),
        ("isensee.py:isensee", {"size": 24}, "size 24 is not a positive multiple of 16"),
        ("isensee.py:isensee", {"norm": "batch"}, "norm 'batch' is unknown. Choose one of: written, fused"),
        ("nmt.py:attention_nmt", {"loss": "mean"}, "loss 'mean' is unknown. Choose one of: at once, word by word"),
        ("pix2pixhd.py:pix2pixhd", {"size": 24}, "size 24 is not a positive multiple of 16"),
        ("bert.py:bert", {"size": "huge"}, "size 'huge' is unknown. Choose one of: tiny, base, large"),
        ("bert.py:bert", {"length": 513}, "length 513 is not between 1 and 512"),
        ("gpt2.py:gpt2", {"length": 0}, "length 0 is not between 1 and 1024"),
    ],
)
def test_settings_out_of_range_are_refused(name: str, settings: dict[str, object], reason: str) -> None:
    """A setting that makes no network is named, with what would do."""
    with pytest.raises(InvalidWorkload, match=reason):
        built(workload_function(name), settings)
