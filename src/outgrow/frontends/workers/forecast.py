"""How long does a step take that is divided among the devices of a machine, and how long without dividing it?

The graph of the first worker, whose parts are no smaller than others', is planned under the budget of one device and
simulated on the machine as one of its workers sees it. All workers exchange at the same time, so all take as long.
"""

from collections.abc import Callable
from dataclasses import dataclass

from outgrow.analysis.cost import cost_key, costs_of
from outgrow.errors import Infeasible
from outgrow.frontends.preparing.ahead import How, KnownMachine, plan_captured
from outgrow.frontends.tracing.captured import Captured
from outgrow.frontends.workers.divisible import Divisible, exchange_costs
from outgrow.frontends.workers.exchange_order import Pace
from outgrow.ir.flight import ARRIVED
from outgrow.ir.machine import Machine
from outgrow.operators.dataflow import Dataflow
from outgrow.plan import Estimate
from outgrow.planning.partition.data_parallel import data_parallel_bytes
from outgrow.planning.partition.partition import Partition
from outgrow.planning.partition.placed import placed_seconds
from outgrow.planning.partition.shares import Shares
from outgrow.planning.problem import silent
from outgrow.report.division import Forecast
from outgrow.simulation import replay

FIRST = 0


@dataclass(frozen=True, slots=True)
class Worker:
    """What the step of one worker takes, and the seconds of it in which it waits for others."""

    planned: Estimate
    waiting_seconds: float


def of_a_worker(
    job: Divisible,
    found: Partition,
    machine: Machine,
    budget_bytes: int | None,
    progress: Callable[[str, float], None] = silent,
) -> Worker:
    """Return what a divided step takes; without a budget each device has all memory that it needs.

    Raises `Infeasible` where a worker's step does not fit.
    """
    progress("worker", 0.0)
    own = job.of_worker(Shares(job.step, found), FIRST, Pace.of(machine, found.workers))
    exchanges = exchange_costs(own.graph, machine, FIRST)
    planned = _planned(own, KnownMachine(machine.as_one_of(found.workers), exchanges), budget_bytes, progress)
    seconds = sum(exchanges[cost_key(own.graph, op)].seconds for op in own.graph.ops if op.operator == ARRIVED)
    return Worker(planned, seconds)


def forecast(
    job: Divisible,
    found: Partition,
    machine: Machine,
    budget_bytes: int | None,
    progress: Callable[[str, float], None],
) -> Forecast:
    """Return what a divided step takes, and what its rivals take. Raises `Infeasible` as `of_a_worker` does."""
    worker = of_a_worker(job, found, machine, budget_bytes, progress)
    whole = job.whole()
    alone = costs_of(whole.graph, machine.device, {})
    ideal = sum(alone[op.captured].seconds for op in whole.graph.ops) / found.workers
    progress("one device", 0.0)
    try:
        one_device = _planned(whole, KnownMachine(machine), budget_bytes, progress).seconds
    except Infeasible:
        one_device = None
    return Forecast(
        machine=machine.name,
        budget_bytes=budget_bytes,
        predicted_seconds=worker.planned.seconds,
        waiting_seconds=worker.waiting_seconds,
        planned_peak_bytes=worker.planned.peak_bytes,
        ideal_seconds=ideal,
        data_parallel_seconds=_data_parallel(job.step, found, machine, ideal, budget_bytes),
        placement_seconds=placed_seconds(whole.graph, alone, machine, found.workers),
        one_device_seconds=one_device,
    )


def _planned(
    captured: Captured, target: KnownMachine, budget_bytes: int | None, progress: Callable[[str, float], None]
) -> Estimate:
    """Return the seconds and the peak of a step as it is, or within a budget."""
    if budget_bytes is None:
        trace = replay(captured.graph, costs_of(captured.graph, target.machine.device, target.costs), target.machine)
        return Estimate(trace.peak_bytes, trace.seconds)
    return plan_captured(captured, target, budget_bytes, How(prove=False, progress=progress)).plan.predicted


def _data_parallel(
    step: Dataflow, found: Partition, machine: Machine, ideal_seconds: float, budget_bytes: int | None
) -> float | None:
    """Return the seconds of a step whose gradients go around in a ring beside arithmetic.

    None if weights or batch do not allow it.
    """
    size_bytes = data_parallel_bytes(step, found.workers)
    held = sum(tensor.size_bytes for tensor in step.tensors.values() if tensor.lasting)
    if size_bytes is None or (budget_bytes is not None and held > budget_bytes):
        return None
    if found.workers == 1:
        return ideal_seconds
    sent = [0] * found.workers
    sent[1] = size_bytes // found.workers
    return max(ideal_seconds, machine.exchange_seconds(FIRST, sent, sent))
