"""What does memory buy? A picture of the seconds of a step, over those in core, against the budget."""

from collections.abc import Sequence

from outgrow.planning.pareto import Point
from outgrow.report.axes import Scale, byte_ticks
from outgrow.report.picture import WIDTH, svg, text
from outgrow.units import format_bytes

_LEFT, _RIGHT, _TOP, _HEIGHT = 76, 24, 20, 300
_INK, _SOFT, _GRID = "#1f6feb", "#57606a", "#d0d7de"


def curve_picture(points: Sequence[Point]) -> str:
    """Return an SVG that stands alone: one dot a budget, lines between them. There is at least one point."""
    most = max(point.budget_bytes for point in points)
    slowest = max(point.slowdown for point in points)
    across = Scale(1.04 * most, _LEFT, WIDTH - _RIGHT)
    up = Scale(max(0.1, 1.1 * (slowest - 1)), _TOP + _HEIGHT, _TOP)
    bottom = up.begin
    parts = [f'<rect width="{WIDTH}" height="{_HEIGHT + 70}" fill="#ffffff"/>']
    for part in range(5):
        excess = up.most * part / 4
        y = up(excess)
        parts.append(f'<path d="M{_LEFT} {y:g}H{WIDTH - _RIGHT}" stroke="{_GRID}"/>')
        parts.append(text(_LEFT - 8, y + 4, f"{1 + excess:.2f} x", anchor="end"))
    for tick in byte_ticks(across.most):
        x = across(tick.value)
        parts.append(f'<path d="M{x:g} {bottom:g}v5" stroke="{_SOFT}"/>')
        parts.append(text(x, bottom + 20, tick.label, anchor="middle"))
    ordered = sorted(points, key=lambda point: point.budget_bytes)
    places = [(across(point.budget_bytes), up(point.slowdown - 1)) for point in ordered]
    line = "L".join(f"{x:g} {y:g}" for x, y in places)
    parts.append(f'<path d="M{line}" fill="none" stroke="{_INK}" stroke-width="2"/>')
    for (x, y), point in zip(places, ordered, strict=True):
        title = f"{format_bytes(point.budget_bytes)}: {point.slowdown:.3f} times the seconds in core"
        parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="4" fill="{_INK}"><title>{title}</title></circle>')
    parts.append(
        text(_LEFT, _HEIGHT + 62, "seconds of a step over those in core, against the memory budget", anchor="start")
    )
    group = f'<g font-family="sans-serif" font-size="13" fill="{_SOFT}">'
    return svg([group, *parts, "</g>"], _HEIGHT + 70, "Seconds of a step against the memory budget")
