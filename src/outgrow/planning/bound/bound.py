"""Which step time can no plan beat? A linear programme over fractions of storages, in the captured order.

Time is cut into slots at moments, the begins and ends of ops (`planning.bound.coarsen`, which also says in what the
outline is optimistic). Fractions of storages are held, moved and built again, without regard to the whole number of
times.

    variables       d_q       seconds of slot q
                    u_q       seconds of it that updates take
                    S_oq      how often op o was repeated by the end of slot q
                    O_cq      fraction of copy c that has gone out by the end of slot q
                    i_rq      fraction of rest r that comes in during slot q
                    r_m       fraction of rest r that is held at moment m
                    h_w       fraction of an operand that is not written over (overwrite w)
                    k_s       fraction of state s that is held throughout
                    e_tm      fraction of tail t that exists at moment m, held or in the tier, or is built later
    minimise        sum of d_q
    1. time         d_q >= arithmetic + u_q + seconds(o) (S_oq - S_o,q-1), summed over o;                  `_time`
                    where slot q is the run of one op: d_q = arithmetic, and nothing is repeated
    2. updates      u_0 + ... + u_q <= seconds released by then, all of them at the end                    `_updates`
    3. link         out seconds(c) (O_cq - O_c,q-1), summed over c, <= d_q; likewise in;                    `_link`
                    on a half-duplex link their sum <= d_q
    4. memory       bytes(r) r_m, summed over the rests at m, + bytes(w) h_w + bytes(s) k_s <= room(m)     `_memory`
    5. flow         r_m <= r_m-1 + i_rq + S_oq - S_o,q-1 from moment to moment; at the rest's end 1 <= ... `_flow`
    6. no loss      r_m + O_cm + S_o,end - S_om >= 1: what is not held is in the tier or will be repeated    `_no_loss`
    7. copies       O_c,q-1 <= O_cq, S_o,q-1 <= S_oq; for tails, which 6 does not bind, i_rq <= O_cq and     `_copies`
                    O_cq - O_c,q-1 <= r_m + S_oq - S_o,q-1 for the moment m before slot q
    8. operands     S_oq - S_o,q-1 <= r_m + i_rq + S_pq - S_p,q-1 for each rest r over slot q of a storage  `_operands`
                    that o reads, built by p
    9. overwriting  h_w + S_o,end - S_o,begin >= 1 over the rest that follows                             `_overwriting`
    10. state       k_s <= r_m for each rest of s; over the whole step, all that comes in, with            `_state`
                    in seconds(s) (1 - k_s), takes at most the sum of d; so does what goes out
    11. sources     r_m + O_cm + e_tm >= 1 for each tail t at m that is read to build rest r again;        `_sources`
                    e_tm <= r_tm + O_cm + S_o,end - S_om, and for each tail u that t's op o reads,
                    e_tm <= r_tm + O_cm + e_um

Without the last, a part of an operand that is held from slot to slot would build each part of the result.

*Why no plan is quicker.* Take any graph that the laws derive and its replay. At each moment, let r be the part of a
storage's content on the device (in its first or in a rebuilt instance), O and i what the link has moved so far, S how
often an op ran again (in one slot, once at the most), d the time that passed; and e = 1 where the tail is built later,
else r + O, at most 1: what is on the device at a later time was built after m, or each of its bytes was held at m or
in the tier. All eleven hold, and the sum of d is the seconds of the plan. Latency counts in proportion to the bytes: a
whole copy takes at least this.

*What the bound is of.* The captured order of the ops, but updates may come early and repetitions anywhere. What
`planning.leaving` does not name stays on the device, and storages below the problem's `minimum_bytes` do not use the
link. Ops with parts are looked at in parts, which take as long as the whole and touch no more.

*Proof, not trust.* What is returned is what the prices of the solver prove by weak duality (`programme.proven_least`),
so a solver that is inexact makes the bound lower, never wrong. Where the captured step fits, where the programme is
infeasible (the budget is below the floor) or where the solver gives up, the bound is the arithmetic: every captured op
runs at least once. A programme of too many variables is coarsened until it is solved in some seconds, which keeps it a
bound. The solver is given far more time than it takes, so that the bound does not depend on how quick a machine is.

Fractions and the operands' condition follow Jain et al. 2020, "Checkmate", https://arxiv.org/abs/1910.02653 (their
equation 1, relaxed) and, for both together, Patil et al. 2022, "POET", https://arxiv.org/abs/2207.07697. Departures:
copies and recomputation share one clock with the arithmetic, copies have progress in time, memory is asked for at
chosen moments, and results may be written over operands.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import inf

from outgrow.analysis.liveness import peak_bytes
from outgrow.planning.bound.coarsen import choose_moments, outline, study
from outgrow.planning.bound.outline import Outline, Rest, merged
from outgrow.planning.bound.programme import Programme, proven_least
from outgrow.planning.free.by_rows import spared_seconds
from outgrow.planning.problem import Problem

Terms = list[tuple[int, float]]
"""A sum of coefficients times variables, these by number."""

VARIABLES = 20_000
"""What HiGHS solves in some seconds. An outline of merged storages would be solved sooner, but says less."""
_FEWEST_GROUPS = 12
_MOST_GROUPS = 192


def bound_seconds(problem: Problem, variables: int = VARIABLES) -> float:
    """Return seconds below which no plan for the problem in the captured order can come.

    A programme of more `variables` takes longer, and says more.
    """
    arithmetic = sum(map(problem.seconds_of, problem.graph.ops)) - spared_seconds(problem)
    if peak_bytes(problem.graph, problem.workspace) <= problem.budget.capacity_bytes:
        return arithmetic
    return max(arithmetic, _solved(_affordable(problem, variables), problem.machine.link.half_duplex))


def _affordable(problem: Problem, variables: int) -> Outline:
    """The finest outline whose programme has at most `variables` variables; one of merged storages if none has."""
    found = study(problem)
    groups = [min(_MOST_GROUPS, len(found.ops))]
    while groups[-1] > _FEWEST_GROUPS:
        groups.append(max(_FEWEST_GROUPS, groups[-1] * 3 // 4))
    drawn: Outline | None = None
    for is_merged in (False, True):
        for count in groups:
            drawn = outline(found, choose_moments(found, count))
            drawn = merged(drawn) if is_merged else drawn
            if drawn.variables <= variables:
                return drawn
    assert drawn is not None, "there is at least one number of groups"
    return drawn


# ---- the variables


class _Columns:
    """The number of each variable, and the range that it can lie in."""

    def __init__(self, outlined: Outline, unit: float, programme: Programme) -> None:
        self._add = programme.variable
        slots = range(outlined.slots)
        seconds = [seconds / unit for seconds in outlined.arithmetic]
        self.slot = [self._add(seconds[q], seconds[q] if outlined.is_run[q] else inf, cost=1.0) for q in slots]
        self.update = [self._add(0.0, 0.0 if outlined.is_run[q] else outlined.released[q] / unit) for q in slots]
        self.repeats = [self._cumulative(outlined, item.begin, item.end) for item in outlined.repeats]
        self.copies = [{q: self._add(0.0, 1.0) for q in range(copy.begin, copy.end + 1)} for copy in outlined.copies]
        self.held = [{m: self._add(0.0, 1.0) for m in range(rest.begin, rest.end)} for rest in outlined.rests]
        self.coming = [
            {q: self._add(0.0, 1.0) for q in range(rest.begin + 1, rest.end + 1) if rest.copy is not None}
            for rest in outlined.rests
        ]
        self.sources = [
            {m: self._add(0.0, 1.0) for m in range(rest.begin, rest.end) if not rest.needed} for rest in outlined.rests
        ]
        self.kept = [self._add(0.0, 1.0) for _ in outlined.state]
        self.spared = [self._add(0.0, 1.0) for _ in outlined.overwrites]

    def _cumulative(self, outlined: Outline, begin: int, end: int) -> dict[int, int]:
        """A variable for each slot in which an op may run again; in the run of another op it stays what it was."""
        found: dict[int, int] = {}
        for slot in range(begin, end + 1):
            if not outlined.is_run[slot]:
                found[slot] = self._add(0.0, float(slot - begin + 1))
            elif slot > begin:
                found[slot] = found[slot - 1]
        return found

    def repeated(self, repeat: int | None, slot: int, sign: float = 1.0) -> Terms:
        """How often an op was repeated by the end of a slot."""
        if repeat is None or not self.repeats[repeat]:
            return []
        columns = self.repeats[repeat]
        if slot in columns:
            return [(columns[slot], sign)]
        last = max(columns)
        return [(columns[last], sign)] if slot > last else []

    def repeated_within(self, repeat: int | None, after: int, until: int, sign: float = 1.0) -> Terms:
        """How often an op was repeated from the end of slot `after` to the end of slot `until`."""
        terms = [*self.repeated(repeat, until, sign), *self.repeated(repeat, after, -sign)]
        return terms if len({column for column, _ in terms}) == len(terms) else []

    def copied(self, copy: int | None, slot: int, sign: float = 1.0) -> Terms:
        """The fraction of a copy that has gone out by the end of a slot."""
        return [(self.copies[copy][slot], sign)] if copy is not None and slot in self.copies[copy] else []


# ---- the constraints


def _time(outlined: Outline, columns: _Columns, programme: Programme, unit: float) -> None:
    """1. A slot holds its arithmetic, its updates and its repetitions."""
    work: list[Terms] = [[(columns.update[q], 1.0), (columns.slot[q], -1.0)] for q in range(outlined.slots)]
    for number, repeat in enumerate(outlined.repeats):
        for slot in range(repeat.begin, repeat.end + 1):
            price = repeat.seconds / unit
            work[slot] += [(at, sign * price) for at, sign in columns.repeated_within(number, slot - 1, slot)]
    for slot, terms in enumerate(work):
        if not outlined.is_run[slot]:
            programme.row(terms, upper=-outlined.arithmetic[slot] / unit)


def _updates(outlined: Outline, columns: _Columns, programme: Programme, unit: float) -> None:
    """2. Updates run after what they depend on, and all of them run."""
    for slot in range(outlined.slots):
        done = [(columns.update[earlier], 1.0) for earlier in range(slot + 1)]
        if outlined.released[slot] < outlined.released[-1]:
            programme.row(done, upper=outlined.released[slot] / unit)
    programme.row([(column, -1.0) for column in columns.update], upper=-outlined.released[-1] / unit)


def _link(outlined: Outline, columns: _Columns, programme: Programme, unit: float, *, half_duplex: bool) -> None:
    """3. The link moves in a slot what its rate lets it move."""
    out: list[Terms] = [[] for _ in range(outlined.slots)]
    back: list[Terms] = [[] for _ in range(outlined.slots)]
    for number, copy in enumerate(outlined.copies):
        for slot in range(copy.begin, copy.end + 1):
            moved = [*columns.copied(number, slot), *columns.copied(number, slot - 1, -1.0)]
            out[slot] += [(column, sign * copy.out_seconds / unit) for column, sign in moved]
    for rest, coming in zip(outlined.rests, columns.coming, strict=True):
        for slot, column in coming.items():
            assert rest.copy is not None, "only what has a copy comes in"
            back[slot].append((column, outlined.copies[rest.copy].in_seconds / unit))
    for slot in range(outlined.slots):
        for lane in [out[slot] + back[slot]] if half_duplex else [out[slot], back[slot]]:
            if lane:
                programme.row([*lane, (columns.slot[slot], -1.0)], upper=0.0)


def _memory(outlined: Outline, columns: _Columns, programme: Programme) -> None:
    """4. What rests has room beside what the op at the moment needs; in units of the largest that rests."""
    resting: list[Terms] = [[] for _ in outlined.room]
    for rest, held in zip(outlined.rests, columns.held, strict=True):
        for moment, column in held.items():
            resting[moment].append((column, float(rest.size_bytes)))
    for overwrite, column in zip(outlined.overwrites, columns.spared, strict=True):
        resting[overwrite.moment].append((column, float(overwrite.size_bytes)))
    for state, column in zip(outlined.state, columns.kept, strict=True):
        for terms in resting if not state.rests else ():
            terms.append((column, float(state.size_bytes)))
    for room, terms in zip(outlined.room, resting, strict=True):
        if sum(size for _, size in terms) > room:
            scale = max((size for _, size in terms), default=1.0)
            programme.row([(column, size / scale) for column, size in terms], upper=room / scale)


def _flow(outlined: Outline, columns: _Columns, programme: Programme) -> None:
    """5. What is held more than at the moment before came in or was built; at its next use, all is held."""
    for number, rest in enumerate(outlined.rests):
        held = columns.held[number]
        for slot in range(rest.begin + 1, rest.end + 1):
            if slot == rest.end and not rest.needed:
                continue
            more = [(held[slot], 1.0)] if slot < rest.end else []
            programme.row([*more, *_minus_there(columns, number, rest, slot)], upper=0.0 if more else -1.0)


def _minus_there(columns: _Columns, number: int, rest: Rest, slot: int) -> Terms:
    """What was held before a slot, what comes in during it, and what is built in it; all negative."""
    terms = [(columns.held[number][slot - 1], -1.0)]
    if slot in columns.coming[number]:
        terms.append((columns.coming[number][slot], -1.0))
    return [*terms, *columns.repeated_within(rest.repeat, slot - 1, slot, -1.0)]


def _no_loss(outlined: Outline, columns: _Columns, programme: Programme) -> None:
    """6. What is neither held nor in the tier has to be built before the end of the rest."""
    for rest, held in zip(outlined.rests, columns.held, strict=True):
        for moment, column in held.items() if rest.needed else ():
            later = columns.repeated_within(rest.repeat, moment, rest.end, -1.0)
            programme.row([(column, -1.0), *columns.copied(rest.copy, moment, -1.0), *later], upper=-1.0)


def _copies(outlined: Outline, columns: _Columns, programme: Programme) -> None:
    """7. Only what has gone out comes in, only what is held or built goes out, and what is done stays done."""
    for number, (rest, coming) in enumerate(zip(outlined.rests, columns.coming, strict=True)):
        for slot, column in coming.items() if not rest.needed else ():
            programme.row([(column, 1.0), *columns.copied(rest.copy, slot, -1.0)], upper=0.0)
            gone = [*columns.copied(rest.copy, slot), *columns.copied(rest.copy, slot - 1, -1.0)]
            source = columns.repeated_within(rest.repeat, slot - 1, slot, -1.0)
            programme.row([*gone, (columns.held[number][slot - 1], -1.0), *source], upper=0.0)
    for cumulative in (*columns.copies, *columns.repeats):
        distinct = list(dict.fromkeys(cumulative.values()))
        for earlier, later in pairwise(distinct):
            programme.row([(earlier, 1.0), (later, -1.0)], upper=0.0)


def _operands(outlined: Outline, columns: _Columns, programme: Programme) -> None:
    """8. An op is repeated as far as what it reads is there; what an op of the slot uses is there."""
    for number, repeat in enumerate(outlined.repeats):
        for slot in range(repeat.begin, repeat.end + 1):
            again = columns.repeated_within(number, slot - 1, slot)
            for rests in repeat.reads if again else ():
                resting = _resting(outlined, rests, slot)
                if resting is not None:
                    there = _minus_there(columns, resting, outlined.rests[resting], slot)
                    programme.row([*again, *there], upper=0.0)


def _resting(outlined: Outline, rests: Sequence[int], slot: int) -> int | None:
    """The one of a storage's rests that lasts over all of a slot, or a tail that ends with it."""
    for number in rests:
        rest = outlined.rests[number]
        if rest.begin < slot < rest.end or (slot == rest.end and not rest.needed):
            return number
    return None


def _sources(outlined: Outline, columns: _Columns, programme: Programme) -> None:
    """11. What is neither held nor in the tier is built from what is, or is built."""
    tails = [[n for rests in repeat.reads for n in rests if columns.sources[n]] for repeat in outlined.repeats]
    for number, rest in enumerate(outlined.rests):
        for moment, held in columns.held[number].items():
            there = [(held, -1.0), *columns.copied(rest.copy, moment, -1.0)]
            at_most = -1.0
            if not rest.needed:
                there.append((columns.sources[number][moment], 1.0))
                programme.row([*there, *columns.repeated_within(rest.repeat, moment, rest.end, -1.0)], upper=0.0)
                at_most = 0.0
            for tail in tails[rest.repeat] if rest.repeat is not None else ():
                if moment in columns.sources[tail]:
                    programme.row([*there, (columns.sources[tail][moment], -1.0)], upper=at_most)


def _overwriting(outlined: Outline, columns: _Columns, programme: Programme) -> None:
    """9. An operand that is written over is built again before its next use."""
    for overwrite, column in zip(outlined.overwrites, columns.spared, strict=True):
        rest = outlined.rests[overwrite.rest]
        again = columns.repeated_within(rest.repeat, rest.begin - 1, rest.end, -1.0)
        programme.row([(column, -1.0), *again], upper=-1.0)


def _state(outlined: Outline, columns: _Columns, programme: Programme, unit: float, *, half_duplex: bool) -> None:
    """10. What is not held throughout the step moves within it, at whatever time."""
    back: Terms = []
    out: Terms = []
    moved_back = moved_out = 0.0
    for state, kept in zip(outlined.state, columns.kept, strict=True):
        for number in state.rests:
            for held in columns.held[number].values():
                programme.row([(kept, 1.0), (held, -1.0)], upper=0.0)
        back.append((kept, -state.in_seconds / unit))
        out.append((kept, -state.out_seconds / unit))
        moved_back += state.in_seconds / unit
        moved_out += state.out_seconds / unit
    for rest, coming in zip(outlined.rests, columns.coming, strict=True):
        for column in coming.values():
            assert rest.copy is not None, "only what has a copy comes in"
            back.append((column, outlined.copies[rest.copy].in_seconds / unit))
    for number, copy in enumerate(outlined.copies):
        out += [(column, copy.out_seconds / unit * sign) for column, sign in columns.copied(number, copy.end)]
    step = [(column, -1.0) for column in columns.slot]
    if half_duplex:
        programme.row([*back, *out, *step], upper=-moved_back - moved_out)
    else:
        programme.row([*back, *step], upper=-moved_back)
        programme.row([*out, *step], upper=-moved_out)


# ---- the solution


def _solved(outlined: Outline, half_duplex: bool) -> float:
    """Return a proven bound of the programme in seconds; minus infinity where the solver finds none."""
    unit = sum(outlined.arithmetic) / outlined.slots or 1.0
    programme = Programme()
    columns = _Columns(outlined, unit, programme)
    _time(outlined, columns, programme, unit)
    _updates(outlined, columns, programme, unit)
    _link(outlined, columns, programme, unit, half_duplex=half_duplex)
    _memory(outlined, columns, programme)
    _flow(outlined, columns, programme)
    _no_loss(outlined, columns, programme)
    _copies(outlined, columns, programme)
    _operands(outlined, columns, programme)
    _sources(outlined, columns, programme)
    _overwriting(outlined, columns, programme)
    _state(outlined, columns, programme, unit, half_duplex=half_duplex)
    return unit * proven_least(programme)
