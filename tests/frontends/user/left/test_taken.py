"""A step that takes its batch from where it is gone then is refused: it would train on the first one for ever."""

import multiprocessing
from collections import deque
from collections.abc import Callable, Iterator
from queue import Queue, SimpleQueue
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from outgrow.errors import Uncapturable
from outgrow.frontends.tracing.capture import capture

MODEL = nn.Linear(4, 4)
BATCHES = [torch.full((2, 4), float(at)) for at in range(3)]
ITERATOR = iter(BATCHES)


class Trainer:
    """Takes batches from what it holds."""

    def __init__(self, batches: Iterator[Tensor]) -> None:
        self.batches = batches

    def batch(self) -> Tensor:
        return next(self.batches)

    def step(self) -> Tensor:
        return MODEL(self.batch()).sum()


def closing(batches: Iterator[Tensor]) -> Callable[[], Tensor]:
    return lambda: MODEL(next(batches)).sum()


@pytest.mark.parametrize("make", [closing, lambda batches: Trainer(batches).step], ids=["closure", "attribute"])
def test_a_step_that_takes_from_an_iterator_is_refused(make: Callable[[Any], Callable[[], Tensor]]) -> None:
    """Before it has taken anything."""
    for iterator in (iter(BATCHES), (batch for batch in BATCHES), iter(DataLoader(BATCHES))):  # pyright: ignore[reportArgumentType]
        with pytest.raises(Uncapturable, match=r"takes from `.*batches`, an iterator .*pass it as an argument"):
            capture(make(iterator), [MODEL], [])
        assert len(list(iterator)) == len(BATCHES)


def test_a_global_iterator_and_one_that_is_given_are_refused() -> None:
    """The batch is to be given."""

    def from_global() -> Tensor:
        return MODEL(next(ITERATOR)).sum()

    def from_argument(batches: Iterator[Tensor]) -> Tensor:
        return MODEL(next(batches)).sum()

    with pytest.raises(Uncapturable, match="`ITERATOR`"):
        capture(from_global, [MODEL], [])
    with pytest.raises(Uncapturable, match="an argument"):
        capture(from_argument, [MODEL], [], (ITERATOR,))
    assert next(ITERATOR) is BATCHES[0]


@pytest.mark.parametrize(
    "batches", [Queue(), SimpleQueue(), multiprocessing.Queue()], ids=lambda queue: type(queue).__module__
)
def test_a_step_that_gets_from_a_queue_is_refused(batches: Any) -> None:
    """It may put something there."""

    def getting() -> Tensor:
        return MODEL(batches.get()).sum()

    def putting(x: Tensor) -> Tensor:
        batches.put(1)
        return MODEL(x).sum()

    with pytest.raises(Uncapturable, match=r"takes from `batches\.get`"):
        capture(getting, [MODEL], [])
    capture(putting, [MODEL], [], (BATCHES[0],))


@pytest.mark.parametrize("make", [list, deque, lambda items: dict(enumerate(items))], ids=["list", "deque", "dict"])
def test_a_step_that_takes_out_of_a_container_is_refused(make: Callable[[list[Tensor]], Any]) -> None:
    """And the container has it again."""
    batches = make(BATCHES)

    def step() -> Tensor:
        return MODEL(batches.popleft() if isinstance(batches, deque) else batches.pop(0)).sum()

    with pytest.raises(Uncapturable, match=r"takes something out of `batches`"):
        capture(step, [MODEL], [])
    assert [id(batch) for batch in (batches.values() if isinstance(batches, dict) else batches)] == [*map(id, BATCHES)]


def test_what_is_read_and_stays_is_no_matter(tmp_path: Any) -> None:
    """A container that the step looks at, and a file to which it writes."""
    with (tmp_path / "log").open("w") as log:

        def step(x: Tensor) -> Tensor:
            log.write("step")
            return MODEL(x).sum() * len(BATCHES)

        assert len(capture(step, [MODEL], [], (BATCHES[0],)).graph.ops) > 0


@pytest.mark.parametrize(
    "take",
    [
        lambda batches: batches.pop(),
        lambda batches: batches.append(batches.popleft() if isinstance(batches, deque) else batches.pop(0)),
        lambda batches: batches.reverse(),
        lambda batches: batches.__delitem__(0),
    ],
    ids=["pop", "rotate", "reverse", "del"],
)
@pytest.mark.parametrize("kind", [list, deque])
def test_a_list_that_is_given_stays_as_it_is(take: Callable[[Any], object], kind: Callable[[Any], Any]) -> None:
    """The step has another list than the caller, whose next call would begin with the same batch."""

    def step(given: dict[str, Any]) -> Tensor:
        x = given["batches"][0]
        take(given["batches"])
        return MODEL(x).sum()

    with pytest.raises(Uncapturable, match="out of a list among its arguments"):
        capture(step, [MODEL], [], ({"batches": kind(BATCHES)},))


def test_a_list_that_is_given_may_grow_and_a_dictionary_may_be_taken_from() -> None:
    """The first is remarked, and so is an exchange.

    Of a dictionary that is made for each call nobody misses what the step takes.
    """

    def growing(batches: list[Tensor]) -> Tensor:
        batches.append(batches[0] * 2)
        return MODEL(batches[-1]).sum()

    def exchanging(batch: dict[str, Tensor]) -> Tensor:
        batch["x"], batch["y"] = batch["y"], batch["x"]
        return MODEL(batch["x"]).sum()

    with pytest.warns(UserWarning, match="puts something into"):
        capture(growing, [MODEL], [], ([*BATCHES],))
    with pytest.warns(UserWarning, match="puts something into"):
        capture(exchanging, [MODEL], [], ({"x": BATCHES[0], "y": BATCHES[1]},))
    capture(lambda batch: MODEL(batch.pop("x")).sum(), [MODEL], [], ({"x": BATCHES[0]},))
