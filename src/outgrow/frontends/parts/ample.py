"""When does a part run as it is written? In ample room, on inputs no larger than some that it has run on as planned.

Room is ample (`frontends.within_budget`) for all that was taken so far, and what the part takes in core beyond that.
What parts before it have taken by then counts, too. Then a part is captured only for inputs that are larger than all
before, and costs what eager mode costs.
"""

from collections.abc import Iterable, Sequence

from outgrow.frontends.parts.shared_budget import Ready, Shared
from outgrow.frontends.tracing.signature import glance_at_inputs
from outgrow.frontends.within_budget import is_ample


def with_room_for(args: Sequence[object], kinds: Iterable[Ready], shared: Shared) -> Ready | None:
    """Return what a part has for inputs at least as large as these, if it runs as it is written in their room."""
    taken_bytes, budget_bytes = shared.taken_bytes, shared.settings.budget_bytes
    if not is_ample(taken_bytes, budget_bytes) or shared.settings.kernels != "eager":
        return None
    now = glance_at_inputs(args)
    larger = (ready for ready in kinds if ready.runs and ready.seen.covers(now))
    roomy = (ready for ready in larger if is_ample(taken_bytes + ready.more_in_core_bytes, budget_bytes))
    return next((ready for ready in roomy if ready.captured.is_answered_alike(args)), None)
