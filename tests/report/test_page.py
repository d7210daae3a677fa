"""Does the page stand alone, say what was found, and stay small?"""

from dataclasses import replace
from html.parser import HTMLParser

import pytest

from outgrow.analysis.timeline import Event, Lane, Span, Trace
from outgrow.report.findings import Findings
from outgrow.report.page import render_page, verdict
from outgrow.report.summary import Traces
from tests.report.findings import findings

VOID = {"meta", "br"}


class Reader(HTMLParser):
    """Notes tags, attributes and texts, and whether every tag is closed in its place."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(page)
        assert self.open == [], "every tag is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, "tags are nested"

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def styles(self, tag: str) -> list[str]:
        return [attributes.get("class") or "" for name, attributes in self.seen if name == tag]


@pytest.mark.parametrize("losses", [(), (1.0,), (2.0, 1.0, 0.5), (1.0, float("nan"))], ids=str)
@pytest.mark.parametrize("capacity_bytes", [1300, 1 << 20])
def test_the_page_is_complete_and_loads_nothing(losses: tuple[float, ...], capacity_bytes: int) -> None:
    """With and without swaps, losses and a measured step: well-formed, no scripts, no links to elsewhere."""
    reader = Reader(render_page(findings(losses=losses, capacity_bytes=capacity_bytes)))
    tags = {tag for tag, _ in reader.seen}
    assert not tags & {"script", "link", "img", "iframe"}
    assert not any({"src", "href"} & set(attributes) for _, attributes in reader.seen)
    assert {"in-core", "planned"} <= set(reader.styles("path"))
    assert ("measured" in reader.styles("path")) == bool(losses)


def test_names_of_the_user_are_text() -> None:
    """A name with angle brackets is shown, not run."""
    page = render_page(findings())
    assert "<chain>" not in page
    assert any("toy.py:<chain>" in text for text in Reader(page).texts)


def test_every_swap_is_a_row_and_every_copy_a_bar() -> None:
    """Lanes have the spans of the trace, each with what it is."""
    found = findings(losses=())
    reader = Reader(render_page(found))
    spans = found.traces.simulated.spans
    for lane in Lane:
        assert reader.styles("rect").count(lane.value) == sum(span.lane is lane for span in spans)
    assert all(row.storage in reader.texts for row in found.account.swapped)


def test_a_plan_that_was_not_used_is_not_shown() -> None:
    """Where the user's function itself ran, there is the step in core and what the process took."""
    found = findings(capacity_bytes=1 << 20)
    reader = Reader(render_page(replace(found, summary=replace(found.summary, ran_as_written=True))))
    assert "planned" not in reader.styles("path")
    assert not any("Derivation" in text for text in reader.texts)
    assert any("as it is written" in text for text in reader.texts)


def test_scores_of_a_step_without_a_loss_are_shown() -> None:
    """A step may return nothing, and its workload evaluate."""
    texts = Reader(render_page(replace(findings(losses=()), scores={"dice": 0.75}))).texts
    assert any("dice 0.75" in text for text in texts)


def test_what_is_wide_scrolls_in_its_box() -> None:
    """Every table and every picture is in a box of its own, so that the page is as wide as its reader."""
    styles = Reader(render_page(findings())).styles
    assert styles("div").count("scroll") == len(styles("table"))
    assert styles("div").count("wide") == len(styles("svg"))


def crowded(count: int) -> Findings:
    """A step of very many short ops and events."""
    spans = tuple(Span(Lane.COMPUTE, f"op_{at}", at * 1e-4, (at + 1) * 1e-4) for at in range(count))
    events = tuple(Event(at * 1e-4, 1 if at % 2 == 0 else -1) for at in range(count))
    trace = Trace(count * 1e-4, spans, events)
    return replace(findings(), traces=Traces(trace, trace, trace))


def test_a_page_of_a_hundred_thousand_ops_is_small() -> None:
    """What an eye could not part is drawn as one; the page stays below 2 MB."""
    page = render_page(crowded(100_000))
    assert len(page) < 2_000_000
    assert Reader(page).styles("rect").count("compute") <= 2 * 1000
    assert " more, " in page


def test_the_verdict_names_memory_and_speed() -> None:
    """One sentence, whether it was planned, trained, or nothing had to move."""
    summary = findings().summary
    told = verdict(summary)
    assert told.startswith("Trains with a peak of 1.3 KiB, 2.3 KiB in core. The last step took ")
    assert told.endswith(f"{summary.measured_speed:.2f} of the speed predicted in core.")
    assert "more than the budget of 1.2 KiB" in verdict(replace(summary, budget_bytes=1200))
    assert verdict(findings(losses=()).summary).startswith(
        "Would train with a peak of 1.3 KiB, 2.3 KiB in core, at 1.00"
    )
    roomy = findings(capacity_bytes=1 << 20).summary
    assert verdict(roomy).endswith("nothing has to move.")
    for tight in (replace(roomy, budget_bytes=1200), replace(roomy, budget_bytes=1200, ran_as_written=True)):
        assert "allowed" not in verdict(tight)
        assert verdict(tight).endswith("more than the budget of 1.2 KiB.")
