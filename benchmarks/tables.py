"""Write the sections of docs/results.md that are tables, and docs/zoo.md, from the results.

    python benchmarks/tables.py [--results benchmarks/results] [--page docs/results.md] [--zoo docs/zoo.md]

What lies between the two marks is replaced, the rest of the page is not touched. A file that is not there yet has no
table; rows that are not there yet are left out.
"""

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

import deep
import distance
import fragmentation
import heavy_state
import kernels
import order_alone
import overhead
import partition
import simulator
import swapped_op
import tofu
import workers
import zoo
from main_job import ROOT
from rows import GB, RESULTS, Goal, Row, read_rows, spelled

BEGIN, END = "<!-- written by benchmarks/tables.py: begin -->", "<!-- end -->"

SIMULATED = """\
## In simulation, for other machines

Figures are speeds: seconds of the step's arithmetic in core over seconds of the plan, by one cost model; GB are 10⁹
bytes. *first study* is a machine of 8.4 TFLOP/s, 800 GB/s and a link of 12 GB/s each way, the others are those of
`src/outgrow/machines`. A paper's planner is what `src/outgrow/planning/published` has of it, on the graph as
captured. Ours begins with what costs nothing on that graph (updates early, operators taken apart, the
lean order), so both what it rewrites and how it searches are compared.
*No plan beats* is the bound of `planning/bound`, in the captured order or the lean one (that which needs least memory),
whichever allows more. Goals are the project's own: 0.909 is a step of at most 1.1 times the seconds in core."""

MEASURED = "## Measured on this machine"


def section(results: Path) -> str:
    """Return the text of the section for the files of results in a folder."""
    parts: list[str] = []
    for heading, tables in PARTS.items():
        parts += [heading]
        for name, title, goals, part in tables:
            rows = read_rows(results / f"{name}.json")
            if rows:
                command = f"`benchmarks/results/{name}.json`, {_commits(rows)}:\n\n    python benchmarks/{name}.py"
                parts += [f"### {title}", command, *([goal_table(goals(rows))] if goals else ()), *part(rows)]
    return "\n\n".join(parts)


def _commits(rows: Sequence[Row]) -> str:
    commits = list(dict.fromkeys(row["commit"][:12] for row in rows))
    return f"commit{'s' if len(commits) > 1 else ''} {', '.join(f'`{commit}`' for commit in commits)}"


# The parts ----------------------------------------------------------------------------------------------------------


def _claims(rows: Sequence[Row]) -> Iterator[str]:
    met = sum(row["met"] for row in rows)
    yield table(
        "source, figure | workload | machine | budget | in core there | its planner here | **ours** | no plan beats"
        " | goal | met",
        (
            (
                f"{row['source']}: {row['figure']}",
                _title(row),
                row["machine"],
                _size(row["budget_bytes"]),
                _in_core_there(row["in_core_there"]),
                f"{_outcome(row['paper'], row)} ({row['paper_planner']})",
                f"**{_outcome(row['ours'], row)}**",
                _figure(row["bound_speed"]),
                f"{row['goal']:.3f}{' (its planner)' if row['goal_is_paper'] else ''}",
                _yes(row["met"]),
            )
            for row in rows
        ),
    )
    yield f"{met} of {len(rows)} goals are met."
    yield "*in core there*: what our step takes at the size that the paper trained in core, to compare with the budget."


def _largest(rows: Sequence[Row]) -> Iterator[str]:
    yield table(
        "source | workload | machine | budget | paper's batch | **ours** | met",
        (
            (
                row["source"],
                _title(row),
                row["machine"],
                _size(row["budget_bytes"]),
                f"{row['paper']}",
                f"**{row['largest']}**",
                _yes(row["largest"] >= row["paper"]),
            )
            for row in rows
        ),
    )
    yield "*ours*: the largest batch that is at most 1.1 times as slow as the same step in core, to 2 %."


def _distance(rows: Sequence[Row]) -> Iterator[str]:
    feasible = [row for row in rows if row["feasible"]]
    without = [f"{row['name']} ({_size(row['floor_bytes'])})" for row in rows if not row["feasible"]]
    yield table(
        "workload | ops | budget | best published planner | **ours** | no plan beats | distance | met",
        (
            (
                row["name"],
                f"{row['ops']}",
                _size(row["budget_bytes"]),
                f"{_figure(row['best_speed'])} ({row['best']})" if row["best"] else "-",
                f"**{_outcome(row['ours'], row)}**",
                _figure(row["bound_speed"]),
                _distance_figure(row),
                _yes(_is_close(row) and not row["beaten"]),
            )
            for row in feasible
        ),
    )
    yield "*crowded*: one op needs more than half of the budget for itself."
    if without:
        yield f"Below the floor: {'; '.join(without)}."


def _is_close(row: Row) -> bool:
    limit = distance.WORST_CROWDED if row["crowded"] else distance.WORST
    return row["distance"] is not None and row["distance"] <= limit


def _distance_figure(row: Row) -> str:
    return f"{_percent(row['distance'])}{', crowded' if row['crowded'] else ''}"


def _order(rows: Sequence[Row]) -> Iterator[str]:
    yield table(
        "workload | ops | peak as captured | OLLA: less, s | SERENITY: less, s | **ours: less, s** | at most"
        " | placed, less than PyTorch",
        (
            (
                row["name"],
                f"{row['ops']}",
                _size(row["captured_peak_bytes"]),
                _less(row, "olla"),
                _less(row, "serenity"),
                f"**{_less(row, 'ours')}**",
                _percent(1 - row["unavoidable_bytes"] / row["captured_peak_bytes"]),
                _percent(order_alone.less_placed(row)),
            )
            for row in rows
        ),
    )


def _less(row: Row, method: str) -> str:
    return f"{_percent(order_alone.less(row, method))}, {row['orders'][method]['seconds']:.1f}"


def _fragmentation(rows: Sequence[Row]) -> Iterator[str]:
    placed = [row for row in rows if not row["refusal"]]
    yield table(
        "workload | live at once | PyTorch's allocator | chunks of 20 MB | of 2 MB | **ours** | s | **pages** | s"
        " | met",
        (
            (
                row["name"],
                _size(row["live_bytes"]),
                *(_percent(row[key]) for key in ("caching", "virtual", "virtual_small")),
                f"**{row['ours']:.2%}**",
                f"{row['placing_seconds']:.1f}",
                f"**{row['pages']:.2%}**",
                f"{row['stitching_seconds']:.1f}",
                _yes(max(row["ours"], row["pages"]) <= fragmentation.GOAL),
            )
            for row in placed
        ),
    )


def _simulator(rows: Sequence[Row]) -> Iterator[str]:
    yield table(
        "step | budget | predicted s | simulated s | measured s | predicted / measured | **simulated / measured**"
        " | met",
        (
            (
                row["name"],
                _size(row["budget_bytes"]),
                *(f"{row[f'{kind}_seconds']:.3f}" for kind in ("predicted", "simulated", "measured")),
                f"{row['predicted_over_measured']:.3f}",
                f"**{row['simulated_over_measured']:.3f}**",
                _yes(simulator.LEAST <= row["simulated_over_measured"] <= simulator.MOST),
            )
            for row in rows
        ),
    )


def _heavy_state(rows: Sequence[Row]) -> Iterator[str]:
    yield table(
        "training | state | budget | peak | s a step | written a step | to make the model | while saving",
        (
            (
                row["name"],
                _size(row["state_bytes"]),
                _size(row["budget_bytes"]) if row["budget_bytes"] else "-",
                _size(row["peak_bytes"]),
                f"{median(row['step_seconds'][heavy_state.WARM :]):.2f}",
                _size(row["written_bytes"]) if row["written_bytes"] else "-",
                _size(row["build_bytes"]),
                _size(row["saving_bytes"]),
            )
            for row in rows
        ),
    )


def _overhead(rows: Sequence[Row]) -> Iterator[str]:
    yield table(
        "architecture | overhead | eager step | first call",
        (
            (
                row["name"],
                _percent(row["overhead"]),
                f"{row['eager_seconds']:.3f} s",
                f"{row['first_call_seconds']:.1f} s",
            )
            for row in rows
            if "overhead" in row
        ),
    )
    yield from (f"{row['name']} is not captured whole: {row['reason']}" for row in rows if "reason" in row)


def _swapped_op(rows: Sequence[Row]) -> Iterator[str]:
    yield table(
        "chain | swapped in a step | overhead of each",
        ((row["name"], str(row["swapped"]), f"{row['overhead_seconds'] * 1e6:.0f} us") for row in rows),
    )


def _stalls(rows: Sequence[Row]) -> Iterator[str]:
    yield "Times as long as with the result elsewhere. Plans count 1.6 and 1.4 for fewer than 8 channels a group."
    yield table(
        "normalisation | channels a group | elsewhere | over the gradient | over the input",
        (
            (
                row["name"],
                str(row["channels_a_group"]),
                f"{row['elsewhere_seconds'] * 1e3:.1f} ms",
                f"{row['over_gradient']:.2f}",
                f"{row['over_source']:.2f}",
            )
            for row in rows
        ),
    )


def _deep(rows: Sequence[Row]) -> Iterator[str]:
    yield table(
        "training | ops | in core | budget | peak | seconds over eager's | first call",
        (
            (
                row["name"],
                f"{row['ops']:,}",
                _size(row["in_core_bytes"]),
                _size(row["budget_bytes"]),
                _size(row["process_bytes"]),
                f"{row['step_seconds'] / row['eager_seconds']:.2f}",
                f"{row['first_call_seconds']:.0f} s",
            )
            for row in rows
        ),
    )


def _many_ops(rows: Sequence[Row]) -> Iterator[str]:
    yield table(
        "training, one thread | ops | eager | planned, over that | more, per op",
        (
            (
                row["name"],
                f"{row['ops']:,}",
                f"{row['eager_seconds']:.3f} s",
                f"{row['ratio']:.2f}",
                f"{row['more_seconds'] / row['ops'] * 1e6:.1f} µs",
            )
            for row in rows
        ),
    )


def _kernels(rows: Sequence[Row]) -> Iterator[str]:
    yield table(
        "training | kernels | peak | first call | step",
        (
            (
                row["name"],
                title,
                _size(row[f"{who}_process_bytes"]),
                f"{row[f'{who}_first_seconds']:.1f} s",
                f"{row[f'{who}_step_seconds']:.2f} s",
            )
            for row in rows
            for who, title in kernels.TRAININGS.items()
        ),
    )


def _partition(rows: Sequence[Row]) -> Iterator[str]:
    yield table(
        "step | calls | search | exact | a worker's peak | of an equal share | received by all"
        " | in the memory of data parallel | data parallel",
        (
            (
                row["name"],
                f"{row['ops']:,}",
                f"{row['search_seconds']:.1f} s",
                _yes(row["is_exact"]),
                _size(row["peak_bytes_per_worker"]),
                f"{row['share']:.3f}",
                _size(row["communicated_bytes"]),
                _size(row["communicated_bytes_with_room"]),
                "none" if row["data_parallel_bytes"] is None else _size(row["data_parallel_bytes"]),
            )
            for row in rows
        ),
    )


TOFU = """\
Ours are simulated on eight K80 of 12 GB; Tofu's are the samples/s that its paper reports for such ones. Each share is
of its own ideal, which has all memory and exchanges nothing, so samples/s of the two are not comparable."""


def _tofu(rows: Sequence[Row]) -> Iterator[str]:
    yield table(
        "network | batch | samples/s | ideal | **share** | waits | Tofu | its ideal | **share** | met",
        (
            (
                row["name"],
                f"{row['batch']}",
                f"{row['samples_per_second']:.1f}",
                f"{row['ideal_samples_per_second']:.1f}",
                f"**{row['share']:.3f}**",
                _percent(row["exchange_share"]),
                f"{row['paper_samples_per_second']:g}",
                f"{row['paper_ideal_samples_per_second']:g}",
                f"**{row['paper_share']:.3f}**",
                _yes(row["share"] >= row["paper_share"]),
            )
            for row in rows
        ),
    )
    yield TOFU


def _workers(rows: Sequence[Row]) -> Iterator[str]:
    compared = [row for row in rows if "losses_error" in row]
    halved = [row for row in rows if "bitwise" in row]
    yield table(
        "training | losses | parameters | received in 3 steps | predicted",
        (
            (
                row["name"],
                f"{row['losses_error']:.0e}",
                f"{row['parameters_error']:.0e}",
                f"{row['received_bytes']:,}",
                f"{row['predicted_bytes']:,}",
            )
            for row in compared
        ),
    )
    yield table(
        "training in half of the memory | losses bit for bit | budget | a process took | seconds of ample memory",
        (
            (
                row["name"],
                _yes(row["bitwise"]),
                _mebibytes(row["budget_bytes"]),
                _mebibytes(row["process_bytes"]) if "process_bytes" in row else "no plan",
                f"{row['step_seconds'] / row['ample_step_seconds']:.2f} x" if "step_seconds" in row else "",
            )
            for row in halved
        ),
    )


def _mebibytes(size: int) -> str:
    return f"{size / (1 << 20):.0f} MiB"


Table = tuple[str, str, Callable[[Sequence[Row]], list[Goal]] | None, Callable[[Sequence[Row]], Iterator[str]]]
PARTS: Mapping[str, Sequence[Table]] = {
    SIMULATED: (
        ("claims", "What papers claim", None, _claims),
        ("largest", "The largest batch", None, _largest),
        ("distance", "The distance from the bound", distance.goals, _distance),
        ("order_alone", "The order alone", order_alone.goals, _order),
        ("fragmentation", "Fragmentation", fragmentation.goals, _fragmentation),
        ("partition", "A step divided among workers", partition.goals, _partition),
        ("tofu", "The networks of Tofu on eight devices", tofu.goals, _tofu),
    ),
    MEASURED: (
        ("simulator", "The simulator against this machine", simulator.goals, _simulator),
        ("heavy_state", "Weights and optimizer state that do not fit", heavy_state.goals, _heavy_state),
        ("deep", "The deepest steps, in a quarter of their memory", deep.goals, _deep),
        ("many_ops", "Steps of many small operators, planned where nothing has to move", None, _many_ops),
        ("kernels", "Compiled kernels", kernels.goals, _kernels),
        ("overhead", "Models where they fit", overhead.goals, _overhead),
        ("swapped_op", "A swapped op", swapped_op.goals, _swapped_op),
        ("stalls", "Writing over an operand that stalls", None, _stalls),
        ("workers", "A step on several processes", workers.goals, _workers),
    ),
}
"""What stands under which heading: the name of the file and of the benchmark, a title, goals if it has any, tables."""


ZOO = """\
# The zoo

Which architectures train under a budget? Each takes three steps of AdamW, three times: with a budget that is never
reached (*fits*), at the floor (that which a refusal names, and 8 MiB; up to eight tries), and halfway between the two,
raised in the same way where that is refused. Most are small: where the floor is above what *fits* took, the row shows
the bits and that the budget is kept, not that memory is saved. Sizes are what the process takes above its baseline and
the budget, in MiB, with `*` where the bits are not those of eager, and **bold** where the budget was not kept. †: with
deterministic algorithms, since without them eager itself leaves other bits when it is repeated."""


def zoo_page(rows: Sequence[Row]) -> str:
    """Return the page of the zoo."""
    parts = [ZOO, f"Written by `benchmarks/tables.py` from `benchmarks/results/zoo.json`, {_commits(rows)}."]
    parts += [goal_table(zoo.goals(rows))]
    cells = ((row["family"], _marked_name(row), row["how"], *_trainings(row)) for row in rows)
    parts += [table("family | architecture | trained | fits | half | floor", cells)]
    parts += [f"**{row['name']}**: {row['reason']}" for row in rows if row["reason"]]
    return "\n\n".join(parts) + "\n"


def _marked_name(row: Row) -> str:
    return f"{row['name']} †" if row.get("is_deterministic") else row["name"]


def _trainings(row: Row) -> list[str]:
    return [_training(training) for training in row["trainings"]] or ["-", "-", "-"]


def _training(training: Row) -> str:
    peak, budget = training["peak_bytes"] >> 20, training["budget_bytes"] >> 20
    of = str(peak) if training["budget_bytes"] >= zoo.AMPLE else f"{peak} of {budget}"
    marked = of if zoo.is_within(training) else f"**{of}**"
    return marked if training["bitwise"] else f"{marked} *"


# Spelling -----------------------------------------------------------------------------------------------------------


def table(header: str, rows: Iterable[Sequence[str]]) -> str:
    """Return a table of Markdown; the columns of the header are parted by bars.

    >>> print(table("a | b", [("1", "2")]))
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    columns = header.count("|") + 1
    lines = [f"| {header} |", f"|{'---|' * columns}", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines)


def goal_table(goals: Sequence[Goal]) -> str:
    """Return a table of goals."""
    return table("goal | asked | found | met", ((name, asked, f, _yes(met)) for name, asked, f, met in goals))


def _title(row: Mapping[str, object]) -> str:
    settings = row["settings"]
    assert isinstance(settings, dict), "settings are an object"
    return f"{str(row['workload']).partition(':')[2]} {spelled(settings)}".strip()


def _outcome(outcome: Row, row: Row) -> str:
    """A speed; where there is none, whether the budget is below the floor of every plan, or of this planner's."""
    if outcome["speed"]:
        return _figure(outcome["speed"])
    if row["floor_bytes"] > row["budget_bytes"]:
        return f"below the floor, {_size(row['floor_bytes'])}"
    return outcome["refusal"] if outcome["refusal"].startswith("no plan") else "no plan"


def _in_core_there(found: Row | None) -> str:
    return f"{_size(found['peak_bytes'])} ({spelled(found['settings'])})" if found else "-"


def _figure(number: float | None) -> str:
    return "-" if number is None else f"{number:.3f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:z.1%}"


def _size(size_bytes: int) -> str:
    return f"{size_bytes / GB:.3g} GB"


def _yes(met: bool | None) -> str:
    return "-" if met is None else "yes" if met else "no"


def replaced(page: str, text: str) -> str:
    """Return a page with other text between its marks; raises `ValueError` where it lacks one.

    >>> replaced(f"a {BEGIN} b {END} c", "new").splitlines()[2:4]
    ['new', '']
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN} followed by {END}: put both where the section belongs.")
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"


def main() -> None:
    """Write the section."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FOLDER")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "results.md")
    parser.add_argument("--zoo", type=Path, default=ROOT / "docs" / "zoo.md")
    options = parser.parse_args()
    options.page.write_text(replaced(options.page.read_text(), section(options.results)))
    animals = read_rows(options.results / "zoo.json")
    if animals:
        options.zoo.write_text(zoo_page(animals))


if __name__ == "__main__":
    main()
