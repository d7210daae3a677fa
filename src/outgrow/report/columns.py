"""How is a table printed as plain text? Columns as wide as their widest cell, two spaces between them."""

from collections.abc import Sequence

from outgrow.units import format_bytes, format_seconds


def aligned(rows: Sequence[Sequence[str]], *, numbers_from: int | None = None) -> str:
    """Return the rows as lines; columns from `numbers_from` on are aligned to the right.

    >>> print(aligned([("", "bytes"), ("peak", "12")], numbers_from=1))
          bytes
    peak     12
    """
    if not rows:
        return ""
    first_number = len(rows[0]) if numbers_from is None else numbers_from
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.rjust(width) if at >= first_number else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return "\n".join(lines)


def bytes_or_none(size_bytes: int) -> str:
    """Return a size in one cell, and none in words."""
    return format_bytes(size_bytes) if size_bytes else "none"


def seconds_or_none(seconds: float) -> str:
    """Return a duration in one cell, and none in words."""
    return format_seconds(seconds) if seconds else "none"


def counted(rows: Sequence[object], one: str, many: str) -> str:
    """Return how many rows there are, with the words for one or for many.

    >>> counted([1, 2], "plan", "plans")
    '2 plans'
    """
    return f"{len(rows)} {one if len(rows) == 1 else many}"


def format_shapes(shapes: Sequence[Sequence[int]]) -> str:
    """Return the shapes of some tensors in one cell.

    >>> format_shapes([(8, 3), ()])
    '8x3, scalar'
    """
    return ", ".join("x".join(map(str, shape)) or "scalar" for shape in shapes) or "none"
