"""What an op does on a device is learnt by trying it, where the device has room for what the op asks for."""

import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from outgrow.errors import ReplayMismatch
from outgrow.frontends.preparing import rehearsal
from outgrow.frontends.preparing.rehearsal import Rehearsal
from outgrow.frontends.tracing.capture import capture
from outgrow.ir.text import parse_graph
from tests.runtime.stand_in import Point, StandIn, Threads

GRAPH = parse_graph(
    """
    storage x input 288
    storage w parameter 288
    storage y 256
    value %x: x@0 f32[1, 2, 6, 6]
    value %w: w@0 f32[4, 2, 3, 3]
    %y: y@0 f32[1, 4, 4, 4] = aten.convolution.default(%x, %w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    return %y
    """
)


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> Callable[[StandIn, Callable[[], None]], dict[str, object]]:
    """Try the convolution on a device, with some work each time that it runs; returns what was learnt."""
    made = rehearsal.call_of

    def learnt(device: StandIn, work: Callable[[], None]) -> dict[str, object]:
        monkeypatch.setattr(rehearsal, "_KNOWN", {})
        monkeypatch.setattr(
            rehearsal,
            "call_of",
            lambda *about: replace(made(*about), function=lambda *args: (work(), made(*about).function(*args))[1]),
        )
        return dict(Rehearsal(device, directed=False).costs(GRAPH, (), lambda _share: None))

    return learnt


def test_a_convolution_is_tried_on_a_thread_of_its_own_first(
    tried: Callable[[StandIn, Callable[[], None]], dict[str, object]],
) -> None:
    """What a library notes by thread of the first attempt goes with the thread."""
    threads: list[int] = []
    assert len(tried(StandIn(), lambda: threads.append(threading.get_ident()))) == 1
    assert threads[0] != threading.get_ident()
    assert set(threads[1:]) == {threading.get_ident()}


def test_the_thread_of_a_first_attempt_waits_for_the_device(
    monkeypatch: pytest.MonkeyPatch, tried: Callable[[StandIn, Callable[[], None]], dict[str, object]]
) -> None:
    """What a library keeps by thread is not taken from below its kernel."""
    waited: list[int] = []
    wait = Point.wait

    def noted(point: Point) -> None:
        wait(point)
        waited.append(threading.get_ident())

    monkeypatch.setattr(Point, "wait", noted)
    threads: list[int] = []
    tried(StandIn(), lambda: threads.append(threading.get_ident()))
    assert threads[0] == waited[0]


def test_updates_of_fused_optimizers_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are kernels, whatever stands for torch's own; what reads the state of a generator is none."""
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step(x: torch.Tensor) -> None:
        model(x).sum().backward()
        optimizer.step()
        torch.set_rng_state(torch.get_rng_state())

    captured = capture(step, [model], [optimizer], (torch.ones(2, 4),))
    made, found = rehearsal.call_of, list[str]()
    monkeypatch.setattr(rehearsal, "_KNOWN", {})
    monkeypatch.setattr(rehearsal, "call_of", lambda *about: (found.append(about[1].operator), made(*about))[1])
    Rehearsal(StandIn(), directed=False).costs(captured.graph, (), lambda _share: None)
    assert "outgrow.adamw_.default" in found
    assert not [name for name in found if "generator" in name]


def test_pivots_are_rows_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """They count from 1, and the kernels of a GPU write wherever others point."""

    def step(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = x.detach().requires_grad_()
        loss = torch.linalg.slogdet(x)[1].sum() + torch.linalg.solve(x, x).sum()
        return torch.lu_unpack(*torch.linalg.lu_factor(x))[0], *torch.autograd.grad(loss, [x])

    captured = capture(step, [], [], (torch.rand(2, 3, 3),))
    assert {"aten.linalg_lu_solve.default", "aten.lu_unpack.default"} <= {op.operator for op in captured.graph.ops}
    monkeypatch.setattr(rehearsal, "_KNOWN", {})
    assert Rehearsal(StandIn(), directed=False).costs(captured.graph, (), lambda _share: None)


@pytest.mark.cuda
def test_a_first_attempt_is_on_the_stream_of_its_caller(
    tried: Callable[[StandIn, Callable[[], None]], dict[str, object]],
) -> None:
    """Its operands are ready there, and nowhere else."""
    gpu = torch.device("cuda", 0)
    streams: list[torch.cuda.Stream] = []
    with torch.cuda.stream(torch.cuda.Stream(gpu)):
        here = torch.cuda.current_stream(gpu)
        tried(StandIn(torch_device=gpu), lambda: streams.append(torch.cuda.current_stream(gpu)))
    assert set(streams) == {here}


def test_only_the_time_of_a_device_is_taken(
    monkeypatch: pytest.MonkeyPatch, tried: Callable[[StandIn, Callable[[], None]], dict[str, object]]
) -> None:
    """Before each first mark its stream is kept busy, so that the host calls all runs before it is passed."""
    order: list[str] = []
    mark = Threads.mark

    def marked(*about: Any, **how: Any) -> object:
        order.append("mark")
        return mark(*about, **how)

    monkeypatch.setattr(StandIn, "keep_busy", lambda _device: order.append("busy"))
    monkeypatch.setattr(Threads, "mark", marked)
    tried(StandIn(), lambda: order.append("run"))
    begin = order.index("busy")
    end = order.index("busy", begin + 1)
    first, *runs, last = order[begin + 1 : end]
    assert (first, set(runs), last) == ("mark", {"run"}, "mark")


@pytest.mark.parametrize("raises", [False, True])
def test_another_algorithm_for_want_of_memory_is_no_answer(
    raises: bool, tried: Callable[[StandIn, Callable[[], None]], dict[str, object]]
) -> None:
    """Where memory was refused, the op counts as one that cannot be tried, whether the library found a way or not."""
    device = StandIn()

    def refused() -> None:
        device.refused += 1
        if raises:
            raise RuntimeError("no engine was found")

    assert tried(device, refused) == {}


@pytest.mark.parametrize("fails", [False, True])
def test_a_search_for_the_quickest_algorithm_may_be_refused_memory(
    fails: bool,
    monkeypatch: pytest.MonkeyPatch,
    tried: Callable[[StandIn, Callable[[], None]], dict[str, object]],
) -> None:
    """It goes on to the next one; only where none was found has the device no memory for the op."""
    device = StandIn()
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)

    def refused() -> None:
        device.refused += 1
        if fails:
            raise RuntimeError("no engine was found")

    assert len(tried(device, refused)) == (0 if fails else 1)


def test_an_op_is_tried_once_more_when_what_is_cached_was_given_back(
    monkeypatch: pytest.MonkeyPatch, tried: Callable[[StandIn, Callable[[], None]], dict[str, object]]
) -> None:
    """Segments that were split have no room, though there is memory; operands of the first attempt are gone by then."""
    device, given_back, operands = StandIn(), list[bool](), list[weakref.ref[torch.Tensor]]()
    made = rehearsal._filled

    def filled(*about: Any) -> torch.Tensor:
        operand = made(*about)
        operands.append(weakref.ref(operand))
        return operand

    def refused() -> None:
        if not given_back:
            raise torch.OutOfMemoryError("split segments")

    def give_back(_device: StandIn) -> None:
        given_back.append(all(operand() is None for operand in operands))

    monkeypatch.setattr(rehearsal, "_filled", filled)
    monkeypatch.setattr(StandIn, "give_back", give_back)
    assert len(tried(device, refused)) == 1
    assert given_back[0], "operands are held by the error"


def test_other_errors_of_an_op_pass(tried: Callable[[StandIn, Callable[[], None]], dict[str, object]]) -> None:
    """They are not taken for a want of memory."""

    def failing() -> None:
        raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        tried(StandIn(), failing)


def test_a_result_in_other_memory_than_was_captured_is_refused() -> None:
    """An abstract form that names the wrong device is found out before anything is planned."""
    device = StandIn(torch_device=torch.device("meta"))
    made = Rehearsal(device, directed=False)
    call = rehearsal.call_of(GRAPH, GRAPH.ops[0], {})
    with pytest.raises(ReplayMismatch, match="on cpu, but meta was captured"):
        made._check_devices(call, torch.empty(1, 4, 4, 4), ())
    made._check_devices(call, torch.empty(1, 4, 4, 4), {"y"})
