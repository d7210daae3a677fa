"""What does a plan do to each storage? One row a decision, with the role and the size that the plan leaves
out.

A decision names storages and ops of the graph as it stands when the decision is applied, so the laws are
applied again, one after the other, to look each of them up.
"""

from dataclasses import dataclass

from outgrow.ir.graph import Graph, result_values
from outgrow.plan import ByLayout, Move, Plan, Recompute, Reuse, Stow, Swap, TakeApart
from outgrow.report.columns import aligned
from outgrow.rewriting.derive import carry_out
from outgrow.rewriting.draft import Draft
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
    """A storage rests in the next tier between steps, and is away before its first and after its last use."""

    storage: str
    role: str
    size_bytes: int
    first: str
    last: str
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
class Moved:
    """The ops run directly after the op `after` instead of later."""

    ops: tuple[str, ...]
    after: str


@dataclass(frozen=True, slots=True)
class Account:
    """Every decision of a plan, by kind; `apart` and `by_layout` are the ops that such a decision names."""

    swapped: tuple[Swapped, ...] = ()
    recomputed: tuple[Recomputed, ...] = ()
    reused: tuple[Reused, ...] = ()
    moved: tuple[Moved, ...] = ()
    apart: tuple[str, ...] = ()
    by_layout: tuple[str, ...] = ()
    stowed: tuple[Stowed, ...] = ()

    def __str__(self) -> str:
        """One paragraph a kind of decision, then its rows."""
        parts = [
            _section(
                _stowed_title(self.stowed),
                [(s.storage, s.role, format_bytes(s.size_bytes), f"{s.first} .. {s.last}") for s in self.stowed],
            ),
            _section(
                _swapped_title(self.swapped),
                [(s.storage, s.role, format_bytes(s.size_bytes), f"{s.after} .. {s.before}") for s in self.swapped],
            ),
            _section(
                _title(len(self.recomputed), "storage is recomputed", "storages are recomputed"),
                [(r.storage, r.role, format_bytes(r.size_bytes), f"before {r.before}") for r in self.recomputed],
            ),
            _section(
                _title(len(self.reused), "result is written over an operand", "results are written over operands"),
                [(r.storage, r.role, format_bytes(r.size_bytes), f"by {r.op}") for r in self.reused],
            ),
            _section(
                _title(len(self.moved), "group of ops runs earlier", "groups of ops run earlier"),
                [(f"{', '.join(m.ops)}", f"after {m.after}") for m in self.moved],
            ),
            _section(_title(len(self.apart), "op runs in parts", "ops run in parts"), [(op,) for op in self.apart]),
            _section(
                _title(len(self.by_layout), "op does without an operand", "ops do without an operand")
                + " of which only the layout matters",
                [(op,) for op in self.by_layout],
            ),
        ]
        return "\n\n".join(part for part in parts if part) or "Nothing is rewritten: the step fits as it is."


def _title(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def _swapped_title(swapped: tuple[Swapped, ...]) -> str:
    moved = format_bytes(sum(row.moved_bytes for row in swapped))
    return f"{_title(len(swapped), 'gap is swapped', 'gaps are swapped')}, {moved} moved"


def _stowed_title(stowed: tuple[Stowed, ...]) -> str:
    size = format_bytes(sum(row.size_bytes for row in stowed))
    moved = format_bytes(sum(row.moved_bytes for row in stowed))
    title = _title(len(stowed), "storage rests", "storages rest")
    return f"{title} in the next tier between steps, {size}, {moved} moved; on the device from first to last use"


def _section(title: str, rows: list[tuple[str, ...]]) -> str:
    lines = aligned(rows).splitlines()
    return "\n".join((f"{title}:", *(f"  {line}" for line in lines))) if rows else ""


def account_of(captured: Graph, plan: Plan) -> Account:
    """Return what the plan does to the captured graph that it was made for."""
    swapped: list[Swapped] = []
    recomputed: list[Recomputed] = []
    reused: list[Reused] = []
    moved: list[Moved] = []
    apart: list[str] = []
    by_layout: list[str] = []
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
            case Move(ops, after):
                moved.append(Moved(ops, after))
            case TakeApart(op):
                apart.append(op)
            case ByLayout(op):
                by_layout.append(op)
        carry_out(draft, decision)
    return Account(
        tuple(swapped),
        tuple(recomputed),
        tuple(reused),
        tuple(moved),
        tuple(apart),
        tuple(by_layout),
        tuple(stowed),
    )


def _stowed(draft: Draft, stow: Stow) -> Stowed:
    storage, uses = draft.storages[stow.storage], draft.touching(stow.storage)
    moved = storage.size_bytes * ((stow.after is not None) + (stow.before is not None))
    first, last = (draft.op(use).name for use in (uses[0], uses[-1]))
    return Stowed(stow.storage, storage.role.value, storage.size_bytes, first, last, moved)


def _swapped(draft: Draft, swap: Swap) -> Swapped:
    storage = draft.storages[swap.storage]
    back = sum(piece.end - piece.begin for piece in swap.pieces)
    out = back if swap.after is not None else 0
    begin = swap.after if swap.after is not None else swap.dropped
    return Swapped(swap.storage, storage.role.value, storage.size_bytes, begin, swap.before, out + back)


def _reused(draft: Draft, op: str) -> Reused:
    place = draft.place_of(op)
    assert place is not None, "a plan that was carried out names ops of its graph"
    values = [draft.values[name] for name in result_values(draft.op(place))]
    storage = draft.storages[next(value.storage for value in values if value.version == 0)]
    return Reused(op, storage.name, storage.role.value, storage.size_bytes)
