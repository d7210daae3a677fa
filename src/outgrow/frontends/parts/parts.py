"""What is a part of a loop? A forward pass, and its backward pass, which comes later, when autograd asks for it.

Both are one step with a hole in it (`frontends.parts.joint`), so one plan moves or builds again what waits between the
two passes (`frontends.parts.passes`). There is a plan for each kind of inputs, for each answer to what the part asks of
them, such as how many elements a mask chooses (`frontends.fake.looks.questions`), and for each way in which gradients
arrive (`frontends.parts.arrivals`). Parts share a budget (`frontends.parts.shared_budget`). Parameters, their gradients
and the optimizer's state stay on the device.
"""

import gc
from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from itertools import count
from threading import RLock
from typing import Any

import torch
from torch import Tensor, fx
from torch._C._functorch import is_legacy_batchedtensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from outgrow.errors import Infeasible, OutOfTurn, Uncapturable
from outgrow.frontends.lowering.inductor import by_kernels
from outgrow.frontends.parts.aliases import made_of, may_be_written
from outgrow.frontends.parts.ample import with_room_for
from outgrow.frontends.parts.arrivals import Arrival, Beginning, Foretold, arrival_of, begin_alike
from outgrow.frontends.parts.between import Version, note_writes, places, versions
from outgrow.frontends.parts.casting import NO_CASTING, Casting
from outgrow.frontends.parts.floats import floats_of, numbers
from outgrow.frontends.parts.joint import Arriving, as_traced, joint, origin_of, primal
from outgrow.frontends.parts.passes import Waiting, gradients, returned
from outgrow.frontends.parts.shared_budget import (
    NOBODY,
    Ready,
    Shared,
    close,
    fits_whole,
    is_outdated,
    may_stay,
    plain,
    planned_part,
    shown,
)
from outgrow.frontends.preparing.settings import Settings
from outgrow.frontends.tracing.capture import capture
from outgrow.frontends.tracing.captured import Captured
from outgrow.frontends.tracing.signature import signature
from outgrow.frontends.user.functions import without_modes
from outgrow.frontends.user.left.outside import Outside
from outgrow.frontends.user.lines import NO_LINE
from outgrow.frontends.user.reach import hooks
from outgrow.frontends.user.refusals import DROP_IN
from outgrow.remarks import remark

_turn = RLock()
"""Only one thread at a time runs a part: parts share a budget, and what one exchanges while it captures."""
MOST_KINDS = 32
"""A part keeps plans for at most this many kinds of inputs, and forgets the kind not seen for the longest."""
_MANY = 8
_OFTEN = (
    "A part of the model{} has been captured and planned {} times, for other inputs each time, which takes seconds. "
    "Pad batches to few shapes, such as multiples of 64. Within a budget of more than twice what is taken only inputs "
    "that are larger than all before are captured."
)
_CHANGED = (
    "An input or a result of a compiled part was changed in place before the backward pass, which the plan of the part "
    "reads, or its .data was set. Change a copy of it, or change it after the backward pass."
)
_OVER = (
    "This backward pass has run already, and a compiled part keeps nothing for a second one (retain_graph=True). Give "
    "outgrow.compile the whole step, add up the losses before one backward(), or run the forward pass again."
)


class Part:
    """A forward pass and its backward pass, planned together for each kind of inputs when it is first called."""

    def __init__(
        self, module: fx.GraphModule, settings: Settings, share: Callable[[Settings, Sequence[object]], Shared]
    ) -> None:
        """`share` says what the part shares with others, for settings and the inputs of a call."""
        self._origin = origin_of(module)
        self._floats, self._by_number = floats_of(module), False  # also in regions, which `as_traced` takes apart
        self._module, self._settings, self._share = as_traced(module), settings, share
        self._ready: dict[Hashable, Ready] = {}
        self._others: dict[tuple[Hashable, Arrival], Ready] = {}
        self._foretold: dict[tuple[bool, ...], Foretold] = {}
        """By which inputs want a gradient."""

    def __call__(self, *args: object) -> object:
        """Run the forward pass; with gradients, the results know their backward pass.

        Raises `Uncapturable` for an argument with a tangent, which no part passes on, and for one made of others.
        """
        with _turn, without_modes():
            _check_tangents(args)
            _check_plain(args)
            return self._called(args)

    def _called(self, args: Sequence[object]) -> object:
        shared = self._share(self._settings, args)
        with shared.platform.failing():
            return self._ran(shared, args)

    def _ran(self, shared: Shared, args: Sequence[object]) -> object:
        is_checkpointed = hooks.is_checkpointed()
        if any(ready.runs for ready in self._ready.values()):  # else Dynamo has compiled this meanwhile
            shared.tell_of_others()
        shared.note()
        if not is_checkpointed and (roomy := with_room_for(args, self._ready.values(), shared)) is not None:
            return self._as_written(shared, roomy, args)
        with hooks.saved_without_hooks() if is_checkpointed else nullcontext():
            asked = replace(self._prepared(shared, args), is_checkpointed=is_checkpointed)
        ready = asked.ready
        if ready.hole is not None:
            asked.shared.casts.note(ready.casts, args, is_planned=True)
            found = _Pair.apply(asked.without_history(), *asked.differentiated(), *_again(ready, args))
            asked.versions.extend(_versions(ready, args, found))  # by now autograd has raised those of written inputs
            results = found[: len(found) - len(asked.written)]
            may_be_written(ready.views, results, args)
            return made_of(args, results)
        waiting = Waiting(asked.shared, asked.ready, asked.others_bytes, asked.args)
        with waiting.ended_by_errors():
            waiting.run.advance(len(ready.program.instructions))
            note_writes(args, ready.between)
            results, _ = returned(ready, waiting.run)
            waiting.complete()
        return made_of(args, results)

    def _as_written(self, shared: Shared, roomy: Ready, args: Sequence[object]) -> object:
        """Run the forward pass as eager mode does, in the ample room of inputs at least as large."""
        roomy.as_written += 1
        shared.casts.note(roomy.casts, args, is_planned=False)
        if shared.is_apart:
            shared.give_back()
        shared.platform.keep_at_most(shared.taken_bytes)
        return self._module(*args)

    def _prepared(self, shared: Shared, args: Sequence[object]) -> "_Asked":
        """Return a call with the part for its inputs, planned again once more is known."""
        leaves = tuple(arg.is_leaf for arg in args if isinstance(arg, Tensor))
        of_floats = numbers(self._floats, args) if self._by_number else ()
        key = self._key((signature(self._module, (), (), args, {}), leaves, of_floats), args)
        ready = self._ready.get(key)
        others = shared.others_bytes(args)
        if ready is None:
            foretold = self._foretold.get(_wanted(args)) if torch.is_grad_enabled() else None
            try:
                if foretold is None:
                    captured = self._captured(args)
                else:
                    captured = self._captured(args, foretold.strides, foretold.casting)
            except Uncapturable:
                if self._by_number or not self._floats:
                    raise
                captured = None
            if captured is None:  # what was raised is gone now, and with it what a checkpoint of torch 2.11 left open
                self._by_number = True
                return self._prepared(shared, args)
            if not fits_whole(shared, captured, others):
                gc.collect()  # what the compilers have left behind
                shared.platform.trim()
            ready = planned_part(shared, captured, self._origin, args, others, None)
            if foretold is not None:
                ready.open, ready.places, ready.casting = foretold.open, foretold.places, foretold.casting
            self._use(shared, key, ready)
            self._drop_oldest(shared)
            if len(self._ready) == _MANY:
                begins = self._origin.begins
                remark(_OFTEN.format(begins and f" ({begins})", _MANY))
        else:
            others = shown(shared, ready, others)
            self._replan(shared, key, args, others)
        self._ready[key] = self._ready.pop(key)  # the last is what was asked for last
        return _Asked(self, shared, self._ready[key], key, others, args)

    def _key(self, kind: Hashable, args: Sequence[object]) -> Hashable:
        """Return what the part for inputs of a kind is kept under: of several, the one with the answers of these."""

        def is_right(number: int) -> bool:
            ready = self._ready.get((kind, number))
            return ready is None or ready.captured.answered_otherwise(args, NOBODY) is None

        return kind, next(filter(is_right, count()))

    def _captured(
        self, args: Sequence[object], arriving: Arriving | None = None, casting: Casting = NO_CASTING
    ) -> Captured:
        if self._by_number:
            for item, number in zip(self._floats, numbers(self._floats, args), strict=True):
                item.number = number
        try:
            captured = capture(joint(self._module, args, arriving, casting), (), (), [plain(arg) for arg in args])
        except Uncapturable as refusal:
            raise Uncapturable(_of_part(str(refusal), self._origin.begins)) from refusal
        inside = replace(captured, outside=Outside())  # Dynamo guards what is outside; the inputs are not to be held
        return by_kernels(inside, self._settings.kernels)

    def as_they_arrive(self, asked: "_Asked", waiting: Waiting, begun: Beginning, arrival: Arrival) -> Waiting:
        """Return a run that waits for gradients as they arrive: a new one, or this one if a new one began otherwise."""
        key, shared, present = asked.key, asked.shared, self._ready.get(asked.key, asked.ready)
        found = present if present.arrival == arrival else self._others.pop((key, arrival), None)
        captured = self._captured_again(asked, begun, arrival) if found is None else found.captured
        if captured is None:
            return waiting
        waiting.end()
        others = shared.others_bytes(asked.args)
        if present is not found:
            self._others[key, present.arrival] = present
        if found is not None:
            self._use(shared, key, found)
            self._replan(shared, key, asked.args, shown(shared, found, others))
        else:
            found = planned_part(shared, captured, self._origin, asked.args, others, None)
            found.number, found.open, found.places = asked.ready.number, asked.ready.open, asked.ready.places
            found.seen, found.is_known = asked.ready.seen, True  # there gradients are switched on
            found.casting = arrival.casting
            self._foretold[_wanted(asked.args)] = Foretold.by(arrival, found.open, found.places)
            self._use(shared, key, found)
        self._drop_oldest(shared)
        ready = self._ready[key]
        assert ready.hole is not None, "it is the same part"
        with begun.again(), begun.put_into(asked.args):
            again = Waiting(shared, ready, others, asked.args)
            with again.ended_by_errors():
                again.run.advance(ready.hole)
        return again

    def _use(self, shared: Shared, key: Hashable, ready: Ready) -> None:
        """Let a plan serve from now on."""
        self._ready[key] = ready
        shared.hold(ready)

    def _captured_again(self, asked: "_Asked", begun: Beginning, arrival: Arrival) -> Captured | None:
        """Return the part captured for gradients of this arrival; None if its forward pass is another one."""
        old = asked.ready.captured
        with begun.again():
            captured = self._captured(asked.args, lambda _shapes: arrival.strides, arrival.casting)
        return captured if begin_alike(old.graph, captured.graph) else None

    def _replan(self, shared: Shared, key: Hashable, args: Sequence[object], others: int) -> None:
        """If outdated, plan again from what runs have shown; if there is no such plan, the old one may stay."""
        ready = self._ready[key]
        if not is_outdated(shared, ready, others):
            return
        try:
            self._use(shared, key, planned_part(shared, ready.captured, self._origin, args, others, ready))
        except Infeasible:
            if not may_stay(shared, ready, others):
                raise
        else:
            close(shared, ready)

    def _drop_oldest(self, shared: Shared) -> None:
        """Forget the kind of inputs that was not seen for the longest, if there is one too many."""
        kinds: dict[Any, Ready]
        for kinds in (self._ready, self._others):
            if len(kinds) > MOST_KINDS:
                close(shared, kinds.pop(next(iter(kinds))))


@dataclass(frozen=True)
class _Asked:
    """A call of a part on its inputs: what it shares, the part for such inputs, by its key, and what others take.

    `versions` are those of what must stay as it is, once the forward pass has run. If it `is_checkpointed`, eager mode
    would run the forward pass once more before the backward pass.
    """

    part: Part
    shared: Shared
    ready: Ready
    key: Hashable
    others_bytes: int
    args: Sequence[object]
    versions: list[Version] = field(default_factory=list[Version])
    is_checkpointed: bool = False

    @property
    def written(self) -> tuple[int, ...]:
        """The numbers of the inputs that get another history: they are the last results, too."""
        return self.ready.between.over

    @cached_property
    def cut(self) -> tuple[int, ...]:
        """The numbers of the inputs that want a gradient, and get none: eager mode has no way into their history."""
        wanted = [at for at, is_wanted in enumerate(_wanted(self.args)) if is_wanted]
        counts = zip(wanted, self.ready.places, strict=True)
        return tuple(at for at, count in counts if not count and at not in self.written)

    def differentiated(self) -> list[object]:
        """Return the inputs; those that are `cut` without their history."""
        return [plain(arg) if at in self.cut else arg for at, arg in enumerate(self.args)]

    def without_history(self) -> "_Asked":
        """Return the call with other tensors for what is `cut`, or gets a history of the part's, and would live on."""
        args = [*self.args]
        for at in (*self.written, *self.cut):
            arg = args[at]
            assert isinstance(arg, Tensor), "it is written over, or wants a gradient"
            args[at] = primal(arg, arg) if arg.requires_grad else arg.detach()
        return replace(self, args=args)


class _Pair(torch.autograd.Function):
    """The forward pass runs the program up to the hole, the backward pass the rest of it."""

    @staticmethod
    def forward(ctx: Any, asked: _Asked, *given: object) -> tuple[object, ...]:
        """Return what the part returns, and the inputs that it writes over if they want a gradient then."""
        ready, args, written = asked.ready, asked.args, asked.written
        assert ready.hole is not None, "a part with gradients has a hole"
        begun = Beginning.of(args, ready.between.writes, is_first=not ready.is_known)
        waiting = Waiting(asked.shared, asked.ready, asked.others_bytes, asked.args)
        with waiting.ended_by_errors():
            waiting.run.advance(ready.hole)
            note_writes(args, ready.between)
            there, _ = returned(ready, waiting.run)
            there = [*there[: len(there) - len(written)], *(args[at] for at in written)]
            results = [plain(item) for item in there]  # a run that knew its backward pass would live for ever
            for at, view in ready.views.items():
                results[at] = view.of(given)
            results[len(results) - len(written) :] = [given[at] for at in written]
            ctx.mark_dirty(*(given[at] for at in written))
            closed = [item for at, item in enumerate(results) if isinstance(item, Tensor) and at not in ready.open]
            ctx.mark_non_differentiable(*closed)
            ctx.set_materialize_grads(False)
            ctx.asked, ctx.waiting, ctx.results = asked, waiting, there
            ctx.wanted = _wanted(args)
            ctx.begun = begun
            if asked.is_checkpointed and ready.between.writes:
                ctx.save_for_backward(torch.empty(0))  # so that the checkpoint runs the part again, which writes again
            waiting.wait()
        return tuple(results)

    @staticmethod
    @torch._dynamo.disable
    def backward(ctx: Any, *given: Tensor | None) -> tuple[object, ...]:
        """Return what adds up to the gradients of the part's inputs; None where no gradient has arrived."""
        with _turn, without_modes():
            if ctx.waiting is None:
                raise OutOfTurn(_OVER)
            with ctx.asked.shared.platform.failing():
                return _backward(ctx, given)


def _backward(ctx: Any, given: Sequence[Tensor | None]) -> tuple[object, ...]:
    asked, waiting, results, begun = ctx.asked, ctx.waiting, ctx.results, ctx.begun
    ctx.asked, ctx.waiting, ctx.results, ctx.begun = None, None, (), None
    with waiting.ended_by_errors():
        _ = ctx.saved_tensors
        _check_backward(given)
        if _versions(asked.ready, asked.args, results) != asked.versions:
            raise OutOfTurn(_CHANGED)
        del results
        arriving, places = {at: given[at] for at in asked.ready.open}, asked.ready.places
        waiting.go_on(sum(gradient.nbytes for gradient in arriving.values() if gradient is not None))
        if all(gradient is None for gradient in arriving.values()):
            waiting.end()
            return (None, *_in_place([() for _ in places], places, ctx.wanted))
        arrival = arrival_of([*arriving.values()])
        may_begin_anew = begun is not None and begun.is_unchanged() and ctx.wanted == _wanted(asked.args)
        if arrival != asked.ready.arrival and may_begin_anew:
            waiting = asked.part.as_they_arrive(asked, waiting, begun, arrival)
        _check_casting(waiting.ready, arrival)
    waiting.ready.is_known = True
    del asked, begun
    return (None, *_in_place(gradients(waiting, arriving), places, ctx.wanted))


def _of_part(refusal: str, begins: str) -> str:
    """Return a refusal without the way out that parts are, and with where the part begins if it names no line."""
    text = refusal.removesuffix(DROP_IN)
    nowhere = f"{NO_LINE}: "
    return f"in the part that begins in {begins}: {text.removeprefix(nowhere)}" if text.startswith(nowhere) else text


def _check_tangents(args: Sequence[object]) -> None:
    """Refuse inputs of a derivative in forward mode: what a part returns has no tangents."""
    if forward_ad._current_level < 0:
        return
    if any(isinstance(arg, Tensor) and forward_ad.unpack_dual(arg).tangent is not None for arg in args):
        raise Uncapturable(
            "a compiled part passes no derivatives on in forward mode (jvp, jacfwd, dual tensors); call the model that "
            "is not compiled, model._orig_mod"
        )


def _check_plain(args: Sequence[object]) -> None:
    """Refuse tensors that are made of others, as those of a mesh are."""
    made = next((arg for arg in args if isinstance(arg, Tensor) and is_traceable_wrapper_subclass(arg)), None)
    if made is not None:
        raise Uncapturable(
            f"a compiled part is given a {type(made).__name__}, and holds plain tensors only; give outgrow.compile the "
            "whole step, with a mesh if it is to be divided among processes"
        )


def _in_place(
    found: Sequence[Sequence[Tensor | None]], places: Sequence[int], wanted: Sequence[bool]
) -> list[Tensor | None]:
    """Return addends in the order of the inputs of `_Pair`: the first addend of each, then all others.

    Each input has a number of `places` for them. A part that was captured again may have fewer addends, or more, of
    which the last ones are added up.
    """
    fitted = [_so_many(addends, max(count, 1)) for addends, count in zip(found, places, strict=True)]
    firsts = iter([addends[0] for addends in fitted])
    others = [item for addends in fitted for item in addends[1:]]
    return [*(next(firsts) if is_wanted else None for is_wanted in wanted), *others]


def _so_many(addends: Sequence[Tensor | None], count: int) -> list[Tensor | None]:
    there = [item for item in addends if item is not None]
    rest = there[count - 1 :]
    last = [reduce(torch.add, rest)] if rest else []
    return [*there[: count - 1], *last, *(None for _ in range(count - len(there)))]


def _wanted(args: Sequence[object]) -> tuple[bool, ...]:
    """Whether the gradient of each input is wanted."""
    return tuple(isinstance(arg, Tensor) and arg.requires_grad for arg in args)


def _again(ready: Ready, args: Sequence[object]) -> list[object]:
    """Return each input once more for each further addend of its gradient, so that autograd adds them up."""
    leaves = [arg for arg, is_wanted in zip(args, _wanted(args), strict=True) if is_wanted]
    return [leaf for leaf, count in zip(leaves, ready.places, strict=True) for _ in range(1, count)]


def _versions(ready: Ready, inputs: Sequence[object], results: Sequence[object]) -> list[Version]:
    between = ready.between
    changing = (*versions(inputs, between.inputs), *versions(results, between.results))
    return [*changing, *((item, 0) for item in places(inputs, between.whole))]


def _check_backward(gradients: Sequence[Tensor | None]) -> None:
    """Refuse a backward pass that is to be differentiated, and one that is several at once."""
    if torch.is_grad_enabled():
        raise Uncapturable(
            "a compiled part keeps nothing for a gradient of its gradient (create_graph=True); give outgrow.compile "
            "the whole step"
        )
    if any(gradient is not None and is_legacy_batchedtensor(gradient) for gradient in gradients):
        raise Uncapturable(
            "a compiled part runs one backward pass, and not several at once (is_grads_batched=True, vectorize=True); "
            "call the model that is not compiled, model._orig_mod"
        )


def _check_casting(ready: Ready, arrival: Arrival) -> None:
    """Refuse a backward pass that eager mode would run in other types, and which could not be captured for these."""
    if ready.casting != arrival.casting:
        raise Uncapturable(
            "backward() is called within an autocast block where it was called behind one before, or the other way "
            "round, and a compiled part cannot begin anew for that, since what it has read was changed since; call it "
            "behind the block each time, as torch's manual says"
        )
