"""How far is a plan from what no plan beats, and is a published planner ever better? All in simulation.

    python benchmarks/distance.py [--only TEXT] [--resume] [--large] [--ours]

Every typical workload, on a V100 behind 12 GB/s, with 1/2, 1/4 and 1/8 of what its step takes in core.

    distance    seconds of our plan / bound - 1; the bound is that of `planning.bound`
    crowded     some op needs more than half of the budget for itself, so that little can move while it runs
    best        the published planner with the quickest plan on the same graph

Goals: over all cells the median distance is at most 5 %, the worst 10 %, and 15 % where the cell is crowded; in no cell
a published planner has a quicker plan.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median

from cells import PUBLISHED, Cell, as_searched, bound_speed, ours, problem_for, theirs
from rows import Goal, Row, write_rows
from typical import LARGE_TEXTS, TYPICAL

from outgrow.ir.graph import Graph
from outgrow.plan import Budget
from outgrow.planning.floor import floor_of
from outgrow.planning.problem import Problem
from outgrow.simulation import replay

SHARES = (2, 4, 8)
MEDIAN, WORST, WORST_CROWDED = 0.05, 0.10, 0.15
SAME = 1e-4
"""Speeds that differ by less are the same."""


@dataclass(frozen=True)
class Squeeze:
    """A workload with a part of the memory that it takes in core."""

    cell: Cell
    share: int

    @property
    def name(self) -> str:
        """Workload and share."""
        return f"{self.cell.title}, 1/{self.share}"


LARGE = tuple(Squeeze(cell, share) for cell in LARGE_TEXTS for share in SHARES)
SQUEEZES = (*(Squeeze(cell, share) for cell in TYPICAL for share in SHARES), *LARGE)


def measured(squeeze: Squeeze) -> Row:
    """Return what all planners make of a squeeze, and the bound; nothing of these below the floor."""
    return _row(squeeze, lambda problem: {name: asdict(theirs(problem, name)) for name in PUBLISHED})


def again(squeeze: Squeeze, older: Row) -> Row:
    """Return what ours makes of a squeeze, and the bound, beside what published planners made of it before."""
    if "published" not in older:
        return measured(squeeze)
    commit = older.get("published_commit", older["commit"])
    return {**_row(squeeze, lambda _: older["published"]), "published_commit": commit}


def _row(squeeze: Squeeze, rivals: Callable[[Problem], Mapping[str, Row]]) -> Row:
    unlimited = problem_for(squeeze.cell)
    in_core = replay(unlimited.graph, unlimited.costs, unlimited.machine)
    problem = replace(unlimited, budget=Budget(in_core.peak_bytes // squeeze.share))
    whole, freed = as_searched(problem)
    floor, culprit = floor_of(whole, freed)
    row: Row = {
        **asdict(squeeze.cell),
        "share": squeeze.share,
        "budget_bytes": problem.budget.limit_bytes,
        "ops": len(problem.graph.ops),
        "in_core_peak_bytes": in_core.peak_bytes,
        "floor_bytes": floor,
        "floor_operator": culprit.operator if culprit else "",
        "feasible": floor <= problem.budget.capacity_bytes,
    }
    if not row["feasible"]:
        return row
    found = ours(problem)
    published = rivals(problem)
    speeds = {name: outcome["speed"] for name, outcome in published.items() if outcome["speed"]}
    best = max(speeds, key=speeds.__getitem__, default="")
    bound = bound_speed(problem, in_core.seconds) if found.speed else None
    return {
        **row,
        "crowded": 2 * largest_need(problem, freed) > problem.budget.capacity_bytes,
        "ours": asdict(found),
        "bound_speed": bound,
        "distance": bound / found.speed - 1 if bound and found.speed else None,
        "published": published,
        "best": best,
        "best_speed": speeds.get(best),
        "beaten": bool(speeds) and speeds[best] * (1 - SAME) > (found.speed or 0.0),
    }


def largest_need(problem: Problem, graph: Graph) -> int:
    """Return the most bytes that one op of the graph needs for itself: what it touches, and its workspace."""
    workspace = problem.workspace
    sizes = {name: storage.size_bytes for name, storage in graph.storages.items()}
    return max(sum(sizes[name] for name in graph.touched(op)) + workspace.get(op.captured, 0) for op in graph.ops)


def goals(rows: Sequence[Row]) -> list[Goal]:
    """Return each goal, the limit, what was found and whether it is met, over the rows that have a plan."""
    feasible = [row for row in rows if row["feasible"]]
    proved = [row for row in feasible if row["distance"] is not None]
    distances = [row["distance"] for row in proved]
    roomy = [row["distance"] for row in proved if not row["crowded"]]
    crowded = [row["distance"] for row in proved if row["crowded"]]
    beaten = sum(row["beaten"] for row in feasible)
    found: list[Goal] = [
        ("cells with a plan", "all above the floor", f"{len(proved)} of {len(feasible)}", len(proved) == len(feasible)),
        ("cells in which a published planner is quicker", "0", str(beaten), beaten == 0),
    ]
    if distances:
        middle = median(distances)
        found.append(("distance, median", f"<= {MEDIAN:.0%}", f"{middle:.1%}", middle <= MEDIAN))
    for title, limit, group in (
        ("distance, worst, no op needs over half the budget", WORST, roomy),
        ("distance, worst, elsewhere", WORST_CROWDED, crowded),
    ):
        if group:
            found.append((title, f"<= {limit:.0%}", f"{max(group):.1%}", max(group) <= limit))
    return found


def told(row: Row) -> str:
    """Return a row in one line."""
    if not row["feasible"]:
        return f"below the floor of {row['floor_bytes'] / 1e9:.2f} GB, set by {row['floor_operator']}"
    found, best = row["ours"]["speed"], row["best_speed"]
    distance = "unknown" if row["distance"] is None else f"{row['distance']:.1%}"
    return (
        f"ours {found or 0.0:.3f}, bound {row['bound_speed'] or 0.0:.3f}, distance {distance}"
        f"{' (crowded)' if row['crowded'] else ''}, best published {best or 0.0:.3f} {row['best']}"
    )


if __name__ == "__main__":
    write_rows("distance", SQUEEZES, measured, told, again, large=LARGE)
