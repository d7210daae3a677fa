"""What does a process take before any model exists? The baseline, after importing and warming up.

Capturing, planning and running load parts of torch on first use (fake tensors, sympy, the kernels' thread pool). A
toy step goes the whole way once, so that these are in the baseline and not in the first real step.
"""

from contextlib import suppress
from dataclasses import replace

import torch
from torch import nn

from outgrow.analysis.cost import costs_of
from outgrow.frontends.lowering.inductor import by_kernels
from outgrow.frontends.lowering.lower import lower
from outgrow.frontends.tracing.capture import capture
from outgrow.frontends.user.reach.hooks import saved_without_hooks
from outgrow.ir.graph import Graph
from outgrow.ir.machine import Device, LinkRates, Machine
from outgrow.ir.text import parse_graph
from outgrow.plan import Budget
from outgrow.planning.floor import floor_of
from outgrow.planning.free.free import free_rewrites
from outgrow.planning.order.lean import Orders
from outgrow.planning.planner import planned
from outgrow.planning.problem import Problem
from outgrow.runtime import arena
from outgrow.runtime.freeing import clear_away
from outgrow.runtime.process import process_bytes, reset_high_water

_warm: set[str] = set()
_CROSSING = parse_graph(
    """
    storage x input 4
    storage a 400
    storage b 400
    storage c 4
    storage d 4
    value %x: x@0 f32[1]
    %a: a@0 f32[100] = my.wide(%x)
    %b: b@0 f32[100] = my.wide(%x)
    %c: c@0 f32[1] = my.thin(%a)
    %d: d@0 f32[1] = my.thin(%b, %c)
    return %d
    """
)
"""A step with another order than the captured one, which is looked for by code that a chain of layers does not need."""


def warm_up(kernels: str = "eager") -> int:
    """Load what a step with such kernels needs and return the process's bytes then: the baseline."""
    if kernels not in _warm:
        with (  # whatever the first call does
            torch.device("cpu"),
            torch.inference_mode(mode=False),
            torch.enable_grad(),
            saved_without_hooks(),
        ):
            _toy_step(kernels)
        _warm.add(kernels)
    clear_away()
    arena.keep_at_most(0)  # what an earlier step left to rest is no part of the baseline
    with suppress(OSError):  # a kernel without a mark is refused where steps are measured by it
        reset_high_water()
    return process_bytes()


def _toy_plan(graph: Graph) -> None:
    """Plan at the floor, so that every part of the search has been compiled."""
    problem = _toy_problem(graph)
    floor, _ = floor_of(problem, free_rewrites(problem)[0])
    planned(replace(problem, budget=Budget(floor)), prove=False)
    _ = Orders(_toy_problem(_CROSSING)).lean


def _toy_problem(graph: Graph) -> Problem:
    machine = Machine("warm", Device("warm", 1e9, 1e9), LinkRates(1e6, 1e6))
    return Problem(graph, costs_of(graph, machine.device, {}), machine, Budget(1), minimum_bytes=1)


def _toy_step(kernels: str) -> None:
    generator = torch.get_rng_state()
    model = nn.Sequential(nn.Conv3d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU())
    optimizer = torch.optim.Adam(model.parameters())

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    x = torch.ones(1, 2, 8, 8, 8)
    captured = by_kernels(capture(step, [model], [optimizer], (x,), {}), kernels)
    _toy_plan(captured.graph)
    lower(captured.graph)
    step(x)
    torch.set_rng_state(generator)
