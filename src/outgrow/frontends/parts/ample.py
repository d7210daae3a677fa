"""When does a part run as it is written? In ample room, on inputs no larger than some that it has run on as planned.

Room is ample if twice all that was taken so far is within the budget, with 64 MiB beside: eager mode may hold tensors
longer than a plan does. A part counts if its plan rewrites nothing, so that what was taken is what it takes in core.
Then a part is captured only for inputs that are larger than all before, and costs what eager mode costs.
"""

from collections.abc import Iterable, Sequence

from outgrow.frontends.parts.shared_budget import Ready, Shared
from outgrow.frontends.tracing.signature import glance_at_inputs

_ROOMY, _ROOMY_BYTES = 2, 64 << 20


def with_room_for(args: Sequence[object], kinds: Iterable[Ready], shared: Shared) -> Ready | None:
    """Return what a part has for inputs at least as large as these, if it runs as it is written in their room."""
    has_room = shared.taken_bytes * _ROOMY + _ROOMY_BYTES <= shared.settings.budget_bytes
    if not has_room or shared.settings.kernels != "eager":
        return None
    now = glance_at_inputs(args)
    shown = (ready for ready in kinds if ready.runs and not ready.prepared.plan.decisions)
    roomy = (ready for ready in shown if ready.seen.covers(now))
    return next((ready for ready in roomy if ready.captured.is_answered_alike(args)), None)
