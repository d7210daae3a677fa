"""Every planner gives, for every graph and every feasible budget, a plan that is valid and within the budget."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from outgrow.analysis.cost import Cost, with_parts
from outgrow.analysis.sinking import homeless, lasting, sunk
from outgrow.errors import Infeasible, InvalidGraph, InvalidPlan
from outgrow.ir.graph import Graph, Op
from outgrow.ir.machine import Device, LinkRates, Machine
from outgrow.ir.text import parse_graph, print_graph
from outgrow.plan import Budget, Stow, Swap
from outgrow.planning.addresses.addresses import outside
from outgrow.planning.addresses.blocks import blocks_of, live_peak_bytes
from outgrow.planning.floor import floor_of
from outgrow.planning.free.free import free_rewrites
from outgrow.planning.names import PLANNER_NAMES
from outgrow.planning.order.lean import Orders
from outgrow.planning.planner import planned, with_a_plan
from outgrow.planning.problem import Problem
from outgrow.rewriting.derive import apply_laws, verified
from outgrow.simulation import replay
from tests.children import ran
from tests.graphs import graphs
from tests.verified import verify_derived

MACHINE = Machine("toy", Device("toy", 1e9, 1e9), LinkRates(1000.0, 800.0, half_duplex=False))
ALWAYS = ("search", "nnabla_window", "capuchin")
"""The planners that find a plan at every budget from the floor up; the other papers' are tested for what they find."""

HALF_DUPLEX = Machine("toy", Device("toy", 1e9, 1e9), LinkRates(1000.0, 800.0, half_duplex=True))


def problem_of(
    graph: Graph, capacity: int, machine: Machine = MACHINE, piece_bytes: int = 64, minimum_bytes: int = 4
) -> Problem:
    """A problem in which every op takes about a second, and every storage may move unless `minimum_bytes` says less."""
    costs = {op.name: Cost(1.0 + 0.1 * (len(op.name) % 3), len(op.arguments) % 2 * 4) for op in graph.ops}
    return Problem(graph, with_parts(graph, costs), machine, Budget(capacity), minimum_bytes, piece_bytes)


def chain(length: int, size: int = 256) -> Graph:
    """A forward chain of exponentials and the backward chain that reads their results in reverse."""
    lines = ["storage x input 4", "value %x: x@0 f32[1]", f"storage a0 {size}"]
    lines.append(f"%a0: a0@0 f32[{size // 4}] = my.expand(%x)")
    for at in range(1, length):
        lines.append(f"storage a{at} {size}")
        lines.append(f"%a{at}: a{at}@0 f32[{size // 4}] = aten.exp.default(%a{at - 1})")
    gradient = f"%a{length - 1}"
    for at in reversed(range(length)):
        lines.append(f"storage g{at} {size}")
        lines.append(f"%g{at}: g{at}@0 f32[{size // 4}] = my.backward({gradient}, %a{at})")
        gradient = f"%g{at}"
    lines.append(f"return {gradient}")
    return parse_graph("\n".join(lines))


def test_small_storages_move_where_there_is_no_plan_otherwise() -> None:
    """The floor that is named is that of a plan that moves them; with more room, they stay."""
    problem = replace(problem_of(chain(6), 1 << 40, minimum_bytes=512), least_bytes=64)
    enough = replay(problem.graph, problem.costs, MACHINE).peak_bytes
    floor = planned(problem).plan.floor_bytes
    assert floor < floor_of(problem, free_rewrites(problem)[0])[0] <= enough
    tight = planned(replace(problem, budget=Budget(floor))).plan
    assert any(isinstance(decision, Swap) for decision in tight.decisions)
    assert tight.predicted.peak_bytes <= floor == tight.floor_bytes
    assert planned(replace(problem, budget=Budget(enough))).plan.is_empty
    with pytest.raises(Infeasible):
        planned(replace(problem, budget=Budget(floor - 1)))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    graph=graphs(max_ops=14), minimum_bytes=st.sampled_from((512, 2048)), anchored=st.booleans(), quick=st.booleans()
)
def test_the_floor_that_is_named_has_a_plan(graph: Graph, minimum_bytes: int, anchored: bool, quick: bool) -> None:
    """Whatever small storages ask for; on an anchored device with what lies beside the arena, all through the step."""
    problem = problem_of(graph, 1 << 40, minimum_bytes=minimum_bytes)
    problem = replace(problem, least_bytes=4, anchored=anchored, quick=quick)
    floor = max(1, planned(problem).plan.floor_bytes)
    plan = planned(replace(problem, budget=Budget(floor))).plan
    assert plan.predicted.peak_bytes <= floor
    if anchored:
        derived = apply_laws(graph, plan.decisions)
        beside = outside(derived)
        inside = [block for block in blocks_of(derived, problem.workspace) if block.label not in beside]
        assert live_peak_bytes(inside) + sum(derived.storages[name].size_bytes for name in beside) <= floor


@pytest.mark.parametrize("planner", ALWAYS)
def test_what_is_fixed_never_moves(planner: str) -> None:
    """Not even what dies in the step, as a number that a step on a device keeps in memory of the host."""
    graph = chain(12)
    made = sorted(graph.storages.keys() - graph.outliving)
    for fixed in (frozenset(made[::2]), frozenset(made[1::2])):
        problem = replace(problem_of(graph, 1 << 40), fixed=fixed | graph.outliving)
        found = planned(replace(problem, budget=Budget(floor_of(problem, graph)[0])), planner).plan
        moved = {decision.storage for decision in found.decisions if isinstance(decision, Stow | Swap)}
        assert moved
        assert not moved & fixed


def test_small_storages_move_where_they_are_in_the_way() -> None:
    """They do where at least a quarter of the capacity is theirs, but not for planners of papers."""
    problem = replace(problem_of(chain(6), 1 << 40, minimum_bytes=512), least_bytes=64)
    graph = free_rewrites(problem)[0]
    floor = floor_of(problem, graph)[0]
    theirs = floor - floor_of(replace(problem, minimum_bytes=64), graph)[0]

    def smallest(capacity_bytes: int, *, may_rest: bool) -> int:
        own = replace(problem, budget=Budget(capacity_bytes))
        return with_a_plan(own, Orders(own), may_rest=may_rest)[0].minimum_bytes

    assert floor < 4 * theirs
    assert smallest(floor, may_rest=True) == smallest(4 * theirs, may_rest=True) == 64
    assert smallest(4 * theirs + 4, may_rest=True) == smallest(floor, may_rest=False) == 512
    assert smallest(floor - 1, may_rest=False) == 64


def test_a_gradient_that_nobody_uses_and_that_goes_is_not_put_to_rest() -> None:
    """It is there when the step begins; nothing of it outlives the step, so it need not rest anywhere."""
    graph = parse_graph(
        "storage w parameter 4\nstorage g gradient 512\nstorage y 4\nvalue %w: w@0 f32[1]\n%y: y@0 f32[1] = f(%w)"
    )
    problem = replace(problem_of(graph, 1 << 40, minimum_bytes=512), least_bytes=4)
    floor = planned(problem).plan.floor_bytes
    assert planned(replace(problem, budget=Budget(floor))).plan.predicted.peak_bytes <= floor


@pytest.mark.parametrize("planner", ALWAYS)
@pytest.mark.parametrize("machine", [MACHINE, HALF_DUPLEX], ids=["duplex", "half duplex"])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(graph=graphs(max_ops=14), tightness=st.floats(0, 1), minimum_bytes=st.sampled_from((4, 512, 2048)))
def test_every_plan_is_valid_and_within_its_budget(
    planner: str, machine: Machine, graph: Graph, tightness: float, minimum_bytes: int
) -> None:
    """Plan -> derive -> verify -> simulate: at any budget from the floor up, the derived graph is valid and fits."""
    assume(graph.ops)
    problem = problem_of(graph, 1 << 40, machine, minimum_bytes=minimum_bytes)
    as_planned = problem if planner == "search" else replace(problem, fixed=graph.outliving)
    rewritten = free_rewrites(problem)[0] if planner == "search" else graph
    floor = floor_of(as_planned, rewritten)[0]
    in_core = replay(graph, problem.costs, machine).peak_bytes
    capacity = max(1, int(floor + tightness * max(0, in_core - floor)))
    problem = replace(problem, budget=Budget(capacity))
    found = planned(problem, planner)
    plan = found.plan
    assert planner != "search" or not plan.notes, "the laws admit the first choice of the search"
    trace = replay(verified(graph, plan, found.stages, problem.workspace).graph, problem.costs, machine)
    assert trace.peak_bytes <= capacity
    assert (trace.peak_bytes, trace.seconds) == (plan.predicted.peak_bytes, pytest.approx(plan.predicted.seconds))
    assert plan.predicted.seconds >= plan.bound_seconds * (1 - 1e-9)


@pytest.mark.parametrize("planner", ALWAYS)
def test_a_step_that_fits_is_left_alone(planner: str) -> None:
    """Where the captured step fits, the plan is empty and predicts what the step in core takes."""
    graph = chain(6)
    problem = problem_of(graph, 1 << 20)
    plan = planned(problem, planner).plan
    assert plan.is_empty
    assert plan.predicted == plan.in_core


@pytest.mark.parametrize("planner", ALWAYS)
def test_below_the_floor_the_refusal_names_floor_and_op(planner: str) -> None:
    """One byte below the floor a planner refuses and says what sets it; at the floor it plans."""
    graph = chain(6)
    floor, op = floor_of(problem_of(graph, 1), graph)
    assert isinstance(op, Op)
    assert planned(problem_of(graph, floor), planner).plan.predicted.peak_bytes <= floor
    with pytest.raises(Infeasible, match=op.name) as refusal:
        planned(problem_of(graph, floor - 1), planner)
    assert refusal.value.floor_bytes == floor


def test_the_search_is_never_slower_than_the_window() -> None:
    """On a chain, at budgets from the floor to in core, the joint search is at least as quick as the window."""
    graph = chain(10)
    floor, _ = floor_of(problem_of(graph, 1), graph)
    in_core = replay(graph, problem_of(graph, 1).costs, MACHINE).peak_bytes
    for capacity in range(floor, in_core, 128):
        problem = problem_of(graph, capacity)
        search, window = planned(problem, "search").plan, planned(problem, "nnabla_window").plan
        assert search.predicted.seconds <= window.predicted.seconds * (1 + 1e-9)


def test_recomputation_replaces_a_transfer_that_cannot_hide() -> None:
    """Over a link far slower than the arithmetic, storages that are cheap to make are made again."""
    graph = chain(8)
    slow = Machine("slow", Device("toy", 1e9, 1e9), LinkRates(2.0, 2.0))
    floor, _ = floor_of(problem_of(graph, 1), graph)
    plan = planned(problem_of(graph, floor + 512, slow), "search").plan
    kinds = {type(decision).__name__ for decision in plan.decisions}
    assert "Recompute" in kinds


@pytest.mark.parametrize("planner", PLANNER_NAMES)
def test_every_planner_that_is_named_can_be_asked(planner: str) -> None:
    """The names are told without importing the planners; one that is not told is none."""
    problem = problem_of(chain(4), 1 << 20)
    assert planned(problem, planner).plan.planner == planner
    with pytest.raises(KeyError, match=f"not_{planner}"):
        planned(problem, f"not_{planner}")


def test_planning_is_deterministic() -> None:
    """The same problem gives the same plan."""
    problem = problem_of(chain(9), 1500)
    assert planned(problem).plan.decisions == planned(problem).plan.decisions


def test_an_earlier_plan_is_carried_out_for_its_own_graph_alone() -> None:
    """Its decisions are taken as they are; the names in it mean nothing in another graph, so the refusal names both."""
    problem, other = problem_of(chain(9), 1500), problem_of(chain(8), 1500)
    plan = planned(problem).plan
    again = planned(problem, earlier=replace(plan, decisions=()))
    assert again.plan.is_empty
    with pytest.raises(InvalidPlan, match=f"made for graph {plan.fingerprint}, but this graph is .*Plan again"):
        planned(other, earlier=plan)


def test_a_verifier_that_knows_nothing_of_the_planner_agrees_on_memory() -> None:
    """The capacity invariant holds for the derived graph and fails one byte below its peak."""
    problem = problem_of(chain(9), 1500)
    plan = planned(problem).plan
    graph = apply_laws(problem.graph, plan.decisions)
    peak = plan.predicted.peak_bytes
    verify_derived(graph, problem.graph, capacity_bytes=peak, workspace=problem.workspace)
    with pytest.raises(InvalidGraph, match="invariant 3"):
        verify_derived(graph, problem.graph, capacity_bytes=peak - 1, workspace=problem.workspace)


INTERRUPTED = """
import os, random, signal, threading
from outgrow.plan import Budget
from outgrow.analysis.liveness import peak_bytes
from outgrow.planning.names import PLANNER_NAMES
from outgrow.planning.planner import planned
from tests.planning.irregular import irregular
from tests.planning.test_planners import problem_of

graph = irregular(0, 60)
problem = problem_of(graph, peak_bytes(graph, {}) * 2 // 3)
expected = planned(problem, prove=False).plan.decisions
draw, struck = random.Random(0), 0
for _ in range(12):
    timer = threading.Timer(draw.uniform(0.0, 0.5), os.kill, (os.getpid(), signal.SIGINT))
    try:
        timer.start()
        planned(problem, prove=False)
        timer.join()
    except KeyboardInterrupt:
        struck += 1
assert struck == 12, struck
assert planned(problem, prove=False).plan.decisions == expected
print("bore it")
"""


def test_the_search_bears_interrupts() -> None:
    """Ctrl-C ends it wherever it strikes, compiled code included, and the next search is as ever."""
    found = ran(INTERRUPTED, seconds=300)
    assert found.stdout == "bore it\n", found.stderr


def test_state_that_has_no_room_in_the_next_tier_stays() -> None:
    """Of three weights one has room there: the plan lets that one rest, at most."""
    lines = ["storage x input 4", "value %x: x@0 f32[1]"]
    for name in ("u", "v", "w"):
        lines += [f"storage {name} parameter 4096", f"value %{name}: {name}@0 f32[1024]", f"storage a{name} 4096"]
        lines += [f"%a{name}: a{name}@0 f32[1024] = my.op_{name}(%{name}, %x)"]
    lines += ["storage z 4", "%z: z@0 f32[1] = my.sum(%au, %av, %aw)", "return %z"]
    graph = parse_graph("\n".join(lines))
    quick = replace(MACHINE, link=LinkRates(1e9, 1e9))
    alone = replace(problem_of(graph, 20_600, quick), minimum_bytes=4, anchored=True)
    for machine, rests in ((quick, 2), (replace(quick, tier_bytes=4096, below=LinkRates(1e9, 1e9)), 1)):
        problem = replace(alone, machine=machine)
        derived = apply_laws(graph, planned(problem).plan.decisions)
        assert len(lasting(derived)) <= rests
        assert not homeless(derived, machine)


def test_what_rested_and_has_no_room_there_is_held() -> None:
    """State that no op uses rests where there is room for it; where there is none, no plan lets it rest."""
    text = "storage s optimizer 8192\nvalue %s: s@0 f32[2048]\n" + print_graph(chain(12))
    graph = parse_graph(text)
    alone = replace(problem_of(graph, 8192 + 1600), resting=frozenset({"s"}))
    machine = replace(alone.machine, tier_bytes=8192, below=LinkRates(1e9, 1e9))
    for tier_bytes, rests in ((16384, {"s"}), (4096, set[str]())):
        problem = replace(alone, machine=replace(machine, tier_bytes=tier_bytes))
        derived = apply_laws(graph, planned(problem).plan.decisions)
        assert lasting(derived) == rests
        assert not homeless(derived, problem.machine)


def test_a_bound_holds_for_a_plan_in_an_order_of_its_own() -> None:
    """The integer programme finds an order in which all fits; in the captured one and the lean one, nothing does."""
    lines = ["storage x input 4", "value %x: x@0 f32[1]"]
    lines += [f"storage {name} {size}" for name, size in (("p", 4), ("a", 4 << 20), ("b", 4 << 20), ("c", 4))]
    lines += ["storage d gradient 4", "%p: p@0 f32[1] = my.p(%x)", f"%a: a@0 f32[{1 << 20}] = my.a(%p)"]
    lines += [f"%b: b@0 f32[{1 << 20}] = my.b(%p)", "%c: c@0 f32[1] = my.c(%b)", "%d: d@0 f32[1] = my.d(%a, %c)"]
    graph = parse_graph("\n".join(lines))
    costs = {op.name: Cost(1.0) for op in graph.ops}
    machine = replace(MACHINE, link=LinkRates(1e-3, 1e-3))
    problem = Problem(graph, costs, machine, Budget(6 << 20))
    found = planned(problem, "olla")
    verified(graph, found.plan, found.stages, problem.workspace)
    assert found.plan.predicted.seconds == found.plan.bound_seconds == pytest.approx(5.0)


def test_a_plan_through_a_slow_tier_is_no_worse_than_one_that_does_not_know_of_it() -> None:
    """Where little has room in the next tier, what is predicted is what both links need; less is moved then."""
    graph = chain(12)
    alone = problem_of(graph, 1600, replace(MACHINE, link=LinkRates(2000.0, 2000.0)))
    machine = replace(alone.machine, tier_bytes=4096, below=LinkRates(100.0, 100.0))
    unaware, aware = planned(alone).plan, planned(replace(alone, machine=machine)).plan
    derived = apply_laws(graph, unaware.decisions)
    assert sunk(derived, machine)
    as_it_would_run = replay(derived, alone.costs, machine).seconds
    assert unaware.predicted.seconds < aware.predicted.seconds < as_it_would_run
    assert aware.predicted.peak_bytes <= 1600
