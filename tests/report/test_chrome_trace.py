"""Does a trace file hold what the trace holds?"""

import json

from outgrow.analysis.timeline import Event, Lane, Span, Trace
from outgrow.report.chrome_trace import chrome_trace

TRACE = Trace(
    3.0,
    (
        Span(Lane.COMPUTE, "relu", 0.0, 1.0),
        Span(Lane.OUT, "a", 1.0, 2.0, 64),
        Span(Lane.IN, "a", 2.0, 3.0, 64),
    ),
    (Event(0.0, 64), Event(1.0, 0, 64), Event(2.0, -64)),
)


def test_spans_are_slices_and_memory_is_a_counter() -> None:
    """Three lanes are three named threads; times are microseconds, and the counter adds up."""
    events = json.loads(chrome_trace(TRACE))["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    assert [(event["name"], event["ts"], event["dur"]) for event in slices] == [
        ("relu", 0.0, 1e6), ("a", 1e6, 1e6), ("a", 2e6, 1e6),
    ]  # fmt: skip
    threads = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert [threads[event["tid"]].split(":")[0] for event in slices] == ["compute", "out", "in"]
    assert [event["args"] for event in events if event["ph"] == "C"] == [
        {"device": 64, "tier": 0}, {"device": 64, "tier": 64}, {"device": 0, "tier": 64},
    ]  # fmt: skip
