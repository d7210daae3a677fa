"""What do operators see in place of the user's tensors while a step is captured?

    the step, autograd  the user's own tensors: every list, hook and closure that refers to one goes on working
    Twins               exchanges each for its fake twin: of the same kind, without data
    tracing             notes the call
    FakeMode            says what the result would be like, without computing it

So no data are read, written or allocated. Operators whose abstract implementation gives other strides, types or sizes
than their kernels are put right in `FakeMode`, below the tracing, where a new tensor is not taken for an op
(`frontends.fake.kernels.layouts`, `smaller`, `ambiguous`, `precision`, `reserves`), and Fourier transforms made there
(`spectra`), and what fails for no reason of its kernel (`failing`). Small tensors that are made of literals alone are
the same in every call, so their contents are known (`frontends.fake.looks.literals`), and a step may look at them; at
its counters (`frontends.fake.looks.counters`); and at its batch (`frontends.fake.looks.questions`). What it decides by
other numbers is guessed (`frontends.fake.looks.guessing`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from unittest.mock import patch

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch._guards import detect_fake_mode
from torch._ops import OpOverload
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import (
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.distributed.tensor import DTensor
from torch.fx.experimental import proxy_tensor
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing, get_proxy_mode
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils._python_dispatch import TorchDispatchMode

from outgrow.errors import Uncapturable
from outgrow.frontends.fake.arguments import Invoked, exchanged, is_foreign, leaves_of, tensors_of
from outgrow.frontends.fake.kernels.alignments import BY_TENSORS
from outgrow.frontends.fake.kernels.ambiguous import VIEWED, as_the_kernel_lays, as_viewed
from outgrow.frontends.fake.kernels.byte_masks import BY_BOOLEANS
from outgrow.frontends.fake.kernels.conjugates import Conjugates
from outgrow.frontends.fake.kernels.failing import FAILURES, returned_after_all
from outgrow.frontends.fake.kernels.layouts import LAID_OUT, as_kernels_lay_out, like_a_kernel
from outgrow.frontends.fake.kernels.lists import each_by_itself
from outgrow.frontends.fake.kernels.precision import RETYPED, TYPED, as_fakes_take, as_kernels_type
from outgrow.frontends.fake.kernels.reserves import KEEPING, SEEDED, UNTOLD, with_reserve, with_seeds, without_reserve
from outgrow.frontends.fake.kernels.smaller import as_smaller_ones
from outgrow.frontends.fake.kernels.spectra import TRANSFORMS, transformed
from outgrow.frontends.fake.kernels.sums import Sums
from outgrow.frontends.fake.looks.counters import Counters
from outgrow.frontends.fake.looks.guessing import Guessing
from outgrow.frontends.fake.looks.literals import LIFTS, Literals
from outgrow.frontends.fake.looks.questions import Asking
from outgrow.frontends.user.lines import present_line
from outgrow.frontends.user.reach.configuration import attributes_of
from outgrow.frontends.user.refusals import NESTED, check_nothing_caught, is_unanswerable
from outgrow.frontends.user.training.guards import Symbols
from outgrow.frontends.user.training.sharing import ZEROS, address
from outgrow.frontends.user.training.state import BatchSlot, BufferSlot, Slot
from outgrow.frontends.user.unseen.unseen import OBSERVING, with_room

_LIMIT = "CONSTANT_NUMEL_LIMIT"
"""Torch's limit for following literals itself; not used while we do: it takes a symbol for the number NaN (2.13)."""
_ITEM = torch.ops.aten._local_scalar_dense.default
_DEVICE = torch.ops.prim.device.default
_MEMO = "item_memo"
"""Where a fake tensor keeps the number that was asked of it."""
_PLAIN = (Tensor, nn.Parameter, FakeTensor)
_CORRECTIONS = (
    (TYPED, as_kernels_type),
    (LAID_OUT, as_kernels_lay_out),
    (KEEPING, with_reserve),
    (UNTOLD, without_reserve),
    (SEEDED, with_seeds),
    (OBSERVING, with_room),
    (VIEWED, as_viewed),
)
"""Operators, and what turns their fake results into what their kernels give, in this order."""
_CORRECTED = frozenset().union(*(operators for operators, _ in _CORRECTIONS))


class _Symbols(Symbols):
    """An environment of symbols that remembers what it could not answer."""

    def __init__(self, unanswered: list[RuntimeError]) -> None:
        super().__init__()
        self._unanswered = unanswered

    def _make_data_dependent_error(self, *about: object, **more: object) -> GuardOnDataDependentSymNode:
        found = super()._make_data_dependent_error(*about, **more)  # pyright: ignore[reportArgumentType]
        self._unanswered.append(found)
        return found


class FakeMode(FakeTensorMode):
    """Fake tensors with the strides that kernels give. A workload that is only planned is built under it."""

    literals: Literals | None = None
    """While a step is traced, what is known of contents; `counters`, `asking` and `guessing` as well."""
    counters: Counters | None = None
    asking: Asking | None = None
    guessing: Guessing | None = None
    unanswered: list[RuntimeError]
    """Errors that asked for contents, or for what an operator returns; a step may have caught them."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN204
        if self.literals is None:
            return self._as_kernels_would(func, types, args, kwargs)
        if func is _ITEM:
            setattr(args[0], _MEMO, None)  # torch gives the number of before, also where the tensor was written since
        try:
            return self._followed(func, types, args, kwargs)
        except RuntimeError as error:
            if is_unanswerable(error):
                self.unanswered.append(error)
            raise

    def _followed(self, func, types, args, kwargs):  # noqa: ANN001, ANN202
        assert self.literals is not None, "a step is traced"
        fake = partial(self._as_kernels_would, func, types, args, kwargs)
        call = Invoked(func, args, kwargs or {})
        known = partial(self.literals.followed, call, fake)
        answered = known if self.asking is None else partial(self.asking.followed, call, known)
        found = answered() if self.counters is None else self.counters.followed(call, answered)
        if is_foreign(func):  # how its abstract form makes a result says nothing of what is in that of its kernel
            made = tensors_of(leaves_of(found))
            self.literals.forget(made)
            if self.asking is not None:
                self.asking.forget(made)
        return found

    def may_look_at(self, tensor: Tensor) -> bool:
        """Whether a step may ask for the content of a tensor while it is traced."""
        is_known = self.literals is not None and self.literals.knows(tensor)
        return is_known or (self.asking is not None and self.asking.may_ask(tensor))

    def answers(self, tensor: Tensor) -> bool:
        """Whether there is an answer to a step that asks whether a tensor is zero."""
        return self.may_look_at(tensor) or (self.counters is not None and self.counters.answers(tensor))

    def deciding(self) -> AbstractContextManager[object]:
        """Return a block in which the step asks whether a tensor is zero."""
        return nullcontext() if self.asking is None else self.asking.deciding()

    def _as_kernels_would(self, func, types, args, kwargs):  # noqa: ANN001, ANN202
        if func is torch.ops.aten._efficientzerotensor.default:
            raise Uncapturable(f"{present_line()}: this {ZEROS}")
        taken = args
        if func in RETYPED:
            with self:
                taken = as_fakes_take(args)
        returned = self._abstractly(func, types, taken, kwargs)
        for operators, corrected in _CORRECTIONS if func in _CORRECTED else ():
            if func in operators and returned is not NotImplemented:
                with self:
                    returned = corrected(func, args, returned)
        made = tensors_of(leaves_of(returned))
        if any(map(_is_of_unknown_size, made)):
            raise DynamicOutputShapeException(func)
        if func.is_view or func is torch.ops.aten.empty_strided.default:
            return returned
        with self:
            returned = as_smaller_ones(func, args, kwargs or {}, returned)
        given, made = tensors_of(leaves_of(args, kwargs or {})), tensors_of(leaves_of(returned))
        if not any(1 in tensor.shape for tensor in (*given, *made)):
            return returned
        known = set(map(address, given))
        with self:
            laid = pytree.tree_map_only(Tensor, lambda t: t if address(t) in known else like_a_kernel(t), returned)
            return as_the_kernel_lays(func, args, kwargs or {}, laid)

    def _abstractly(self, func, types, args, kwargs):  # noqa: ANN001, ANN202
        if func in TRANSFORMS:
            with self:
                found = transformed(func, args)
            if found is not None:
                return found
        try:
            return super().__torch_dispatch__(func, types, args, kwargs)
        except FAILURES as error:
            with self:
                found = None if is_unanswerable(error) else returned_after_all(func, args, kwargs or {})
            if found is None:
                raise
            return found


def _is_of_unknown_size(tensor: Tensor) -> bool:
    """Whether a number that is not known says how a tensor lies."""
    strides = tensor.stride() if tensor.layout is torch.strided else ()
    return any(isinstance(size, torch.SymInt) for size in (*tensor.shape, *strides, tensor.storage_offset()))


@contextmanager
def fake_mode(tensors: Sequence[object]) -> Iterator[FakeMode]:
    """Yield the mode of the tensors that are fake already, or a new one; able to make symbols for floats.

    Raises `Uncapturable` at the end if contents were asked for and the user's code has caught the refusal.
    """
    mode = detect_fake_mode(tensors) or FakeMode()
    assert isinstance(mode, FakeMode), "a workload without memory is built under our mode"
    settings = (mode.shape_env, mode.static_shapes, mode.allow_non_fake_inputs)
    mode.unanswered = []
    mode.shape_env = _Symbols(mode.unanswered)
    mode.static_shapes, mode.allow_non_fake_inputs = True, True
    mode.literals = Literals()
    try:
        with patch.object(fake_tensor, _LIMIT, -1), patch.object(proxy_tensor, _LIMIT, -1):
            yield mode
        check_nothing_caught(mode.unanswered)
    finally:
        mode.shape_env, mode.static_shapes, mode.allow_non_fake_inputs = settings
        mode.literals = mode.counters = mode.asking = mode.guessing = None
        mode.unanswered.clear()


class Twins(TorchDispatchMode):
    """Exchange real tensors for fake ones before any operator sees them. Both are kept alive.

    `originals` are the real tensors by the identity of their twins; `begins` is called before every operator that makes
    tensors, and `drawn` at every draw. What makes none is a question about one, such as its device, which torch may ask
    where nothing must be raised.
    """

    def __init__(self, mode: FakeMode) -> None:
        super().__init__()
        self.mode = mode
        self.fakes: dict[int, Tensor] = {}
        self.originals: dict[int, Tensor] = {}
        self.begins: Callable[[], None] = lambda: None
        self.drawn: Callable[[], None] = lambda: None
        self.sums = Sums()
        self._conjugates = Conjugates()

    def twin(self, tensor: Tensor) -> Tensor:
        """Return the fake twin of a tensor; a fake tensor is its own."""
        if isinstance(tensor, FakeTensor):
            return tensor
        if id(tensor) not in self.fakes:
            with disable_proxy_modes_tracing():
                fake = self._faked(tensor)
            self.fakes[id(tensor)] = fake
            self.originals[id(fake)] = tensor
            if self.mode.asking is not None:
                self.mode.asking.found(tensor, fake)
        return self.fakes[id(tensor)]

    def _faked(self, tensor: Tensor) -> Tensor:
        if isinstance(tensor, DTensor):  # As if all of it were here: the step is divided later.
            with self.mode:
                return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
        _check_plain(tensor, "a tensor that the step uses")
        return self.mode.from_tensor(tensor, static_shapes=True)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN204
        if func is _DEVICE:  # Autograd asks for it at every gradient.
            return self.twin(args[0]).device
        if _makes_tensors(func):
            self.begins()
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.drawn()
        if func not in LIFTS:  # A literal, torch.tensor(0.0): torch itself knows what to do.
            args, kwargs = exchanged((args, kwargs or {}), self.twin)
        if func is _ITEM:
            args = (_met(args[0]),)
        call = BY_TENSORS.get(func) or BY_BOOLEANS.get(func) or each_by_itself(func)
        return self.sums.laid(func, args, self._conjugates.called(func, args, kwargs or {}, call))


@cache
def _makes_tensors(func: OpOverload) -> bool:
    return any("Tensor" in str(item.type) for item in func._schema.returns)


def _met(tensor: Tensor) -> Tensor:
    """Return a tensor that the trace knows: what is in one of which it has seen nothing would not be read again."""
    proxies = get_proxy_mode()
    is_unknown = proxies is not None and tensor not in proxies.tracer.tensor_tracker
    return torch.ops.aten.alias.default(tensor) if is_unknown else tensor


def stand_in(tensor: Tensor, mode: FakeTensorMode) -> Tensor:
    """Return a fake tensor of the same kind with a storage of its own that begins at its first element.

    It has what the tensor has in attributes.
    """
    _check_plain(tensor, "an argument of the step")
    if tensor.requires_grad:
        raise Uncapturable(
            "an argument of the step requires grad; pass x.detach(), and begin the step with "
            "x = x.detach().requires_grad_()"
        )
    if tensor.is_leaf and tensor.grad is not None:
        raise Uncapturable(
            "an argument of the step has a gradient, x.grad, which the step would not see; pass it as an argument of "
            "its own, and x.detach()"
        )
    with mode:
        made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    for name, value in attributes_of(tensor).items():
        setattr(made, name, value)
    return made


def _check_plain(tensor: Tensor, what: str) -> None:
    if tensor.is_nested:
        raise Uncapturable(f"{present_line()}: {NESTED}")
    if type(tensor) not in _PLAIN:
        raise Uncapturable(f"{what} is a {type(tensor).__name__}; only plain tensors can be captured")


@dataclass(frozen=True, slots=True)
class Fakes:
    """What the step sees in place of tensors: `tensors` by their slots, those of its `batch` by leaf, and all leaves.

    Of a tensor that is several leaves the first one counts.

    `originals` are the real ones that models and optimizers have.
    """

    twins: Twins
    originals: Mapping[Slot, Tensor]
    tensors: Mapping[Slot, Tensor]
    batch: Mapping[int, Tensor]
    leaves: Sequence[object]

    def given(self) -> list[Tensor]:
        """Return all that the step sees by now and has not made."""
        return [*self.tensors.values(), *self.twins.fakes.values()]

    @property
    def buffers(self) -> dict[BufferSlot, tuple[Tensor, Tensor]]:
        """The buffers of models, and what stands for each."""
        pairs = ((slot, real) for slot, real in self.originals.items() if isinstance(slot, BufferSlot))
        return {slot: (real, self.tensors[slot]) for slot, real in pairs if type(real) is Tensor}

    @staticmethod
    def of(mode: FakeMode, originals: Mapping[Slot, Tensor], leaves: Sequence[object]) -> "Fakes":
        """Return what stands for the tensors of models and optimizers, and for leaves of the arguments."""
        twins = Twins(mode)
        state = {slot: twins.twin(tensor) for slot, tensor in originals.items()}
        first: dict[int, int] = {}
        places = [first.setdefault(id(leaf), at) for at, leaf in enumerate(leaves)]
        batch = {at: stand_in(x, mode) for at, x in enumerate(leaves) if isinstance(x, Tensor) and places[at] == at}
        tensors = state | {BatchSlot(at): tensor for at, tensor in batch.items()}
        return Fakes(twins, originals, tensors, batch, [batch.get(places[at], leaf) for at, leaf in enumerate(leaves)])
