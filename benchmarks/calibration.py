"""Does the cost model know how fast a GPU trains? Modelled images/s of a ResNet-50 beside published ones.

    python benchmarks/calibration.py

The step is captured at the batch of the published measurement and its seconds on each described machine are
those of the captured order with everything in memory. Whoever published the figure had other kernels and
another framework than its neighbours, and most had the pictures on a disk; within 25 % the model is as good as
these figures are comparable.

The rate of flop/s in a machine's file is fitted to its row here, since no data sheet says what convolutions
sustain; the bandwidth is not. A figure of another device than the machine's own is labelled so and is not
fitted to.
"""

import functools
from dataclasses import dataclass

from rows import workload_function

from outgrow.analysis.cost import costs_of
from outgrow.frontends.preparing.machines import described_machine
from outgrow.frontends.tracing.captured import Captured
from outgrow.frontends.workloads.steps import capture_workload
from outgrow.simulation import replay

_TENSORFLOW = "TensorFlow's benchmarks, 2017, synthetic data (tensorflow.org/performance/benchmarks)"
_MXNET = "MXNet documentation, 2017, cuDNN 5.1 (apache/mxnet, docs/how_to/perf.md)"
_NVIDIA = "NVIDIA DeepLearningExamples, PyTorch 21.03, ResNet-50 v1.5; batch assumed"
_LAMBDA = "Lambda, 2022 to 2023, ResNet-50 v1.5 (lambdal/deeplearning-benchmark, pytorch/*-fp32.csv)"


@dataclass(frozen=True, slots=True)
class Figure:
    """A published throughput of training a ResNet-50; `other` names the device if it is not the machine's own."""

    machine: str
    batch: int
    images_per_second: float
    source: str
    other: str = ""


PUBLISHED = (
    Figure("k80-pcie3", 64, 52, _TENSORFLOW),
    Figure("k80-pcie3", 32, 45.5, _MXNET),
    Figure("m40-pcie3", 32, 90.7, _MXNET),
    Figure("p100-pcie3", 64, 219, _TENSORFLOW, other="P100 SXM2"),
    Figure("p100-nvlink1", 64, 219, _TENSORFLOW),
    Figure("p100-nvlink1", 32, 181.5, _MXNET),
    Figure("v100-pcie3", 128, 369, _LAMBDA),
    Figure("v100-pcie3", 128, 367, _NVIDIA),
    Figure("v100-nvlink2", 128, 369, _LAMBDA),
    Figure("rtx4090-pcie4", 224, 721, _LAMBDA),
    Figure("a100-pcie4", 640, 1014, _LAMBDA),
    Figure("a100-pcie4", 256, 938, _NVIDIA, other="A100 SXM4"),
    Figure("h200-pcie5", 640, 1895, _LAMBDA, other="H100 SXM5"),
)


def modelled(figure: Figure) -> float:
    """Return the images/s of the cost model for the batch of a figure."""
    machine = described_machine(figure.machine)
    graph = _captured(figure.batch).graph
    return figure.batch / replay(graph, costs_of(graph, machine.device, {}), machine).seconds


@functools.cache
def _captured(batch: int) -> Captured:
    return capture_workload(workload_function("resnet.py:resnet50"), {"batch": batch})


def main() -> None:
    """Print the table."""
    print(f"{'machine':14} {'batch':>5} {'published':>9} {'modelled':>8} {'off by':>7}  source")
    for figure in PUBLISHED:
        found = modelled(figure)
        off = found / figure.images_per_second - 1
        source = f"{figure.source}{f'; on {figure.other}' if figure.other else ''}"
        print(
            f"{figure.machine:14} {figure.batch:5} {figure.images_per_second:9.1f} {found:8.1f} {off:+7.0%}  {source}"
        )


if __name__ == "__main__":
    main()
