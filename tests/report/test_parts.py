"""Does the table of parts say what each takes and leaves?"""

import re

from outgrow.plan import Estimate
from outgrow.report.parts import BudgetReport, PartReport, PartsReport

PART = PartReport(
    begins="forward, train.py:12",
    shapes=((8, 3),),
    ops=40,
    runs=7,
    in_core=Estimate(900 << 20, 1.5),
    planned=Estimate(400 << 20, 2.5),
    left_bytes=100 << 20,
    bytes_swapped=1 << 30,
    seconds_recomputed=0.0,
)


def test_one_line_a_part_below_its_budget() -> None:
    """Where it begins, what it takes in core and as planned, and what it leaves to others."""
    lines = str(PartsReport((BudgetReport(512 << 20, "somewhere", 498 << 20, (PART,)),))).splitlines()
    assert lines[0] == "1 part within 512.0 MiB on somewhere, of which at most 498.0 MiB were taken"
    assert re.split(r"  +", lines[-1]) == [
        "forward, train.py:12", "8x3", "40", "7", "900.0 MiB", "1.50 s", "400.0 MiB", "2.50 s", "100.0 MiB", "1.00 GiB",
        "none",
    ]  # fmt: skip


def test_before_any_part_has_run_it_says_what_to_do() -> None:
    """There is no table without a part."""
    said = str(PartsReport(()))
    assert said.startswith("No part has run. Call what torch.compile returned.")
    assert "torch._dynamo.config.allow_rnn" in said
