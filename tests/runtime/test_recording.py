"""Does a recording tell whether the device waited for the host?"""

import pytest

from outgrow.runtime.recording import Recording
from tests.runtime.stand_in import Point


@pytest.mark.parametrize(("host_end", "waits"), [(10.5, False), (11.9, True)])
def test_a_host_that_gives_out_work_until_the_end_keeps_the_device_waiting(host_end: float, waits: bool) -> None:
    """A run of two seconds, whose work was given out within half a second, or within nearly all of it."""
    assert Recording(begin=10.0, host_begin=10.0, end=12.0, host_end=host_end).waits_for_host is waits


def test_a_host_that_the_device_keeps_waiting_does_not_keep_it_waiting() -> None:
    """Its queue was full: most ops were given to a device that had other work left."""
    reached = Point()
    reached.reached.set()
    recording = Recording(begin=10.0, host_begin=10.0, end=12.0, host_end=11.9)
    for number in range(10):
        recording.give(reached if number < 4 else Point())
        recording.ops.append(("op", 10.0, 11.0))
    assert not recording.waits_for_host
    recording.behind = 5
    assert recording.waits_for_host
