"""What do papers claim, and what is planned here for the same workload on the same machine? All in simulation.

    python benchmarks/claims.py [--only TEXT] [--resume] [--large]

A row is one figure of a paper: the step of that size, on that device, under that budget. It gives the speed of our plan
(seconds in core over seconds of the plan, by one cost model), what the planner of the paper, as written in
`planning.published`, reaches on the same graph, and what no plan beats. A size "fits at less than 10 % slowdown" where
the speed is above 1 / 1.1.

A goal without a number is the speed that the paper's planner reaches here: at its largest batch, ours is as quick.
`in_core_there` is what the captured step takes at the size that the paper could train in core, beside the budget: how
far our workload, which has other kernels, is from the paper's.

Devices have the memory on their data sheets in units of 10^9 bytes: that leaves what a driver takes of the 2^30.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from cells import Cell, as_searched, bound_speed, gigabytes, ours, problem_for, theirs
from rows import Row, write_rows

from outgrow.planning.floor import floor_of
from outgrow.simulation import replay

NNABLA = "Hayakawa and Narihira 2020 (NNabla)"
FIRST_STUDY = "first study of this project"
TFLMS = "Le et al. 2018 and 2019 (TFLMS)"
MENG = "Meng et al. 2017"
CAPUCHIN = "Peng et al. 2020 (Capuchin)"
HARDLY_SLOWER = 1 / 1.1


@dataclass(frozen=True)
class Claim:
    """A figure of a paper, the step that it is about, and the speed that we want (None: that of the paper's planner).

    `in_core` has the settings of the largest step that the paper could train in core, where they are known.
    """

    source: str
    figure: str
    planner: str
    cell: Cell
    budget_bytes: int
    goal: float | None
    is_large: bool = False
    in_core: Mapping[str, object] = field(default_factory=dict[str, object])

    @property
    def name(self) -> str:
        """Workload, machine and budget."""
        return f"{self.cell.title}, {self.cell.machine}, {self.budget_bytes / gigabytes(1):g} GB"


def _nnabla() -> list[Claim]:
    """7.5 times what fits a V100 of 16 GB at 55 % of the speed; neither link nor precision is known to us."""
    cells = [
        *((Cell("resnet.py:resnet50", {"batch": 1440}, name), 16) for name in ("v100-pcie3", "v100-nvlink2")),
        *((_mixed(f"{name}, mixed"), 16) for name in ("v100-pcie3", "v100-nvlink2")),
        (Cell("resnet.py:resnet50", {"batch": 1440}, "first study"), 16),
    ]
    cells += [(cell, 20) for cell, _ in cells]
    return [
        Claim(
            NNABLA,
            "0.55 at 7.5 times the batch" if size == 16 else "-",
            "nnabla_window",
            cell,
            gigabytes(size),
            0.80 if size == 16 else 0.90,
            in_core={"batch": 192},
        )
        for cell, size in cells
    ]


def _mixed(machine: str) -> Cell:
    return Cell("resnet.py:resnet50", {"batch": 1440, "dtype": "float16"}, machine)


def _first_study() -> list[Claim]:
    cell = Cell("resnet.py:resnet50", {"batch": 256}, "first study")
    figures = ((12, 0.97, 0.975), (6, 0.92, 0.94), (4, 0.89, 0.92), (3.2, 0.83, 0.88))
    return [Claim(FIRST_STUDY, f"{found:g}", "capuchin", cell, gigabytes(size), goal) for size, found, goal in figures]


def _tflms() -> list[Claim]:
    """Batches of a ResNet-50, and four volumes of 192^3 where one of 144^3 fits in core.

    832 is 4.7 times 176, and 931 is 4.9 times 190, the batches in core. The volumes are for the network of the authors'
    case study, for the same with 24 channels in place of 16, where 144^3 is the largest volume that fits in core here
    too, and for that of Cicek et al., whose single tensors do not fit.
    """
    machine, budget = "p100-nvlink1", gigabytes(16)
    batches = [
        Claim(
            TFLMS,
            f"{times} times the batch, 10 to 30 % slower",
            "tflms_v2",
            Cell("resnet.py:resnet50", {"batch": batch}, machine),
            budget,
            0.95,
            in_core={"batch": in_core},
        )
        for times, batch, in_core in ((4.7, 832, 176), (4.9, 931, 190))
    ]
    volumes = [
        Claim(
            TFLMS,
            "4 x 192^3 where 1 x 144^3 fits in core",
            "tflms_v1",
            Cell(workload, {"batch": 4, "size": 192, **settings}, machine),
            budget,
            0.90,
            in_core={"batch": 1, "size": 144},
        )
        for workload, settings in (
            ("isensee.py:isensee", {"channels": 16}),
            ("isensee.py:isensee", {"channels": 24}),
            ("unet3d.py:unet3d", {"channels": 32}),
        )
    ]
    return batches + volumes


def _meng() -> list[Claim]:
    """The three tables of the paper: batch, depth and memory, layers or time steps and batch.

    The translator of the first table has 40 time steps: its batch in core is larger than that of 50. Logits are made
    word by word: of 1,100 sentences of 50 words at once, three times in a softmax's backward pass, they are 21 GB.
    """
    words = {"loss": "word by word"}
    batches: tuple[tuple[str, Mapping[str, Any], int, int], ...] = (
        ("resnet.py:resnet50", {}, 144, 664),
        ("inception.py:inception_v3", {}, 208, 548),
        ("pix2pixhd.py:pix2pixhd", {"size": 256}, 24, 48),
        ("nmt.py:attention_nmt", {"steps": 40, **words}, 496, 824),
        *(
            ("lstm.py:lstm", {"layers": layers}, base, batch)
            for layers, base, batch in ((1, 1800, 3000), (4, 750, 1500), (8, 350, 900), (16, 75, 280))
        ),
        *(
            ("nmt.py:attention_nmt", {"steps": steps, **words}, base, batch)
            for steps, base, batch in ((50, 350, 1100), (100, 90, 550), (200, 20, 230), (400, 2, 60))
        ),
    )
    found = [
        Claim(
            MENG,
            f"batch {base} to {batch}",
            "meng",
            Cell(workload, {**settings, "batch": batch}, "m40-pcie3"),
            gigabytes(12),
            HARDLY_SLOWER,
            is_large="steps" in settings or settings.get("layers", 0) > 4,
            in_core={"batch": base},
        )
        for workload, settings, base, batch in batches
    ]
    depths = ((101, "5815 to 2660 MB", 2.66), (200, "10662 to 3052 MB", 3.052), (1001, "5979 MB", 5.979))
    for depth, figure, size in (*depths, (2000, "10650 MB", 10.65)):
        cell = Cell("resnet.py:resnet", {"depth": depth, "batch": 32}, "m40-pcie3")
        in_core = {"batch": 32} if depth <= 200 else {}
        found.append(Claim(MENG, figure, "meng", cell, gigabytes(size), HARDLY_SLOWER, depth > 200, in_core))
    return found


def _capuchin() -> list[Claim]:
    """The largest batches on a P100. Nobody says how long the texts were: with 208 words, 64 are what fits in core."""
    batches: tuple[tuple[str, Mapping[str, object], int, int], ...] = (
        ("vgg.py:vgg16", {}, 228, 350),
        ("resnet.py:resnet50", {}, 190, 1014),
        ("resnet.py:resnet", {"depth": 152}, 86, 798),
        ("inception.py:inception_v3", {}, 160, 716),
        ("bert.py:bert", {"size": "base", "length": 208}, 64, 450),
    )
    return [
        Claim(
            CAPUCHIN,
            f"batch {base} to {batch}",
            "capuchin",
            Cell(workload, {**settings, "batch": batch}, "p100-pcie3"),
            gigabytes(16),
            None,
            in_core={"batch": base},
        )
        for workload, settings, base, batch in batches
    ]


CLAIMS = (*_first_study(), *_nnabla(), *_tflms(), *_capuchin(), *_meng())


def measured(claim: Claim) -> Row:
    """Return what our planner and that of the paper make of a claim's step."""
    problem = problem_for(claim.cell, claim.budget_bytes)
    in_core = replay(problem.graph, problem.costs, problem.machine)
    whole, freed = as_searched(problem)
    floor, culprit = floor_of(whole, freed)
    paper, found = theirs(problem, claim.planner), ours(problem)
    bound = bound_speed(problem, in_core.seconds) if found.speed else None
    goal = claim.goal if claim.goal is not None else paper.speed or 0.0
    return {
        "source": claim.source,
        "figure": claim.figure,
        **asdict(claim.cell),
        "budget_bytes": claim.budget_bytes,
        "ops": len(problem.graph.ops),
        "in_core_peak_bytes": in_core.peak_bytes,
        "in_core_there": _in_core_there(claim),
        "floor_bytes": floor,
        "floor_operator": culprit.operator if culprit else "",
        "paper_planner": claim.planner,
        "paper": asdict(paper),
        "ours": asdict(found),
        "bound_speed": bound,
        "distance": bound / found.speed - 1 if bound and found.speed else None,
        "goal_is_paper": claim.goal is None,
        "goal": goal,
        "met": found.speed is not None and found.speed >= goal,
    }


def _in_core_there(claim: Claim) -> Row | None:
    """Return the size that the paper could train in core and what our step of that size takes there."""
    if not claim.in_core:
        return None
    cell = Cell(claim.cell.workload, {**claim.cell.settings, **claim.in_core}, claim.cell.machine)
    problem = problem_for(cell)
    peak = replay(problem.graph, problem.costs, problem.machine).peak_bytes
    return {"settings": dict(claim.in_core), "peak_bytes": peak}


def told(row: Row) -> str:
    """Return a row in one line."""
    ours_there, paper = row["ours"], row["paper"]
    found = [
        f"ours {_speed(ours_there)}",
        f"{row['paper_planner']} {_speed(paper)}",
        f"bound {row['bound_speed'] or float('nan'):.3f}",
        f"goal {row['goal']:.3f} {'met' if row['met'] else 'NOT MET'}",
    ]
    return ", ".join(found)


def _speed(outcome: Row) -> str:
    return f"{outcome['speed']:.3f}" if outcome["speed"] else f"none ({outcome['refusal'][:60]})"


if __name__ == "__main__":
    write_rows("claims", CLAIMS, measured, told, large=[claim for claim in CLAIMS if claim.is_large])
