"""Train PyTorch models that outgrow their device.

    @outgrow.compile(model=model, optimizer=optimizer, memory_budget="8GiB")
    def step(x, y): ...

Importing the package does not import torch: `build`, `compile`, `parts`, `Step` and `Workload` are loaded when
first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from outgrow.allocator import prefer_huge_pages
from outgrow.errors import (
    DeviceFull,
    DeviceLost,
    Divided,
    GraphSyntaxError,
    Infeasible,
    InvalidGraph,
    InvalidMachine,
    InvalidPlan,
    InvalidQuantity,
    InvalidWorkload,
    NotApplicable,
    OutgrowError,
    OutOfTurn,
    PeerLost,
    ReplayMismatch,
    TierFailure,
    TornState,
    Uncapturable,
    WrongInPieces,
)

if TYPE_CHECKING:
    from outgrow.frontends.build import build
    from outgrow.frontends.compile import Step, compile
    from outgrow.frontends.dynamo import parts
    from outgrow.frontends.workloads.workload import Workload

__version__ = "0.1.0"

__all__ = [
    "DeviceFull",
    "DeviceLost",
    "Divided",
    "GraphSyntaxError",
    "Infeasible",
    "InvalidGraph",
    "InvalidMachine",
    "InvalidPlan",
    "InvalidQuantity",
    "InvalidWorkload",
    "NotApplicable",
    "OutOfTurn",
    "OutgrowError",
    "PeerLost",
    "ReplayMismatch",
    "Step",
    "TierFailure",
    "TornState",
    "Uncapturable",
    "Workload",
    "WrongInPieces",
    "__version__",
    "build",
    "compile",
    "parts",
]

_MODULES = {
    "Step": "outgrow.frontends.compile",
    "Workload": "outgrow.frontends.workloads.workload",
    "build": "outgrow.frontends.build",
    "compile": "outgrow.frontends.compile",
    "parts": "outgrow.frontends.dynamo",
}

prefer_huge_pages()


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return __all__
