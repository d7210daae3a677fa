"""How are bytes and seconds read, rounded and written? One parser and two printers for the whole package.

A size is a number of bytes or a string: "8GiB", "512 MiB", "8Gi" (powers of 1024), "8GB" (powers of 1000), "1e9".
"""

import math
import re
from numbers import Real

from outgrow.errors import InvalidQuantity

KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40

_FACTORS = {
    "": 1, "B": 1,
    "K": KIB, "KI": KIB, "KIB": KIB, "M": MIB, "MI": MIB, "MIB": MIB,
    "G": GIB, "GI": GIB, "GIB": GIB, "T": TIB, "TI": TIB, "TIB": TIB,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
}  # fmt: skip
_SIZE = re.compile(r"\s*(-?[0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z]*)\s*")


_LEAST_BUDGET = MIB
"""No step trains in less, so less is a slip of the pen."""
_MOST_BYTES = (1 << 63) - 1
"""No address and no file is beyond."""


def parse_bytes(size: float | str, *, what: str = "memory budget") -> int:
    """Return `size` as a positive number of bytes.

    Raises `InvalidQuantity`, naming `what`, for anything that is not a positive size.

    >>> parse_bytes("8GiB"), parse_bytes("8GB"), parse_bytes(4096), parse_bytes(1e9)
    (8589934592, 8000000000, 4096, 1000000000)
    """
    if isinstance(size, str):
        number = _parse_text(size, what)
    elif not isinstance(size, bool) and isinstance(size, Real) and _is_whole_or_large(size):
        number = int(size)
    else:
        raise InvalidQuantity(f'{what} {size!r} is not a size. Give a number of bytes or a string such as "8GiB".')
    if number > _MOST_BYTES:
        raise InvalidQuantity(f"{what} is 8 EiB or more, too large to be a number of bytes.")
    if number <= 0:
        raise InvalidQuantity(f'{what} {size!r} is not positive. Give a size such as "8GiB".')
    return number


def parse_budget(size: float | str) -> int:
    """Return a memory budget in bytes. Raises `InvalidQuantity` as `parse_bytes` does, and for one below 1 MiB."""
    number = parse_bytes(size)
    if number < _LEAST_BUDGET:
        is_bare = number < KIB and not (isinstance(size, str) and size.strip()[-1].isalpha())
        meant = f"Did you mean {str(size).strip()}GiB?" if is_bare else 'Give a size such as "8GiB".'
        raise InvalidQuantity(f"memory budget {size!r} is {format_bytes(number)}. {meant}")
    return number


def _is_whole_or_large(size: float) -> bool:
    """Whether a number is one of bytes: a fraction of a byte is a slip of the pen below a KiB, and no matter above."""
    return -math.inf < size < math.inf and (size >= KIB or size == int(size))


def _parse_text(text: str, what: str) -> int:
    match = _SIZE.fullmatch(text)
    factor = _FACTORS.get(match.group(2).upper()) if match else None
    if match is None or factor is None:
        raise InvalidQuantity(f'{what} {text!r} is not a size. Write for example "8GiB", "512MiB" or "8GB".')
    number = float(match.group(1)) * factor
    return int(min(number, 2.0 * _MOST_BYTES))


def round_up(number: int, multiple: int) -> int:
    """Return the smallest multiple that is not below `number`.

    >>> round_up(4097, 4096), round_up(4096, 4096), round_up(0, 4096)
    (8192, 4096, 0)
    """
    return -(-number // multiple) * multiple


def round_up_to_mib(size_bytes: int) -> str:
    """Return a size in MiB, rounded up, in a spelling that `parse_bytes` reads.

    >>> round_up_to_mib(1)
    '1MiB'
    """
    return f"{-(-size_bytes // MIB)}MiB"


def format_bytes(size_bytes: float) -> str:
    """Return a size for people: TiB and GiB with two decimals, MiB and KiB with one.

    >>> format_bytes(3 * 2**40), format_bytes(5 * 2**30), format_bytes(1536), format_bytes(12)
    ('3.00 TiB', '5.00 GiB', '1.5 KiB', '12 B')
    """
    if abs(size_bytes) >= TIB:
        return f"{size_bytes / TIB:.2f} TiB"
    if abs(size_bytes) >= GIB:
        return f"{size_bytes / GIB:.2f} GiB"
    if abs(size_bytes) >= MIB:
        return f"{size_bytes / MIB:.1f} MiB"
    if abs(size_bytes) >= KIB:
        return f"{size_bytes / KIB:.1f} KiB"
    return f"{int(size_bytes)} B"


def format_seconds(seconds: float) -> str:
    """Return a duration for people.

    >>> format_seconds(12.345), format_seconds(0.0123), format_seconds(2e-5)
    ('12.35 s', '12.3 ms', '20.0 us')
    """
    if abs(seconds) >= 1:
        return f"{seconds:.2f} s"
    if abs(seconds) >= 1e-3:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds * 1e6:.1f} us"
