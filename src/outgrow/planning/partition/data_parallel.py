"""What does data parallelism receive? The rival that every division has, where it is feasible."""

from outgrow.operators.dataflow import Dataflow


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
