"""Which voxels of a brain are grey matter, which white? A 3D U-Net learns it from one whole volume.

    outgrow train examples/brain_unet3d.py:workload --set size=192 --memory-budget 3GiB --steps 3

The volume is the MNI152 T1 template (1 mm, 197 x 233 x 189 voxels) with its grey- and white-matter
probabilities, which the package nilearn carries. `size=192` crops and zero-pads it to 192^3. A smaller size
sees the same brain more coarsely: every n-th voxel, n = 192 // size. The labels of a slab of axial slices
(an eighth of the volume) are held out of the loss, and `evaluate` scores the model there by its Dice
overlap.

The model is the 3D U-Net of Cicek et al. (2016, https://arxiv.org/abs/1606.06650), four levels of two
convolutions, with GroupNorm, strided convolutions down and transposed ones up. Nothing here knows of a memory
budget. The one thing done for memory is the layout: everything stays channels_last_3d, in which the
convolutions of oneDNN need no workspace, and which GroupNorm, LeakyReLU and cat keep.
"""

import contextlib
import importlib.util
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from outgrow import Workload

BACKGROUND, GREY, WHITE = range(3)
CLASSES = 3
IGNORED = -100  # the label of a voxel that is left out of the loss
LEVELS = 4
GROUPS = 8
FULL_SIZE = 192
HELD_OUT = (3 / 8, 1 / 2)  # the slab of axial slices without labels, as fractions of the volume
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def workload(
    *,
    size: int = FULL_SIZE,
    channels: int = 16,
    dtype: str = "float32",
    loss: str = "cross_entropy",
    lr: float = 3e-3,
    seed: int = 0,
) -> Workload:
    """Return the training of a 3D U-Net on one `size`^3 volume with Adam.

    `channels` is the width of the first level, doubled at each of the three below (16-32-64-128). `dtype`
    "bfloat16" runs forward and loss under autocast. `loss` is "cross_entropy" or "dice". Raises `ValueError`
    for anything else.
    """
    coarsest = 2 ** (LEVELS - 1)
    if size <= 0 or size % coarsest:
        raise ValueError(
            f"size {size} is not a positive multiple of {coarsest}: the U-Net halves it {LEVELS - 1} times."
        )
    if channels <= 0 or channels % GROUPS:
        raise ValueError(
            f"channels {channels} is not a positive multiple of {GROUPS}, the number of groups of GroupNorm."
        )
    criterion = _choose("loss", loss, {"cross_entropy": cross_entropy, "dice": dice_loss})
    precision = _choose("dtype", dtype, DTYPES)

    torch.manual_seed(seed)
    model = UNet3d(channels)
    lay_out(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    x, y = brain(size)
    truth = y[..., held_out(size)].clone()
    y[..., held_out(size)] = IGNORED

    def autocast() -> contextlib.AbstractContextManager[object]:
        if precision == torch.float32:
            return contextlib.nullcontext()
        return torch.autocast("cpu", dtype=precision)

    def step(x: Tensor, y: Tensor) -> Tensor:
        with autocast():
            loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    def evaluate() -> dict[str, float]:
        with torch.no_grad(), autocast():
            return held_out_dice(model, x, truth)

    return Workload(model, optimizer, step, batches=[(x, y)], evaluate=evaluate)


Choice = TypeVar("Choice")


def _choose(what: str, name: str, choices: dict[str, Choice]) -> Choice:
    if name not in choices:
        raise ValueError(f"{what} {name!r} is unknown. Choose one of: {', '.join(choices)}.")
    return choices[name]


# The model --------------------------------------------------------------------------------------------------


class UNet3d(nn.Module):
    """Logits (N, 3, D, H, W) of a volume (N, 1, D, H, W) whose sides are multiples of 8."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        widths = [channels * 2**level for level in range(LEVELS)]
        self.stem = TwoConvolutions(1, channels)
        self.down = nn.ModuleList(nn.Conv3d(w, 2 * w, 2, stride=2) for w in widths[:-1])
        self.encoders = nn.ModuleList(TwoConvolutions(w, w) for w in widths[1:])
        self.up = nn.ModuleList(nn.ConvTranspose3d(2 * w, w, 2, stride=2) for w in widths[:-1])
        self.decoders = nn.ModuleList(TwoConvolutions(2 * w, w) for w in widths[:-1])
        self.head = nn.Conv3d(channels, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        skips: list[Tensor] = []
        for down, encoder in zip(self.down, self.encoders, strict=True):
            skips.append(x)
            x = encoder(keep_layout(down(x)))
        for up, decoder in zip(reversed(self.up), reversed(self.decoders), strict=True):
            x = decoder(torch.cat([keep_layout(up(x)), skips.pop()], dim=1))
        return keep_layout(self.head(x))


class TwoConvolutions(nn.Module):
    """Twice: convolution, GroupNorm, LeakyReLU. The norm has the bias."""

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv3d(channels_in, channels_out, 3, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(GROUPS, channels_out)
        self.conv2 = nn.Conv3d(channels_out, channels_out, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(GROUPS, channels_out)
        self.activation = nn.LeakyReLU()

    def forward(self, x: Tensor) -> Tensor:
        for convolution, norm in ((self.conv1, self.norm1), (self.conv2, self.norm2)):
            x = keep_layout(convolution(x))  # assigned before the norm, so that its input can go
            x = self.activation(norm(x))
        return x


def lay_out(model: nn.Module) -> None:
    """Turn the weights of the convolutions to channels_last_3d.

    `model.to(memory_format=...)` does nearly the same, but not under fake tensors (torch 2.13), and it leaves
    the strides of a 1 x 1 x 1 convolution as they are, which do not tell the one layout from the other.
    """
    for parameter in model.parameters():
        if parameter.dim() == 5:
            weight = torch.empty_like(parameter, memory_format=torch.channels_last_3d)
            parameter.data = weight.copy_(parameter.data)


def keep_layout(x: Tensor) -> Tensor:
    """Return `x` in channels_last_3d.

    It is in it already, and nothing is done, wherever oneDNN convolves. Below 20,480 values in channels x
    depth x height torch convolves by im2col instead, which gives a contiguous output: in the small sizes for
    tests.
    """
    return x.contiguous(memory_format=torch.channels_last_3d)


# The losses and the score -----------------------------------------------------------------------------------


def by_voxel(logits: Tensor) -> Tensor:
    """Return the logits as a (voxels, 3) view, which channels_last_3d allows: nothing is copied."""
    return logits.permute(0, 2, 3, 4, 1).reshape(-1, CLASSES)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy over the labelled voxels."""
    return F.cross_entropy(by_voxel(logits), labels.reshape(-1), ignore_index=IGNORED)


def dice_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return 1 - the mean soft Dice of the three classes over the labelled voxels (Milletari 2016)."""
    probabilities = torch.softmax(by_voxel(logits), dim=1)
    voxels = labels.reshape(-1)
    labelled = (voxels != IGNORED).to(probabilities.dtype)
    score = logits.new_zeros((), dtype=torch.float32)
    for label in range(CLASSES):
        truth = (voxels == label).to(probabilities.dtype)
        predicted = probabilities[:, label]
        overlap = (predicted * truth).sum(dtype=torch.float32)
        total = (predicted * labelled).sum(dtype=torch.float32) + truth.sum(dtype=torch.float32)
        score = score + (2 * overlap + 1) / (total + 1)
    return 1 - score / CLASSES


def held_out_dice(model: nn.Module, x: Tensor, truth: Tensor) -> dict[str, float]:
    """Return the Dice overlap of prediction and truth in the held-out slab, of grey and of white matter.

    The whole volume goes through the model, for GroupNorm takes its statistics over all of it. Without
    gradients that holds less at a time than the largest single operator of a training step.
    """
    predicted = model(x)[..., held_out(x.shape[-1])].argmax(dim=1)
    return {
        "dice_grey_matter": dice(predicted == GREY, truth == GREY),
        "dice_white_matter": dice(predicted == WHITE, truth == WHITE),
    }


def dice(predicted: Tensor, truth: Tensor) -> float:
    """Return twice the overlap of two masks over the sum of their sizes.

    >>> dice(torch.tensor([True, True, False]), torch.tensor([True, False, False]))
    0.6666666865348816
    """
    overlap, total = (predicted & truth).sum(), predicted.sum() + truth.sum()
    return float(2 * overlap / total.clamp(min=1))


def held_out(size: int) -> slice:
    """Return the axial slices whose labels are held out.

    >>> held_out(192)
    slice(72, 96, None)
    """
    begin, end = HELD_OUT
    return slice(int(begin * size), int(end * size))


# The data ---------------------------------------------------------------------------------------------------


def brain(size: int) -> tuple[Tensor, Tensor]:
    """Return the T1 volume, (1, 1, size, size, size), and its labels, (1, size, size, size).

    The volume has mean 0 and standard deviation 1.

    Raises `ModuleNotFoundError` where nilearn is not installed.
    """
    t1, grey, white = (_cube(_read(name), size) for name in ("t1", "gm", "wm"))
    labels = np.full(t1.shape, BACKGROUND, dtype=np.int64)
    tissue = grey.astype(np.int16) + white > 127  # probabilities are stored as 0..255
    labels[tissue] = np.where(white > grey, WHITE, GREY)[tissue]
    image = t1.astype(np.float32)
    image = (image - image.mean()) / image.std()
    # torch.tensor, not from_numpy: the memory is torch's own then (page-aligned), and under fake tensors it
    # is fake. With one channel, contiguous and channels_last_3d are the same bytes: only the strides say
    # which is meant.
    x = torch.empty((1, 1, size, size, size), memory_format=torch.channels_last_3d).copy_(torch.tensor(image))
    return x, torch.tensor(labels)[None]


def _read(name: str) -> NDArray[np.uint8]:
    spec = importlib.util.find_spec("nilearn")  # found, not imported: importing nilearn takes seconds
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("The volume is in the package nilearn: pip install nilearn nibabel.")
    import nibabel  # noqa: PLC0415 - on a machine without it, the network can be trained on other data

    folder = Path(spec.origin).parent / "datasets" / "data"
    image = nibabel.Nifti1Image.from_filename(folder / f"mni_icbm152_{name}_tal_nlin_sym_09a_converted.nii.gz")
    return np.asarray(image.dataobj)


def _cube(volume: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Return the middle of the volume as a cube of `size`, every n-th voxel, zero-padded where it ends."""
    stride = max(1, FULL_SIZE // size)
    extent = size * stride
    for axis, length in enumerate(volume.shape):
        begin = max(0, (length - extent) // 2)
        volume = volume.take(range(begin, min(length, begin + extent)), axis)
        missing = extent - volume.shape[axis]
        padding = [(0, 0)] * volume.ndim
        padding[axis] = (missing // 2, missing - missing // 2)
        volume = np.pad(volume, padding)
    return np.ascontiguousarray(volume[::stride, ::stride, ::stride])
