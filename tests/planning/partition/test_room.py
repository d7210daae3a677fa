"""Do workers that have room hold what spares them bytes, and never more than they have room for?"""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from outgrow.frontends.workers.divisible import divisible
from outgrow.frontends.workloads.loading import load_workload_function
from outgrow.operators.dataflow import GATHERED, Dataflow
from outgrow.planning.partition import options as module
from outgrow.planning.partition.data_parallel import data_parallel_bytes
from outgrow.planning.partition.lacking import WHOLE
from outgrow.planning.partition.partition import partition
from outgrow.planning.partition.room import ADDED, ADDENDS, room_of
from outgrow.planning.partition.shares import Shares

WORKLOADS = Path(__file__).parents[3] / "benchmarks" / "workloads"
AMPLE = 1e15


@cache
def step_of(name: str, **settings: object) -> Dataflow:
    """The step of a workload, on tensors without memory."""
    return divisible(load_workload_function(f"{WORKLOADS / name}"), settings).step


def text() -> Dataflow:
    """Texts: few activations and many weights, two of them tied, so that it is best to work as data parallel does."""
    return step_of("gpt2.py:gpt2", size="small", batch=8, length=1024)


def series() -> Dataflow:
    """Steps in time, each of which adds to the gradients of the same weights."""
    return step_of("lstm.py:lstm", layers=1, units=64, batch=64, length=4)


@pytest.fixture(autouse=True)
def all_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut tensors however small they are."""
    monkeypatch.setattr(module, "SMALL_BYTES", 0)


@pytest.mark.parametrize("workers", [2, 4])
def test_with_room_for_all_weights_data_parallel_receives_no_less(workers: int) -> None:
    """Each weight is received once and each gradient added up once; those of tied layers are one sum."""
    step = text()
    found = partition(step, workers, memory_bytes=AMPLE)
    least = data_parallel_bytes(step, workers)
    assert least is not None
    assert sum(Shares(step, found).received_bytes()) <= least
    (first, *_) = found.levels
    assert any(first.states[node.results[0] or ""] == WHOLE for node in step.nodes if node.call.operator == GATHERED)
    assert any(state == ADDENDS for state in first.states.values())


def test_steps_in_time_add_up_what_they_have() -> None:
    """One addition over workers instead of one for each step."""
    step = series()
    equal, roomy = partition(step, 2), partition(step, 2, memory_bytes=AMPLE)
    assert roomy.communicated_bytes < equal.communicated_bytes
    assert ADDED in roomy.levels[0].strategies.values()
    assert ADDED not in equal.levels[0].strategies.values()
    assert ADDENDS not in equal.levels[0].states.values()


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 0.75])
def test_no_more_is_held_than_there_is_room_for(share: float) -> None:
    """Between equal shares and all that may be held, more room never means more bytes than without any."""
    step = text()
    equal, roomy = partition(step, 2), partition(step, 2, memory_bytes=AMPLE)
    low, high = equal.peak_bytes_per_worker, roomy.peak_bytes_per_worker
    assert low < high
    memory = low + share * (high - low)
    found = partition(step, 2, memory_bytes=memory)
    assert found.peak_bytes_per_worker <= memory
    assert roomy.communicated_bytes <= found.communicated_bytes <= equal.communicated_bytes


def test_what_does_not_fit_is_divided_into_equal_shares() -> None:
    """That is the least that can be held."""
    assert replace(partition(text(), 2, memory_bytes=0), memory_bytes=None) == partition(text(), 2)


def test_nothing_is_held_that_nobody_asks_for() -> None:
    """Of no names nothing is allowed; what is held for a short time comes first."""
    room = room_of(series())
    nothing = room.allowing(0)
    assert (nothing.held, nothing.sums, nothing.adding, nothing.names) == ({}, {}, {}, ())
    assert room.allowing(len(room.names)) == room
    assert set(room.sums.values()) <= set(room.names)


def test_parts_of_parts_are_counted_as_they_are() -> None:
    """What the search adds up is what is received box by box, where sizes can be divided."""
    step = text()
    for workers in (2, 4, 8):
        for memory in (None, AMPLE):
            found = partition(step, workers, memory_bytes=memory)
            received = sum(Shares(step, found).received_bytes())
            assert found.communicated_bytes == pytest.approx(received, rel=1e-3)
