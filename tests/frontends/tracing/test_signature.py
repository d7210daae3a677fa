"""A call that another capture would be right for has another signature, and only such a call."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

import outgrow
from outgrow.errors import Uncapturable
from outgrow.frontends import within_budget
from outgrow.frontends.tracing.capture import capture
from outgrow.frontends.tracing.signature import glance, signature
from outgrow.frontends.user.reach.hooks import hooks
from outgrow.frontends.user.training.schedules import schedulers_put_off
from outgrow.frontends.user.training.state import Training
from tests.frontends.replay import replay


class Scaled(nn.Sequential):
    """Layers, and attributes of several kinds."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(*layers)
        self.sizes, self.scale, self.activation = (1, (2, 3)), torch.ones(()), torch.tanh
        self.widths, self.rates = [1, 2], {"warm": 0.1}
        self.config, self.options = SimpleNamespace(scale=1.0), Options([3])
        self.kind, self.way = torch.float32, partial(torch.add, alpha=1)
        self.first, self.second, self.third = None, True, 1
        self.bias, self.turn, self.constant = 0.0, 0j, Constant(1)
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)
        self.used = self.one


@dataclass
class Options:
    """A configuration that may be changed."""

    depths: list[int]


@dataclass(frozen=True)
class Constant:
    """A configuration that equals another one: that of `True` equals that of 1."""

    number: float


def rename(model: Any) -> None:
    model.another = model.other
    del model.other


def turn_around(model: Any) -> None:
    model.one, model.other = model.other, model.one


def swap(model: Any) -> None:
    model.first, model.second = model.second, model.first


class Own(Tensor):
    """A type of tensors of its own, which may answer operators otherwise."""


def model_with_a_number() -> nn.Sequential:
    torch.manual_seed(0)
    return Scaled(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.1), nn.Linear(4, 4))


def exchange(model: nn.Sequential) -> None:
    model[2] = nn.Identity()


def tie(model: Any) -> None:
    model[3].weight.data = model[0].weight.data


def flatten(model: nn.Module) -> None:
    parameters = list(model.parameters())
    nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(parameters), parameters)


CHANGES: dict[str, Callable[[Any], object]] = {
    "a probability": lambda model: setattr(model[2], "p", 0.5),
    "a momentum": lambda model: setattr(model[1], "momentum", 0.5),
    "a layer": exchange,
    "a hook": lambda model: model[0].register_forward_hook(lambda *_: None),
    "a hook of a weight": lambda model: model[0].weight.register_hook(lambda gradient: gradient),
    "a hook behind a gradient": lambda model: model[0].weight.register_post_accumulate_grad_hook(lambda _: None),
    "a flag": lambda model: model.eval(),
    "sizes": lambda model: setattr(model, "sizes", (1, (2, 4))),
    "a tensor": lambda model: setattr(model, "scale", torch.ones(())),
    "a function": lambda model: setattr(model, "activation", torch.relu),
    "an entry of a list": lambda model: model.widths.append(3),
    "an entry of a dictionary": lambda model: model.rates.update(warm=0.2),
    "a configuration": lambda model: setattr(model, "config", SimpleNamespace(scale=2.0)),
    "a value of a configuration": lambda model: setattr(model.config, "scale", 2.0),
    "a list of a configuration": lambda model: model.options.depths.append(4),
    "a type": lambda model: setattr(model, "kind", torch.float64),
    "a partial function": lambda model: setattr(model, "way", partial(torch.add, alpha=2)),
    "which of two is a flag": swap,
    "a number that is a flag now": lambda model: setattr(model, "third", True),
    "an attribute of a weight": lambda model: setattr(model[0].weight, "scale", 2.0),
    "the type of a buffer": lambda model: setattr(model[1], "running_mean", Own(model[1].running_mean)),
    "weights of one memory": tie,
    "places in memory": flatten,
    "which of two layers is used": lambda model: setattr(model, "used", model.other),
    "the name of a layer": rename,
    "the order of layers": turn_around,
    "a buffer with a gradient": lambda model: model[1].running_mean.requires_grad_(),
    "the sign of zero": lambda model: setattr(model, "bias", -0.0),
    "the sign of a complex zero": lambda model: setattr(model, "turn", complex(0.0, -0.0)),
    "a number that equals a flag": lambda model: setattr(model, "constant", Constant(number=True)),
    "a shared buffer": lambda model: setattr(model[1], "running_var", model[1].running_mean),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_what_a_forward_pass_may_look_at_is_signed(change: Callable[[nn.Sequential], object]) -> None:
    """Numbers and hooks of modules too: a capture has them as they were."""
    model = model_with_a_number()

    def step(x: Tensor) -> Tensor:
        return model(x)

    before = signature(step, [model], [], (torch.ones(2, 4),), {})
    assert signature(step, [model], [], (torch.zeros(2, 4),), {}) == before
    change(model)
    assert signature(step, [model], [], (torch.ones(2, 4),), {}) != before


def test_what_an_optimizer_may_look_at_is_signed() -> None:
    """Hooks, numbers of its own, and whether groups share a rate; what schedulers mark there does not count."""
    model, rate = model_with_a_number(), torch.tensor(0.1)
    weight, bias, *_ = model.parameters()
    groups = [{"params": [weight]}, {"params": [bias]}]
    optimizer = torch.optim.Adam(groups, lr=rate)

    def signed() -> object:
        return signature(model, [model], [optimizer], (torch.ones(2, 4),), {})

    found = [signed()]
    optimizer.param_groups[1]["lr"] = torch.tensor(0.1)
    found.append(signed())
    optimizer.every = 2  # pyright: ignore[reportAttributeAccessIssue]
    found.append(signed())
    optimizer._opt_called = True  # pyright: ignore[reportAttributeAccessIssue]
    assert signed() == found[-1]
    optimizer.register_step_pre_hook(lambda *_: None)
    found.append(signed())
    optimizer.register_step_post_hook(lambda *_: None)
    found.append(signed())
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    found.append(signed())
    handle.remove()
    assert len(set(found)) == len(found)


def test_numbers_within_entries_of_a_group_are_signed() -> None:
    """What lies in a dictionary, or deeper than the entries of a tuple, is no input of a graph, so its value counts."""
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    for info, nested in (({"k": 1.0}, ((0.1,), 0.2)), ({"k": 2.0}, ((0.1,), 0.2)), ({"k": 2.0}, ((0.3,), 0.2))):
        optimizer.param_groups[0] |= {"info": info, "nested": nested}
        seen.append(signature(model, [model], [optimizer], (), {}))
    assert len(set(seen)) == 3
    optimizer.param_groups[0]["nested"] = ((0.3,), 0.4)
    assert signature(model, [model], [optimizer], (), {}) == seen[2]


def test_an_argument_over_memory_of_the_state_is_signed() -> None:
    """What is written early would be read late; two parts of one batch are as far apart as they were."""
    model, batch = model_with_a_number(), torch.ones(8, 4)

    def signed(*args: Tensor) -> object:
        return signature(model, [model], [], args, {})

    weight = next(model.parameters())
    assert signed(weight.detach()) != signed(torch.ones(4, 4))
    assert signed(batch[:2], batch[2:4]) == signed(batch[4:6], batch[6:8])
    assert signed(batch[:2], batch[1:3]) != signed(batch[:2], batch[2:4])


def test_which_arguments_are_one_tensor_is_signed_and_seen() -> None:
    """Torch's attention asks whether its query is its key; a view of the same memory is another tensor."""
    x = torch.randn(2, 4)

    def step(one: Tensor, other: Tensor) -> Tensor:
        return (one + other) * (2.0 if one is other else 1.0)

    pairs = [(x, x), (x, x.view_as(x)), (x, x.clone())]
    assert len({signature(step, (), (), pair, {}) for pair in pairs}) == len(pairs)
    for pair in pairs:
        captured = capture(step, (), (), pair)
        assert torch.equal(replay(captured, Training((), ()), pair, {}), step(*pair))  # pyright: ignore[reportArgumentType]


def test_what_an_argument_has_in_attributes_is_signed_and_seen() -> None:
    """As a mark that a data loader has left there."""
    marked, plain = torch.ones(2), torch.ones(2)
    vars(marked)["scale"] = 3.0

    def step(x: Tensor) -> Tensor:
        return x * getattr(x, "scale", 1.0)

    assert signature(step, (), (), (marked,), {}) != signature(step, (), (), (plain,), {})
    for x in (marked, plain):
        captured = capture(step, (), (), (x,))
        assert torch.equal(replay(captured, Training((), ()), (x,), {}), step(x))  # pyright: ignore[reportArgumentType]


def test_an_argument_of_another_type_or_with_a_gradient_has_another_signature() -> None:
    """Neither is captured, and no plan of another call may serve them."""
    plain, own, with_gradient = torch.ones(2), Own(torch.ones(2)), torch.ones(2)
    with_gradient.grad = torch.ones(2)
    kinds = [signature(torch.sum, (), (), (x,), {}) for x in (plain, own, with_gradient)]
    assert len(set(kinds)) == len(kinds)
    for x, reason in ((own, "only plain tensors"), (with_gradient, "has a gradient")):
        with pytest.raises(Uncapturable, match=reason):
            capture(torch.sum, (), (), (x,))


def test_an_argument_that_cannot_be_described_is_refused_with_a_way_to_pass_what_is_in_it() -> None:
    """Such as a batch of graphs, which has its tensors in another object."""

    class Graphs:
        __hash__ = None  # type: ignore[assignment]

        def __init__(self) -> None:
            self.store = [SimpleNamespace(x=torch.ones(2))]

    with pytest.raises(Uncapturable, match=r"is a Graphs; pass tensors.* in a dict, list, tuple or dataclass"):
        signature(lambda graphs: graphs.store[0].x, (), (), (Graphs(),), {})


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_argument_is_refused() -> None:
    """It has no shape that could be signed; nor has it in the quick look of a step in ample room."""
    model, nested = model_with_a_number(), torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(1, 4)])
    with pytest.raises(Uncapturable, match="nested"):
        signature(model, [model], [], ([nested],), {})
    with pytest.raises(Uncapturable, match="nested"):
        glance([model], [], (nested,), {})


def test_a_sparse_argument_is_refused() -> None:
    """It has no strides that could be signed; it says what to pass instead."""
    model, sparse = model_with_a_number(), torch.eye(4).to_sparse()
    with pytest.raises(Uncapturable, match=r"sparse.*to_dense\(\), or its indices and values"):
        signature(model, [model], [], ([sparse],), {})
    with pytest.raises(Uncapturable, match="sparse"):
        glance([model], [], (sparse,), {})


@pytest.mark.parametrize(("one", "other"), [(0.0, -0.0), (1, True), (1, 1.0), (Constant(1), Constant(number=True))])
def test_arguments_that_are_equal_need_not_be_the_same(one: object, other: object) -> None:
    """The step may tell them apart."""

    def signed(value: object) -> object:
        return signature(len, [], [], (value,), {})

    assert signed(one) != signed(other)
    assert signed(float("nan")) == signed(float("nan"))


def test_a_step_may_be_an_object_that_has_no_hash() -> None:
    """As one of a dataclass that is called; it is the same one in every call."""

    @dataclass
    class Scaled:
        factor: float

        def __call__(self, x: Tensor) -> Tensor:
            return x * self.factor

    step = Scaled(2.0)
    assert signature(step, [], [], (torch.ones(2),), {}) == signature(step, [], [], (torch.ones(2),), {})


def test_modes_that_choose_operators_are_signed() -> None:
    """The kernels of attention, the default type, autocast's cache, inference, and what is to be deterministic."""
    model, x = model_with_a_number(), torch.ones(2, 4)
    before = signature(model, [model], [], (x,), {})
    with torch.no_grad():
        ungraded = signature(model, [model], [], (x,), {})
    with torch.inference_mode():
        assert signature(model, [model], [], (x,), {}) not in (before, ungraded)
    with nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
        assert signature(model, [model], [], (x,), {}) != before
    with torch.autocast("cpu", torch.bfloat16):
        one = signature(model, [model], [], (x,), {})
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        assert signature(model, [model], [], (x,), {}) != one
    with torch.backends.cudnn.flags(deterministic=True):
        assert signature(model, [model], [], (x,), {}) != before
    assert signature(model, [model], [], (x,), {}) == before
    found: set[object] = set()
    try:
        for mode in ("default", "warn", "error"):
            torch.set_deterministic_debug_mode(mode)
            found.add(signature(model, [model], [], (x,), {}))
    finally:
        torch.set_deterministic_debug_mode("default")
    assert len(found) == 3


def test_hooks_of_all_optimizers_are_signed_but_those_of_a_capture_that_goes_on_beside() -> None:
    """A step that another thread captures meanwhile is no reason to capture this one again."""
    model = nn.Linear(4, 4)
    own = partial(signature, print, [model], [torch.optim.SGD(model.parameters())], (), {})
    before = own()
    with schedulers_put_off():
        assert own() == before
        assert list(hooks([model], [])) == []
        handle = register_optimizer_step_pre_hook(lambda *_: None)
        assert own() != before
        assert len(list(hooks([model], []))) == 1
        handle.remove()
    assert own() == before


def test_a_number_that_changes_in_every_call_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is another step, which is captured and planned: once that is plain, it is said once, with what to do."""
    monkeypatch.setattr(within_budget, "_ROOMY_BYTES", 1 << 50)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = model_with_a_number()
    step = outgrow.compile(
        lambda x, weight: model(x).sum() * weight, model=model, memory_budget="8GiB", offload_dir=tmp_path
    )

    def calls() -> None:
        for number in range(7):
            step(torch.ones(2, 4), 1.0 / (1 + number))

    with pytest.warns(UserWarning, match=r"captured and planned 5 times .* Pass it as a tensor") as said:
        calls()
    assert len(said) == 1
    assert said[0].filename == __file__


def test_a_step_is_compiled_once(tmp_path: Path) -> None:
    """What has been compiled is no function to capture."""
    model = model_with_a_number()
    step = outgrow.compile(lambda x: model(x).sum(), model=model, memory_budget="8GiB", offload_dir=tmp_path)
    with pytest.raises(TypeError, match="has been compiled already"):
        outgrow.compile(step, model=model, memory_budget="8GiB", offload_dir=tmp_path)
