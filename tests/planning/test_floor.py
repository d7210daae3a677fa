"""The floor is what some op needs at once, with all that may not leave the device."""

from dataclasses import replace

import pytest
from hypothesis import given

from outgrow.analysis.cost import Cost
from outgrow.analysis.liveness import live_bytes
from outgrow.errors import Infeasible
from outgrow.ir.graph import Graph
from outgrow.ir.machine import Device, LinkRates, Machine
from outgrow.ir.text import parse_graph
from outgrow.plan import Budget, Reuse
from outgrow.planning.floor import floor_of, needs
from outgrow.planning.free.free import free_rewrites
from outgrow.planning.planner import planned
from outgrow.planning.problem import Problem
from tests.graphs import graphs

MACHINE = Machine("toy", Device("toy", 1e9, 1e9), LinkRates(1000.0, 800.0))


def problem_of(text: str, workspace: dict[str, int]) -> Problem:
    """A problem of a graph whose ops take a second and these bytes of workspace; every storage may move."""
    graph = parse_graph(text)
    costs = {op.name: Cost(1.0, workspace.get(op.name, 0)) for op in graph.ops}
    return Problem(graph, costs, MACHINE, Budget(1), minimum_bytes=4)


def test_a_step_without_ops_needs_what_it_is_given() -> None:
    """The one graph whose floor no op sets; no planner gets below it."""
    problem = problem_of("storage p parameter 8", {})
    assert floor_of(problem, problem.graph) == (8, None)
    assert planned(replace(problem, budget=Budget(8))).plan.floor_bytes == 8
    with pytest.raises(Infeasible, match="needs 8 B: 8 B for what the step is given"):
        planned(replace(problem, budget=Budget(7)))


def test_a_smaller_batch_is_advised_where_tensors_take_most() -> None:
    """The refusal parts what is needed into tensors and the rest of the process, which no batch makes smaller."""
    problem = problem_of("storage x input 8\nvalue %x: x@0 f32[2]\nstorage a 8\n%a: a@0 f32[2] = my.one(%x)", {})
    for overhead, advice in ((8, "Raise the budget to 1MiB, or make the batch smaller."), (64, "the budget to 1MiB.")):
        with pytest.raises(Infeasible) as caught:
            planned(replace(problem, budget=Budget(1, overhead)))
        needed = f"needs {16 + overhead} B: 16 B while one runs and {overhead} B that the process takes beside tensors."
        assert needed in str(caught.value)
        assert str(caught.value).endswith(advice)


def test_an_input_stays_until_its_first_use() -> None:
    """A gradient of the step before is there from the beginning and has no copy yet, so it cannot be away."""
    problem = problem_of(
        """
        storage x input 8
        storage g gradient 16
        storage a 8
        storage b 8
        storage c 16
        value %x: x@0 f32[2]
        value %g: g@0 f32[4]
        %a: a@0 f32[2] = my.one(%x)
        %c: c@0 f32[4] = my.two(%g)
        %b: b@0 f32[2] = my.three(%a)
        return %b
        """,
        {},
    )
    assert needs(problem, problem.graph) == [8 + 16 + 8, 8 + 16 + 16, 8 + 8 + 8]


STATE = """
    storage x input 8
    storage w parameter 16
    storage m optimizer 16
    storage s buffer 4
    storage g gradient 16
    storage h 8
    value %x: x@0 f32[2]
    value %w: w@0 f32[4]
    value %m: m@0 f32[4]
    %h: h@0 f32[2] = my.forward(%x, %w)
    %g: g@0 f32[4] = my.backward(%h, %x)
    average: %m1: m@1 f32[4] = my.average_(%m, %g)
    update: %w1: w@1 f32[4] = my.update_(%w, %m1)
    return %g
"""


def test_what_may_rest_between_steps_counts_only_where_it_is_used() -> None:
    """Weights, averages and gradients may be away, the batch between its uses alone, and buffers never."""
    problem = problem_of(STATE, {})
    forward, backward = 8 + 16 + 8, 8 + 8 + 16
    average, update = 16 + 16 + 8, 16 + 16 + 8  # the batch is back: the caller has it
    assert needs(problem, problem.graph) == [forward + 4, backward + 4, average + 4, update + 4]


def test_what_is_fixed_counts_always() -> None:
    """A weight whose memory others see is on the device throughout."""
    problem = replace(problem_of(STATE, {}), fixed=frozenset({"w"}))
    loose = problem_of(STATE, {})
    without = [16 * ("w" not in touched) for touched in loose.graph.touched_at]
    expected = [need + more for need, more in zip(needs(loose, loose.graph), without, strict=True)]
    assert needs(problem, problem.graph) == expected


RESULT = """
    storage x input 8
    storage a 8
    storage b 8
    storage c 8
    value %x: x@0 f32[2]
    %a: a@0 f32[2] = my.one(%x)
    %b: b@0 f32[2] = my.two(%x)
    %c: c@0 f32[2] = aten.relu.default(%a)
"""


def test_a_free_rewrite_that_raises_the_floor_is_given_back() -> None:
    """A result that is written over an operand has to stay as long as that, also beside the largest workspace."""
    problem = problem_of(f"{RESULT}return %c", {"two": 64})
    assert free_rewrites(problem)[:2] == (problem.graph, ())


def test_a_free_rewrite_that_keeps_the_floor_is_taken() -> None:
    """Where no op needs the room that the result would take earlier, the result is written over the operand."""
    problem = problem_of(f"{RESULT}return %c", {"two": 0, "relu": 64})
    graph, decisions, _ = free_rewrites(problem)
    assert decisions == (Reuse("relu"),)
    assert floor_of(problem, graph)[0] == floor_of(problem, problem.graph)[0] - 8


def test_a_storage_that_is_sent_twice_at_once_counts_once() -> None:
    """Its flights overlap; no op needs more than all that is live."""
    problem = problem_of(
        """
        storage p input 8
        storage wire input 16
        storage x 80
        storage a 8
        storage b 8
        storage y 8
        value %p: p@0 f32[2]
        %x: x@0 f32[20] = aten.relu.default(%p)
        %a: a@0 f32[2] = outgrow.exchange.default(%x) writes wire
        %b: b@0 f32[2] = outgrow.exchange.default(%x) writes wire
        %y: y@0 f32[2] = aten.relu.default(%p)
        %a1: a@1 f32[2] = outgrow.arrived.default(%a, %x)
        %b1: b@1 f32[2] = outgrow.arrived.default(%b, %x)
        return %y
        """,
        {},
    )
    assert needs(problem, problem.graph)[3] == live_bytes(problem.graph, problem.workspace)[3]


@given(graphs())
def test_no_op_needs_more_than_what_is_live(graph: Graph) -> None:
    """Whatever may leave, exchanges under way included."""
    costs = {op.name: Cost(1.0) for op in graph.ops}
    problem = Problem(graph, costs, MACHINE, Budget(1), minimum_bytes=4)
    live = live_bytes(graph, problem.workspace)
    assert all(need <= held for need, held in zip(needs(problem, graph), live, strict=True))
