"""What was decided? A plan is plain data: the budget, the decisions in order, and what was predicted.

Each decision names ops and storages of the graph as it stands when the decision is applied; `outgrow.rewriting`
turns decisions into laws. A plan belongs to one captured graph: `fingerprint` is the hash of its text.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Move:
    """Run `ops`, in their order, directly after the op `after` instead of later."""

    ops: tuple[str, ...]
    after: str


@dataclass(frozen=True, slots=True)
class Reuse:
    """Let `op` write its first result into the memory of its argument at `operand`, which dies there."""

    op: str
    operand: int = 0


@dataclass(frozen=True, slots=True)
class TakeApart:
    """Let the parts of `op` run one after the other, each with its own results, instead of `op`."""

    op: str


@dataclass(frozen=True, slots=True)
class ByLayout:
    """Give `op` only the layout of the operands whose content does not matter to it."""

    op: str


@dataclass(frozen=True, slots=True)
class ByRows:
    """Let one op do what the ops `first` and `second` do, some rows at a time, in the place of the second."""

    first: str
    second: str


@dataclass(frozen=True, slots=True)
class ByOperand:
    """Let one op for each operand of `op` put that into the result; `order` is that of their numbers."""

    op: str
    order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Recompute:
    """Build `storage` again directly before the op `before`, instead of keeping it until then."""

    storage: str
    before: str


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes begin:end of a storage, brought back by a copy that begins directly before the op `before`."""

    begin: int
    end: int
    before: str


@dataclass(frozen=True, slots=True)
class Swap:
    """Send `storage`, or its first bytes, to the next tier over one gap between two uses.

    The copy out begins directly after the op `after` (None: the tier already holds these bytes of this version), the
    device bytes are freed directly before the op `dropped`, and `pieces` bring them back for the op `before`: they say
    how many bytes move.
    """

    storage: str
    after: str | None
    dropped: str
    pieces: tuple[Piece, ...]
    before: str


@dataclass(frozen=True, slots=True)
class Stow:
    """Let `storage` rest in the next tier from its last use in one step to its first use in the next.

    `pieces` bring it in for its first use, the op `before` (None: the storage is born in the step). The copy out begins
    directly after the op `after` (None: the step does not write it), and the device bytes are freed directly before the
    op `dropped` (None: at the end of the step). A storage that no op uses rests there all the time.
    """

    storage: str
    pieces: tuple[Piece, ...]
    before: str | None
    after: str | None
    dropped: str | None


Decision: TypeAlias = Move | TakeApart | ByRows | ByOperand | ByLayout | Reuse | Recompute | Stow | Swap


@dataclass(frozen=True, slots=True)
class Estimate:
    """Peak bytes by the one definition of `analysis.timeline`, and seconds, of one step."""

    peak_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Budget:
    """The limit on process bytes, and the overhead deducted from it before planning."""

    limit_bytes: int
    overhead_bytes: int = 0

    @property
    def capacity_bytes(self) -> int:
        """What storages, workspace and bytes in flight may hold together."""
        return self.limit_bytes - self.overhead_bytes


UNLIMITED = 1 << 60
"""A limit in bytes that no step reaches."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where in an arena of `arena_bytes` storages lie, in bytes from its begin; `beside` are the sizes of the others.

    `stays` gives, by the instruction that makes or brings back some of its bytes, where a storage begins; `scratch`, by
    the instruction of an op, where its workspace begins and its size. Where there are `pages`, of `page_bytes` each,
    programs see the arena through a window: page k of that shows page `pages[k]` of the arena.
    """

    arena_bytes: int
    beside: tuple[int, ...]
    stays: Mapping[int, Mapping[str, int]]
    scratch: Mapping[int, tuple[int, int]]
    pages: tuple[int, ...] = ()
    page_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """The decisions for one graph under one budget, with what the planner expects of them."""

    planner: str
    fingerprint: str
    budget: Budget
    decisions: tuple[Decision, ...]
    predicted: Estimate
    floor_bytes: int
    floor_op: str
    in_core: Estimate
    bound_seconds: float
    planning_seconds: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether the step fits as captured, so that nothing is rewritten."""
        return not self.decisions
