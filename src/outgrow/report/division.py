"""How is a step divided among workers? A table of what each worker holds and receives, and the same as data."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from outgrow.operators.dataflow import Dataflow
from outgrow.planning.partition.data_parallel import data_parallel_bytes
from outgrow.planning.partition.lacking import WHOLE
from outgrow.planning.partition.level import Level
from outgrow.planning.partition.partition import Partition
from outgrow.planning.partition.shares import Shares
from outgrow.report.columns import aligned
from outgrow.units import format_bytes, format_seconds

_EXACT = "each division is the cheapest of its kind"
_VARIABLES = (
    "i0, i1, ..: a dimension of the result; b: the batch; c, co, ci: channels, of outputs, of inputs; h: heads; "
    "n, i, j, k: those of matrix products; whole: every worker runs all of the call."
)


@dataclass(frozen=True, slots=True)
class Forecast:
    """Seconds of a step on a machine: divided (`waiting_seconds` of it for other workers), and as rivals run it.

    A rival that is impossible has None. `ideal_seconds` are those of one device with enough memory, divided by the
    number of workers. `planned_peak_bytes` is the peak of one worker's plan. Data parallelism is taken to send all
    gradients beside arithmetic, and operator placement ignores memory: both are as quick as they could be.
    """

    machine: str
    budget_bytes: int | None
    predicted_seconds: float
    waiting_seconds: float
    planned_peak_bytes: int
    ideal_seconds: float
    data_parallel_seconds: float | None
    placement_seconds: float
    one_device_seconds: float | None


@dataclass(frozen=True, slots=True)
class Division:
    """The figures of a division. `communicated_bytes` is what all workers together receive in a step.

    `data_parallel_bytes` is the same for data parallelism, None where the batch is too small for it. `searched_bytes`
    is the sum that the search made small: it counts every group of workers as the first one, which has the most.

    `whole_operators` are not in the catalogue, so every worker runs them on whole operands.
    """

    workload: str
    workers: int
    ops: int
    search_seconds: float
    communicated_bytes: int
    searched_bytes: int
    data_parallel_bytes: int | None
    lasting_bytes_per_worker: int
    peak_bytes_per_worker: int
    in_core_peak_bytes: int
    is_exact: bool
    whole_operators: tuple[str, ...]
    forecast: Forecast | None

    @property
    def share(self) -> float:
        """The peak of a worker over its equal share of the peak of one device: 1 is ideal."""
        return self.peak_bytes_per_worker * self.workers / self.in_core_peak_bytes

    def to_data(self) -> dict[str, object]:
        """Return the JSON object."""
        data: dict[str, object] = asdict(self)
        del data["forecast"]
        seconds = {"machine": None, "predicted_seconds": None} if self.forecast is None else asdict(self.forecast)
        return {**data, **seconds}


def division_of(
    workload: str, step: Dataflow, found: Partition, search_seconds: float, forecast: Forecast | None = None
) -> Division:
    """Return the figures of a division."""
    return Division(
        workload=workload,
        workers=found.workers,
        ops=len(step.nodes),
        search_seconds=search_seconds,
        communicated_bytes=sum(Shares(step, found).received_bytes()),
        searched_bytes=round(found.communicated_bytes),
        data_parallel_bytes=data_parallel_bytes(step, found.workers),
        lasting_bytes_per_worker=found.lasting_bytes_per_worker,
        peak_bytes_per_worker=found.peak_bytes_per_worker,
        in_core_peak_bytes=found.in_core_peak_bytes,
        is_exact=all(level.is_exact for level in found.levels),
        whole_operators=found.whole,
        forecast=forecast,
    )


def told(division: Division, step: Dataflow, levels: Sequence[Level]) -> str:
    """Return the figures as a table, and how the largest tensors that last are cut."""
    rows = [
        ("on one device", format_bytes(division.in_core_peak_bytes), "the peak of the step as it is"),
        ("each worker", format_bytes(division.peak_bytes_per_worker), f"{division.share:.3f} of an equal share"),
        ("of this lasting", format_bytes(division.lasting_bytes_per_worker), "weights and optimizer state"),
        ("communicated", format_bytes(division.communicated_bytes), "received by all workers in a step"),
        ("data parallel", _or_none(division.data_parallel_bytes), "the same where each has all weights"),
        (
            "search",
            format_seconds(division.search_seconds),
            _EXACT if division.is_exact else "other divisions may communicate less",
        ),
    ]
    rows += _seconds(division.forecast) if division.forecast is not None else []
    title = f"{division.workload}: {division.ops} calls on {division.workers} workers, predicted"
    parts = [title, aligned(rows), _ways(levels), _largest(step, levels)]
    if division.whole_operators:
        parts.append(f"Not described, so every worker runs all of them: {', '.join(division.whole_operators)}")
    return "\n\n".join(part for part in parts if part)


def _seconds(forecast: Forecast) -> list[tuple[str, str, str]]:
    """Return what a step takes, divided and otherwise."""
    within = "" if forecast.budget_bytes is None else f" within {format_bytes(forecast.budget_bytes)}"
    speed = f"{forecast.ideal_seconds / forecast.predicted_seconds:.3f} of the speed without exchanges and swaps"
    waiting = f"{format_seconds(forecast.waiting_seconds)} of it waiting for others"
    return [
        ("a step", format_seconds(forecast.predicted_seconds), f"on {forecast.machine}{within}: {speed}"),
        ("", "", f"{waiting}; a worker's peak is {format_bytes(forecast.planned_peak_bytes)}"),
        ("  data parallel", _seconds_or_none(forecast.data_parallel_seconds), "each worker has all weights"),
        ("  operators placed", format_seconds(forecast.placement_seconds), "whatever memory that takes"),
        ("  one device", _seconds_or_none(forecast.one_device_seconds), "swapping" if within else "with all memory"),
    ]


def _seconds_or_none(seconds: float | None) -> str:
    return "none" if seconds is None else format_seconds(seconds)


def _or_none(size_bytes: int | None) -> str:
    return "none" if size_bytes is None else format_bytes(size_bytes)


def _ways(levels: Sequence[Level]) -> str:
    """Return, for each division, its bytes and the variables along which most calls are cut."""
    rows = [("division", "communicated", "calls cut along")]
    for level in levels:
        cuts = Counter("whole" if strategy is None else strategy.cut for strategy in level.strategies.values())
        often = ", ".join(f"{name} {count}" for name, count in cuts.most_common(6))
        rows.append((f"{level.ways} ways", format_bytes(round(level.communicated_bytes)), often))
    return f"{aligned(rows)}\n{_VARIABLES}" if levels else ""


def _largest(step: Dataflow, levels: Sequence[Level], count: int = 6) -> str:
    """Return how the largest lasting tensors are cut: the dimension, division by division."""
    lasting = sorted(
        (item for item in step.tensors.values() if item.lasting), key=lambda item: item.size_bytes, reverse=True
    )
    rows = [("largest tensors", "bytes", "cut along dimension")]
    for tensor in lasting[:count]:
        states = (level.states[tensor.name] for level in levels)
        cuts = ", ".join("whole" if state == WHOLE else str(state) for state in states)
        rows.append((f"{tensor.name} {list(tensor.shape)}", format_bytes(tensor.size_bytes), cuts))
    return aligned(rows) if levels else ""
