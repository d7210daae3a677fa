"""What may a custom operator do that a trace does not see? Cast within its kernel under autocast, and draw randomly.

An operator is *foreign* if it is neither torch's nor outgrow's. Under autocast the operators that its kernel calls may
cast, and a captured step has no autocast: there a foreign operator is refused, unless it has a kernel for autocast. One
that draws random numbers without the tag that says so might be repeated by a plan, with other numbers: that is noticed
where it runs.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket

from outgrow.errors import ReplayMismatch, Uncapturable
from outgrow.frontends.fake.arguments import is_foreign
from outgrow.frontends.fake.eager.uncast import is_cast
from outgrow.frontends.user.lines import present_line


def check_casts(function: object) -> None:
    """Refuse a foreign operator that is called under autocast, and has no kernel for that."""
    overloads = _overloads(function)
    if not overloads:
        return
    for kind in ("cpu", "cuda"):
        if torch.is_autocast_enabled(kind) and not all(is_cast(item.name(), kind) for item in overloads):
            raise Uncapturable(
                f"{present_line()}: under autocast {overloads[0]} may cast what it multiplies within its kernel, which "
                f"no captured step repeats; call it within torch.autocast({kind!r}, enabled=False), or say what it "
                "casts with torch.library.register_autocast"
            )


def _overloads(function: object) -> list[OpOverload]:
    """Return the forms of an operator that is neither torch's nor ours; none of another function."""
    match function:
        case OpOverload():
            found = [function]
        case OpOverloadPacket():
            found = [getattr(function, name) for name in function.overloads()]
        case _:
            found = []
    return [item for item in found if is_foreign(item)]


def drawing_nothing(operator: Callable[..., Any]) -> Callable[..., Any]:
    """Return a foreign operator that raises `ReplayMismatch` if it draws random numbers and does not say so."""
    overloads = _overloads(operator)
    if not overloads or torch.Tag.nondeterministic_seeded in overloads[0].tags:
        return operator

    @wraps(operator)
    def called(*arguments: object, **keywords: object) -> object:
        before = torch.get_rng_state()
        returned = operator(*arguments, **keywords)
        if not torch.equal(before, torch.get_rng_state()):
            raise ReplayMismatch(
                f"{operator} draws random numbers and does not say so: a plan may repeat it. Register it with "
                "tags=torch.Tag.nondeterministic_seeded."
            )
        return returned

    return called
