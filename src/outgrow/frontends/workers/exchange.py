"""How does a box of a spread tensor come to the worker that needs it? All workers send and receive in one operator.

`outgrow::exchange` is an operator like any other: it is captured, planned and run between others. It writes the `wire`,
a tensor of two numbers (how many exchanges there were, how many bytes were received), so no law repeats one or puts two
into another order, and workers that plan by themselves meet in the same exchanges.

It returns while the bytes are still on their way. `outgrow::arrived` waits for them: it takes what is sent, which must
stay as it is until then, and writes what is received. Other operators run between the two (`ir.flight`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import _resolve_process_group
from torch.nn import functional as F

from outgrow.errors import PeerLost
from outgrow.frontends.user.training.sharing import address
from outgrow.operators.regions import Region, shape_of, volume
from outgrow.operators.tdl import Reducer
from outgrow.planning.partition.shares import Moves, Part

TOGETHER: Mapping[Reducer, Callable[..., Tensor]] = {
    Reducer.SUM: torch.add,
    Reducer.MAX: torch.maximum,
    Reducer.MIN: torch.minimum,
    Reducer.PROD: torch.mul,
}
"""How addends of two workers become one."""
MOST_UNDER_WAY = 4
"""At most this many exchanges are under way at once: fetches, and results that are handed on."""
_LIBRARY = torch.library.Library("outgrow", "FRAGMENT")
_LIBRARY.define(
    "exchange(Tensor packed, Tensor(a!) wire, int[] sent, int[] received, int[] begins, int worker, str group)"
    " -> Tensor"
)
_LIBRARY.define("arrived(Tensor(a!) found, Tensor packed) -> Tensor(a!)")
_MOST_NUMBERS = 1 << 30
"""After this many messages their numbers start again: a tag is an int of C."""
_works: dict[int, list[dist.Work]] = {}
"""Exchanges under way, by the address of what they write; one that receives nothing is waited for at once."""


def _exchange(
    packed: Tensor,
    wire: Tensor,
    sent: list[int],
    received: list[int],
    begins: list[int],
    worker: int,
    group: str,
) -> Tensor:
    """Begin to send `sent` bytes to each worker of a group; return memory in which theirs arrive, worker by worker.

    What each is sent starts at `begins` in `packed`: the same bytes may go to several. What a worker sends to itself
    does not count as received.
    """
    found = packed.new_empty(sum(received))
    places = found.split(received)
    with peers_missed():
        there, number = _group(group), 1 + int(wire[0]) % _MOST_NUMBERS
        others = [other for other in range(len(sent)) if other != worker]
        works = [there.recv([places[other]], other, number) for other in others if received[other]]
        works += [
            there.send([packed[begins[other] : begins[other] + sent[other]]], other, number)
            for other in others
            if sent[other]
        ]
    places[worker].copy_(packed[begins[worker] : begins[worker] + sent[worker]])
    if found.numel():
        _works[found.data_ptr()] = works
    else:
        _await(works)
    wire += torch.tensor((1, sum(received) - received[worker]))
    return found


def _arrived(found: Tensor, packed: Tensor) -> Tensor:  # noqa: ARG001 - what is sent stays until now
    """Wait for what an exchange brings, and return it."""
    if found.numel():
        _await(_works.pop(found.data_ptr()))
    return found


def _await(works: Sequence[dist.Work]) -> None:
    with peers_missed():
        for work in works:
            work.wait()


@contextmanager
def peers_missed() -> Iterator[None]:
    """Raise `PeerLost` where talking to the other workers fails."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        _works.clear()
        raise PeerLost(
            f"An exchange with the other workers failed, so one of them has most likely ended ({error}). "
            "See its own message; start all workers again from the last checkpoint."
        ) from error


def _group(name: str) -> dist.ProcessGroup:
    return _resolve_process_group(name)  # pyright: ignore[reportArgumentType] - a name is text


_LIBRARY.impl("exchange", _exchange, "CPU")
_LIBRARY.impl("exchange", lambda packed, _wire, _sent, received, *_others: packed.new_empty(sum(received)), "Meta")
_LIBRARY.impl("arrived", _arrived, "CPU")
_LIBRARY.impl("arrived", lambda found, _packed: found, "Meta")


class Coming:
    """A tensor that is on its way from others, who get parts of `sent`; `finish` waits for what is missing of it."""

    def __init__(self, sent: Tensor, finish: Callable[[], Tensor]) -> None:
        self.sent, self._finish = sent, finish
        self._found: Tensor | None = None

    def here(self) -> Tensor:
        """Return the tensor, once it is here."""
        if self._found is None:
            self._found = self._finish()
        return self._found

    @property
    def is_here(self) -> bool:
        """Whether someone waited for it."""
        return self._found is not None


class Wire:
    """What a worker sends and receives by: its number, the name of the group, and the tensor that counts.

    At most `most_under_way` exchanges are under way at once; if that is 0, each is waited for where it begins.
    """

    def __init__(self, worker: int, group: str, counts: Tensor, most_under_way: int) -> None:
        self._worker, self._group, self._counts, self._most_under_way = worker, group, counts, most_under_way
        self._under_way: list[Coming] = []

    def settle(self, memory: Tensor | None = None) -> None:
        """Wait for the exchanges under way that send this memory, which is about to change (None: any memory)."""
        for coming in self._under_way:
            if memory is None or address(coming.sent) == address(memory):
                coming.here()

    def carried(
        self, tensor: Tensor, box: Region, wanted: Region | None, moves: Moves, by: Reducer, fill: float
    ) -> Tensor | Coming:
        """Return the box `wanted` of a tensor of which `box` is here; all workers call this at once.

        Parts of later turns are reduced with those before. What no part covers is `fill`. The result is a view where
        that will do. A worker that wants nothing only sends, and gets the tensor itself.
        """
        mine = moves[self._worker] if wanted is not None else ()
        if _is_here(moves):
            pieces = [_slice(tensor, box, part.box) for part in mine]
            return tensor if wanted is None else _whole(tensor, wanted, mine, pieces, by, fill)
        self._under_way = [coming for coming in self._under_way if not coming.is_here]
        for earlier in self._under_way[: max(0, len(self._under_way) + 1 - self._most_under_way)]:
            earlier.here()
        is_stacked = wanted is not None and len(mine) > 1 and _are_stacked(mine, wanted)
        are_addends = by is Reducer.SUM and len(mine) > 1 and _are_addends(mine, wanted)
        if not (is_stacked or are_addends):  # then its own part is not copied to where those of others arrive
            moves = tuple(tuple(part for part in parts if part.worker != to) for to, parts in enumerate(moves))
        received = [0] * len(moves)
        for part in moves[self._worker]:
            received[part.worker] += volume(part.box)
        packed, found = self._sent(tensor, box, moves, received)

        def finish() -> Tensor:
            arrived = torch.ops.outgrow.arrived(found, packed).view(tensor.dtype)
            if wanted is None:
                return tensor
            shape = shape_of(wanted)
            if is_stacked:
                return arrived.view(shape)
            if are_addends:
                return arrived.view([len(mine), *shape]).sum(0, dtype=tensor.dtype)
            pieces = self._pieces(tensor, box, mine, arrived.split(received))
            return _whole(tensor, wanted, mine, pieces, by, fill)

        coming = Coming(tensor, finish)
        if not self._most_under_way:
            return coming.here()
        self._under_way.append(coming)
        return coming

    def _sent(self, tensor: Tensor, box: Region, moves: Moves, received: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Begin an exchange; return what is sent, and the memory in which others' bytes arrive, worker by worker."""
        sent = [[part for part in parts if part.worker == self._worker] for parts in moves]
        row, begins = _packed(tensor, [[_slice(tensor, box, part.box) for part in parts] for parts in sent])
        counted = map(_size, sent), received, begins
        in_bytes = [[tensor.element_size() * number for number in numbers] for numbers in counted]
        packed = row.as_strided(row.shape, (1,)).view(torch.uint8)  # one element has whatever stride it has
        found = torch.ops.outgrow.exchange(packed, self._counts, *in_bytes, self._worker, self._group)
        return packed, found

    def _pieces(self, tensor: Tensor, box: Region, mine: Sequence[Part], arrived: Sequence[Tensor]) -> list[Tensor]:
        """Return the parts that are wanted: from this worker's own box, and of what arrived from each other."""
        return [
            _slice(tensor, box, part.box)
            if part.worker == self._worker
            else arrived[part.worker].view(shape_of(part.box))
            for part in mine
        ]


def here(item: Tensor | Coming) -> Tensor:
    """Return a tensor that may be on its way, once it is here."""
    return item.here() if isinstance(item, Coming) else item


def _whole(
    tensor: Tensor, wanted: Region, parts: Sequence[Part], pieces: Sequence[Tensor], by: Reducer, fill: float
) -> Tensor:
    """Return the box `wanted`, of the kind of `tensor`, put together from pieces."""
    if len(parts) == 1 and parts[0].box == wanted:
        return pieces[0]
    if len(parts) == 1:
        ends = reversed(list(zip(parts[0].box, wanted, strict=True)))
        beyond = [size for inner, outer in ends for size in (inner[0] - outer[0], outer[1] - inner[1])]
        return F.pad(pieces[0], beyond, value=fill)
    is_covered = sum(volume(part.box) for part in parts if part.turn == 0) == volume(wanted)
    shape = shape_of(wanted)
    found = tensor.new_empty(shape) if is_covered else tensor.new_full(shape, fill)
    _put_together(found, wanted, parts, pieces, TOGETHER[by])
    return found


def _size(parts: Sequence[Part]) -> int:
    return sum(volume(part.box) for part in parts)


def _is_here(moves: Moves) -> bool:
    """Whether each worker needs nothing but what it has."""
    return all(part.worker == receiver for receiver, parts in enumerate(moves) for part in parts)


def _are_addends(parts: Sequence[Part], wanted: Region | None) -> bool:
    """Whether each part is all that is wanted, in a turn of its own."""
    return all(part.box == wanted and part.turn == at for at, part in enumerate(parts))


def _are_stacked(parts: Sequence[Part], wanted: Region) -> bool:
    """Whether parts follow each other along the first dimension, in the order of their workers, and are all of it."""
    if not wanted:
        return False
    ends = [wanted[0][0], *(part.box[0][1] for part in parts)]
    return (
        all(part.turn == 0 and part.box[1:] == wanted[1:] for part in parts)
        and [part.box[0] for part in parts] == list(pairwise(ends))
        and ends[-1] == wanted[0][1]
        and [part.worker for part in parts] == sorted(part.worker for part in parts)
    )


def _put_together(
    found: Tensor, box: Region, parts: Sequence[Part], pieces: Sequence[Tensor], together: Callable[..., Tensor]
) -> None:
    """Write pieces into a box of a tensor; those of later turns are reduced with those before.

    The first two pieces of a box are reduced straight from where they are, without copying the first.
    """
    alone = {part.box: piece for part, piece in zip(parts, pieces, strict=True) if part.turn == 0}
    if any(part.box not in alone for part in parts):
        for box_of_one, piece in alone.items():
            _slice(found, box, box_of_one).copy_(piece)
        alone.clear()
    for part, piece in zip(parts, pieces, strict=True):
        if part.turn > 0:
            place = _slice(found, box, part.box)
            together(alone.pop(part.box, place), piece, out=place)
    for box_of_one, piece in alone.items():
        _slice(found, box, box_of_one).copy_(piece)


def _packed(tensor: Tensor, sent: Sequence[Sequence[Tensor]]) -> tuple[Tensor, list[int]]:
    """Return a row of elements, and where in it the parts of a tensor begin that each worker is sent, in order.

    The row is the tensor itself if the parts of each worker lie in one stretch of it; else it is a copy, in which what
    is sent to several occurs once.
    """
    begins = [begin for pieces in sent if (begin := _begin(tensor, pieces)) is not None]
    if len(begins) == len(sent) and any(sent):
        return tensor.reshape(-1), begins
    of_each = [tuple((piece.storage_offset(), piece.shape) for piece in pieces) for pieces in sent]
    alone = dict(zip(of_each, sent, strict=True))
    sizes = {parts: sum(piece.numel() for piece in pieces) for parts, pieces in alone.items()}
    ends = accumulate(sizes.values(), initial=0)
    begin_of = dict(zip(sizes, ends, strict=False))
    return _joined(tensor, [piece for pieces in alone.values() for piece in pieces]), [begin_of[it] for it in of_each]


def _begin(tensor: Tensor, pieces: Sequence[Tensor]) -> int | None:
    """Return the element of a tensor at which parts of it begin; None if they do not lie one after the other."""
    if not pieces:
        return 0
    begins = [int(piece.storage_offset() - tensor.storage_offset()) for piece in pieces]
    ends = [begin + piece.numel() for begin, piece in zip(begins, pieces, strict=True)]
    is_row = tensor.is_contiguous() and all(piece.is_contiguous() for piece in pieces) and begins[1:] == ends[:-1]
    return begins[0] if is_row else None


def _joined(tensor: Tensor, pieces: Sequence[Tensor]) -> Tensor:
    """Return the elements of parts of a tensor, one after the other; each is read once."""
    if all(piece.is_contiguous() for piece in pieces):
        return torch.cat([piece.reshape(-1) for piece in pieces]) if pieces else tensor.new_empty(0)
    found = tensor.new_empty(sum(piece.numel() for piece in pieces))
    for place, piece in zip(found.split([piece.numel() for piece in pieces]), pieces, strict=True):
        place.view(piece.shape).copy_(piece)
    return found


def _slice(tensor: Tensor, box: Region, wanted: Region) -> Tensor:
    """Return the box `wanted` of a large tensor, of which `tensor` is the box `box`; itself if that is all of it."""
    for dim, ((begin, _), (low, high)) in enumerate(zip(box, wanted, strict=True)):
        if tensor.shape[dim] != high - low:
            tensor = tensor.narrow(dim, low - begin, high - low)
    return tensor
