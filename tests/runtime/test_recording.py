"""Does a recording tell whether the device waited for the host?"""

import pytest

from outgrow.runtime.recording import Recording


@pytest.mark.parametrize(("host_end", "waits"), [(10.5, False), (11.9, True)])
def test_a_host_that_gives_out_work_until_the_end_keeps_the_device_waiting(host_end: float, waits: bool) -> None:
    """A run of two seconds, whose work was given out within half a second, or within nearly all of it."""
    assert Recording(begin=10.0, host_begin=10.0, end=12.0, host_end=host_end).waits_for_host is waits
