"""What a step gathers outside is there after each call as in eager mode; one plan serves whatever was there before."""

from collections import Counter, defaultdict, deque
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import pytest
import torch
from torch import Tensor, nn

import outgrow
from tests.frontends.user.left.leaving import Leave, plans_of

pytestmark = pytest.mark.usefixtures("no_room_is_ample")
Gather: TypeAlias = Leave["Log"]
ROWS = (3, 3, 3, 3, 2, 3)
"""Of the batches: the shorter one comes when a short deque is full."""


class Meter:
    """The average of what it is told, as examples of torch have it."""

    def __init__(self) -> None:
        self.latest = self.average = self.sum = self.count = 0.0

    def update(self, value: float, count: int) -> None:
        self.latest = value
        self.sum += value * count
        self.count += count
        self.average = self.sum / self.count


class Window:
    """The last values of many, as torchvision's references have it."""

    def __init__(self, size: int = 3) -> None:
        self.values: deque[float] = deque(maxlen=size)
        self.total, self.count = 0.0, 0

    def update(self, value: float, count: int = 1) -> None:
        self.values.append(value)
        self.count += count
        self.total += value * count


class Windows:
    """One for each name that comes."""

    def __init__(self) -> None:
        self.meters: defaultdict[str, Window] = defaultdict(Window)

    def update(self, **values: object) -> None:
        for name, value in values.items():
            number = value.item() if isinstance(value, Tensor) else value
            assert isinstance(number, float | int)
            self.meters[name].update(number)

    def __getattr__(self, name: str) -> object:
        if name in self.meters:
            return self.meters[name]
        raise AttributeError(name)


@dataclass
class Latest:
    """What a step has found last."""

    loss: object
    count: int


class Sum(NamedTuple):
    """A sum in a tuple."""

    loss: float = 0.0
    count: int = 0


class Table(dict[str, object]):
    """A dictionary with attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.total, self.count = 0.0, 0


class Losses(list[object]):
    """A list of the user's."""


class Log:
    """Where a step may put what it computes."""

    total = 0.0

    def __init__(self) -> None:
        self.meter, self.steps, self.mean, self.last = Meter(), 0, 0.0, None
        self.losses: list[object] = []
        self.kept = self.losses
        self.latest: deque[object] = deque(maxlen=2)
        self.by_name: dict[str, Any] = {"loss": 0.0, "losses": [], "best": 3.0}
        self.each: defaultdict[str, list[object]] = defaultdict(list)
        self.made: Any = None
        self.full: deque[object] = deque([1.0, 1.0], maxlen=2)
        self.waiting: deque[object] = deque([1.0])
        self.best, self.skipped = 2.0, 0
        self.counter: Counter[str] = Counter(seen=1)
        self.windows = Windows()
        self.windows.meters["rate"] = Window(1)
        self.sums: defaultdict[str, float] = defaultdict(float)
        self.table: list[Any] = [[0.0, 1.0], [2.0, 3.0]]
        self.lists: list[Any] = [[], []]
        self.meters = [Window(), Window()]
        self.history: dict[str, Any] = {"train": {}, "counts": {"a": 0, "b": 5}, "sums": {}}
        self.tuple, self.with_sum = Sum(), Table()

    @property
    def shown(self) -> object:
        """What is shown, and noted."""
        return self.made

    @shown.setter
    def shown(self, value: object) -> None:
        self.losses.append(value)


def adding(log: Log, loss: Tensor, _x: Tensor) -> None:
    log.total += loss.item()
    log.by_name["loss"] += loss.item() ** 2


def averaging(log: Log, loss: Tensor, x: Tensor) -> None:
    log.meter.update(loss.item(), len(x))


def smoothing(log: Log, loss: Tensor, _x: Tensor) -> None:
    log.mean = 0.9 * log.mean + 0.1 * loss.item()


def appending(log: Log, loss: Tensor, x: Tensor) -> None:
    log.steps += 1
    log.losses.append(loss.item())
    log.latest.append(loss.detach())
    log.by_name["losses"].extend([len(x), (loss.detach().sqrt(), {"loss": loss.item()})])


def appending_in_place(log: Log, loss: Tensor, _x: Tensor) -> None:
    log.losses += [loss.item()]


def appending_constants(log: Log, _loss: Tensor, x: Tensor) -> None:
    log.losses.append(len(x))


def putting(log: Log, loss: Tensor, x: Tensor) -> None:
    log.by_name["last"] = loss.detach()
    log.by_name["number"] = loss.item()
    log.by_name["another"] = loss.detach()
    log.made = {"loss": loss.item(), "first": [x[0, 0], loss.detach() * 2]}


def beginning_new_lists(log: Log, loss: Tensor, _x: Tensor) -> None:
    log.each["loss"].append(loss.item())


def now_and_then(log: Log, loss: Tensor, _x: Tensor) -> None:
    log.steps += 1
    log.total += loss.item()
    if log.steps % 3 == 0:
        log.losses.append(log.total / 3)
        log.total = 0.0


def every_other_time(log: Log, loss: Tensor, _x: Tensor) -> None:
    log.steps += 1
    log.made = loss.item() if log.steps % 2 else None


def deciding(log: Log, loss: Tensor, _x: Tensor) -> None:
    if loss > 0.5:
        log.losses.append(loss.item())
    else:
        log.mean += loss.item()


def deciding_by_the_best(log: Log, loss: Tensor, _x: Tensor) -> None:
    log.steps += 1
    if loss < log.best:
        log.best = loss.item()
    log.mean = min(log.mean, -loss.item())


def counting_and_deciding(log: Log, loss: Tensor, _x: Tensor) -> None:
    if loss > 0.7:
        log.skipped += 1
    else:
        log.total += loss.item()


def filling_windows(log: Log, loss: Tensor, x: Tensor) -> None:
    log.full.append(loss.item() * (log.full.maxlen or 5))
    log.full.append(len(x))


def updating(log: Log, loss: Tensor, x: Tensor) -> None:
    log.by_name.update(count=len(x), loss=loss.item(), mean=loss.detach() / 2)
    each: Any = log.each
    for name, value in (("half", loss.item() / 2), ("one", 1)):
        each[name] = value
    log.each.setdefault("all", []).append(loss.item())


def replacing(log: Log, loss: Tensor, x: Tensor) -> None:
    log.made = {}
    log.made["loss"] = loss.item()
    log.made["count"] = len(x)
    log.losses = []
    log.losses.append(loss.item())
    log.mean = log.made["loss"] + [*log.made.values()][1]


def replacing_with_constants(log: Log, loss: Tensor, _x: Tensor) -> None:
    log.total += loss.item()
    log.by_name = {}
    log.by_name["best"] = 1.0
    log.losses = [1]


def putting_numbers_for_others(log: Log, loss: Tensor, _x: Tensor) -> None:
    log.losses = loss.item()  # type: ignore[assignment]
    log.by_name["losses"] = Latest(loss.item(), 1)
    log.made = Latest(loss.detach(), 2)


def updating_meters(log: Log, loss: Tensor, x: Tensor) -> None:
    log.windows.update(one=1, loss=loss, half=loss.item() / 2, rate=0.1)
    log.windows.meters["rate"].update(loss.item(), len(x))


def adding_by_name(log: Log, loss: Tensor, _x: Tensor) -> None:
    for name, value in {"loss": loss.item(), "half": loss.item() / 2}.items():
        log.each[name].append(value)
        log.sums[name] += value
        log.history["sums"][name] = log.history["sums"].get(name, 0) + value
        if name not in log.history["train"]:
            log.history["train"][name] = []
        log.history["train"][name].append(value)
        log.by_name.setdefault("of " + name, []).append(value)


def counting_by_name(log: Log, loss: Tensor, _x: Tensor) -> None:
    for name in ("a", "b"):
        log.history["counts"][name] += 1
    log.mean = loss.item() * (2 if log.history["counts"]["a"] > 2 else 1)


def writing_into_lists(log: Log, loss: Tensor, _x: Tensor) -> None:
    log.table[0][1] += loss.item()
    log.table[1][0] = loss.item() / 2
    log.lists[1].append(loss.item())
    log.waiting[0] = loss.detach()
    for at, value in enumerate((loss.item(), 2.0)):
        log.meters[at].update(value)


def making_objects(log: Log, loss: Tensor, x: Tensor) -> None:
    log.made = Windows()
    log.made.update(loss=loss.item(), one=1)
    log.losses.append(Meter())
    log.losses[-1].update(loss.item(), len(x))  # type: ignore[attr-defined]


def growing(log: Log, loss: Tensor, _x: Tensor) -> None:
    log.lists[1].append(loss.item())
    log.lists.append([])


def setting_properties(log: Log, loss: Tensor, _x: Tensor) -> None:
    log.shown = loss.item()


def adding_in_tuples(log: Log, loss: Tensor, x: Tensor) -> None:
    log.tuple = Sum(log.tuple.loss + loss.item(), len(x))


def adding_to_attributes_of_a_dictionary(log: Log, loss: Tensor, x: Tensor) -> None:
    log.with_sum.total += loss.item()
    log.with_sum.count += len(x)


def reading_what_it_appends(log: Log, loss: Tensor, _x: Tensor) -> None:
    log.losses.append(loss.item())
    log.mean = sum(log.losses) / len(log.losses)  # type: ignore[arg-type]


def reading_by_another_name(log: Log, loss: Tensor, _x: Tensor) -> None:
    log.losses.append(loss.item())
    log.mean = log.kept[-1]  # type: ignore[assignment]


def adding_to_a_counter(log: Log, loss: Tensor, _x: Tensor) -> None:
    log.counter.update(seen=loss.item())  # type: ignore[arg-type]


GOING_ON: dict[str, tuple[Gather, int]] = {
    "sums": (adding, 3),
    "averages": (averaging, 3),
    "means that forget": (smoothing, 3),
    "lists": (appending, 3),
    "lists in place": (appending_in_place, 3),
    "constants in lists": (appending_constants, 3),
    "places": (putting, 4),
    "new lists": (beginning_new_lists, 4),
    "counts as well": (now_and_then, 4),
    "counts that decide": (every_other_time, 4),
    "decisions": (deciding, 5),
    "decisions by the best": (deciding_by_the_best, 6),
    "counts in decisions": (counting_and_deciding, 6),
    "full windows": (filling_windows, 3),
    "entries without names": (updating, 4),
    "places that are read": (replacing, 4),
    "places for constants": (replacing_with_constants, 4),
    "numbers for others": (putting_numbers_for_others, 4),
    "properties": (setting_properties, 3),
    "meters by name": (updating_meters, 4),
    "sums and lists by name": (adding_by_name, 4),
    "counts by name": (counting_by_name, 4),
    "entries of lists": (writing_into_lists, 4),
    "tuples": (adding_in_tuples, 3),
    "attributes of dictionaries": (adding_to_attributes_of_a_dictionary, 3),
}
"""What is gathered, and how many plans that may take: for the first step, for others, and for the shorter batch."""
READ: dict[str, Gather] = {
    "itself": reading_what_it_appends,
    "under another name": reading_by_another_name,
    "in a counter": adding_to_a_counter,
    "by its place": making_objects,
    "in a list that grows": growing,
}


def played(gather: Gather, budget: str | None) -> tuple[object, int]:
    """Return what is in the log after some calls, and how many plans there are, if it is planned."""
    log = Log()
    plans = plans_of(gather, log, ROWS, budget)
    return plain(vars(log)), plans


def plain(value: Any) -> object:
    """Return a value with a list in place of each tensor, which can be compared."""
    if isinstance(value, Tensor):
        return ["tensor", value.dtype, value.tolist(), value.requires_grad]
    if isinstance(value, Meter | Latest | Window | Windows):
        return plain(vars(value))
    if isinstance(value, Table):
        return [plain({**value}), plain(vars(value))]
    if isinstance(value, dict):
        return [(name, plain(item)) for name, item in value.items()]
    return [type(value), *map(plain, value)] if isinstance(value, list | tuple | deque) else (type(value), value)


@pytest.mark.parametrize("case", GOING_ON)
def test_what_is_gathered_goes_on_from_call_to_call(case: str) -> None:
    """To the last bit, and it is no other step in every call."""
    gather, most = GOING_ON[case]
    expected, _ = played(gather, None)
    found, plans = played(gather, "10TiB")
    assert found == expected
    assert plans <= most


@pytest.mark.parametrize("case", READ)
@pytest.mark.filterwarnings("ignore:.*captured")
def test_what_is_gathered_and_read_is_as_in_eager_mode(case: str) -> None:
    """Then each call is another step."""
    expected, _ = played(READ[case], None)
    found, plans = played(READ[case], "10TiB")
    assert found == expected
    assert plans == len(ROWS)


def test_a_capture_leaves_nothing() -> None:
    """Where it fails, too."""
    log = Log()

    def step(x: Tensor) -> Tensor:
        loss = x.sum()
        adding(log, loss, x)
        averaging(log, loss, x)
        appending(log, loss, x)
        putting(log, loss, x)
        beginning_new_lists(log, loss, x)
        raise ValueError("after all")

    before = plain(vars(log))
    with pytest.raises(ValueError, match="after all"):
        outgrow.compile(step, model=nn.Linear(4, 4), memory_budget="10TiB")(torch.ones(3, 4))
    assert plain(vars(log)) == before


def test_a_refused_step_leaves_what_there_was() -> None:
    """Also in objects and lists that are in lists, and in the place of a tensor."""
    log, meters, table, last, own = Log(), [Meter()], [[0, 0], [0, 0]], torch.zeros(2), Losses([1.0])

    def step(x: Tensor) -> Tensor:
        nonlocal last
        loss = x.sum()
        last = loss
        meters[0].update(loss.item(), 1)
        table[0][1] += loss.item()  # type: ignore[assignment]
        own.append(loss.item())
        log.made = [Meter()]
        log.made[0].latest = loss.item()
        return loss

    before = plain([meters, table, last, own, log.made])
    with pytest.raises(outgrow.OutgrowError, match="the step keeps a number"):
        outgrow.compile(step, model=nn.Linear(4, 4), memory_budget="10TiB")(torch.ones(3, 4))
    assert plain([meters, table, last, own, log.made]) == before


def test_a_window_that_nobody_looks_at_is_not_emptied() -> None:
    """No call would do it again."""
    log = Log()

    def step(x: Tensor) -> Tensor:
        loss = x.sum()
        log.full.append(loss.item())
        log.full.clear()
        return loss

    with pytest.raises(outgrow.OutgrowError, match=r"more to `.*full`, a deque with a maxlen"):
        outgrow.compile(step, model=nn.Linear(4, 4), memory_budget="10TiB")(torch.ones(3, 4))
    assert [*log.full] == [1.0, 1.0]


def test_lists_that_change_places_are_refused() -> None:
    """Each call would have to append to another one."""
    log = Log()

    def step(x: Tensor) -> Tensor:
        loss = x.sum()
        log.losses, log.lists[1] = log.lists[1], log.losses
        log.losses.append(loss.item())
        return loss

    with pytest.raises(outgrow.OutgrowError, match=r"puts the list of `.*lists\.1` at `.*losses`, and results"):
        outgrow.compile(step, model=nn.Linear(4, 4), memory_budget="10TiB")(torch.ones(3, 4))
    assert (log.losses, log.lists[1]) == ([], [])


def test_objects_that_a_step_makes_are_others_in_each_call() -> None:
    """Also where nothing of the step is in them; what was there before stays the same one."""
    model, log, kept = nn.Linear(4, 4), Log(), Latest(0.5, 3)

    def step(x: Tensor) -> Tensor:
        loss = model(x).sum()
        log.made = Windows()
        log.made.update(one=1, loss=loss)
        log.by_name["kept"] = kept
        return loss

    ran, made = outgrow.compile(step, model=model, memory_budget="10TiB"), list[Any]()
    for _ in range(3):
        ran(torch.ones(3, 4))
        made.append(log.made)
        assert [*log.made.meters] == ["one", "loss"]
        assert log.by_name["kept"] is kept
        log.made.meters["one"].update(5)
    assert made[1] is not made[2]
    assert made[1].meters["one"] is not made[2].meters["one"]
    assert [item.meters["one"].count for item in made] == [2, 2, 2]


def test_an_object_that_a_step_puts_at_two_places_is_refused() -> None:
    """Each call would put two there."""
    log = Log()

    def step(x: Tensor) -> Tensor:
        loss = x.sum()
        log.made = log.by_name["made"] = Meter()
        log.made.update(loss.item(), 1)
        return loss

    with pytest.raises(outgrow.OutgrowError, match="a Meter holds numbers of tensors"):
        outgrow.compile(step, model=nn.Linear(4, 4), memory_budget="10TiB")(torch.ones(3, 4))


def test_a_dictionary_that_is_filled_without_names_may_be_emptied() -> None:
    """What the step writes there it writes anew, also where that was there before."""
    model, entries = nn.Linear(4, 4), dict[str, object]()

    def step(x: Tensor) -> Tensor:
        loss = model(x).sum()
        entries.update(rate=0.1, loss=loss.detach())
        return loss

    ran = outgrow.compile(step, model=model, memory_budget="10TiB")
    for call in range(4):
        ran(torch.ones(3, 4))
        assert list(entries) == ["rate", "loss"]
        assert entries["rate"] == 0.1
        entries.clear() if call == 2 else entries.update(rate=5)
    assert len(ran.plans.plans) <= 2
