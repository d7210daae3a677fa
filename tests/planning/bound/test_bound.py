"""No plan is quicker than the bound: neither one of a planner, nor any other that the laws derive."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from outgrow.analysis.cost import Cost
from outgrow.analysis.liveness import gaps, lifetimes
from outgrow.errors import Infeasible, InvalidGraph, NotApplicable
from outgrow.ir.graph import Graph, Role
from outgrow.ir.machine import Device, LinkRates, Machine
from outgrow.ir.text import parse_graph
from outgrow.operators.in_place import IN_PLACE
from outgrow.operators.layouts import layout_only
from outgrow.operators.parts import parts
from outgrow.plan import Budget, ByLayout, Decision, Move, Piece, Recompute, Reuse, Stow, Swap, TakeApart
from outgrow.planning.bound import bound
from outgrow.planning.bound.bound import bound_seconds
from outgrow.planning.bound.coarsen import choose_moments, outline, study
from outgrow.planning.bound.outline import merged
from outgrow.planning.floor import floor_of
from outgrow.planning.free.early_updates import early_updates
from outgrow.planning.free.free import free_rewrites
from outgrow.planning.free.reuse import reuses
from outgrow.planning.leaving import leaving, stowing
from outgrow.planning.names import PLANNER_NAMES
from outgrow.planning.planner import planned
from outgrow.planning.problem import Problem
from outgrow.rewriting.derive import apply_laws
from outgrow.simulation import replay
from tests.graphs import graphs
from tests.planning.convolutional import convolutional
from tests.planning.crowded import crowded
from tests.planning.test_planners import HALF_DUPLEX, MACHINE, chain, problem_of
from tests.verified import verify_derived

DEVICE = Device("toy", 1e9, 1e9)
IN_ORDER = [planner for planner in PLANNER_NAMES if planner not in {"serenity", "olla"}]
"""The planners that keep the captured order, of which the bound is; updates may come early."""
SLOW = Machine("slow", DEVICE, LinkRates(10.0, 20.0))
SLOW_HALF_DUPLEX = Machine("slow", DEVICE, LinkRates(10.0, 20.0, half_duplex=True))
MACHINES = st.sampled_from((HALF_DUPLEX, SLOW, SLOW_HALF_DUPLEX))
ROUNDING = 1 - 1e-7


def problem_in(graph: Graph, capacity: int, machine: Machine = SLOW, **workspace: int) -> Problem:
    """A problem in which every op takes a second, and the named ops need workspace."""
    costs = {op.name: Cost(1.0, workspace.get(op.name, 0)) for op in graph.ops}
    return Problem(graph, costs, machine, Budget(capacity), minimum_bytes=8, piece_bytes=64)


def seconds_of(problem: Problem, *decisions: Decision) -> float:
    """What a plan of these decisions takes; it has to fit."""
    trace = replay(apply_laws(problem.graph, decisions), problem.costs, problem.machine)
    assert trace.peak_bytes <= problem.budget.capacity_bytes
    return trace.seconds


# ---- cases small enough for pencil and paper

TRAVEL = """
storage x input 4
storage g generator 4
storage a 100
storage b 100
storage c 4
storage d 4
value %x: x@0 f32[1]
one: %a: a@0 f32[25] = my.one(%x)
two: %b: b@0 f32[25] = my.two(%x)
three: %c: c@0 f32[1] = my.three(%b)
four: %d: d@0 f32[1] = my.four(%a)
return %d
"""


def test_a_storage_that_must_travel_adds_its_way_there_and_back() -> None:
    """What no op may repeat leaves for ten seconds and comes back for five, with nothing to hide behind."""
    graph = parse_graph(TRAVEL.replace("my.one(%x)", "my.one(%x) writes g"))
    problem = problem_in(graph, 112, two=4)
    plan = Swap("a", "one", "two", (Piece(0, 100, "four"),), "four")
    assert seconds_of(problem, plan) == pytest.approx(19.0)
    assert bound_seconds(problem) == pytest.approx(19.0)


def test_a_storage_that_is_cheaper_to_build_again_adds_its_op() -> None:
    """If the op that made the same storage may be repeated, the bound is one more second of arithmetic."""
    problem = problem_in(parse_graph(TRAVEL), 112, two=4)
    assert seconds_of(problem, Recompute("a", "four")) == pytest.approx(5.0)
    assert bound_seconds(problem) == pytest.approx(5.0)


@pytest.mark.parametrize(("machine", "seconds"), [(SLOW, 29.0), (SLOW_HALF_DUPLEX, 34.0)])
def test_the_two_ways_of_a_half_duplex_link_share_its_time(machine: Machine, seconds: float) -> None:
    """One storage leaves while another comes: five seconds of ten overlap, if the link has two lanes."""
    text = TRAVEL.replace("my.one(%x)", "my.one(%x) writes g").replace("my.two(%x)", "my.two(%x) writes g")
    graph = parse_graph(text.replace("my.three(%b)", "my.three(%a)").replace("my.four(%a)", "my.four(%b)"))
    assert bound_seconds(problem_in(graph, 112, machine, two=4)) == pytest.approx(seconds)


def test_what_is_built_again_needs_what_it_was_built_from() -> None:
    """To repeat an op does not spare the way: its operand travels instead, a tenth of it while the op runs."""
    graph = parse_graph(
        """
        storage x input 4
        storage g generator 4
        storage p 100
        storage q 100
        storage f 204
        storage d 4
        value %x: x@0 f32[1]
        one: %p: p@0 f32[25] = my.one(%x) writes g
        two: %q: q@0 f32[25] = my.two(%p)
        fill: %f: f@0 f32[51] = my.fill(%x)
        four: %d: d@0 f32[1] = my.four(%q)
        return %d
        """
    )
    problem = problem_in(graph, 212)
    plan = Swap("q", "two", "fill", (Piece(0, 100, "four"),), "four")
    assert seconds_of(problem, plan) == pytest.approx(19.0)
    assert bound_seconds(problem) == pytest.approx(18.0)


def test_a_part_of_an_operand_builds_that_part_alone() -> None:
    """Half of an operand that stays over four rests does not build the whole, one half after the other."""
    graph = crowded(is_rebuilt=True)
    problem = problem_in(graph, 258)
    halves = 7 + 5 + 2.5
    assert halves - 0.5 <= bound_seconds(problem) <= halves


def test_a_dying_operand_and_the_result_over_it_count_once() -> None:
    """A chain of elementwise ops runs in the room of one storage, so its bound is the arithmetic."""
    lines = ["storage x input 4", "value %x: x@0 f32[1]", "storage a0 100", "%a0: a0@0 f32[25] = my.one(%x)"]
    for at in range(1, 5):
        lines += [f"storage a{at} 100", f"%a{at}: a{at}@0 f32[25] = aten.exp.default(%a{at - 1})"]
    graph = parse_graph("\n".join([*lines, "return %a4"]))
    problem = problem_in(graph, 104)
    assert seconds_of(problem, *free_rewrites(problem)[1]) == pytest.approx(5.0)
    assert bound_seconds(problem) == pytest.approx(5.0)


def test_a_gradient_may_die_at_once() -> None:
    """Updates may come early, so gradients that all wait for the end of the captured step do not count."""
    lines = ["storage x input 4", "value %x: x@0 f32[1]"]
    for at in range(3):
        lines += [f"storage w{at} parameter 100", f"value %w{at}: w{at}@0 f32[25]", f"storage g{at} gradient 100"]
        lines.append(f"%g{at}: g{at}@0 f32[25] = my.gradient(%x, %w{at})")
    lines += [f"%n{at}: w{at}@1 f32[25] = my.update(%w{at}, %g{at})" for at in range(3)]
    problem = problem_in(parse_graph("\n".join(lines)), 404)
    assert seconds_of(problem, *free_rewrites(problem)[1]) == pytest.approx(6.0)
    assert bound_seconds(problem) == pytest.approx(6.0)


def test_where_the_step_fits_the_bound_is_the_arithmetic() -> None:
    """No programme is asked where nothing has to move, nor below the floor, where there is no plan."""
    graph = chain(6)
    arithmetic = sum(cost.seconds for cost in problem_of(graph, 1).costs.values())
    assert bound_seconds(problem_of(graph, 1 << 20)) == arithmetic
    assert bound_seconds(problem_of(graph, 16)) == arithmetic


def test_the_bound_is_deterministic() -> None:
    """The same problem has the same bound, to the last bit."""
    problem = problem_of(chain(9), 1500)
    assert bound_seconds(problem) == bound_seconds(problem)


# ---- the planners


@pytest.mark.parametrize("planner", IN_ORDER)
@pytest.mark.parametrize("machine", [MACHINE, HALF_DUPLEX, SLOW], ids=["duplex", "half duplex", "slow"])
def test_no_planner_beats_the_bound_on_a_chain(planner: str, machine: Machine) -> None:
    """At budgets from the floor to in core, a chain forward and back takes no less than the bound."""
    graph = chain(8)
    floor, _ = floor_of(problem_of(graph, 1), graph)
    in_core = replay(graph, problem_of(graph, 1).costs, machine).peak_bytes
    for capacity in range(floor, in_core + 128, 256):
        _assert_planned_no_quicker(problem_of(graph, capacity, machine), planner)


@pytest.mark.parametrize("planner", IN_ORDER)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(graph=graphs(max_ops=14), tightness=st.floats(0, 1), minimum_bytes=st.sampled_from((4, 512)))
def test_no_planner_beats_the_bound_on_any_graph(
    planner: str, graph: Graph, tightness: float, minimum_bytes: int
) -> None:
    """At any budget from the floor up, whatever the graph."""
    problem = problem_of(graph, 1 << 40, minimum_bytes=minimum_bytes)
    rewritten = free_rewrites(problem)[0] if planner == "search" else graph
    floor = floor_of(problem, rewritten)[0]
    in_core = replay(graph, problem.costs, MACHINE).peak_bytes
    problem = replace(problem, budget=Budget(max(1, int(floor + tightness * max(0, in_core - floor)))))
    _assert_planned_no_quicker(problem, planner)


def _assert_planned_no_quicker(problem: Problem, planner: str) -> None:
    """A published planner may find no plan where there is one."""
    try:
        plan = planned(problem, planner).plan
    except Infeasible:
        return
    assert plan.predicted.seconds >= plan.bound_seconds * ROUNDING


# ---- any derivation


@st.composite
def derivations(draw: st.DrawFn, problem: Problem) -> Graph:
    """What the laws make of a graph by decisions drawn at random; updates move, and nothing else does."""
    graph = problem.graph
    for op in graph.ops:
        for decision in (TakeApart(op.name), ByLayout(op.name), ByLayout(f"{op.name}.input")):
            if (parts(op) or layout_only(op)) and draw(st.booleans()):
                graph = _tried(graph, decision)
    if draw(st.booleans()):
        graph, _ = early_updates(problem, graph)
    else:
        graph = _tried(graph, draw(_moves(graph)))
    if draw(st.booleans()):
        graph, _ = reuses(problem, graph)
    graph = draw(_stowed(problem, graph))
    graph = draw(_bridged(problem, graph))
    for kind in draw(st.lists(st.sampled_from(("reuse", "recompute")), max_size=3)):
        graph = _tried(graph, draw(_reuses(graph) if kind == "reuse" else _recomputations(graph)))
    for _ in range(draw(st.integers(0, 2))):
        graph = _tried(graph, draw(_swaps(graph)))
    return graph


@st.composite
def _stowed(draw: st.DrawFn, problem: Problem, graph: Graph) -> Graph:
    """The graph with some of what outlives the step at rest in the tier between steps."""
    uses = {name: life.uses for name, life in lifetimes(graph).items()}
    names = [op.name for op in graph.ops]
    for name in sorted(stowing(graph, leaving(problem, graph))):
        if draw(st.booleans()):
            first, last = uses[name][0], uses[name][-1]
            is_born, is_written = name in graph.born_at, any(name in written for written in graph.written_at)
            piece = Piece(0, graph.storages[name].size_bytes, names[draw(st.integers(0, first))])
            dropped = [*names, None][draw(st.integers(last + 1, len(names)))]
            after = names[last] if is_written or draw(st.booleans()) else None
            stow = Stow(name, () if is_born else (piece,), None if is_born else names[first], after, dropped)
            graph = apply_laws(graph, [stow])
    return graph


@st.composite
def _bridged(draw: st.DrawFn, problem: Problem, graph: Graph) -> Graph:
    """The graph with the storage of every gap kept, built again or moved, last gaps first."""
    names = [op.name for op in graph.ops]
    leaves = leaving(problem, graph)
    found = [(gap, draw(st.integers(0, 2))) for gap in reversed(gaps(graph, minimum_bytes=4, leaving=leaves))]
    for gap, choice in found:
        if choice == 1:
            graph = _tried(graph, Recompute(gap.storage, names[gap.end]))
    for gap, choice in found:
        if choice == 2:
            begin = graph.instructions[graph.op_positions[names[gap.begin]]]
            own = [name for name in graph.touched(begin) if name.split("$")[0] == gap.storage]
            dropped, back = sorted(draw(st.integers(gap.begin + 1, gap.end)) for _ in range(2))
            pieces = (Piece(0, gap.size_bytes, names[back]),)
            graph = _tried(graph, Swap(own[0], names[gap.begin], names[dropped], pieces, names[gap.end]))
    return graph


def _tried(graph: Graph, decision: Decision) -> Graph:
    try:
        return apply_laws(graph, [decision])
    except NotApplicable:
        return graph


def _moves(graph: Graph) -> st.SearchStrategy[Decision]:
    updated = (Role.PARAMETER, Role.OPTIMIZER)
    ops = graph.ops
    firsts = [
        at for at, op in enumerate(ops) if any(graph.storages[name].role in updated for name in graph.written(op))
    ]
    names = [op.name for op in ops]
    late = names[firsts[0] :] if firsts else names[-1:]
    if not firsts:
        return st.just(Move((names[-1],), names[-1]))
    return st.builds(lambda op, after: Move((op,), after), st.sampled_from(late), st.sampled_from(names))


def _reuses(graph: Graph) -> st.SearchStrategy[Decision]:
    fitting = [Reuse(op.name, form.operand) for op in graph.ops for form in IN_PLACE.get(op.operator, ())]
    return st.sampled_from(fitting or [Reuse(graph.ops[0].name)])


def _moving(graph: Graph) -> list[str]:
    """The storages that a plan may touch: persistent ones stay."""
    return [name for name, storage in graph.storages.items() if not storage.is_persistent] or ["none"]


def _recomputations(graph: Graph) -> st.SearchStrategy[Decision]:
    names = [op.name for op in graph.ops]
    return st.builds(Recompute, st.sampled_from(_moving(graph)), st.sampled_from(names))


@st.composite
def _swaps(draw: st.DrawFn, graph: Graph) -> Decision:
    names = [op.name for op in graph.ops]
    storage = draw(st.sampled_from(_moving(graph)))
    if storage == "none" or len(names) < 2:
        return Swap(storage, None, names[0], (), names[0])
    after, dropped, first, second, before = sorted(draw(st.integers(0, len(names) - 1)) for _ in range(5))
    size = graph.storages[storage].size_bytes
    half = size // 2
    pieces = (Piece(0, half, names[first]), Piece(half, size, names[second]))
    start = None if draw(st.integers(0, 3)) == 0 else names[after]
    return Swap(storage, start, names[dropped], pieces, names[before])


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(data=st.data(), graph=graphs(max_ops=9), machine=MACHINES)
def test_no_derivation_beats_the_bound(data: st.DataObject, graph: Graph, machine: Machine) -> None:
    """Whatever the laws derive is no quicker than the bounds, fine, coarse and merged, of a budget of its own peak."""
    assume(graph.ops)
    problem = problem_of(graph, 1 << 40, machine)
    _assert_not_beaten(problem, data.draw(derivations(problem)))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(data=st.data(), length=st.integers(2, 5), machine=MACHINES)
def test_no_derivation_of_a_training_step_beats_the_bound(data: st.DataObject, length: int, machine: Machine) -> None:
    """The same for small training steps, where every activation is used a second time, and gradients wait."""
    problem = problem_of(training(length), 1 << 40, machine)
    _assert_not_beaten(problem, data.draw(derivations(problem)))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(data=st.data(), length=st.integers(2, 6), machine=MACHINES)
def test_no_derivation_with_parts_beats_the_bound(data: st.DataObject, length: int, machine: Machine) -> None:
    """The same where convolutions may be taken apart, and operands given by layout."""
    problem = problem_of(convolutional(length), 1 << 40, machine)
    _assert_not_beaten(problem, data.draw(derivations(problem)))


def training(length: int) -> Graph:
    """A chain forward, the chain back with a gradient for each parameter, and the updates at the end."""
    lines = ["storage x input 4", "value %x: x@0 f32[1]", "storage a0 256", "%a0: a0@0 f32[64] = my.expand(%x)"]
    for at in range(1, length):
        lines += [f"storage a{at} 256", f"storage w{at} parameter 128", f"value %w{at}: w{at}@0 f32[32]"]
        operator = "aten.relu.default" if at % 2 else "my.linear"
        lines.append(f"%a{at}: a{at}@0 f32[64] = {operator}(%a{at - 1}, %w{at})")
    gradient = f"%a{length - 1}"
    for at in reversed(range(1, length)):
        lines += [f"storage d{at} gradient 128", f"%d{at}: d{at}@0 f32[32] = my.weight({gradient}, %a{at - 1})"]
        lines += [f"storage g{at} 256", f"%g{at}: g{at}@0 f32[64] = my.backward({gradient}, %a{at})"]
        gradient = f"%g{at}"
    lines += [f"%n{at}: w{at}@1 f32[32] = my.update(%w{at}, %d{at})" for at in range(1, length)]
    return parse_graph("\n".join(lines))


def _assert_not_beaten(problem: Problem, derived: Graph) -> None:
    try:
        verify_derived(derived, problem.graph)
    except InvalidGraph:
        assume(False)
    trace = replay(derived, problem.costs, problem.machine)
    problem = replace(problem, budget=Budget(max(1, trace.peak_bytes)))
    assert trace.seconds >= bound_seconds(problem) * ROUNDING
    found = study(problem)
    half_duplex = problem.machine.link.half_duplex
    for count in (1, 3, len(found.ops)):
        drawn = outline(found, choose_moments(found, count))
        for each in (drawn, merged(drawn)):
            solved = bound._solved(each, half_duplex)
            assert 0 < solved * ROUNDING <= trace.seconds, "there is a plan, so the programme is feasible"


# ---- every plan of a tiny graph


def every_choice(graph: Graph) -> Iterator[tuple[Decision, ...]]:
    """Keep, build again or move the storage of each gap, with every time to go and to come."""
    names = [op.name for op in graph.ops]
    choices: list[list[Decision | None]] = []
    for gap in gaps(graph, minimum_bytes=1):
        own: list[Decision | None] = [None, Recompute(gap.storage, names[gap.end])]
        for dropped in range(gap.begin + 1, gap.end + 1):
            for back in range(dropped, gap.end + 1):
                piece = Piece(0, gap.size_bytes, names[back])
                own.append(Swap(gap.storage, names[gap.begin], names[dropped], (piece,), names[gap.end]))
        choices.append(own)
    for chosen in product(*choices):
        made = [decision for decision in chosen if decision is not None]
        yield tuple(sorted(made, key=lambda decision: isinstance(decision, Swap)))


@pytest.mark.parametrize("machine", [MACHINE, SLOW], ids=["fast", "slow"])
def test_the_best_of_all_plans_of_a_tiny_chain_is_not_below_the_bound(machine: Machine) -> None:
    """Of every way to bridge every gap, at each peak that one of them has, none is quicker than the bound."""
    problem = problem_of(chain(3), 1 << 40, machine)
    best: dict[int, float] = {}
    for decisions in every_choice(problem.graph):
        graph = problem.graph
        for decision in decisions:
            graph = _tried(graph, decision)
        trace = replay(graph, problem.costs, machine)
        best[trace.peak_bytes] = min(trace.seconds, best.get(trace.peak_bytes, trace.seconds))
    for peak in best:
        quickest = min(seconds for other, seconds in best.items() if other <= peak)
        assert quickest >= bound_seconds(replace(problem, budget=Budget(peak))) * ROUNDING
