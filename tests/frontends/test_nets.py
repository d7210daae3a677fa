"""Whatever layers a network is made of, and however it lies, it has the bits of eager: in core, and near the floor."""

from collections.abc import Hashable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings

from outgrow.planning.search import search
from outgrow.runtime.medium import OnDisk
from outgrow.runtime.spill import Spill
from tests.frontends import sequences, spaces
from tests.frontends.features import Make
from tests.frontends.nets import Net, nets
from tests.frontends.within import Known, Within, differences, eager, left_by

SHARES, TRIALS = (1.0, 0.0), 200


@pytest.fixture
def spill(disk_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Spill]:
    """A spill file, for plans that are found quickly."""
    monkeypatch.setattr(search, "_MOST_TRIALS", TRIALS)
    spill = Spill(OnDisk(disk_folder))
    yield spill
    spill.close()


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(net=nets())
@example(net=Net(("mobile", "branches", "mobile"), 24, 1, channels_last=True, autocast=False, optimizer="sgd"))
@example(net=Net(("padded",), 8, 4, channels_last=True, autocast=False, optimizer="sgd"))
@example(net=Net(("weighed", "padded", "resized"), 1, 5, channels_last=True, autocast=True, optimizer="adamw"))
def test_a_network_has_the_bits_of_eager(net: Net, spill: Spill) -> None:
    """On maps."""
    check(net, spill)


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(net=sequences.nets())
@example(net=sequences.Net(("lstm", "encoder"), "aligned", (3, 5, 4), autocast=False, clipped=True, optimizer="adamw"))
def test_a_network_of_sequences_has_the_bits_of_eager(net: sequences.Net, spill: Spill) -> None:
    """Recurrent, attending and convolving, with losses of every kind."""
    check(net, spill)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(net=spaces.nets())
@example(net=spaces.Net(("unpooled",), "dice", 2, 4, channels_last=True, autocast=True, optimizer="sgd"))
def test_a_network_on_spaces_has_the_bits_of_eager(net: spaces.Net, spill: Spill) -> None:
    """On lines, planes and volumes."""
    check(net, spill)


def check(net: Make, spill: Spill) -> None:
    """What three steps return, state and generator."""
    expected, captured = left_by(net, eager), dict[Hashable, list[Known]]()
    for share in SHARES:
        assert differences(left_by(net, Within(share, spill, captured=captured)), expected) == [], share
