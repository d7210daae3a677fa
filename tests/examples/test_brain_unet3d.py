"""Does the 3D U-Net of the example learn, keep its layout, and refuse what it cannot do?"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import brain_unet3d
from outgrow import Workload
from outgrow.frontends.fake.fakes import FakeMode

SIZE = 32
CHANNELS_LAST = torch.channels_last_3d


def losses_of(workload: Workload, steps: int) -> list[float]:
    return [workload.step(*workload.batches[0]).item() for _ in range(steps)]


def record_layouts(model: nn.Module) -> list[tuple[str, bool]]:
    """Return a list to which each module adds its name, and whether its output is channels_last_3d."""
    seen: list[tuple[str, bool]] = []

    def recorder(name: str) -> Callable[[nn.Module, object, Tensor], None]:
        return lambda _module, _inputs, output: seen.append((name, is_channels_last(output)))

    for name, module in model.named_modules():
        module.register_forward_hook(recorder(name))
    return seen


def is_channels_last(x: Tensor) -> bool:
    return x.is_contiguous(memory_format=CHANNELS_LAST) and x.stride(1) == 1


needs_bfloat16 = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="other kernels serve bfloat16 on such a processor, slowly"
)
DTYPES = ["float32", pytest.param("bfloat16", marks=needs_bfloat16)]


@pytest.mark.parametrize("loss", ["cross_entropy", "dice"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_loss_falls(loss: str, dtype: str) -> None:
    """A few steps of Adam lower each loss, in either precision."""
    losses = losses_of(brain_unet3d.workload(size=SIZE, loss=loss, dtype=dtype), steps=5)
    assert losses[-1] < 0.95 * losses[0]


def test_the_same_seed_gives_the_same_losses() -> None:
    """Two workloads of one seed train to the same bits."""
    assert losses_of(brain_unet3d.workload(size=SIZE), 2) == losses_of(brain_unet3d.workload(size=SIZE), 2)


def test_the_held_out_slab_is_scored() -> None:
    """Evaluation gives a Dice score of either tissue, and leaves the model as it was."""
    workload = brain_unet3d.workload(size=SIZE)
    before = [parameter.clone() for parameter in workload.model.parameters()]
    assert workload.evaluate is not None
    scores = workload.evaluate()
    assert set(scores) == {"dice_grey_matter", "dice_white_matter"}
    assert all(0 <= score <= 1 for score in scores.values())
    assert all(torch.equal(a, b) for a, b in zip(before, workload.model.parameters(), strict=True))


def test_the_slab_is_held_out_of_the_loss() -> None:
    """Labels are missing in the slab alone, and every class is there outside it."""
    ((_, y),) = brain_unet3d.workload(size=SIZE).batches
    held_out = brain_unet3d.held_out(SIZE)
    assert (y[..., held_out] == brain_unet3d.IGNORED).all()
    rest = torch.cat([y[..., : held_out.start], y[..., held_out.stop :]], dim=-1)
    assert rest.unique().tolist() == [brain_unet3d.BACKGROUND, brain_unet3d.GREY, brain_unet3d.WHITE]


@pytest.mark.parametrize("loss", [brain_unet3d.cross_entropy, brain_unet3d.dice_loss])
def test_what_is_held_out_does_not_count(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    """The loss does not depend on the logits of voxels without a label."""
    logits = torch.randn(1, 3, 4, 4, 4, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(64).reshape(1, 4, 4, 4) % 3
    labels[..., 2] = brain_unet3d.IGNORED
    changed = logits.clone()
    changed[..., 2] += torch.arange(3).reshape(1, 3, 1, 1)
    assert torch.equal(loss(logits, labels), loss(changed, labels))


@pytest.mark.usefixtures("several_threads")
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_activation_keeps_its_layout(dtype: str) -> None:
    """At 192^3 every module's output is channels_last_3d: nothing is laid out anew between them."""
    with FakeMode():
        workload = brain_unet3d.workload(size=192)
        ((x, _),) = workload.batches
        seen = record_layouts(workload.model)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "bfloat16"):
            workload.model(x)
    assert is_channels_last(x)
    assert [name for name, kept in seen if not kept] == []
    assert len(seen) > 30


def test_small_volumes_keep_their_layout_too() -> None:
    """Where torch's im2col convolution leaves its output contiguous, the blocks put it right."""
    workload = brain_unet3d.workload(size=SIZE)
    ((x, _),) = workload.batches
    seen = record_layouts(workload.model)
    workload.model(x)
    convolutions = ("conv1", "conv2", "up.0", "up.1", "up.2", "down.0", "down.1", "down.2", "head")
    assert [name for name, kept in seen if not kept and not name.endswith(convolutions)] == []


def test_the_losses_read_the_logits_where_they_lie() -> None:
    """The losses flatten channels_last_3d logits without a copy."""
    logits = torch.empty((1, 3, 8, 8, 8), memory_format=CHANNELS_LAST)
    flat = brain_unet3d.by_voxel(logits)
    assert flat.data_ptr() == logits.data_ptr()
    assert flat.is_contiguous()


def test_it_is_built_under_fake_tensors() -> None:
    """Model and batches are fake under a FakeTensorMode, so a plan of 192^3 allocates nothing."""
    with FakeTensorMode():
        workload = brain_unet3d.workload(size=192)
    tensors = [*workload.model.parameters(), *workload.batches[0]]
    assert all(isinstance(tensor, FakeTensor) for tensor in tensors)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"size": 0}, "size 0 is not a positive multiple of 8"),
        ({"size": -8}, "size -8 is not a positive multiple of 8"),
        ({"size": 36}, "size 36 is not a positive multiple of 8"),
        ({"size": 32, "channels": 12}, "channels 12 is not a positive multiple of 8"),
        ({"size": 32, "loss": "hinge"}, "loss 'hinge' is unknown. Choose one of: cross_entropy, dice"),
        ({"size": 32, "dtype": "int8"}, "dtype 'int8' is unknown. Choose one of: float32, bfloat16"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, object], reason: str) -> None:
    """An argument out of range is named, with what would do."""
    with pytest.raises(ValueError, match=reason):
        brain_unet3d.workload(**arguments)  # pyright: ignore[reportArgumentType]


def test_a_large_cube_is_padded() -> None:
    """At 192^3 the whole brain is in the cube, and what the volume lacks is zero."""
    x, y = brain_unet3d.brain(192)
    assert x.shape == (1, 1, 192, 192, 192)
    assert x.mean().abs() < 1e-2
    assert (y[..., -2:] == brain_unet3d.BACKGROUND).all()
    assert (y != brain_unet3d.BACKGROUND).float().mean() > 0.15
