"""How is a step looked at in a trace viewer? As Chrome trace events, which ui.perfetto.dev and chrome://tracing open.

The three lanes are three threads of one process, and the memory is a counter. Times are microseconds from the
beginning of the step.
"""

import json

from outgrow.analysis.timeline import Lane, Trace, memory_over_time

_LANES = {
    Lane.COMPUTE: (1, "compute"),
    Lane.OUT: (2, "out: device to tier"),
    Lane.IN: (3, "in: tier to device"),
}


def chrome_trace(trace: Trace) -> str:
    """Return a trace as the JSON text of a trace file."""
    events: list[dict[str, object]] = [_metadata("process_name", 0, "outgrow step")]
    for thread, name in _LANES.values():
        events.append(_metadata("thread_name", thread, name))
        events.append({"ph": "M", "pid": 1, "tid": thread, "name": "thread_sort_index", "args": {"sort_index": thread}})
    for span in trace.spans:
        thread, _ = _LANES[span.lane]
        arguments = {"bytes": span.size_bytes} if span.size_bytes else {}
        duration = _microseconds(span.end - span.begin)
        events.append(_event("X", span.label, span.begin, thread) | {"dur": duration, "args": arguments})
    for seconds, device_bytes, tier_bytes in memory_over_time(trace.events):
        counted = {"device": device_bytes, "tier": tier_bytes}
        events.append(_event("C", "memory in bytes", seconds, 0) | {"args": counted})
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


def _event(kind: str, name: str, seconds: float, thread: int) -> dict[str, object]:
    return {"ph": kind, "pid": 1, "tid": thread, "name": name, "ts": _microseconds(seconds)}


def _metadata(kind: str, thread: int, name: str) -> dict[str, object]:
    return {"ph": "M", "pid": 1, "tid": thread, "name": kind, "args": {"name": name}}


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)
