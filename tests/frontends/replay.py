"""How does a captured step run if nothing is planned? Op by op, on real tensors: the reference for tests."""

from collections.abc import Mapping, Sequence

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from outgrow.frontends.fake.kernels.reserves import keeping_reserve
from outgrow.frontends.tracing.captured import Captured
from outgrow.frontends.tracing.names import resolve_operator, resolve_symbol
from outgrow.frontends.user.training.state import BatchSlot, Training
from outgrow.ir.graph import Argument, Ref, Role, Symbol


def replay(captured: Captured, training: Training, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
    """Run the graph on the present state, put its results back, and return what the step returns."""
    graph = captured.graph
    scalars: dict[str, object] = dict(zip(captured.hyper, captured.hyper_values(training), strict=True))
    tensors = captured.given(training, pytree.tree_leaves((args, kwargs))).tensors
    storages = {name: tensor.untyped_storage() for name, tensor in tensors.items()}
    starts = {
        name: tensors[name].storage_offset() * tensors[name].element_size()
        for name, slot in captured.slots.items()
        if isinstance(slot, BatchSlot)
    }

    def look_up(name: str) -> object:
        value = graph.values[name]
        if graph.storages[value.storage].role is Role.SCALAR:
            return scalars[name]
        dtype = vars(torch)[value.dtype]
        offset = value.offset + starts.get(value.storage, 0) // dtype.itemsize
        storage = storages[value.storage]
        return torch.empty(0, dtype=dtype, device=storage.device).set_(storage, offset, value.shape, value.strides)

    def resolve(argument: Argument) -> object:
        match argument:
            case Ref(name):
                return look_up(name)
            case Symbol(name):
                return resolve_symbol(name)
            case tuple():
                return [resolve(item) for item in argument]
            case _:
                return argument

    with torch.no_grad():
        for op in graph.ops:
            arguments = [resolve(argument) for argument in op.arguments]
            keywords = {key: resolve(argument) for key, argument in op.keywords}
            found = keeping_reserve(op, resolve_operator(op.operator))(*arguments, **keywords)
            outputs = found if isinstance(found, (tuple, list)) else [found]
            for name, output in zip(op.results, outputs, strict=bool(op.results)):
                if name is None:
                    continue
                if isinstance(output, Tensor):
                    storages.setdefault(graph.values[name].storage, output.untyped_storage())
                    _check(output, look_up(name))
                else:
                    scalars[name] = output
        results = [look_up(name) for name in graph.results]
    for item in captured.puts:
        result = None if item.result is None else results[item.result]
        assert result is None or isinstance(result, Tensor)
        item.hang(result, training)
    return captured.unflatten(results)


def placement(tensor: Tensor) -> object:
    """Return what says where the elements lie; the stride of a dimension of size 1 does not."""
    strides = [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]
    return (tensor.shape, strides, tensor.dtype, tensor.storage_offset())


def _check(output: Tensor, promised: object) -> None:
    assert isinstance(promised, Tensor)
    assert placement(output) == placement(promised)
    assert output.data_ptr() == promised.data_ptr()
