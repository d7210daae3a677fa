"""How is one call of a captured step fed, and what becomes of its results?

    Feed        the tensors of this call (parameters, state, batch) by input storage, beside a program
    let_go      what the call replaces unread goes before room is taken for what it makes
    made_ready  what is to rest on the disk goes there; a `Run` knows where everything is, and hyper-parameters by value
    carried_out `runtime.execute`, and which guesses were wrong (`frontends.wrong_guesses`)
    put_results, settle   results go where the captured step left them: new state, gradients, the return value

A call that fails before the first update leaves everything but gradients and the batch as it was: buffers, tensors
found outside, and the generators, which a forward pass changes, are copied before and put back. Gradients that the step
replaces unread are gone, as after `zero_grad`; to gradients that it adds to, something may have been added, and a batch
that it writes to may have been written, as in eager mode. A failure after the first update leaves the state torn.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from outgrow.frontends.tracing.captured import Given
from outgrow.frontends.user.training.devices import generators_of
from outgrow.frontends.user.training.sharing import raise_versions
from outgrow.frontends.user.training.state import BatchSlot, HeldSlot, Training, put, read, set_trained, storage_name
from outgrow.frontends.wrong_guesses import executed
from outgrow.runtime.device_memory import DeviceMemory
from outgrow.runtime.execute import Outcome, Run
from outgrow.runtime.program import Program
from outgrow.runtime.recording import Held
from outgrow.runtime.repeated import Running, again
from outgrow.runtime.resting import Extent
from outgrow.runtime.spill import Spill


@dataclass(frozen=True)
class Feed:
    """Everything that one call of a captured step works on."""

    given: Given
    program: Program
    training: Training


def let_go(given: Given, training: Training) -> None:
    """Drop the gradients that a call replaces unread, and with them their room in a next tier."""
    for slot in given.captured.stale:
        put(slot, None, training)


def made_ready(feed: Feed, spill: Spill | None, memory: DeviceMemory, capacity_bytes: int, *, observe: bool) -> Run:
    """Return the run of a call, within the capacity. Gradients that it replaces go, what is stowed goes to `spill`."""
    captured = feed.given.captured
    let_go(feed.given, feed.training)
    program, storages, extents = feed.program, dict(feed.given.storages), dict[str, Extent]()
    if spill is not None:
        lasting = {name: size for name, size in program.sizes.items() if name in program.lasting}
        extents = spill.arrange(storages, program.stowed, lasting, program.sunk)
    return Run(
        program,
        spill,
        storages,
        dict(zip(captured.hyper, captured.hyper_values(feed.training), strict=True)),
        capacity_bytes,
        extents=extents,
        memory=memory,
        observe=observe,
    )


def repeating(feed: Feed, run: Run, noted: Held | None) -> Running:
    """Return the run of a call, which has not begun, as one that has less to find out, if it can.

    An earlier one, if any, has `noted` what it held. What is not stowed stays in memory between steps, but the batch.
    """
    slots, stowed = feed.given.captured.slots, feed.program.stowed
    staying = (name for name in feed.given.tensors if name not in stowed and not isinstance(slots[name], BatchSlot))
    return again(run, noted, staying)


def carried_out(feed: Feed, run: Running) -> Outcome:
    """Carry out a run of the call; if it fails before the first update, put what its forward pass wrote back.

    Autograd sees that tensors were written, as by any operator that works in place.
    """
    before = {name: feed.given.tensors[name].untyped_storage().clone() for name in feed.given.captured.written_forward}
    generators = [(generator, generator.get_state()) for generator in generators_of(feed.given.captured.device)]
    completed = False
    try:
        outcome = executed(run, feed.given.captured.guesses)
        completed = True
    finally:
        try:
            if not completed:
                run.abandon()
        finally:
            if not completed and not run.progress.updating:
                _put_back(feed, before)
                for generator, state in generators:
                    generator.set_state(state)
            else:
                raise_versions(feed.given.tensors[name] for name in feed.given.captured.written_aloud)
            before.clear()  # an error that somebody keeps would keep the copies
    return outcome


def _put_back(feed: Feed, before: Mapping[str, torch.UntypedStorage]) -> None:
    """Let storages of a call have again what they had."""
    for name, copy in before.items():
        feed.given.tensors[name].untyped_storage().copy_(copy)
    raise_versions(feed.given.tensors[name] for name in before)


def put_results(feed: Feed, outcome: Outcome) -> None:
    """Hang new state and gradients where the captured step left them."""
    for item in feed.given.captured.puts:
        result = item.number if item.result is None else outcome.results[item.result]
        assert result is None or isinstance(result, Tensor | int | float), f"{item.slot} holds a tensor or a number"
        spread = feed.given.captured.spreads.get(item.slot)
        if spread is not None and isinstance(result, Tensor):
            result = spread.around(result)
        item.hang(result, feed.training)


def settle(feed: Feed, outcome: Outcome) -> object:
    """Leave attributes, flags, schedulers and results outside as the captured step did; return what it returns."""
    captured = feed.given.captured
    captured.leave()
    set_trained(feed.training, captured.flags)
    for scheduler in captured.schedulers:
        scheduler.step()
    returned, gathered = captured.left_after(outcome.results, partial(_held, feed))
    for slot, value in zip(captured.gathered, gathered, strict=True):
        slot.leave(value)
    captured.show()
    return returned


def _held(feed: Feed, slot: HeldSlot) -> Tensor | None:
    """Return what hangs in a slot, or was given; None if it is spread over a mesh, or lies in another's memory."""
    match slot:
        case BatchSlot():
            return feed.given.tensors.get(storage_name(slot))
        case _ if slot in feed.given.captured.spreads:
            return None
        case _:
            found = read(slot, feed.training)
            assert isinstance(found, Tensor), f"{slot} holds a tensor by now"
            return found
