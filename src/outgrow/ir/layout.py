"""How do the elements of a value lie in the bytes of its storage?

A value's dtype is torch's name without its prefix ("float32"); IR text abbreviates it ("f32"). The types of
host scalars ("float", "int") take no device bytes. A type that is missing here is spelled out in text, and
its size is unknown. The element at index (i, j, ...) is number offset + i * strides[0] + j * strides[1] + ...
of the storage.
"""

from collections.abc import Mapping, Sequence
from functools import cache

_TYPES = (
    ("bool", "b8", 1), ("int8", "i8", 1), ("int16", "i16", 2), ("int32", "i32", 4), ("int64", "i64", 8),
    ("uint8", "u8", 1), ("uint16", "u16", 2), ("uint32", "u32", 4), ("uint64", "u64", 8),
    ("float8_e4m3fn", "f8e4m3fn", 1), ("float8_e5m2", "f8e5m2", 1),
    ("float16", "f16", 2), ("bfloat16", "bf16", 2), ("float32", "f32", 4), ("float64", "f64", 8),
    ("complex32", "c32", 4), ("complex64", "c64", 8), ("complex128", "c128", 16),
    ("float", "float", 0), ("int", "int", 0),
)  # fmt: skip

SHORT: Mapping[str, str] = {name: short for name, short, _ in _TYPES}
"""The abbreviation of a dtype."""

LONG: Mapping[str, str] = {short: name for name, short, _ in _TYPES}
"""The dtype of an abbreviation."""

ITEM_BYTES: Mapping[str, int] = {name: size_bytes for name, _, size_bytes in _TYPES}
"""The bytes of one element of a dtype."""


@cache
def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides, in elements, of a dense row-major tensor.

    >>> contiguous_strides((2, 3, 4))
    (12, 4, 1)
    """
    return dense_strides(shape, range(len(shape)))


def order_of(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Return the dimensions of a tensor by its strides, the innermost last; among equal ones a larger one is outside.

    >>> order_of((2, 1, 4, 6), (24, 1, 6, 1))
    (0, 2, 3, 1)
    """
    return tuple(sorted(range(len(shape)), key=lambda dimension: (-strides[dimension], -shape[dimension])))


def dense_strides(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Return the strides, in elements, of a dense tensor whose dimensions lie in this order, the innermost last.

    >>> dense_strides((2, 4, 6), (0, 2, 1))
    (24, 1, 4)
    """
    strides, stride = [0] * len(shape), 1
    for dimension in reversed(order):
        strides[dimension] = stride
        stride *= max(shape[dimension], 1)
    return tuple(strides)


def goes_in_step(
    shape: tuple[int, ...], strides: tuple[int, ...], other: tuple[int, ...], other_strides: tuple[int, ...]
) -> bool:
    """Whether a loop over what lies as the first goes through the second, once or again and again, without gaps.

    >>> goes_in_step((3, 2), (2, 1), (2,), (1,)), goes_in_step((3, 2), (2, 1), (2,), (3,))
    (True, False)
    """
    if shape == other:
        return strides == other_strides
    if all(size == 1 for size in other):
        return True
    return strides == contiguous_strides(shape) and other_strides == contiguous_strides(other)


def is_channels_last(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether the channels of a tensor lie side by side; of one with a single channel, that cannot be told."""
    return shape[1] > 1 and strides[1] == 1


@cache
def end_bytes(dtype: str, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> int:
    """Return how many bytes a storage needs at least for such a value; 0 where the dtype is unknown.

    >>> end_bytes("float32", (2, 3), (3, 1), 1)
    28
    """
    if 0 in shape:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    return (offset + last + 1) * ITEM_BYTES.get(dtype, 0)
