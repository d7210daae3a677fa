"""What does one show to others? One HTML page that stands alone: a verdict, the figures, the pictures, the plan.

Nothing is loaded from anywhere, and the page follows the reader's choice of light or dark.
"""

import math
from collections.abc import Sequence
from html import escape
from importlib.resources import files

from outgrow.report.account import Section
from outgrow.report.findings import Findings
from outgrow.report.picture import Curve, LaneGroup, loss_picture, step_picture
from outgrow.report.summary import Summary
from outgrow.units import format_bytes, format_seconds

_OPEN_ROWS = 30
"""A table of more rows is folded away until it is asked for."""
_DERIVATION_LINES = 4000


def render_page(found: Findings) -> str:
    """Return the page as HTML text."""
    summary = found.summary
    style = (files("outgrow.report") / "page.css").read_text(encoding="utf-8")
    title = escape(f"outgrow: {summary.workload}")
    sections = (
        f"<h1>{title}</h1>",
        f'<div class="verdict">{escape(verdict(summary))}</div>',
        _figures(summary),
        _step(found),
        _losses(found),
        "" if summary.ran_as_written else "".join(map(_table, found.account.sections)) + _derivation(found.derivation),
        f"<footer>{escape(_setting(found))}</footer>",
    )
    body = "\n".join(section for section in sections if section)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>\n{style}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def verdict(summary: Summary) -> str:
    """Return the whole in a sentence or two; peaks are compared with peaks, and what was measured is said."""
    in_core = f"{format_bytes(summary.in_core_peak_bytes)} in core"
    budget = format_bytes(summary.budget_bytes)
    measured = summary.measured
    if measured is None:
        peak = format_bytes(summary.predicted.peak_bytes)
        return f"Would train with a peak of {peak}, {in_core}, at {summary.speed:.2f} of the speed, all predicted."
    taken = format_bytes(measured.process_bytes)
    has_exceeded = measured.process_bytes > summary.budget_bytes
    over = f" The process took {taken}, more than the budget of {budget}." if has_exceeded else ""
    allowed = "" if has_exceeded else f" in {taken} of the {budget} allowed"
    if summary.ran_as_written:
        return f"Trains{allowed}, as it is written.{over}"
    if not summary.bytes_swapped and not summary.seconds_recomputed:
        return f"Trains{allowed}: nothing has to move.{over}"
    speed = "" if summary.measured_speed is None else f", {summary.measured_speed:.2f} of the speed predicted in core"
    peak, seconds = format_bytes(measured.peak_bytes), format_seconds(measured.seconds)
    return f"Trains with a peak of {peak}, {in_core}. The last step took {seconds}{speed}.{over}"


def _figures(summary: Summary) -> str:
    header, *rows = summary.estimates()
    estimates = [_row("th", ("", *("number" for _ in header[1:])), header)]
    estimates += [_row("td", ("", *("number" for _ in row[1:])), row) for row in rows]
    figures = [_row("td", ("", "number", "soft"), row) for row in summary.figures()]
    tables = "".join(f'<div class="scroll"><table>{"".join(lines)}</table></div>' for lines in (estimates, figures))
    return f'<div class="figures">{tables}</div>'


def _row(tag: str, kinds: Sequence[str], cells: Sequence[str]) -> str:
    parts = (
        f'<{tag} class="{kind}">{escape(cell)}</{tag}>' if kind else f"<{tag}>{escape(cell)}</{tag}>"
        for kind, cell in zip(kinds, cells, strict=True)
    )
    return f"<tr>{''.join(parts)}</tr>"


def _step(found: Findings) -> str:
    traces, summary = found.traces, found.summary
    curves = [Curve("in-core", traces.in_core, area=True)]
    repeated = frozenset(op.name for op in found.derived.ops if op.origin)
    groups: list[LaneGroup] = []
    legend = [("in-core", "memory in core")]
    if summary.ran_as_written:
        groups.append(LaneGroup("in core, predicted", traces.in_core.spans))
    else:
        curves.append(Curve("planned", traces.simulated))
        groups.append(LaneGroup("planned", traces.simulated.spans, repeated))
        legend.append(("planned", "memory as planned"))
    if traces.measured is not None:
        curves.append(Curve("measured", traces.measured))
        legend.append(("measured", "memory as measured"))
        if traces.measured.spans:
            groups.append(LaneGroup("measured", traces.measured.spans, repeated))
    again = [("again", "recomputed")] if repeated else []
    lanes = [("compute", "compute"), *again, ("out", "to the tier"), ("in", "back")]
    budget = '<span><i class="dashed"></i>budget</span>'
    overhead = format_bytes(summary.overhead_bytes)
    return (
        "<h2>One step</h2>\n<figure>"
        f'<div class="legend">{_keys(legend)}{budget}</div><div class="wide">'
        f"{step_picture(curves, groups, summary.budget_bytes)}</div>"
        f'<div class="legend">{_keys(lanes)}</div><figcaption>The lines are tensors and workspace. '
        f"The budget limits the whole process: {overhead} of it are set aside for what else it takes. "
        "Point at a bar to read what it is.</figcaption></figure>"
    )


def _keys(names: Sequence[tuple[str, str]]) -> str:
    return "".join(f'<span><i style="background:var(--{name})"></i>{text}</span>' for name, text in names)


def _losses(found: Findings) -> str:
    measured = found.summary.measured
    scores = f"<p>{escape(found.scores_text.replace(chr(10), ', '))}</p>" if found.scores else ""
    if measured is None or not measured.losses:
        return f"<h2>Scores</h2>\n{scores}" if scores else ""
    losses = measured.losses
    listed = ", ".join(f"{loss:.4f}" for loss in losses[:200])
    picture = ""
    if len(losses) > 1 and all(math.isfinite(loss) for loss in losses):
        picture = f'<div class="wide">{loss_picture(losses)}</div>'
    return f"<h2>Loss</h2>\n{picture}<p>{listed}{', ...' if len(losses) > 200 else ''}</p>{scores}"


def _table(section: Section) -> str:
    kinds = [_KINDS.get(column, "name") for column in section.columns]
    lines = "\n".join((_row("th", kinds, section.columns), *(_row("td", kinds, row) for row in section.rows)))
    is_open = " open" if len(section.rows) <= _OPEN_ROWS else ""
    return (
        f"<details{is_open}><summary>{section.heading}: {len(section.rows)}</summary>"
        f'<div class="scroll"><table>{lines}</table></div></details>\n'
    )


_KINDS = {"size": "number", "moved": "number", "role": ""}


def _derivation(derivation: str) -> str:
    lines = derivation.splitlines()
    shown = escape("\n".join(lines[:_DERIVATION_LINES]))
    rest = len(lines) - _DERIVATION_LINES
    more = f"\n... and {rest} more lines" if rest > 0 else ""
    return (
        f"<details><summary>Derivation: {len(lines) - 1} laws applied</summary><p>Each line is the "
        "fingerprint of the graph after a law, the law, and the decision it carried out.</p>"
        f"<pre>{shown}{more}</pre></details>"
    )


def _setting(found: Findings) -> str:
    settings = ", ".join(f"{name}={value}" for name, value in found.settings.items())
    summary = found.summary
    called = f"{summary.workload} with {settings}" if settings else summary.workload
    return (
        f"{called}: {summary.ops} ops, {summary.way}; planning took "
        f"{format_seconds(summary.planning_seconds)}, on {summary.machine}."
    )
