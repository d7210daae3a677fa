"""How long does a machine take whose devices reach each other?"""

import pytest

from outgrow.ir.machine import Device, LinkRates, Machine, Peers

LINK = LinkRates(8e9, 4e9, 1e-5)
TWO_OF_THREE = Machine(
    "six", Device("gpu", 1e12, 1e11), LINK, peers=(Peers(2, 1e9, 1e-3), Peers(3, 1e10)), shares_link=True
)


def test_a_link_that_is_shared_is_divided() -> None:
    """Each of several has its part; one alone has all of it, and so have several with a link each."""
    ours = TWO_OF_THREE.as_one_of(4).link
    assert (ours.out_bytes_per_second, ours.in_bytes_per_second) == (2e9, 1e9)
    assert ours.latency_seconds == LINK.latency_seconds
    assert TWO_OF_THREE.as_one_of(1).link == LINK
    assert Machine("two", TWO_OF_THREE.device, LINK, peers=(Peers(2, 1e9),)).as_one_of(2).link == LINK


@pytest.mark.parametrize(
    ("worker", "sent", "received", "seconds"),
    [
        (0, (9, 0, 0, 0, 0, 0), (9, 0, 0, 0, 0, 0), 0.0),
        (0, (0, 1e9, 0, 0, 0, 0), (0, 0, 2e9, 0, 0, 0), 0.2),
        (4, (0, 0, 0, 1e9, 0, 1e9), (0, 0, 0, 0, 0, 0), 0.2),
        (1, (0, 0, 0, 1e9, 0, 0), (0, 0, 0, 0, 1e9, 1e9), 2.001),
        (5, (1e9, 0, 0, 0, 1e10, 0), (0, 0, 0, 0, 0, 0), 2.001),
    ],
)
def test_near_bytes_take_the_quick_level_and_far_ones_the_slow(
    worker: int, sent: tuple[int, ...], received: tuple[int, ...], seconds: float
) -> None:
    """Both directions at once, one level after the other; what a worker sends itself takes no time."""
    assert TWO_OF_THREE.exchange_seconds(worker, sent, received) == pytest.approx(seconds)
    assert TWO_OF_THREE.devices == 6


def test_an_exchange_of_many_begins_on_the_slowest_level_among_them() -> None:
    """What could be received until then: a millisecond at 1 GB/s; the quick level begins at once."""
    assert TWO_OF_THREE.waiting_bytes(6) == TWO_OF_THREE.waiting_bytes(4) == 1e6
    assert TWO_OF_THREE.waiting_bytes(3) == 0
