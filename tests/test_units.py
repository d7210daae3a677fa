"""Are bytes and seconds read and written as people write them?"""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outgrow.errors import InvalidQuantity, OutgrowError
from outgrow.units import GIB, KIB, MIB, TIB, format_bytes, format_seconds, parse_budget, parse_bytes, round_up


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("8GiB", 8 * GIB), ("512 MiB", 512 * MIB), ("8GB", 8 * 10**9), ("1e9", 10**9), (".5k", KIB // 2),
        ("2t", 2 * TIB), ("4Gi", 4 * GIB), ("500Mi", 500 * MIB), ("  7b ", 7), (4096, 4096), (1e9, 10**9),
        (0.7 * 10_001, 7000), (Fraction(9001, 2), 4500),
    ],
)  # fmt: skip
def test_a_size_is_a_number_with_a_unit(text: float | str, size_bytes: int) -> None:
    """Units of 1024 and of 1000, spaces, any case and plain numbers are read."""
    assert parse_bytes(text) == size_bytes


@pytest.mark.parametrize(
    "size", ["8 bananas", "", "GiB", "-1GiB", "0", 0, -1, True, 1.5, 0.5, math.nan, math.inf, 1j, None, "1e999", 1e300]
)
def test_what_is_not_a_positive_size_is_refused(size: object) -> None:
    """The refusal is a ValueError that names what was asked and shows what a size looks like."""
    with pytest.raises(InvalidQuantity, match="disk budget") as caught:
        parse_bytes(size, what="disk budget")  # type: ignore[arg-type]
    assert isinstance(caught.value, OutgrowError)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("size", ["0", "-1", "-1GiB", 0, -1.0])
def test_a_size_below_a_byte_is_not_positive(size: float | str) -> None:
    """Zero and less get the same sentence."""
    with pytest.raises(InvalidQuantity, match=f"memory budget {size!r} is not positive"):
        parse_bytes(size)


@pytest.mark.parametrize(
    ("size", "told"),
    [
        ("3", "'3' is 3 B. Did you mean 3GiB?"),
        (512, "512 is 512 B. Did you mean 512GiB?"),
        (2000.5, "2000.5 is 2.0 KiB. Give a size"),
        ("1kb", "'1kb' is 1000 B. Give a size"),
        ("2KiB", "'2KiB' is 2.0 KiB. Give a size"),
    ],
)
def test_a_tiny_budget_is_refused(size: float | str, told: str) -> None:
    """No step trains in less than 1 MiB, so a unit was forgotten; that is said before anything is captured."""
    with pytest.raises(InvalidQuantity) as caught:
        parse_budget(size)
    assert told in str(caught.value)
    assert parse_budget(MIB) == MIB


@pytest.mark.parametrize("size", [10**40, 10**400, 1 << 63, 1e300, "1e300", "99999999999TiB", "1e999"])
def test_more_than_any_address_is_refused(size: float | str) -> None:
    """However many digits it has."""
    with pytest.raises(InvalidQuantity, match="memory budget is 8 EiB or more"):
        parse_budget(size)


@given(st.integers(1, 2**60))
def test_a_number_of_bytes_is_itself(size_bytes: int) -> None:
    """An int goes through unchanged."""
    assert parse_bytes(size_bytes) == size_bytes


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(12, "12 B"), (1536, "1.5 KiB"), (3 * MIB, "3.0 MiB"), (5 * GIB, "5.00 GiB"), (-5 * GIB, "-5.00 GiB")],
)
def test_a_size_is_printed_in_its_largest_unit(size_bytes: int, text: str) -> None:
    """GiB have two decimals, MiB and KiB one."""
    assert format_bytes(size_bytes) == text


@pytest.mark.parametrize(("seconds", "text"), [(12.345, "12.35 s"), (0.0123, "12.3 ms"), (2e-5, "20.0 us")])
def test_a_duration_is_printed_in_its_largest_unit(seconds: float, text: str) -> None:
    """Seconds have two decimals, milliseconds and microseconds one."""
    assert format_seconds(seconds) == text


@given(number=st.integers(0, 2**60), multiple=st.integers(1, 2**30))
def test_rounding_up_gives_the_next_multiple(number: int, multiple: int) -> None:
    """The result is a multiple, not below the number, and less than one multiple above it."""
    rounded = round_up(number, multiple)
    assert rounded % multiple == 0
    assert number <= rounded < number + multiple
