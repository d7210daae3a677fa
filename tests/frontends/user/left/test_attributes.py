"""What a step leaves in attributes of modules is there after each call, or the step is refused."""

import copy
import pickle
import warnings
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

import outgrow
from outgrow.errors import Uncapturable
from outgrow.frontends.tracing.capture import capture
from outgrow.frontends.tracing.captured import Captured
from outgrow.frontends.user.left.changes import Changed


class Base(nn.Module):
    """A layer, and places to keep something."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.hidden: Tensor | None = None
        self.earlier: list[Tensor] = []
        self.named: dict[str, Tensor] = {}
        self.is_odd, self.calls = False, 0


class Recurrent(Base):
    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x) if self.hidden is None else self.linear(x) + self.hidden
        self.hidden = x.detach()
        return x.sum()


class Delaying(Base):
    """The hidden state is read a step later than the next one, from where that puts it."""

    def __init__(self) -> None:
        super().__init__()
        self.before: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x) if self.before is None else self.linear(x) + self.before
        self.before, self.hidden = self.hidden, x * 2
        return y.sum()


class Queueing(Base):
    """A list of two takes the place of another one."""

    def __init__(self) -> None:
        super().__init__()
        self.earlier = [torch.zeros(2, 4), torch.zeros(2, 4)]

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x) + self.earlier[0]
        self.earlier = [self.earlier[1], x * 2]
        return y.sum()


class Remembering(Base):
    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        if self.earlier:
            x = x + self.earlier[-1]
        self.earlier.append(x.detach())
        return x.sum()


class Naming(Base):
    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x) + sum(value.mean() for value in self.named.values())
        self.named["x"] = x.detach()
        return x.sum()


class Drawing(Base):
    def forward(self, x: Tensor) -> Tensor:
        if self.hidden is None:
            self.hidden = torch.rand(4)
        return (self.linear(x) * self.hidden).sum()


class Caching(Base):
    """A mask that is made once, of shapes alone, a result that nobody reads, and losses that begin anew each time."""

    def forward(self, x: Tensor) -> Tensor:
        if self.hidden is None:
            self.hidden = torch.ones_like(x).tril()
        self.earlier = []
        self.earlier.append(self.linear(x).square().mean())
        self.named["last"] = self.linear(x) * self.hidden
        return self.named["last"].sum() + self.earlier[0]


class Counting(Base):
    def forward(self, x: Tensor) -> Tensor:
        self.is_odd, self.calls = not self.is_odd, self.calls + 1
        return self.linear(x).sum() * (2 if self.is_odd else 1)


class Turning(Base):
    """Turns what is no number: a tuple, a list, an entry, a value of a configuration, and one that comes and goes."""

    def __init__(self) -> None:
        super().__init__()
        self.pair, self.names, self.rates = (1, 2), ["a", "b"], {"now": 1, "then": 2}
        self.config = SimpleNamespace(scale=1.0)

    def forward(self, x: Tensor) -> Tensor:
        factor = self.pair[0] * self.rates["now"] * self.config.scale
        self.pair = self.pair[::-1]
        self.names.reverse()
        self.rates["now"], self.rates["then"] = self.rates["then"], self.rates["now"]
        self.config.scale = 3.0 - self.config.scale
        if hasattr(self, "extra"):
            del self.extra
        else:
            self.extra = None
        return self.linear(x).sum() * factor


def turned(model: Turning) -> object:
    return (model.pair, list(model.names), dict(model.rates), model.config.scale, hasattr(model, "extra"))


class Tabulating(Base):
    """A table is made once for each length, which is noted beside it."""

    def forward(self, x: Tensor) -> Tensor:
        if self.calls != len(x):
            self.calls = len(x)
            self.hidden = torch.arange(4.0).cos()
        assert self.hidden is not None
        return (self.linear(x) * self.hidden).sum()


class Stretching(Base):
    """The longest batch so far, as a tensor in place of a number."""

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > self.calls:
            self.calls = torch.tensor(len(x))
        return self.linear(x).sum() * self.calls


class Counted(Base):
    """A count beside a value that nobody reads."""

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        x = self.linear(x)
        self.hidden = x
        return x.sum() * self.calls


class Averaging(Base):
    """Divides by a mean of losses, a number."""

    def forward(self, x: Tensor) -> Tensor:
        loss = self.linear(x).square().mean()
        self.calls = 0.9 * self.calls + 0.1 * loss.item()
        return loss / self.calls


class Logging(Base):
    """Keeps numbers that it does not read."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: deque[object] = deque([1.0], maxlen=9)

    def forward(self, x: Tensor) -> Tensor:
        loss = self.linear(x).square().mean()
        self.calls = loss.item()
        self.numbers.append(loss.item())
        return loss


class Rotating(Base):
    """Turns a number called like a table of optimizers, a queue, and a number beside a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.state, self.turn = 0, deque([1.0, 2.0])
        self.queue: dict[str, object] = {"at": 0, "keys": torch.ones(2)}

    def forward(self, x: Tensor) -> Tensor:
        self.state = 1 - self.state
        self.turn.rotate()
        self.queue["at"] = 1 if self.queue["at"] == 0 else 0
        return self.linear(x).sum() * (1 + self.state) * self.turn[0] * (2 if self.queue["at"] else 1)


def captured(model: nn.Module) -> Captured:
    def step(x: Tensor) -> Tensor:
        loss = model(x)
        loss.backward()
        return loss

    return capture(step, [model], [], (torch.ones(2, 4),), {})


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (Recurrent, "hidden"),
        (Delaying, "hidden"),
        (Queueing, "earlier"),
        (Remembering, "earlier"),
        (Naming, "named"),
        (Drawing, "hidden"),
        (Stretching, "calls"),
        (Averaging, "calls"),
    ],
    ids=[
        "attribute",
        "attribute read later",
        "list of two",
        "list",
        "dictionary",
        "random",
        "constant for a number",
        "number",
    ],
)
def test_what_the_next_step_would_read_is_refused(make: Callable[[], Base], name: str) -> None:
    """It would be as it was before; the module is as it was."""
    model = make()
    with pytest.raises(Uncapturable, match=f"an earlier call left in {make.__name__}.{name}"):
        captured(model)
    assert model.hidden is None
    assert not any(item.any() for item in model.earlier)
    assert model.named == {}


class Annealing(Base):
    """Makes a tensor anew of the one that was there."""

    def __init__(self) -> None:
        super().__init__()
        self.heat = torch.ones(())

    def forward(self, x: Tensor) -> Tensor:
        self.heat = self.heat * 0.5
        return self.linear(x).sum() * self.heat


class Beginning(Base):
    """Remembers whether it has begun by a flag beside what it averages."""

    def forward(self, x: Tensor) -> Tensor:
        mean = x.detach().mean(0)
        if self.is_odd:
            assert self.hidden is not None
            mean = 0.9 * self.hidden + mean
        self.hidden = mean
        self.is_odd = True
        return self.linear(x - self.hidden).sum()


class Asking(Base):
    """Asks what is there before it reads it."""

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_tensor(self.hidden):
            x = x + self.hidden
        if "last" in self.named:
            x = x + self.named["last"]
        self.hidden = self.named["last"] = x.detach()
        return self.linear(x).sum()


class Alternating(Base):
    """Does something else for every other entry of a list."""

    def forward(self, x: Tensor) -> Tensor:
        self.earlier.append(x.detach().mean())
        return self.linear(x).sum() * (len(self.earlier) % 2 + 1)


@pytest.mark.parametrize("make", [Annealing, Beginning, Asking, Alternating])
def test_state_that_the_next_step_finds_by_other_ways_is_refused(make: Callable[[], Base]) -> None:
    """By a flag, by the type of what is there, by a key, by how much it is, or as a tensor to make another of."""
    model = make()
    before = dict(vars(model))
    with pytest.raises(Uncapturable, match=rf"{make.__name__}\.(heat|hidden|earlier)"):
        captured(model)
    assert vars(model).keys() == before.keys()
    assert all(item is before[name] for name, item in vars(model).items())
    assert (model.earlier, model.named) == ([], {})


class Starting(Base):
    """Begins otherwise than it goes on."""

    def forward(self, x: Tensor) -> Tensor:
        loss = self.linear(x if self.hidden is None else x * 2).sum()
        self.hidden = x.detach()
        return loss


class Head(nn.Module):
    """Writes over an entry of a list that others have, too."""

    def __init__(self, heads: list[object]) -> None:
        super().__init__()
        self.linear, self.heads = nn.Linear(4, 4), heads

    def forward(self, x: Tensor) -> Tensor:
        x = self.heads[1] = self.linear(x)
        return x


class Supervised(nn.Module):
    """Reads the entries that its head has written, as networks that are supervised at several depths do."""

    def __init__(self) -> None:
        super().__init__()
        self.heads: list[object] = ["depths", torch.zeros(1)]
        self.head = Head(self.heads)

    def forward(self, x: Tensor) -> Tensor:
        x = self.head(x)
        (deep,) = [item for item in self.heads if isinstance(item, Tensor)]
        return x.square().mean() + deep.sum()


def _training(model: nn.Module, *, compiled: bool) -> Callable[[Tensor], Tensor]:
    """A step that trains a model, whose output is its loss; one of ours if it is `compiled`."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Tensor) -> Tensor:
        loss = model(x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return outgrow.compile(step, model=model, optimizer=optimizer, memory_budget="1GiB") if compiled else step


@pytest.mark.usefixtures("no_room_is_ample")
def test_entries_of_a_list_that_modules_share_may_be_written_over_and_read() -> None:
    """The next step finds the same list in all of them, as long as it was."""

    def losses(*, compiled: bool) -> list[float]:
        torch.manual_seed(0)
        model = Supervised()
        run = _training(model, compiled=compiled)
        found = [run(torch.ones(rows, 4)).item() for rows in (2, 2, 3, 2)]
        assert model.heads is model.head.heads
        assert model.heads[0] == "depths"
        assert len(model.heads) == 2
        return [*found, model(torch.ones(2, 4)).item()]

    assert losses(compiled=True) == losses(compiled=False)


@pytest.mark.usefixtures("no_room_is_ample")
def test_a_first_step_that_is_another_one_has_a_plan_of_its_own() -> None:
    """Also where the user begins anew; what nobody asks for makes no difference."""

    def losses(*, compiled: bool) -> tuple[list[float], int]:
        torch.manual_seed(0)
        model = Starting()
        run = _training(model, compiled=compiled)
        found: list[float] = []
        for at in range(6):
            if at == 3:
                model.hidden = None
            found.append(run(torch.ones(2, 4)).item())
        return found, len(run.plans.plans) if isinstance(run, outgrow.Step) else 2

    assert losses(compiled=True) == losses(compiled=False)


def test_what_is_left_can_be_copied_and_looks_like_what_it_was() -> None:
    """A model that is saved, or copied, goes on not knowing it."""
    model = Starting()
    (left,) = captured(model).overwritten
    left.withhold()
    assert isinstance(model.hidden, Tensor)
    again = pickle.loads(pickle.dumps(copy.deepcopy(model)))
    with pytest.raises(Uncapturable, match=r"Starting\.hidden"):
        torch.add(again.hidden, 1)


def test_attributes_of_parameters_that_a_step_changes_are_refused() -> None:
    """They would be as they were in every step."""
    for change in ("seen = getattr(w, 'seen', 0) + 1", "last = w.detach() * 2"):
        model = Base()
        w = model.linear.weight

        def step(x: Tensor, w: Tensor = w, model: Base = model, change: str = change) -> Tensor:
            name, _, value = change.partition(" = ")
            setattr(w, name, eval(value))
            return model.linear(x).sum()

        with pytest.raises(Uncapturable, match=f"the step changes '{change.split()[0]}' of parameter 'linear.weight'"):
            capture(step, [model], [], (torch.ones(2, 4),))
        assert vars(w) == {}


def test_what_depends_on_shapes_or_is_not_read_is_not_refused() -> None:
    """It is made again in every step."""
    model = Caching()
    captured(model)
    assert model.hidden is None
    assert model.earlier == []
    assert model.named == {}


def test_numbers_are_left_as_the_step_leaves_them() -> None:
    """Each number, flag and word that changes, by the value that it has then."""
    model = Counting()
    found = captured(model)
    assert (model.is_odd, model.calls) == (False, 0)
    for item in (*found.settled, *found.counts):
        item.leave()
    assert (model.is_odd, model.calls) == (True, 1)


def test_what_stands_for_numbers_refuses_to_be_read() -> None:
    """In an attribute and in a container, which has one entry more than before."""
    model = Logging()
    found = captured(model)
    assert (model.calls, list(model.numbers)) == (0, [1.0])
    for _ in range(2):
        for item in found.overwritten:
            item.withhold()
        assert len(model.numbers) == 2
    assert "a captured step left in Logging.calls" in repr(model.calls)
    for read in (lambda: f"{model.calls:.3f}", lambda: model.calls == 0, lambda: model.numbers[1] + 1.0):  # type: ignore[operator]
        with pytest.raises(Uncapturable, match="an earlier call left in Logging"):
            read()


class Watching(Base):
    """Keeps results in attributes."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.linear(x)
        loss = hidden.square().mean()
        self.hidden, self.calls, self.given, self.same = hidden, loss.item(), x, hidden
        return loss


@pytest.mark.usefixtures("no_room_is_ample")
def test_small_results_in_attributes_are_those_of_each_call() -> None:
    """In one plan for each shape. An argument that is kept is itself, and what two attributes have is one tensor."""

    def found(*, compiled: bool) -> tuple[object, int]:
        torch.manual_seed(0)
        model = Watching()
        run = _training(model, compiled=compiled)
        seen: list[object] = []
        for rows in (2, 3, 2, 3, 2):
            batch = torch.randn(rows, 4)
            run(batch)
            assert model.given is batch
            assert model.hidden is not None
            assert model.hidden is model.same
            assert model.hidden.requires_grad
            seen += [model.hidden.tolist(), model.calls]
        return seen, len(run.plans.plans) if isinstance(run, outgrow.Step) else 2

    assert found(compiled=True) == found(compiled=False)


class Configured(Base):
    """Keeps a result in a configuration, beside a number that it turns and one that it counts up."""

    def __init__(self) -> None:
        super().__init__()
        self.config, self.turn = SimpleNamespace(loss=None, scale=1.0, turn=0), 5

    def forward(self, x: Tensor) -> Tensor:
        loss = self.linear(x).square().mean() * self.config.scale * self.turn
        self.config.loss = loss.detach()
        self.config.scale = 3.0 - self.config.scale
        self.config.turn += 1
        return loss


@pytest.mark.usefixtures("no_room_is_ample")
def test_what_a_configuration_holds_is_left_beside_a_result_in_it() -> None:
    """Each attribute by itself; what the module calls likewise is something else."""

    def found(*, compiled: bool) -> tuple[list[object], int]:
        torch.manual_seed(0)
        model = Configured()
        run = _training(model, compiled=compiled)
        seen: list[object] = []
        for at in range(7):
            model.turn = 5 if at < 5 else 6
            seen += [run(torch.ones(2, 4)).item(), model.config.scale, model.config.turn]
        return seen, len(run.plans.plans) if isinstance(run, outgrow.Step) else 5

    (ours, plans), (eager, most) = found(compiled=True), found(compiled=False)
    assert ours == eager
    assert plans <= most


@pytest.mark.usefixtures("no_room_is_ample")
def test_a_result_in_a_configuration_refuses_to_be_read() -> None:
    """Also in another configuration that takes the place of the first."""
    model = Configured()
    run = _training(model, compiled=True)
    for _ in range(2):
        model.config = SimpleNamespace(loss=None, scale=1.0, turn=0)
        run(torch.ones(2, 4))
        with pytest.raises(Uncapturable, match=r"left in SimpleNamespace\.loss is read"):
            model.config.loss.item()


class Tallying(Base):
    """Keeps results where pytrees do not look."""

    def __init__(self) -> None:
        super().__init__()
        self.tally: Counter[str] = Counter(seen=1)
        self.sets: dict[str, set[Tensor]] = {"losses": set()}

    def forward(self, x: Tensor) -> Tensor:
        loss = self.linear(x).square().mean()
        self.tally["loss"] = loss.detach()
        self.sets["losses"] = {loss.detach()}
        return loss


def test_results_in_sets_and_counters_refuse_to_be_read() -> None:
    """However deep they are."""
    model = Tallying()
    found = captured(model)
    for _ in range(2):
        for item in found.overwritten:
            item.withhold()
    assert type(model.tally) is Counter
    for value in (model.tally["loss"], *model.sets["losses"]):
        with pytest.raises(Uncapturable, match=r"left in Tallying\.(tally|sets) is read"):
            torch.add(value, 1)


class Scaling(Base):
    """Reads what an earlier call left where the batch has three rows."""

    def forward(self, x: Tensor) -> Tensor:
        if len(x) == 3:
            return self.linear(x).square().mean() * self.calls
        loss = self.linear(x).square().mean()
        self.calls = loss.item()
        return loss


@pytest.mark.usefixtures("no_room_is_ample")
def test_another_step_does_not_read_what_a_call_has_left() -> None:
    """It would be a constant of that step, whether it is one of the same function or of another."""
    for other in (False, True):
        model = Scaling()
        first = _training(model, compiled=True)
        second = _training(model, compiled=True) if other else first
        first(torch.ones(2, 4))
        assert isinstance(model.calls, float)
        with pytest.raises(Uncapturable, match=r"left in Scaling\.calls is read"):
            second(torch.ones(3, 4))
        assert isinstance(model.calls, float)


@pytest.mark.usefixtures("no_room_is_ample")
def test_steps_of_one_model_have_a_plan_whatever_the_other_leaves() -> None:
    """Each finds what it found before."""
    model = Watching()
    first, second = _training(model, compiled=True), _training(model, compiled=True)
    for _ in range(4):
        first(torch.randn(2, 4))
        second(torch.randn(2, 4))
    assert isinstance(second, outgrow.Step)
    assert len(second.plans.plans) <= 2


class Fixed(OrderedDict[str, object]):
    """A dictionary that cannot be updated, as outputs of some libraries."""

    def update(self, *_args: object, **_kwargs: object) -> None:
        raise AssertionError


pytree.register_pytree_node(
    Fixed,
    lambda value: (list(value.values()), list(value)),
    lambda values, keys: Fixed(zip(keys, values, strict=True)),
)


class Grouping(Base):
    """Keeps numbers in lists that come by themselves, and results in a dictionary of another kind."""

    def __init__(self) -> None:
        super().__init__()
        self.groups: defaultdict[str, list[object]] = defaultdict(list)
        self.fixed = Fixed(x=0)

    def forward(self, x: Tensor) -> Tensor:
        loss = self.linear(x).square().mean()
        self.groups["losses"].append(loss.item())
        self.fixed = Fixed(x=loss)
        return loss


def test_containers_stay_what_they_are() -> None:
    """A dictionary that fills itself still does while the next step is tried; one that cannot be filled is replaced."""
    model = Grouping()
    found = captured(model)
    for item in found.overwritten:
        item.withhold()
    assert isinstance(model.groups, defaultdict)
    assert "a captured step left in Grouping.fixed" in repr(model.fixed)


def test_whatever_holds_settled_values_is_followed() -> None:
    """They are as they were after a capture, and as the step leaves them after a call."""
    model = Rotating()
    found = captured(model)
    assert (model.state, list(model.turn), model.queue["at"]) == (0, [1.0, 2.0], 0)
    for item in found.settled:
        item.leave()
    assert (model.state, list(model.turn), model.queue["at"]) == (1, [2.0, 1.0], 1)


def test_whether_a_number_is_one_is_guessed() -> None:
    """A loss that is no number differs from itself."""

    class Skipping(Base):
        def forward(self, x: Tensor) -> Tensor:
            loss = self.linear(x).square().mean()
            number = loss.item()
            return loss * 0 if number != number else loss  # noqa: PLR0124

    (guess,) = captured(Skipping()).guesses
    assert not guess.answer
    assert guess.line is not None
    assert "number != number" in guess.line


def test_what_is_settled_is_left_as_the_step_leaves_it() -> None:
    """Containers, configurations and attributes that come and go, again and again; until then all is as it was."""
    model, eager = Turning(), Turning()
    x = torch.ones(2, 4)
    for _ in range(3):
        before = turned(model)
        found = captured(model)
        assert turned(model) == before
        for item in found.settled:
            item.leave()
        eager(x)
        assert turned(model) == turned(eager)
    for item in found.settled:
        item.leave()
    assert turned(model) == turned(eager)


def test_arrays_and_entries_of_large_containers_are_left_as_the_step_leaves_them() -> None:
    """Once a call, however often it is traced; what it does not write to is left alone."""

    class Recording(Base):
        def __init__(self) -> None:
            super().__init__()
            self.seen, self.marks, self.rows = np.zeros(4), bytearray(4), dict.fromkeys(range(1000), 0.0)

        def forward(self, x: Tensor) -> Tensor:
            self.seen[1] += 1
            self.marks[1] += 1
            self.rows[7] = len(x) / 4
            self.calls += 1
            return self.linear(x).sum()

    model = Recording()
    found = captured(model)
    assert (model.seen[1], model.marks[1], model.rows[7], model.calls) == (0, 0, 0, 0)
    model.seen[2] = model.rows[8] = 5.0
    for item in (*found.settled, *found.counts):
        item.leave()
    assert (model.seen[1], model.marks[1], model.rows[7], model.calls) == (1, 1, 0.5, 1)
    assert (model.seen[2], model.rows[8]) == (5.0, 5.0)


def test_a_container_that_a_step_makes_is_another_one_after_every_call() -> None:
    """What the loop puts into it is not there after the next call; one that the step finds stays the same one."""

    class Resetting(Base):
        def __init__(self) -> None:
            super().__init__()
            self.kinds: dict[str, list[str]] = {"a": ["b"], "c": []}
            self.kind, self.log, self.history, self.config = self.kinds["c"], {"a": [1]}, [], SimpleNamespace(calls=1)
            self.same = self.log

        def forward(self, x: Tensor) -> Tensor:
            self.kind = self.kinds["a"]
            self.log = self.same = {"a": []}
            self.history.append(([], 1))
            self.config = SimpleNamespace(calls=0)
            return self.linear(x).sum()

    model = Resetting()
    found = captured(model)
    assert model.log == {"a": [1]}
    for _ in range(2):
        model.history.clear()
        found.leave()
        assert (model.log, model.history, model.config.calls) == ({"a": []}, [([], 1)], 0)
        assert model.log is model.same
        assert model.kind is model.kinds["a"]
        model.log["a"].append(2)
        model.log["b"] = []
        model.history[0][0].append(3)
        model.config.calls += 1


def test_the_length_of_a_table_that_is_not_left_is_not_left() -> None:
    """The next step would look for the table; a count beside a value that nobody reads is left."""
    model = Tabulating()
    assert captured(model).settled == ()
    assert (model.calls, model.hidden) == (0, None)
    counted = captured(Counted()).settled
    assert [item.value for item in counted if isinstance(item, Changed)] == [1]


class Schedule:
    """Something that is not looked into."""

    def __init__(self) -> None:
        self.calls = 0


class Annealed(Base):
    def __init__(self) -> None:
        super().__init__()
        self.schedule = Schedule()


def test_a_change_that_happens_once_is_told() -> None:
    """Of a number in an object of some other kind: the user keeps it elsewhere."""
    model = Annealed()

    def step(x: Tensor) -> Tensor:
        model.schedule.calls += 1
        return model.linear(x).sum()

    with pytest.warns(UserWarning, match=r"changes Annealed\.schedule\.calls.*does not look into a Schedule"):
        capture(step, [model], [], (torch.ones(2, 4),))


class Swapping(Base):
    """Swaps two tensors, two layers, and a list for another one."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.then = torch.ones(4), torch.zeros(4)
        self.one, self.other = nn.Dropout(0.0), nn.Dropout(1.0)
        self.pair, self.spare = [torch.ones(())], [torch.zeros(())]

    def forward(self, x: Tensor) -> Tensor:
        loss = (self.one(self.linear(x)) * self.now).sum() * self.pair[0]
        self.now, self.then = self.then, self.now
        self.one, self.other = self.other, self.one
        self.pair, self.spare = self.spare, self.pair
        return loss


def places(model: Swapping) -> list[object]:
    return [model.now, model.then, model.one, model.other, model.pair, model.spare]


def test_tensors_and_layers_that_a_step_swaps_are_left_swapped() -> None:
    """Until the step is called all is as it was; then each is where the other was, and back again."""
    model = Swapping()
    before = places(model)
    swapped = [before[at] for at in (1, 0, 3, 2, 5, 4)]
    for expected, left in ((before, swapped), (swapped, before)):
        found = captured(model)
        assert list(map(id, places(model))) == list(map(id, expected))
        for item in found.settled:
            item.leave()
        assert list(map(id, places(model))) == list(map(id, left))


def test_layers_with_tensors_that_a_step_swaps_are_refused() -> None:
    """They are called by their places, which are as they were."""

    class Turning(Base):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = (nn.BatchNorm1d(4, affine=False) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            self.one, self.other = self.other, self.one
            return self.one(self.linear(x)).sum()

    model = Turning()
    layers = dict(model.named_modules())
    with pytest.raises(Uncapturable, match=r"changes which module is 'one'.* outside of the step"):
        captured(model)
    assert dict(model.named_modules()) == layers


class Renewing(Annealed):
    """Makes another object in every step."""

    def forward(self, x: Tensor) -> Tensor:
        loss = self.linear(x).sum() * (self.schedule.calls if self.is_odd else 1)
        self.schedule = Schedule()
        return loss


def test_another_object_that_is_not_looked_into_must_not_be_read() -> None:
    """Nobody could tell it from the one before; who does not read it finds one after the step."""
    model = Renewing()
    first = model.schedule
    (left,) = captured(model).settled
    assert model.schedule is first
    left.leave()
    assert isinstance(model.schedule, Schedule)
    assert model.schedule is not first
    model.is_odd = True
    with pytest.raises(Uncapturable, match=r"an earlier call left in Renewing\.schedule"):
        captured(model)


def test_what_is_put_into_an_argument_is_told() -> None:
    """The caller's own dictionary does not get it; what is taken out of it needs no word."""
    model = Base()

    def step(batch: dict[str, Tensor]) -> Tensor:
        loss = model.linear(batch.pop("x")).sum()
        if model.is_odd:
            batch["loss"] = loss
        return loss

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        capture(step, [model], [], ({"x": torch.ones(2, 4)},))
    model.is_odd = True
    with pytest.warns(UserWarning, match="puts something into a dict or a list among its arguments"):
        capture(step, [model], [], ({"x": torch.ones(2, 4)},))


class Auxiliary(Base):
    """Leaves a number, or nothing where the batch has three rows."""

    def __init__(self) -> None:
        super().__init__()
        self.latest: float | None = None

    def forward(self, x: Tensor) -> Tensor:
        loss = self.linear(x).square().mean()
        self.latest = None if len(x) == 3 else loss.item()
        return loss


@pytest.mark.usefixtures("no_room_is_ample")
def test_a_step_that_empties_an_attribute_does_so_whatever_was_there_when_it_was_captured() -> None:
    """Also where the user had emptied it before."""

    def found(*, compiled: bool) -> list[object]:
        torch.manual_seed(0)
        model = Auxiliary()
        run, seen = _training(model, compiled=compiled), list[object]()
        for rows in (2, 2, 0, 3, 2, 3, 0, 3):
            if rows:
                run(torch.ones(rows, 4))
            else:
                model.latest = None
            seen.append(model.latest)
        return seen

    assert found(compiled=True) == found(compiled=False)
