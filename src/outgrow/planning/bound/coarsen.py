"""What of a step does a bound of its time have to see? An outline: moments, slots, and what rests over them.

A *moment* is the begin or the end of an op: there the memory is looked at. A *slot* is the time between two moments.
Between two uses a storage *rests*: over the moments in between it may be held, away, or forgotten and built again.

    moments        0 = begin of the step < mu(0) < ... < mu(Q-1) < end of the step
    slot q         from mu(q-1) to mu(q), for q = 0 .. Q
    room(q)        capacity - what may not leave - what the op at mu(q) touches and cannot share - its workspace
    rest           begins in the slot after a use, ends in the slot before the next one

Every outline is optimistic, so fewer moments or fewer storages can only lower the bound:

    A. Memory is asked for at the chosen moments alone. What happens between two of them is free of it.
    B. A storage that is not outlined counts where an op touches it, and nowhere else.
    C. The ops from the first write to a parameter or to optimizer state on (`planning.free.early_updates`), and the
       gradients of convolutions' weights (`planning.free.waiting`), and the first of two ops that can run as one, by
       rows, may run at any time after the last op they conflict with, need no memory, and what only they use need not
       be held.
    D. A result may share the memory of an operand that the op has a form to write over. If all such operands are used
       again, one was built again.
    E. A storage is built again by one run of the dearest op that wrote it; all results of an op come from one run.
       What that op reads has to be there, if it is written only once; so a storage may be held beyond its last use to
       build others again. Only this rest, the *tail* of a storage, goes beyond the captured uses.
    F. Where storages with the same rests are taken as one (`merged`), its price a byte is the lowest among them. Then
       no operand has to be built again (D) or be there (E), and state that has rests is left out (H).

    G. Ops that can be taken apart are, those that can go by operand do, what the first of two that can run as one makes
       takes no room, and no op reads an operand of which only the layout matters (`free.loosest`).
    H. What may be stowed between steps (`planning.leaving`) is in the tier when the step begins, at no cost, and on the
       device as far as a plan likes; when the step ends, it may be wherever it is. If updates write it, it goes out at
       some time in the step, unless it is on the device throughout; if only updates use it, it comes in as well.

Other persistent storages stay on the device, and storages below the problem's `minimum_bytes` are built again or stay,
as everywhere in planning. Storages whose home is not the device, inputs of one step that no op uses, and what may rest
throughout it are not counted.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import floor

from outgrow.analysis.liveness import lifetimes, write_steps
from outgrow.analysis.updates import first_update
from outgrow.ir.graph import DEVICE, Graph, Op, Ref
from outgrow.operators.effects import is_repeatable
from outgrow.operators.in_place import IN_PLACE
from outgrow.operators.parts import operands_of_weight_gradient
from outgrow.operators.rows import pairs
from outgrow.planning.bound.outline import Copy, Outline, Overwrite, Repeat, Rest, State
from outgrow.planning.free.free import loosest
from outgrow.planning.leaving import idle, leaving, stowing
from outgrow.planning.problem import Problem

_NEGLECTED_SHARE = 0.005


@dataclass(frozen=True)
class Study:
    """What all outlines of one problem share. Steps count ops; the captured ops before the first update are `ops`.

    `points` are the steps at which a storage has to be there: -1 where it is an input of the step, `len(ops)` where it
    stays to the end. Storages in `stowing` may rest in the tier between steps; those among them that exist before the
    step and that updates write are `updated`. `releases` has (step after which it may run, seconds) of each op that may
    wait.
    """

    problem: Problem
    ops: tuple[Op, ...]
    needs: tuple[int, ...]
    seconds: tuple[float, ...]
    points: Mapping[str, tuple[int, ...]]
    writers: Mapping[str, tuple[int, ...]]
    releases: tuple[tuple[int, float], ...]
    stowing: frozenset[str]
    updated: tuple[str, ...]

    def size_bytes(self, name: str) -> int:
        """The bytes of a storage."""
        return self.problem.graph.storages[name].size_bytes

    def maker(self, name: str, step: int) -> int | None:
        """The dearest op that wrote `name` up to `step`, if all of them may run again."""
        if self.points[name][0] < 0:
            return None
        chain = [at for at in self.writers[name] if at <= step]
        if not all(is_repeatable(self.problem.graph, self.ops[at]) for at in chain):
            return None
        return max(chain, key=lambda at: self.seconds[at], default=None)

    def is_movable(self, name: str) -> bool:
        """Whether the storage may leave over the link."""
        return self.size_bytes(name) >= self.problem.minimum_bytes


def study(problem: Problem) -> Study:
    """Return what is true of a problem whatever the moments."""
    joining = {first.name for first, _, _ in pairs(problem.graph)}
    problem = loosest(problem)
    graph = problem.graph
    end = first_update(graph)
    ops = graph.ops[:end]
    waiting = {
        step
        for step, op in enumerate(ops)
        if operands_of_weight_gradient(op) is not None or (op.name in joining and not _written_bytes(graph, op))
    }
    life = lifetimes(graph)
    may_leave = leaving(problem, graph)
    may_stow, may_rest = stowing(graph, may_leave), idle(problem, graph)
    points: dict[str, tuple[int, ...]] = {}
    for name, storage in graph.storages.items():
        uses = life[name].uses
        before = [use for use in uses if use < end and use not in waiting]
        is_elsewhere = storage.home != DEVICE
        is_fixed = storage.is_persistent and name not in may_leave
        if is_fixed or is_elsewhere or storage.size_bytes == 0 or life[name].birth >= end:
            continue
        lasts = name in graph.outliving and name not in may_stow and name not in may_rest
        stays = lasts and len(before) == len(uses)
        points[name] = (*([-1] if life[name].birth < 0 else []), *before, *([end] if stays else []))
    writers = write_steps(graph)
    seconds = [problem.seconds_of(op) for op in graph.ops]
    free = [*sorted(waiting), *range(end, len(graph.ops))]
    return Study(
        problem=problem,
        ops=ops,
        needs=tuple(_needs(problem, ops, {name: life[name].birth for name in graph.storages}, waiting, may_leave)),
        seconds=tuple([0.0 if step in waiting else seconds[step] for step in range(end)]),
        points={name: steps for name, steps in points.items() if steps},
        writers={name: tuple(step for step in writers.get(name, ()) if step < end) for name in points},
        releases=tuple(zip(_releases(graph, free), [seconds[step] for step in free], strict=True)),
        stowing=may_stow,
        updated=tuple(
            name for name in points if name in may_stow and life[name].birth < 0 and writers.get(name, [-1])[0] >= end
        ),
    )


def _written_bytes(graph: Graph, op: Op) -> int:
    return sum(graph.storages[name].size_bytes for name in graph.written(op))


def _needs(
    problem: Problem,
    ops: Sequence[Op],
    births: Mapping[str, int],
    waiting: Collection[int],
    may_leave: Collection[str],
) -> list[int]:
    """Bytes that must be there while each op runs: what may not leave, what it touches, and its workspace.

    Of an op that may wait, only what may not leave counts.
    """
    graph, workspace = problem.graph, problem.workspace
    fixed = [0] * (len(ops) + 1)
    for name, storage in graph.storages.items():
        is_fixed = storage.is_persistent and name not in may_leave
        if is_fixed and storage.home == DEVICE and births[name] < len(ops):
            fixed[max(births[name], 0)] += storage.size_bytes
    found: list[int] = []
    held = 0
    for step, op in enumerate(ops):
        held += fixed[step]
        if step in waiting:
            found.append(held)
            continue
        own = [name for name in graph.touched(op) if name in may_leave or not graph.storages[name].is_persistent]
        found.append(held + sum(graph.storages[name].size_bytes for name in own) + workspace.get(op.captured, 0))
    return found


def _releases(graph: Graph, free: Sequence[int]) -> list[int]:
    """For each free step, the last step before it, itself not free, that it conflicts with, maybe through others."""
    is_free = frozenset(free)
    touched: dict[str, int] = {}
    written: dict[str, int] = {}
    found: list[int] = []
    for step, op in enumerate(graph.ops):
        release = step
        if step in is_free:
            after = [written.get(name, -1) for name in graph.touched(op)]
            release = max([-1, *after, *(touched.get(name, -1) for name in graph.written(op))])
            found.append(release)
        touched.update({name: max(release, touched.get(name, -1)) for name in graph.touched(op)})
        written.update({name: max(release, written.get(name, -1)) for name in graph.written(op)})
    return found


def choose_moments(found: Study, count: int) -> tuple[int, ...]:
    """Return moments for `count` groups of ops: 2 k is the begin of op k, 2 k + 1 its end.

    Where every op is a group, they are the begin and end of each. Else groups are runs of ops of about equal weight,
    where an op weighs its own seconds plus those of the mean op, and the moment of a group is the begin of the op with
    the largest need: twice as many groups bound a step better than both moments of each.
    """
    if count >= len(found.ops):
        return tuple(range(2 * len(found.ops)))
    mean = sum(found.seconds) / len(found.ops) or 1.0
    total = sum(seconds + mean for seconds in found.seconds)
    groups: dict[int, list[int]] = {}
    passed = 0.0
    for step, seconds in enumerate(found.seconds):
        groups.setdefault(floor(count * (passed + (seconds + mean) / 2) / total), []).append(step)
        passed += seconds + mean
    return tuple(2 * max(steps, key=found.needs.__getitem__) for steps in groups.values())


class _Drawing:
    """An outline while it is drawn."""

    def __init__(self, found: Study, moments: Sequence[int]) -> None:
        self.study, self.moments = found, moments
        self.room = [found.problem.budget.capacity_bytes - found.needs[moment // 2] for moment in moments]
        self.rests: list[Rest] = []
        self.copies: list[Copy] = []
        self.ranges: dict[int, tuple[int, int]] = {}
        self.rests_of: dict[str, list[int]] = {}
        self.rest_after: dict[tuple[str, int], int] = {}
        self.copy_of: dict[tuple[str, int], int] = {}
        self.outlined = _outlined(found)
        self.held: dict[str, None] = {}

    def slot_after(self, step: int) -> int:
        """The slot that begins with an op's end, or in which it lies; step -1 is the begin of the whole."""
        return bisect_right(self.moments, 2 * step + 1)

    def slot_before(self, step: int) -> int:
        """The slot that ends with an op's begin, or in which it lies."""
        return bisect_left(self.moments, 2 * step)

    def gaps(self) -> None:
        """Let every storage rest between its points; what can neither move nor be built again takes room."""
        for name, steps in self.study.points.items():
            for begin, end in pairwise(steps):
                first, last = self.slot_after(begin), self.slot_before(end)
                if first >= last:
                    continue
                repeat = self.study.maker(name, begin)
                if repeat is None and not self.study.is_movable(name):
                    self.held[name] = None
                    for moment in range(first, last):
                        self.room[moment] -= self.study.size_bytes(name)
                elif name in self.outlined:
                    self.rest_after[name, begin] = self.rest(name, begin, first, last, repeat, needed=True)

    def rest(self, name: str, step: int, begin: int, end: int, repeat: int | None, *, needed: bool) -> int:
        """Add a rest; make its copy and repeat reach as far."""
        size = self.study.size_bytes(name)
        copy = self.copied(name, step, end) if self.study.is_movable(name) else None
        if repeat is not None:
            first, last = self.ranges.get(repeat, (begin, end))
            self.ranges[repeat] = (min(first, begin), max(last, end))
        self.rests.append(Rest(name, size, begin, end, copy, repeat, needed))
        self.rests_of.setdefault(name, []).append(len(self.rests) - 1)
        return len(self.rests) - 1

    def copied(self, name: str, step: int, end: int) -> int:
        """The copy of the version that `name` has after `step`; it can begin when that version was written."""
        written = max((at for at in self.study.writers[name] if at <= step), default=-1)
        if (name, written) not in self.copy_of:
            link, size = self.study.problem.machine.link, self.study.size_bytes(name)
            begin = self.slot_after(written)
            out = 0.0 if written < 0 and name in self.study.stowing else link.out_seconds(size)
            self.copy_of[name, written] = len(self.copies)
            self.copies.append(Copy(out, link.in_seconds(size), begin, end))
        at = self.copy_of[name, written]
        self.copies[at] = replace(self.copies[at], end=max(end, self.copies[at].end))
        return at

    def tails(self) -> None:
        """Let storages rest beyond their last point, as far as an op that reads them may run again."""
        graph = self.study.problem.graph
        wanted: dict[str, int] = {}
        for step in reversed(range(len(self.study.ops))):
            op = self.study.ops[step]
            self.tails_of(graph.written(op), wanted)
            if step in self.ranges:
                for name in self.read_once(op):
                    wanted[name] = max(wanted.get(name, 0), self.ranges[step][1])
        self.tails_of(tuple(name for name in wanted if not self.study.writers[name]), wanted)

    def tails_of(self, names: Iterable[str], wanted: Mapping[str, int]) -> None:
        """Add the tails of storages whose readers are all known."""
        for name in names:
            if name in wanted:
                last = self.study.points[name][-1]
                begin = self.slot_after(last)
                if last < len(self.study.ops) and begin < wanted[name]:
                    repeat = self.study.maker(name, last)
                    self.rest(name, last, begin, wanted[name], repeat, needed=False)

    def read_once(self, op: Op) -> list[str]:
        """The outlined storages that `op` reads and that have only one version, the one that it read."""
        names = [name for name in self.study.problem.graph.reads(op) if name in self.outlined]
        made = [name for name in names if len(self.study.writers[name]) + (self.study.points[name][0] < 0) == 1]
        return [name for name in made if name not in self.held]

    def overwrites(self) -> tuple[Overwrite, ...]:
        """Where a moment's op may write over its operand: at no cost if that dies, else it has to be built again."""
        found: list[Overwrite] = []
        for at, moment in enumerate(self.moments):
            step = moment // 2
            operands = _operands(self.study.problem.graph, self.study.ops[step])
            dying = [name for name in operands if not any(point > step for point in self.study.points[name])]
            rebuilt = [name for name in operands if self.study.maker(name, step) is not None]
            if not dying and not rebuilt:
                continue
            size = self.study.size_bytes(operands[0])
            self.room[at] += size
            rest = self.rest_after.get((rebuilt[0], step)) if len(rebuilt) == 1 and not dying else None
            if rest is not None:
                found.append(Overwrite(at, size, rest))
        return tuple(found)

    def state(self) -> tuple[State, ...]:
        """What is stowed and written by updates: each storage that has rests, and all that only updates use, as one."""
        updated, link = self.study.updated, self.study.problem.machine.link
        found: list[State] = []
        left = 0
        for name in updated:
            size = self.study.size_bytes(name)
            if self.rests_of.get(name):
                found.append(State(size, 0.0, link.out_seconds(size), tuple(self.rests_of[name])))
            elif len(self.study.points[name]) == 1:
                left += size
        return (*found, State(left, link.in_seconds(left), link.out_seconds(left), ())) if left else tuple(found)

    def repeats(self) -> tuple[tuple[Repeat, ...], dict[int, int]]:
        """The ops that may run again, and their numbers by step."""
        numbers = {step: number for number, step in enumerate(sorted(self.ranges))}
        found: list[Repeat] = []
        for step in numbers:
            reads = [self.rests_of.get(name) for name in self.read_once(self.study.ops[step])]
            rests = tuple(tuple(item) for item in reads if item)
            found.append(Repeat(self.study.seconds[step], *self.ranges[step], rests))
        return tuple(found), numbers


def outline(found: Study, moments: Sequence[int]) -> Outline:
    """Return the outline of a problem at the given moments, in order."""
    drawing = _Drawing(found, moments)
    drawing.gaps()
    drawing.tails()
    overwrites = drawing.overwrites()
    repeats, numbers = drawing.repeats()
    slots = len(moments) + 1
    arithmetic = [0.0] * slots
    for step, seconds in enumerate(found.seconds):
        arithmetic[bisect_right(moments, 2 * step)] += seconds
    released = [0.0] * slots
    for release, seconds in found.releases:
        for slot in range(drawing.slot_after(release), slots):
            released[slot] += seconds
    runs = [first % 2 == 0 and second == first + 1 for first, second in pairwise(moments)]
    return Outline(
        arithmetic=tuple(arithmetic),
        is_run=(False, *runs, False)[:slots],
        released=tuple(released),
        room=tuple(drawing.room),
        rests=tuple(
            rest if rest.repeat is None else replace(rest, repeat=numbers[rest.repeat]) for rest in drawing.rests
        ),
        copies=tuple(drawing.copies),
        repeats=repeats,
        overwrites=overwrites,
        state=drawing.state(),
    )


def _outlined(found: Study) -> dict[str, None]:
    """The storages that may matter: without the smallest, which together are a small share of the capacity."""
    left = _NEGLECTED_SHARE * found.problem.budget.capacity_bytes
    chosen: dict[str, None] = {}
    for name in sorted(found.points, key=lambda name: (found.size_bytes(name), name)):
        left -= found.size_bytes(name)
        if left < 0:
            chosen[name] = None
    return chosen


def _operands(graph: Graph, op: Op) -> list[str]:
    """The storages that `op` may write its first result over, as far as kind and size of both say."""
    if op.operator not in IN_PLACE or not op.results or op.results[0] is None:
        return []
    result = graph.values[op.results[0]]
    size = graph.storages[result.storage].size_bytes
    found: list[str] = []
    for form in IN_PLACE[op.operator]:
        argument = op.arguments[form.operand] if form.operand < len(op.arguments) else None
        if isinstance(argument, Ref):
            operand = graph.storages[graph.values[argument.value].storage]
            is_fresh = result.version == 0 and result.storage != operand.name
            if is_fresh and not operand.is_persistent and operand.size_bytes == size > 0:
                found.append(operand.name)
    return found
