"""What does a plan do to each storage? One row a decision, with the role and the size that the plan leaves out.

A decision names storages and ops of the graph as it stands when the decision is applied, so the laws are applied again,
one after the other, to look each of them up. A `Move` says all that there is to tell. What is told of each kind
of decision is its `Section`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from outgrow.ir.graph import Graph, result_values
from outgrow.plan import ByLayout, ByOperand, ByRows, Move, Plan, Recompute, Reuse, Stow, Swap, TakeApart
from outgrow.report.columns import aligned, counted
from outgrow.rewriting.derive import carry_out
from outgrow.rewriting.draft import Draft
from outgrow.rewriting.rule import required_place
from outgrow.units import format_bytes


@dataclass(frozen=True, slots=True)
class Swapped:
    """A storage is away between two uses; `moved_bytes` counts both ways, or one if the tier had a copy."""

    storage: str
    role: str
    size_bytes: int
    after: str
    before: str
    moved_bytes: int


@dataclass(frozen=True, slots=True)
class Stowed:
    """A storage rests in the next tier between steps, and is away before its first and after its last use.

    One without a use is away throughout.
    """

    storage: str
    role: str
    size_bytes: int
    first: str | None
    last: str | None
    moved_bytes: int


@dataclass(frozen=True, slots=True)
class Recomputed:
    """A storage is freed after a use and built again before the op `before`."""

    storage: str
    role: str
    size_bytes: int
    before: str


@dataclass(frozen=True, slots=True)
class Reused:
    """The op `op` writes its result, of `size_bytes`, over an operand that dies there."""

    op: str
    storage: str
    role: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Section:
    """All decisions of one kind: as a table below a heading, and as a sentence with its lines."""

    heading: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    sentence: str
    lines: Sequence[tuple[str, ...]]

    def __str__(self) -> str:
        """The sentence, then the lines."""
        return "\n".join((f"{self.sentence}:", *(f"  {line}" for line in aligned(self.lines).splitlines())))


@dataclass(frozen=True, slots=True)
class Account:
    """Every decision of a plan, by kind; `apart` and `by_layout` are the ops that such a decision names.

    `by_rows` are the pairs of ops that run as one, and `by_operand` the ops that put one operand after the other into
    their result.
    """

    swapped: tuple[Swapped, ...] = ()
    recomputed: tuple[Recomputed, ...] = ()
    reused: tuple[Reused, ...] = ()
    moved: tuple[Move, ...] = ()
    apart: tuple[str, ...] = ()
    by_layout: tuple[str, ...] = ()
    stowed: tuple[Stowed, ...] = ()
    by_rows: tuple[str, ...] = ()
    by_operand: tuple[str, ...] = ()

    @property
    def sections(self) -> list[Section]:
        """What there is to tell, kind by kind; a kind of which there is no decision has no section."""
        found = (
            _of_stowed(self.stowed),
            _of_swapped(self.swapped),
            _of_recomputed(self.recomputed),
            _of_reused(self.reused),
            _of_moved(self.moved),
            _of_ops("In parts", counted(self.apart, "op runs in parts", "ops run in parts"), self.apart),
            _of_ops(
                "By rows", counted(self.by_rows, "pair of ops runs", "pairs of ops run") + " by rows", self.by_rows
            ),
            _of_ops("By operand", counted(self.by_operand, "op runs", "ops run") + " by operand", self.by_operand),
            _of_ops(
                "Without an operand, by its layout",
                counted(self.by_layout, "op does without an operand", "ops do without an operand")
                + " of which only the layout matters",
                self.by_layout,
            ),
        )
        return [section for section in found if section.rows]

    def __str__(self) -> str:
        """One paragraph a kind of decision, then its rows."""
        return "\n\n".join(map(str, self.sections)) or "Nothing is rewritten: the step fits as it is."


def _of_swapped(rows: Sequence[Swapped]) -> Section:
    cells = [(*_storage(row), row.after, row.before, format_bytes(row.moved_bytes)) for row in rows]
    moved = format_bytes(sum(row.moved_bytes for row in rows))
    return Section(
        "Swapped",
        (*_STORAGE, "away from", "until", "moved"),
        cells,
        f"{counted(rows, 'gap is swapped', 'gaps are swapped')}, {moved} moved",
        [(*_storage(row), f"{row.after} .. {row.before}") for row in rows],
    )


def _of_stowed(rows: Sequence[Stowed]) -> Section:
    cells = [(*_storage(row), row.first or "-", row.last or "-", format_bytes(row.moved_bytes)) for row in rows]
    size, moved = (format_bytes(sum(map(attrgetter(name), rows))) for name in ("size_bytes", "moved_bytes"))
    return Section(
        "Resting in the next tier between steps",
        (*_STORAGE, "first use", "last use", "moved"),
        cells,
        f"{counted(rows, 'storage rests', 'storages rest')} in the next tier between steps, {size}, {moved} moved; "
        "on the device from first to last use",
        [(*_storage(row), f"{row.first} .. {row.last}" if row.first else "not used") for row in rows],
    )


def _of_recomputed(rows: Sequence[Recomputed]) -> Section:
    return Section(
        "Recomputed",
        (*_STORAGE, "built again before"),
        [(*_storage(row), row.before) for row in rows],
        counted(rows, "storage is recomputed", "storages are recomputed"),
        [(*_storage(row), f"before {row.before}") for row in rows],
    )


def _of_reused(rows: Sequence[Reused]) -> Section:
    return Section(
        "Written in place",
        (*_STORAGE, "written over an operand by"),
        [(*_storage(row), row.op) for row in rows],
        counted(rows, "result is written over an operand", "results are written over operands"),
        [(*_storage(row), f"by {row.op}") for row in rows],
    )


def _of_moved(rows: Sequence[Move]) -> Section:
    return Section(
        "Run earlier",
        ("ops", "directly after"),
        [(", ".join(row.ops), row.after) for row in rows],
        counted(rows, "group of ops runs earlier", "groups of ops run earlier"),
        [(", ".join(row.ops), f"after {row.after}") for row in rows],
    )


def _of_ops(heading: str, sentence: str, ops: Sequence[str]) -> Section:
    rows = [(op,) for op in ops]
    return Section(heading, ("op",), rows, sentence, rows)


_STORAGE = ("storage", "role", "size")


def _storage(row: Swapped | Stowed | Recomputed | Reused) -> tuple[str, str, str]:
    return row.storage, row.role, format_bytes(row.size_bytes)


def account_of(captured: Graph, plan: Plan) -> Account:
    """Return what the plan does to the captured graph that it was made for."""
    swapped: list[Swapped] = []
    recomputed: list[Recomputed] = []
    reused: list[Reused] = []
    stowed: list[Stowed] = []
    draft = Draft(captured)
    for decision in plan.decisions:
        match decision:
            case Stow():
                stowed.append(_stowed(draft, decision))
            case Swap():
                swapped.append(_swapped(draft, decision))
            case Recompute(name, before):
                storage = draft.storages[name]
                recomputed.append(Recomputed(name, storage.role.value, storage.size_bytes, before))
            case Reuse(op, _):
                reused.append(_reused(draft, op))
            case Move() | TakeApart() | ByRows() | ByOperand() | ByLayout():
                pass
        carry_out(draft, decision)
    return Account(
        tuple(swapped),
        tuple(recomputed),
        tuple(reused),
        tuple(decision for decision in plan.decisions if isinstance(decision, Move)),
        tuple(decision.op for decision in plan.decisions if isinstance(decision, TakeApart)),
        tuple(decision.op for decision in plan.decisions if isinstance(decision, ByLayout)),
        tuple(stowed),
        tuple(f"{decision.first}, {decision.second}" for decision in plan.decisions if isinstance(decision, ByRows)),
        tuple(decision.op for decision in plan.decisions if isinstance(decision, ByOperand)),
    )


def _stowed(draft: Draft, stow: Stow) -> Stowed:
    storage, uses = draft.storages[stow.storage], draft.touching(stow.storage)
    moved = storage.size_bytes * ((stow.after is not None) + (stow.before is not None))
    first, last = (draft.op(uses[at]).name if uses else None for at in (0, -1))
    return Stowed(stow.storage, storage.role.value, storage.size_bytes, first, last, moved)


def _swapped(draft: Draft, swap: Swap) -> Swapped:
    storage = draft.storages[swap.storage]
    back = sum(piece.end - piece.begin for piece in swap.pieces)
    out = back if swap.after is not None else 0
    begin = swap.after if swap.after is not None else swap.dropped
    return Swapped(swap.storage, storage.role.value, storage.size_bytes, begin, swap.before, out + back)


def _reused(draft: Draft, op: str) -> Reused:
    values = [draft.values[name] for name in result_values(draft.op(required_place(draft, op)))]
    storage = draft.storages[next(value.storage for value in values if value.version == 0)]
    return Reused(op, storage.name, storage.role.value, storage.size_bytes)
