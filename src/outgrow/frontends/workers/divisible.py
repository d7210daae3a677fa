"""What would a worker of a division run? The step of a workload is traced once, and then divided in any way.

Nothing is run or allocated, and there are no other processes: exchanges are ops whose cost the machine tells.
"""

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

import torch
import torch.utils._pytree as pytree

from outgrow.analysis.cost import Cost, cost_key, costs_of
from outgrow.errors import InvalidWorkload
from outgrow.frontends.tracing.assembly import captured_from
from outgrow.frontends.tracing.captured import Captured
from outgrow.frontends.tracing.trace import trace
from outgrow.frontends.tracing.traced import Traced
from outgrow.frontends.user.training.devices import CPU, home_of
from outgrow.frontends.user.training.state import Training
from outgrow.frontends.workers.dataflow import divisible_dataflow, put_back
from outgrow.frontends.workers.divided import divided
from outgrow.frontends.workers.exchange_order import Pace
from outgrow.frontends.workers.workers import one_by_one
from outgrow.frontends.workloads.loading import blamed_on
from outgrow.frontends.workloads.unallocated import build_unallocated
from outgrow.frontends.workloads.workload import Workload
from outgrow.ir.flight import ARRIVED, EXCHANGE
from outgrow.ir.graph import Argument, Graph, result_values
from outgrow.ir.machine import Machine
from outgrow.operators.dataflow import Dataflow
from outgrow.planning.partition.shares import Shares


@dataclass(frozen=True)
class Divisible:
    """A step that was traced, with the leaves of its batch, and its dataflow."""

    traced: Traced
    leaves: Sequence[object]
    step: Dataflow

    def whole(self) -> Captured:
        """Return the step as one device runs it."""
        return captured_from(self.traced, self.leaves)

    def of_worker(self, shares: Shares, worker: int, pace: Pace) -> Captured:
        """Return what one worker runs, in an order for workers of this pace."""
        states = {slot: shares.states(name) for slot, name in put_back(self.traced, self.step).items()}
        counts = torch.zeros(2, dtype=torch.int64)
        return captured_from(divided(self.traced, shares, worker, "workers", counts, states, pace), self.leaves)


def divisible(function: Callable[..., Workload], settings: Mapping[str, object]) -> Divisible:
    """Build a workload without memory and trace its step.

    Raises `InvalidWorkload` where the workload cannot be built or is not of the CPU, and `Uncapturable` where its step
    needs the content of a tensor.
    """
    workload = build_unallocated(function, settings)
    training, batch = Training((workload.model,), (workload.optimizer,)), tuple(workload.batches[0])
    home = home_of(training)
    if home != CPU:
        raise InvalidWorkload(
            f"The workload has its model on {home}, and steps of models on the CPU are divided. Build it there: a "
            "machine says what workers compute on."
        )
    with blamed_on("the step cannot be captured"), one_by_one(training):
        traced = trace(workload.step, training, batch, {}, told=None)
    found = Divisible(traced, pytree.tree_leaves((batch, {})), divisible_dataflow(traced))
    gc.collect()  # what tracing leaves behind would be looked at again and again while planning
    return found


def exchange_costs(graph: Graph, machine: Machine, worker: int) -> dict[str, Cost]:
    """Return the costs of beginning and awaiting the exchanges of a worker's step on a machine, by key.

    Exchanges go on beside arithmetic, one after the other; a wait costs what is left of its exchange when all ops
    before it are done. Waits of one key cost their mean.
    """
    costs = costs_of(graph, machine.device, {})
    now = free = 0.0
    ends: dict[str, float] = {}
    waits: dict[str, list[float]] = {}
    for op in graph.ops:
        if op.operator == EXCHANGE:
            now += machine.device.seconds_per_op
            sent, received = map(_sizes, op.arguments[2:4])
            free = max(now, free) + machine.exchange_seconds(worker, sent, received)
            ends.update(dict.fromkeys(result_values(op), free))
            waits[cost_key(graph, op)] = [machine.device.seconds_per_op]
        elif op.operator == ARRIVED:
            wait = max(0.0, ends[op.references[0]] - now)
            waits.setdefault(cost_key(graph, op), []).append(wait)
            now += wait
        else:
            now += costs[op.name].seconds
    return {key: Cost(mean(found)) for key, found in waits.items()}


def _sizes(argument: Argument) -> tuple[int, ...]:
    assert isinstance(argument, tuple), "sizes are a list"
    return tuple(size for size in argument if isinstance(size, int))
