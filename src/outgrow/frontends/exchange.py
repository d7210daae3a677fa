"""How does a box of a spread tensor come to the worker that needs it? All workers send and receive in one operator.

`outgrow::exchange` is an operator like any other: it is captured, planned and run between others. It writes the `wire`,
a tensor of two numbers (how many exchanges there were, how many bytes were received), so no law repeats one or puts two
into another order, and workers that plan by themselves meet in the same exchanges.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import _resolve_process_group
from torch.nn import functional as F

from outgrow.errors import PeerLost
from outgrow.frontends.slicing import TOGETHER
from outgrow.operators.regions import Region, volume
from outgrow.operators.tdl import Reducer
from outgrow.planning.shares import Moves, Part

EXCHANGE = "outgrow.exchange.default"
_LIBRARY = torch.library.Library("outgrow", "FRAGMENT")
_LIBRARY.define("exchange(Tensor packed, Tensor(a!) wire, int[] sent, int[] received, int worker, str group) -> Tensor")


def _exchange(packed: Tensor, wire: Tensor, sent: list[int], received: list[int], worker: int, group: str) -> Tensor:
    """Send bytes to each worker of a group, one range after the other, and return what all of them send.

    What a worker sends to itself does not count as received.
    """
    found = packed.new_empty(sum(received))
    with peers_missed():
        dist.all_to_all_single(found, packed, received, sent, group=_group(group))
    wire += torch.tensor((1, sum(received) - received[worker]))
    return found


@contextmanager
def peers_missed() -> Iterator[None]:
    """Raise `PeerLost` where talking to the other workers fails."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise PeerLost(
            f"An exchange with the other workers failed, so one of them has most likely ended ({error}). "
            "See its own message; start all workers again from the last checkpoint."
        ) from error


def _group(name: str) -> dist.ProcessGroup:
    return _resolve_process_group(name)  # pyright: ignore[reportArgumentType] - a name is text


def _like_exchange(
    packed: Tensor, _wire: Tensor, _sent: list[int], received: list[int], _worker: int, _group: str
) -> Tensor:
    return packed.new_empty(sum(received))


_LIBRARY.impl("exchange", _exchange, "CPU")
_LIBRARY.impl("exchange", _like_exchange, "Meta")


class Wire:
    """What a worker sends and receives by: its number, the name of the group, and the tensor that counts."""

    def __init__(self, worker: int, group: str, counts: Tensor) -> None:
        self._worker, self._group, self._counts = worker, group, counts

    def carried(self, tensor: Tensor, box: Region, wanted: Region, moves: Moves, by: Reducer, fill: float) -> Tensor:
        """Return the box that is wanted, of a tensor of which a box is here; all workers call this at once.

        Parts of later turns are reduced with those before. What no part covers is `fill`. A view where that will do.
        """
        mine = moves[self._worker]
        shape = [end - begin for begin, end in wanted]
        if len(mine) > 1 and not _is_here(moves):
            if _are_stacked(mine, wanted):
                return self._arrived(tensor, box, moves, with_own=True).view(shape)
            if by is Reducer.SUM and all(part.box == wanted and part.turn == at for at, part in enumerate(mine)):
                arrived = self._arrived(tensor, box, moves, with_own=True)
                return arrived.view([len(mine), *shape]).sum(0, dtype=tensor.dtype)
        pieces = self.pieces(tensor, box, moves)
        if len(mine) == 1 and mine[0].box == wanted:
            return pieces[0]
        if len(mine) == 1:
            ends = reversed(list(zip(mine[0].box, wanted, strict=True)))
            beyond = [size for inner, outer in ends for size in (inner[0] - outer[0], outer[1] - inner[1])]
            return F.pad(pieces[0], beyond, value=fill)
        first = [part for part in mine if part.turn == 0]
        is_covered = sum(volume(part.box) for part in first) == volume(wanted)
        found = tensor.new_empty(shape) if is_covered else tensor.new_full(shape, fill)
        _put_together(found, wanted, mine, pieces, TOGETHER[by])
        return found

    def pieces(self, tensor: Tensor, box: Region, moves: Moves) -> list[Tensor]:
        """Return the parts that this worker receives, in their order; all workers call this at once."""
        mine = moves[self._worker]
        if _is_here(moves):
            return [_slice(tensor, box, part.box) for part in mine]
        whole = [_slice(tensor, box, part.box) for part in self._sent(moves, with_own=True)]
        with_own = _row(tensor, whole) is not None
        received = self._received(moves, with_own=with_own)
        parts = dict(enumerate(self._arrived(tensor, box, moves, with_own=with_own).split(received)))
        return [
            _slice(tensor, box, part.box)
            if part.worker == self._worker
            else parts[part.worker].view([end - begin for begin, end in part.box])
            for part in mine
        ]

    def _arrived(self, tensor: Tensor, box: Region, moves: Moves, *, with_own: bool) -> Tensor:
        """Return the elements that arrive, worker after worker; with those that this one has itself, or without."""
        slices = [_slice(tensor, box, part.box) for part in self._sent(moves, with_own=with_own)]
        item = tensor.element_size()
        counts = [
            item * _size(self._from(self._worker, parts)) if with_own or worker != self._worker else 0
            for worker, parts in enumerate(moves)
        ]
        inward = [item * size for size in self._received(moves, with_own=with_own)]
        found = torch.ops.outgrow.exchange(
            _packed(tensor, slices).view(torch.uint8), self._counts, counts, inward, self._worker, self._group
        )
        return found.view(tensor.dtype)

    def _sent(self, moves: Moves, *, with_own: bool) -> list[Part]:
        """Return the parts that this worker sends, worker after worker."""
        there = [parts for worker, parts in enumerate(moves) if with_own or worker != self._worker]
        return [part for parts in there for part in self._from(self._worker, parts)]

    def _received(self, moves: Moves, *, with_own: bool) -> list[int]:
        """Return how many elements come from each worker."""
        mine = moves[self._worker]
        counts = [_size(self._from(worker, mine)) for worker in range(len(moves))]
        return [size if with_own or worker != self._worker else 0 for worker, size in enumerate(counts)]

    @staticmethod
    def _from(worker: int, parts: Sequence[Part]) -> list[Part]:
        return [part for part in parts if part.worker == worker]


def _size(parts: Sequence[Part]) -> int:
    return sum(volume(part.box) for part in parts)


def _is_here(moves: Moves) -> bool:
    """Whether each worker needs nothing but what it has."""
    return all(part.worker == receiver for receiver, parts in enumerate(moves) for part in parts)


def _are_stacked(parts: Sequence[Part], wanted: Region) -> bool:
    """Whether parts follow each other along the first dimension, in the order of their workers, and are all of it."""
    ends = [wanted[0][0], *(part.box[0][1] for part in parts)] if wanted else []
    return (
        bool(wanted)
        and all(part.turn == 0 and part.box[1:] == wanted[1:] for part in parts)
        and [part.box[0] for part in parts] == list(pairwise(ends))
        and ends[-1] == wanted[0][1]
        and [part.worker for part in parts] == sorted(part.worker for part in parts)
    )


def _put_together(
    found: Tensor, box: Region, parts: Sequence[Part], pieces: Sequence[Tensor], together: Callable[..., Tensor]
) -> None:
    """Write pieces into a box of a tensor; those of later turns are reduced with those before.

    The first two of a part that comes in several turns are read once.
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


def _packed(tensor: Tensor, pieces: Sequence[Tensor]) -> Tensor:
    """Return the elements of parts of a tensor, one after the other; not copied where they lie so, else read once."""
    row = _row(tensor, pieces)
    if row is not None:
        return row
    if all(piece.is_contiguous() for piece in pieces):
        return torch.cat([piece.reshape(-1) for piece in pieces]) if pieces else tensor.new_empty(0)
    found = tensor.new_empty(sum(piece.numel() for piece in pieces))
    for place, piece in zip(found.split([piece.numel() for piece in pieces]), pieces, strict=True):
        place.view(piece.shape).copy_(piece)
    return found


def _row(tensor: Tensor, pieces: Sequence[Tensor]) -> Tensor | None:
    """Return the elements of parts of a tensor that lie in its memory one after the other; None where they do not."""
    if not pieces or not all(piece.is_contiguous() for piece in pieces):
        return None
    if len(pieces) == 1:
        return pieces[0].reshape(-1)
    begins = [piece.storage_offset() for piece in pieces]
    ends = [begin + piece.numel() for begin, piece in zip(begins, pieces, strict=True)]
    if not tensor.is_contiguous() or begins[1:] != ends[:-1]:
        return None
    first = tensor.storage_offset()
    return tensor.reshape(-1)[begins[0] - first : ends[-1] - first]


def _slice(tensor: Tensor, box: Region, wanted: Region) -> Tensor:
    """Return the part of a tensor, which is a box of a larger one, that is another box of it; itself, if all."""
    for dim, ((begin, _), (low, high)) in enumerate(zip(box, wanted, strict=True)):
        if tensor.shape[dim] != high - low:
            tensor = tensor.narrow(dim, low - begin, high - low)
    return tensor
