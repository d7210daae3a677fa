"""How does a box of a spread tensor come to the worker that needs it? All workers send and receive in one operator.

`outgrow::exchange` is an operator like any other: it is captured, planned and run between others. It writes the `wire`,
a tensor of two numbers (how many exchanges there were, how many bytes were received), so no law repeats one or puts two
into another order, and workers that plan by themselves meet in the same exchanges.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import _resolve_process_group
from torch.nn import functional as F

from outgrow.errors import PeerLost
from outgrow.frontends.slicing import TOGETHER
from outgrow.operators.regions import Region
from outgrow.operators.tdl import Reducer
from outgrow.planning.lacking import volume
from outgrow.planning.shares import Moves, Part

_LIBRARY = torch.library.Library("outgrow", "FRAGMENT")
_LIBRARY.define("exchange(Tensor packed, Tensor(a!) wire, int[] sent, int[] received, str group) -> Tensor")


def _exchange(packed: Tensor, wire: Tensor, sent: list[int], received: list[int], group: str) -> Tensor:
    """Send bytes to each worker of a group, one range after the other, and return what all of them send."""
    found = packed.new_empty(sum(received))
    with peers_missed():
        dist.all_to_all_single(found, packed, received, sent, group=_group(group))
    wire += torch.tensor((1, sum(received)))
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


def _like_exchange(packed: Tensor, wire: Tensor, sent: list[int], received: list[int], group: str) -> Tensor:  # noqa: ARG001
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
        pieces = self.pieces(tensor, box, moves)
        if len(mine) == 1 and mine[0].box == wanted:
            return pieces[0]
        if len(mine) == 1:
            ends = reversed(list(zip(mine[0].box, wanted, strict=True)))
            beyond = [size for inner, outer in ends for size in (inner[0] - outer[0], outer[1] - inner[1])]
            return F.pad(pieces[0], beyond, value=fill)
        first = [part for part in mine if part.turn == 0]
        shape = [end - begin for begin, end in wanted]
        is_covered = sum(volume(part.box) for part in first) == volume(wanted)
        found = tensor.new_empty(shape) if is_covered else tensor.new_full(shape, fill)
        for part, piece in zip(mine, pieces, strict=True):
            place = _slice(found, wanted, part.box)
            place.copy_(piece if part.turn == 0 else TOGETHER[by](place, piece))
        return found

    def pieces(self, tensor: Tensor, box: Region, moves: Moves) -> list[Tensor]:
        """Return the parts that this worker receives, in their order; all workers call this at once."""
        mine = moves[self._worker]
        if all(part.worker == receiver for receiver, parts in enumerate(moves) for part in parts):
            return [_slice(tensor, box, part.box) for part in mine]
        sent = [[_slice(tensor, box, part.box) for part in self._from(self._worker, parts)] for parts in moves]
        sent[self._worker] = []
        received = [_bytes(self._from(worker, mine), tensor) for worker in range(len(moves))]
        received[self._worker] = 0
        flat = [piece.reshape(-1) for pieces in sent for piece in pieces]
        packed = torch.cat(flat) if flat else tensor.new_empty(0)
        counts = [_bytes(self._from(self._worker, parts), tensor) for parts in moves]
        counts[self._worker] = 0
        arrived = torch.ops.outgrow.exchange(packed.view(torch.uint8), self._counts, counts, received, self._group)
        parts = dict(enumerate(arrived.split(received)))
        return [
            _slice(tensor, box, part.box)
            if part.worker == self._worker
            else parts[part.worker].view(tensor.dtype).view([end - begin for begin, end in part.box])
            for part in mine
        ]

    @staticmethod
    def _from(worker: int, parts: tuple[Part, ...]) -> list[Part]:
        return [part for part in parts if part.worker == worker]


def _bytes(parts: list[Part], tensor: Tensor) -> int:
    return sum(volume(part.box) for part in parts) * tensor.element_size()


def _slice(tensor: Tensor, box: Region, wanted: Region) -> Tensor:
    """Return the part of a tensor, which is a box of a larger one, that is another box of it; itself, if all."""
    for dim, ((begin, _), (low, high)) in enumerate(zip(box, wanted, strict=True)):
        if tensor.shape[dim] != high - low:
            tensor = tensor.narrow(dim, low - begin, high - low)
    return tensor
