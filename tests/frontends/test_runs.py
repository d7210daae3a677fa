"""What does a run show of what it takes itself?"""

from outgrow.frontends.runs import Shown
from outgrow.units import MIB


def own(taken: int, held: int, now: int) -> float:
    """What a run took itself in MiB, that took this beyond what was held before it, 10 MiB; see `Shown`."""
    return Shown((10 + taken) * MIB, 10 * MIB, 10 * MIB, held * MIB).own_bytes(now * MIB) / MIB


def test_what_has_stayed_is_not_of_the_run() -> None:
    """It was there when the run ended, and is there still."""
    assert own(taken=50, held=10, now=10) == 50
    assert own(taken=50, held=40, now=40) == 20
    assert own(taken=50, held=40, now=90) == 20, "what came later was not there"
    assert own(taken=50, held=40, now=15) == 45, "what has gone was of the run"
    assert own(taken=50, held=5, now=5) == 55, "what went may have gone before the run took most"


def test_a_run_takes_no_less_than_the_slack_unless_it_took_less_in_all() -> None:
    """What has stayed may have come when the run had taken most already."""
    assert own(taken=50, held=60, now=60) == 8
    assert own(taken=5, held=60, now=60) == 5
    assert own(taken=-20, held=60, now=60) == 0
