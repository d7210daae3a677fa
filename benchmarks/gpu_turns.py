"""What does `gpu.py` measure, and in which order? One turn, which is a process, after the other.

checks                   facts about the GPU
networks, over budgets   ours, and rivals within the same budget: first the headline, then ours of all networks, one of
nearly nothing but state among them, then what others make of them, then other budgets
networks that fit        if what compiles may run: torch.compile, and ours with compiled kernels
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Network:
    """A function of `gpu_trainings` with its settings; most seconds of a process, if they are not the usual ones."""

    workload: str
    settings: Mapping[str, int]
    most_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """One process: a network, by how much it is over the budget, and who trains it (ours, or a rival)."""

    network: str
    over: float = 1.0
    who: str = "ours"

    @property
    def row(self) -> str:
        """The name of the row to which it belongs."""
        return f"{self.network}, {self.over:g} times over"

    @property
    def name(self) -> str:
        """What it is called."""
        return self.network if self == CHECKS else f"{self.row}, {self.who}"

    @property
    def kind(self) -> str:
        """Whether it is of checks, ours, or a rival."""
        return "checks" if self == CHECKS else "ours" if self.who == "ours" else "rival"


CHECKS = Turn("checks")
# In core about 23, 10, 50, 49, 26 and 13 GB: the host has to hold what rivals save. The last one is nearly all weights,
# gradients and optimizer state.
NETWORKS = {
    "resnet50": Network("resnet50", {"batch": 512}),
    "unet3d": Network("unet3d", {"size": 192}),
    "gpt2-medium": Network("gpt2", {"batch": 16}),
    "gpt2-large": Network("gpt2", {"batch": 8, "layers": 36, "width": 1280, "heads": 20}),
    "bert-large": Network("bert", {"batch": 32}),
    "gpt2-large-state": Network("gpt2", {"batch": 1, "length": 256, "layers": 36, "width": 1280, "heads": 20}),
}
SMOKE_NETWORKS = {
    "fails": Network("fails", {}),
    "hangs": Network("hangs", {}, most_seconds=2),
    "mlp": Network("mlp", {}),
}
MAIN = (("resnet50", 7.5), ("gpt2-medium", 2.0), ("unet3d", 4.0), ("bert-large", 4.0), ("gpt2-large", 2.0))
STATE = ("gpt2-large-state", 4.5)
"""Weights and the averages of Adam are three times the budget then, or more."""
FACTORS = (2.0, 4.0, 8.0)
BY_PARTS = ("ours_by_parts",)
"""Our own backend of `torch.compile`, in the loop as it was."""
FIT = (("gpt2-medium", 0.7), ("resnet50", 0.7))
RIVALS = ("checkpoint", "save_on_cpu")
MORE_RIVALS = ("checkpoint_on_cpu", "fsdp_offload", "offload_activations")
COMPILED = ("compile_in_core", "ours_compiled")


def turns(*, is_smoke: bool, compiles: bool) -> list[Turn]:
    """Return what is to be done, the most important first."""
    if is_smoke:
        ours = (Turn("fails", 2.0), Turn("hangs", 2.0), Turn("mlp", 2.0))
        return [CHECKS, *ours, Turn("mlp", 2.0, RIVALS[0])]
    first, *others = MAIN
    factors = [(network, over) for network in NETWORKS for over in FACTORS if network not in (first[0], STATE[0])]
    more = [pair for pair in factors if pair not in MAIN]
    return [
        CHECKS,
        *_with_rivals([first], RIVALS),
        *(Turn(*pair) for pair in (*others, STATE)),
        *(Turn(*pair, rival) for pair in others for rival in RIVALS),
        *(Turn(*pair, who) for pair in MAIN for who in BY_PARTS),
        *(Turn(*pair, rival) for rival in MORE_RIVALS for pair in MAIN),
        Turn(*STATE, MORE_RIVALS[1]),
        *_with_rivals(more, RIVALS),
        *(_with_rivals(FIT, COMPILED) if compiles else ()),
        *(Turn(*pair, "compile_budget") for pair in MAIN if compiles),
    ]


def _with_rivals(pairs: Iterable[tuple[str, float]], rivals: Sequence[str]) -> list[Turn]:
    return [Turn(*pair, who) for pair in pairs for who in ("ours", *rivals)]
