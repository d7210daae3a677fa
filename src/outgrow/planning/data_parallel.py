"""What does data parallelism receive and hold? Where it is feasible, it is the rival of every division."""

from dataclasses import replace
from math import prod

from outgrow.operators.dataflow import Dataflow, Tensor
from outgrow.planning.footprint import peak_bytes


def data_parallel_bytes(step: Dataflow, workers: int) -> int | None:
    """Return the bytes received if each worker has all parameters and a part of the batch, and a ring adds gradients.

    What the step returns is a mean over the batch, for which each worker is sent a sum and a count by all others.
    None if the first dimension of the batch is shorter than the number of workers.
    """
    made = {name for node in step.nodes for name in node.results}
    batch = (item for name, item in step.tensors.items() if item.whole and not item.lasting and name not in made)
    if any(item.shape and item.shape[0] < workers for item in batch):
        return None
    written = {name for node in step.nodes for name in node.results if name in node.operands}
    trained = (tensor.size_bytes for name, tensor in step.tensors.items() if tensor.trained and name in written)
    returned = {name for name in step.outputs if name in made and step.tensors[name or ""].whole}
    losses = sum(step.tensors[name].size_bytes for name in returned if name is not None)
    return 2 * (workers - 1) * (sum(trained) + workers * losses)


def data_parallel_peak_bytes(step: Dataflow, workers: int) -> int:
    """Return the most bytes that one of these workers has at once: what lasts, gradients, its part of all else.

    A tensor of as many elements as a parameter is taken for a gradient. The batch is whole: every worker is given it.
    """
    sizes = {prod(tensor.shape) for tensor in step.tensors.values() if tensor.trained}

    def own(tensor: Tensor) -> Tensor:
        size = prod(tensor.shape)
        return (
            tensor if tensor.lasting or tensor.whole or size in sizes else replace(tensor, shape=(-(-size // workers),))
        )

    return peak_bytes(replace(step, tensors={name: own(tensor) for name, tensor in step.tensors.items()}), {})
