"""What is there to show of a small step? Plans, graphs and traces for the tests of reports."""

from outgrow.analysis.cost import Cost
from outgrow.analysis.timeline import Trace
from outgrow.ir.graph import Graph
from outgrow.ir.machine import Device, LinkRates, Machine
from outgrow.ir.text import parse_graph
from outgrow.plan import Budget, Estimate
from outgrow.planning.planner import planned
from outgrow.planning.problem import Problem
from outgrow.report.account import account_of
from outgrow.report.findings import Findings
from outgrow.report.summary import Measured, Summary, Traces
from outgrow.rewriting.derive import verified
from outgrow.simulation import replay

MACHINE = Machine("toy <machine>", Device("toy", 1e9, 1e9), LinkRates(300.0, 300.0))


def chain(length: int, size: int = 256) -> Graph:
    """Exponentials forward, and backward a chain that reads their results in reverse."""
    lines = ["storage x input 4", "value %x: x@0 f32[1]"]
    before = "%x"
    for at in range(length):
        lines += [f"storage a{at} {size}", f"%a{at}: a{at}@0 f32[{size // 4}] = aten.exp.default({before})"]
        before = f"%a{at}"
    for at in reversed(range(length)):
        backward = f"my.backward({before}, %a{at})"
        lines += [f"storage g{at} {size}", f"%g{at}: g{at}@0 f32[{size // 4}] = {backward}"]
        before = f"%g{at}"
    return parse_graph("\n".join([*lines, f"return {before}"]))


def findings(
    length: int = 8,
    capacity_bytes: int = 1300,
    link: LinkRates = MACHINE.link,
    losses: tuple[float, ...] = (2.0, 1.0),
) -> Findings:
    """Everything that is known of a chain of this length after some steps."""
    graph = chain(length)
    machine = Machine(MACHINE.name, MACHINE.device, link)
    costs = {op.name: Cost(1.0) for op in graph.ops}
    problem = Problem(graph, costs, machine, Budget(capacity_bytes), minimum_bytes=4, piece_bytes=128)
    found = planned(problem)
    plan, derivation = found.plan, verified(graph, found.plan, found.stages, problem.workspace)
    in_core, simulated = replay(graph, costs, machine), replay(derivation.graph, costs, machine)
    measured = Trace(simulated.seconds * 1.01, simulated.spans, simulated.events)
    summary = Summary(
        workload="toy.py:<chain>",
        machine=machine.name,
        planner=plan.planner,
        budget_bytes=capacity_bytes,
        floor_bytes=plan.floor_bytes,
        in_core_peak_bytes=plan.in_core.peak_bytes,
        bound_seconds=plan.bound_seconds,
        in_core_seconds=plan.in_core.seconds,
        predicted=plan.predicted,
        simulated=Estimate(simulated.peak_bytes, simulated.seconds),
        measured=Measured(measured.peak_bytes, measured.peak_bytes, measured.seconds, losses) if losses else None,
        overhead_bytes=0,
        bytes_swapped=simulated.bytes_in + simulated.bytes_out,
        bytes_written=simulated.bytes_out,
        seconds_recomputed=0.0,
        ops=len(graph.ops),
        planning_seconds=plan.planning_seconds,
    )
    traces = Traces(in_core, simulated, measured if losses else None)
    account = account_of(graph, plan)
    return Findings(summary, plan, account, str(derivation), derivation.graph, traces, {"length": length})
