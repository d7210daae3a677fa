"""From a problem to a plan: run a planner, derive its graph, and write down what is predicted."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter, itemgetter

from outgrow.analysis.sinking import homeless, lasting, sunk
from outgrow.errors import Infeasible, InvalidPlan
from outgrow.ir.graph import Graph, Op
from outgrow.ir.text import fingerprint
from outgrow.plan import Decision, Estimate, Move, Plan
from outgrow.planning.bound.bound import bound_seconds
from outgrow.planning.floor import floor_of, needed_bytes
from outgrow.planning.free.by_rows import spared_seconds
from outgrow.planning.free.free import Freed
from outgrow.planning.leaving import idle
from outgrow.planning.order.lean import Orders, least_seconds
from outgrow.planning.planned import Planned
from outgrow.planning.problem import Problem
from outgrow.planning.published.capuchin import capuchin
from outgrow.planning.published.meng import meng
from outgrow.planning.published.nnabla_window import nnabla_window
from outgrow.planning.published.olla import olla
from outgrow.planning.published.serenity import serenity
from outgrow.planning.published.sqrt_checkpoint import sqrt_checkpoint
from outgrow.planning.published.tflms_v1 import tflms_v1
from outgrow.planning.published.tflms_v2 import tflms_v2
from outgrow.planning.search.search import search
from outgrow.rewriting.derive import Stage, apply_laws, carried_out, derived
from outgrow.simulation import replay

_IN_THE_WAY = 0.25
"""Small storages move where at least this share of the capacity is theirs at the op that sets the floor."""

_PUBLISHED: Mapping[str, Callable[[Problem], tuple[Decision, ...]]] = {
    "nnabla_window": nnabla_window,
    "tflms_v1": tflms_v1,
    "tflms_v2": tflms_v2,
    "meng": meng,
    "capuchin": capuchin,
    "sqrt_checkpoint": sqrt_checkpoint,
    "serenity": serenity,
    "olla": olla,
}
"""The planners of papers, which are asked where the captured step does not fit."""


def planned(
    problem: Problem,
    planner: str = "search",
    *,
    prove: bool = True,
    earlier: Plan | None = None,
    orders: Orders | None = None,
) -> Planned:
    """Return the plan of the named planner, with the floor, and a bound that no plan beats.

    The bound is that of `planning.bound` if `prove` asks for it, and else the seconds of the step's arithmetic. The
    time that floor and bound take is not counted as planning: no planner needs them. Plans of one graph and its costs
    may share `orders`, which then are looked for once. If an `earlier` plan is given, its decisions are taken, and no
    planner is asked.

    Raises `Infeasible` if the budget is below the floor, `KeyError` for an unknown planner, `InvalidPlan` for an
    earlier plan of another graph, and `NotApplicable` where a law's condition fails.
    """
    begin = time.perf_counter()
    notes: list[str] = []
    orders = Orders(problem) if orders is None else orders
    published = None if planner == "search" else _PUBLISHED[planner]
    is_search = published is None
    whole, freed = with_a_plan(replace(problem, remark=notes.append), orders, may_rest=is_search)
    # in the papers, what outlives the step stays on the device
    problem = whole if is_search else replace(whole, fixed=whole.fixed | whole.graph.outliving)
    own = fingerprint(problem.graph)
    if earlier is not None:
        stages = carried_out(problem.graph, _decisions_for(own, earlier))
    elif published is None:
        stages = _searched(problem, orders, freed)
    else:
        fits = needed_bytes(problem) <= problem.budget.capacity_bytes
        stages = () if fits else carried_out(problem.graph, published(problem))
    in_core = simulated = replay(problem.graph, problem.costs, problem.machine)
    if stages:
        simulated = replay(derived(problem.graph, stages), problem.costs, problem.machine)
    planning_seconds = time.perf_counter() - begin
    at_rest, finest = _at_rest(problem), _finest(problem, may_rest=is_search)
    if not at_rest.resting <= problem.resting:
        freed = orders.freed(at_rest)
    floor, culprit = _floor(finest, orders, freed.graph, may_reorder=is_search)
    bound = in_core.seconds - spared_seconds(problem)
    if prove:
        bound = _bound(whole, orders, () if is_search else stages)
    plan = Plan(
        planner=planner,
        fingerprint=own,
        budget=problem.budget,
        decisions=tuple(decision for stage in stages for decision in stage.decisions),
        predicted=Estimate(simulated.peak_bytes, simulated.seconds),
        floor_bytes=floor + problem.budget.overhead_bytes,
        floor_op=culprit.name if culprit else "",
        in_core=Estimate(in_core.peak_bytes, in_core.seconds),
        bound_seconds=bound,
        planning_seconds=planning_seconds,
        notes=tuple(notes),
    )
    return Planned(problem.graph, problem.costs, problem.machine, plan, stages, in_core, simulated)


def _decisions_for(own: str, earlier: Plan) -> tuple[Decision, ...]:
    """Return the decisions of an earlier plan; raises `InvalidPlan` unless it is of the graph of this fingerprint."""
    if earlier.fingerprint != own:
        raise InvalidPlan(
            f"The plan was made for graph {earlier.fingerprint}, but this graph is {own}. Plan again for this step."
        )
    return earlier.decisions


def _searched(problem: Problem, orders: Orders, freed: Freed) -> tuple[Stage, ...]:
    """Return the stages that the search makes of a graph, for which there is room below the device.

    A search knows one link and assumes endless room. So where there is a tier below, it searches once more in which, of
    what outlives the step, only what found room may leave; and if something goes on to the tier below, once as if
    everything did. The quicker result is taken, of those for which there is room.
    """
    stages, machine = search(problem, orders, freed), problem.machine
    if machine.below is None:
        return stages
    graph = derived(problem.graph, stages)
    without = homeless(graph, machine)
    if without:
        moving = lasting(graph) - without
        fewer = replace(problem, fixed=problem.fixed | (graph.outliving - moving))
        problem, freed = with_a_plan(fewer, orders, may_rest=True)
        try:
            stages = search(problem, orders, freed)
        except Infeasible:  # whoever asks the tier for room hears how much there is
            return stages
        graph = derived(problem.graph, stages)
    if not sunk(graph, machine):
        return stages
    others = search(replace(problem, machine=replace(machine, link=machine.below)), orders, freed)
    other = derived(problem.graph, others)
    if homeless(other, machine):
        return stages
    seconds, other_seconds = (replay(one, problem.costs, machine).seconds for one in (graph, other))
    return others if other_seconds < seconds else stages


def with_a_plan(problem: Problem, orders: Orders, *, may_rest: bool) -> tuple[Problem, Freed]:
    """Return the problem that is planned, relaxed as far as it needs to have a plan, and its graph after free rewrites.

    1. As it is, if its floor is within the capacity.
    2. Else, if `may_rest`, with all storages that no op uses at rest in the next tier throughout the step.
    3. Else with storages down to `least_bytes` allowed to move, too.

    If `may_rest`, small storages also move (3) where there is a plan without them, if they are a large share of what
    sets the floor (`_IN_THE_WAY`). Other rewrites may be free then; of the two graphs, the one with the lower floor is
    taken.
    """
    capacity = problem.budget.capacity_bytes
    freed = orders.freed(problem)
    if may_rest and freed.floor_bytes > capacity:
        problem = _at_rest(problem)
        freed = orders.freed(problem)
    is_above = freed.floor_bytes > capacity
    finest = _finest(problem, may_rest=may_rest and is_above)
    if finest.minimum_bytes < problem.minimum_bytes and (may_rest or is_above):
        as_finest = freed._replace(floor_bytes=floor_of(finest, freed.graph)[0])
        in_the_way = freed.floor_bytes - as_finest.floor_bytes if may_rest else 0
        if is_above or in_the_way >= _IN_THE_WAY * capacity:
            return finest, min(as_finest, orders.freed(finest), key=attrgetter("floor_bytes"))
    return problem, freed


def _bound(problem: Problem, orders: Orders, stages: Sequence[Stage]) -> float:
    """Return seconds that no plan beats: in the captured order, in the lean one, or in that to which `stages` move ops.

    A published planner may choose an order of its own, which is neither of the first two.
    """
    least = least_seconds(problem, orders)
    moves = [decision for stage in stages for decision in stage.decisions if isinstance(decision, Move)]
    return min(least, bound_seconds(replace(problem, graph=apply_laws(problem.graph, moves)))) if moves else least


def _floor(problem: Problem, orders: Orders, rewritten: Graph, *, may_reorder: bool) -> tuple[int, Op | None]:
    """Return the floor that a plan tells, and the op that sets it: the lowest of the floors of all orders.

    For a planner that keeps the captured order (not `may_reorder`) it is the floor of this order, unless that is above
    the capacity.
    """
    found = floor_of(problem, rewritten)
    if not may_reorder and found[0] <= problem.budget.capacity_bytes:
        return found
    others = [orders.freed(replace(problem, graph=graph)) for graph, moves in orders if moves]
    return min([found, *(floor_of(problem, other.graph) for other in others)], key=itemgetter(0))


def _finest(problem: Problem, *, may_rest: bool) -> Problem:
    """Return a problem in which small storages move, and all that no op uses rests, if it may."""
    finest = replace(problem, minimum_bytes=min(problem.minimum_bytes, problem.least_bytes))
    return _at_rest(finest) if may_rest else finest


def _at_rest(problem: Problem) -> Problem:
    """Return a problem in which all that no op uses rests in the next tier."""
    return replace(problem, resting=idle(problem, problem.graph))
