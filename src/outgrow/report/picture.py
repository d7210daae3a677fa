"""How does a step look? Memory over time above, and on the same time axis what is busy below.

    memory   bytes
      |  in core (area), planned and measured (lines), the budget (dashed)
      +---------------------------------------------------------> seconds
    lanes    compute | out | in, as planned and as measured

A picture is `WIDTH` units wide, so more detail than one unit cannot be seen: of the memory within one unit
the first, lowest, highest and last stay, and bars narrower than one unit that touch are drawn as one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from outgrow.analysis.timeline import Lane, Span, Trace, memory_over_time
from outgrow.report.axes import Scale, Tick, byte_ticks, second_ticks
from outgrow.units import format_bytes, format_seconds

WIDTH = 1000
_LEFT, _RIGHT, _TOP = 76, 12, 16
_MEMORY_HEIGHT = 270
_LANE_HEIGHT, _LANE_GAP, _GROUP_GAP = 18, 5, 30
_LANES = (Lane.COMPUTE, Lane.OUT, Lane.IN)
_FAR = 1.6
"""A budget this many times above every line is named, not drawn: it would flatten them."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A trace whose memory is drawn with the style of this name; an area is filled down to zero."""

    style: str
    trace: Trace
    area: bool = False


@dataclass(frozen=True, slots=True)
class LaneGroup:
    """The spans of a trace, drawn as three lanes under a title; ops in `repeated` have their own colour."""

    title: str
    spans: tuple[Span, ...]
    repeated: frozenset[str] = frozenset()


def step_picture(curves: Sequence[Curve], groups: Sequence[LaneGroup], budget_bytes: int) -> str:
    """Return one SVG of memory over time and, below it on the same axis, of the lanes."""
    seconds = max(1e-9, *(curve.trace.seconds for curve in curves))
    across = Scale(seconds, _LEFT, WIDTH - _RIGHT)
    highest = max(1, *(curve.trace.peak_bytes for curve in curves))
    is_near = budget_bytes <= _FAR * highest
    most = 1.06 * (max(highest, budget_bytes) if is_near else highest)
    up = Scale(most, _TOP + _MEMORY_HEIGHT, _TOP)
    parts = [*_grid(across, up, second_ticks(seconds), byte_ticks(most))]
    parts += [_curve(curve, across, up) for curve in curves]
    parts += _budget(budget_bytes, up if is_near else None)
    top = _TOP + _MEMORY_HEIGHT + 50
    for group in groups:
        parts += _lanes(group, across, top)
        top += _GROUP_GAP + len(_LANES) * (_LANE_HEIGHT + _LANE_GAP)
    return svg(parts, top, "Memory over time, and what is busy when")


def svg(parts: Iterable[str], height: float, label: str) -> str:
    """Return the SVG element around its parts."""
    inside = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" role="img" '
        f'aria-label="{escape(label)}">\n{inside}\n</svg>'
    )


def text(x: float, y: float, content: str, *, anchor: str = "start", style: str = "") -> str:
    """Return an SVG text."""
    kind = f' class="{style}"' if style else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{kind}>{escape(content)}</text>'


def _grid(across: Scale, up: Scale, times: Sequence[Tick], sizes: Sequence[Tick]) -> list[str]:
    left, right, bottom = across.begin, across.end, up.begin
    parts: list[str] = []
    for tick in sizes:
        y = up(tick.value)
        parts.append(f'<path class="grid" d="M{left:g} {y:g}H{right:g}"/>')
        parts.append(text(left - 8, y + 4, tick.label, anchor="end"))
    for tick in times:
        x = across(tick.value)
        parts.append(f'<path class="grid" d="M{x:g} {bottom:g}v5"/>')
        parts.append(text(x, bottom + 19, tick.label, anchor="end" if x > right - 20 else "middle"))
    return parts


def _curve(curve: Curve, across: Scale, up: Scale) -> str:
    points = _thinned(curve.trace, across, up)
    path = "".join(f"H{x:g}V{y:g}" for x, y in points)
    start, end, bottom = across(0.0), across(curve.trace.seconds), up.begin
    shape = f"M{start:g} {bottom:g}{path}H{end:g}"
    return f'<path class="{curve.style}" d="{shape}{f"V{bottom:g}Z" if curve.area else ""}"/>'


def _thinned(trace: Trace, across: Scale, up: Scale) -> list[tuple[float, float]]:
    """The corners of the line; within one unit of width the first, lowest, highest and last of them."""
    columns: dict[int, list[tuple[float, float]]] = {}
    for seconds, size_bytes, _ in memory_over_time(tuple(sorted(trace.events, key=lambda event: event.seconds))):
        x = across(min(max(seconds, 0.0), trace.seconds))
        columns.setdefault(int(x), []).append((x, up(max(0, size_bytes))))
    kept: list[tuple[float, float]] = []
    for points in columns.values():
        heights = [y for _, y in points]
        shown = sorted({0, heights.index(min(heights)), heights.index(max(heights)), len(points) - 1})
        kept += [points[at] for at in shown]
    return kept


def _budget(budget_bytes: int, up: Scale | None) -> list[str]:
    label = f"budget {format_bytes(budget_bytes)}"
    right = WIDTH - _RIGHT
    if up is None:
        return [text(right, _TOP - 3, f"{label}, far above", anchor="end", style="budget-label")]
    y = up(budget_bytes)
    line = f'<path class="budget" d="M{_LEFT} {y:g}H{right}"/>'
    return [line, text(right, y - 5, label, anchor="end", style="budget-label")]


# The lanes --------------------------------------------------------------------------------------------------


def _lanes(group: LaneGroup, across: Scale, top: float) -> list[str]:
    parts = [text(_LEFT, top, group.title, style="group")]
    for at, lane in enumerate(_LANES):
        y = top + 8 + at * (_LANE_HEIGHT + _LANE_GAP)
        width = across.end - across.begin
        parts.append(f'<rect class="lane" x="{_LEFT}" y="{y:g}" width="{width:g}" height="{_LANE_HEIGHT}" rx="2"/>')
        parts.append(text(_LEFT - 8, y + 13, lane.value, anchor="end"))
        spans = sorted((span for span in group.spans if span.lane is lane), key=lambda span: span.begin)
        parts += [bar.drawn(across, y) for bar in _bars(spans, group.repeated, across)]
    return parts


@dataclass(frozen=True, slots=True)
class _Bar:
    """Spans that are drawn as one."""

    style: str
    label: str
    count: int
    begin: float
    end: float
    size_bytes: int

    def drawn(self, across: Scale, y: float) -> str:
        x = across(self.begin)
        width = max(0.6, round(across(self.end) - x, 1))
        what = self.label if self.count == 1 else f"{self.label} and {self.count - 1} more"
        moved = f", {format_bytes(self.size_bytes)}" if self.size_bytes else ""
        when = f"{format_seconds(self.begin)} to {format_seconds(self.end)}"
        return (
            f'<rect class="{self.style}" x="{x:g}" y="{y:g}" width="{width:g}" height="{_LANE_HEIGHT}">'
            f"<title>{escape(what)}{moved}, {when}</title></rect>"
        )

    def joined(self, other: "_Bar") -> "_Bar":
        size_bytes = self.size_bytes + other.size_bytes
        return _Bar(self.style, self.label, self.count + 1, self.begin, max(self.end, other.end), size_bytes)


def _bars(spans: Sequence[Span], repeated: frozenset[str], across: Scale) -> list[_Bar]:
    bars: list[_Bar] = []
    for span in spans:
        style = "again" if span.label in repeated else span.lane.value
        bar = _Bar(style, span.label, 1, span.begin, span.end, span.size_bytes)
        last = bars[-1] if bars else None
        if last is not None and last.style == style and _is_one(last, bar, across):
            bars[-1] = last.joined(bar)
        else:
            bars.append(bar)
    return bars


def _is_one(last: _Bar, bar: _Bar, across: Scale) -> bool:
    """Whether both lie within one unit of width, so that an eye could not part them."""
    return across(bar.end) - across(last.begin) <= 1.0


# The losses -------------------------------------------------------------------------------------------------


def loss_picture(losses: Sequence[float]) -> str:
    """Return an SVG of the loss over steps; every loss is a number, and there are at least two."""
    low, high = min(losses), max(losses)
    spread = (high - low) or max(abs(high), 1.0)
    height, count = 150, len(losses)
    across, up = Scale(count - 1, _LEFT, WIDTH - _RIGHT - 8), Scale(spread, height - 24, 14)
    points = [(across(at), up(loss - low)) for at, loss in enumerate(losses)]
    thinned = points[:: max(1, count // WIDTH)]
    parts = [f'<path class="grid" d="M{_LEFT} {up(part):g}H{WIDTH - _RIGHT}"/>' for part in (0.0, spread / 2, spread)]
    parts += [text(_LEFT - 8, up(part) + 4, f"{low + part:.4g}", anchor="end") for part in (0.0, spread)]
    parts += [text(_LEFT, height - 4, "step 1"), text(across.end, height - 4, f"step {count}", anchor="end")]
    parts.append(f'<path class="loss" d="M{"L".join(f"{x:g} {y:g}" for x, y in thinned)}"/>')
    if count <= 60:
        parts += [
            f'<circle class="dot" cx="{x:g}" cy="{y:g}" r="3.5"><title>step {at}: {loss:.6g}</title></circle>'
            for at, ((x, y), loss) in enumerate(zip(points, losses, strict=True), start=1)
        ]
    return svg(parts, height, "Loss of each step")
