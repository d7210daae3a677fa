"""What a step prints and logs is said after each call, as in eager mode, with the numbers of that call."""

import logging
import sys
from collections.abc import Iterator
from io import StringIO
from typing import TypeAlias

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import outgrow
from outgrow.errors import Uncapturable
from tests.frontends.user.left.leaving import Leave, plans_of

pytestmark = pytest.mark.usefixtures("no_room_is_ample")
LOGGER = logging.getLogger("a training")


class Count:
    """What goes on from call to call."""

    def __init__(self) -> None:
        self.steps, self.sum = 0, 0.0


Say: TypeAlias = Leave[Count]


def text(_count: Count, loss: Tensor, _x: Tensor) -> None:
    print(f"loss {loss.item():>8.3f}, {loss.item()!r}, {loss:.2f} of {loss.shape}", "{:.1f}".format(loss.item()))  # noqa: UP032 - it may
    print("a" + str(loss.item()) + "b", "%s c" % (loss.item(),), ", ".join(f"{x:.1f}" for x in (loss.item(), 2.0)))  # noqa: UP031 - it may


def objects(_count: Count, loss: Tensor, _x: Tensor) -> None:
    print("loss", loss.item(), loss.detach(), {"of": [loss.item(), 3]}, [1, "two"], None, sep=";", end="!\n")


def nothing_of_the_step(_count: Count, _loss: Tensor, _x: Tensor) -> None:
    print("a step")


def counted(count: Count, loss: Tensor, _x: Tensor) -> None:
    count.steps += 1
    count.sum += loss.item()
    print(f"step {count.steps}: {count.sum / count.steps:.4f}", count.steps)


def every_third(count: Count, loss: Tensor, _x: Tensor) -> None:
    count.steps += 1
    if count.steps % 3 == 0:
        print(count.steps, f"{loss.item():.3f}")


def decided(_count: Count, loss: Tensor, _x: Tensor) -> None:
    if loss > 1:
        print("large", loss.item())


def before_it_is_written(_count: Count, loss: Tensor, _x: Tensor) -> None:
    noted = loss.detach().clone()
    print("before", noted)
    noted.add_(1)


def logged(_count: Count, loss: Tensor, _x: Tensor) -> None:
    LOGGER.info("loss %.3f of %s", loss.item(), "all")
    LOGGER.warning(f"loss {loss.item():.3f}")  # noqa: G004 - people do
    LOGGER.info("%(loss)s", {"loss": loss.item()})
    LOGGER.info("%(all)d", {"all": 2})
    LOGGER.info("%r of %d", [1, "two"], np.int64(3))
    LOGGER.debug("nobody hears %s", loss.item())
    try:
        int("in a step")
    except ValueError:
        LOGGER.exception("at %s", loss.item())


SAYING: dict[str, tuple[Say, int]] = {
    "texts": (text, 2),
    "objects": (objects, 2),
    "nothing of the step": (nothing_of_the_step, 2),
    "counts": (counted, 2),
    "now and then": (every_third, 3),
    "by a decision": (decided, 4),
    "what is written later": (before_it_is_written, 2),
    "logs": (logged, 2),
}
"""What is said, and how many plans that may take: two for the state of the first step and of others."""


def plans(say: Say, budget: str | None) -> int:
    return plans_of(say, Count(), [3] * 6, budget)


@pytest.fixture
def log() -> Iterator[StringIO]:
    """What is logged, with tracebacks, but for what helps to find errors."""
    handler = logging.StreamHandler(found := StringIO())
    handler.setFormatter(logging.Formatter("%(name)s %(levelname)s %(message)s"))
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.INFO)
    yield found
    LOGGER.removeHandler(handler)


@pytest.mark.parametrize("case", SAYING)
def test_what_is_said_is_said_in_every_call(case: str, log: StringIO, capsys: pytest.CaptureFixture[str]) -> None:
    """In the same words, and it is no other step in every call."""
    say, most = SAYING[case]
    plans(say, None)
    expected, logged = capsys.readouterr().out, log.getvalue()
    assert expected or logged
    assert plans(say, "10TiB") <= most
    assert capsys.readouterr().out == expected
    assert log.getvalue() == logged * 2


def test_what_a_record_has_beside_its_message_is_of_each_call() -> None:
    """By `extra`, in its place among what others need of records."""
    records: list[logging.LogRecord] = []
    LOGGER.addFilter(filtered := lambda record: not records.append(record))

    def say(_count: Count, loss: Tensor, _x: Tensor) -> None:
        LOGGER.warning("a step", extra={"loss": loss.item(), "of": 3})

    def noted(budget: str | None) -> list[list[object]]:
        records.clear()
        plans(say, budget)
        return [[[*vars(record)], vars(record)["loss"], vars(record)["of"]] for record in records]

    assert noted("10TiB") == noted(None)
    LOGGER.removeFilter(filtered)


def test_levels_that_are_set_between_calls_are_heard(log: StringIO) -> None:
    """Of the logger, of those above it, and of all."""
    each = (logging.INFO, 0)
    levels = (each, (logging.ERROR, 0), (logging.INFO, logging.INFO), each, each, each)
    model = nn.Linear(4, 4)

    def step(x: Tensor) -> None:
        model(x).sum().backward()
        LOGGER.info("a step")

    ran = outgrow.compile(step, model=model, memory_budget="10TiB")
    heard: list[int] = []
    for level, disabled in levels:
        LOGGER.setLevel(level)
        logging.disable(disabled)
        ran(torch.ones(2, 4))
        heard.append(log.getvalue().count("a step"))
    assert heard == [1, 1, 1, 2, 3, 4]


def kept(_count: Count, loss: Tensor, _x: Tensor) -> None:
    words = f"loss {loss.item()}"
    print(words)


def written(_count: Count, loss: Tensor, _x: Tensor) -> None:
    sys.stdout.write(f"loss {loss.item()}\n")


@pytest.mark.parametrize("say", [kept, written])
def test_a_text_that_may_go_elsewhere_is_refused(say: Say, capsys: pytest.CaptureFixture[str]) -> None:
    """With its line."""
    with pytest.raises(Uncapturable, match=r"loss \{loss.item\(\)\}.* needs the content of a tensor"):
        plans(say, "10TiB")
    assert not capsys.readouterr().out
