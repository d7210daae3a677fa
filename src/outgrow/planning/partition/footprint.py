"""How much memory does one worker of a divided step take? Its parts of all tensors, and what it receives for a call."""

from collections.abc import Mapping

from outgrow.operators.dataflow import Dataflow


def dataflow_peak_bytes(step: Dataflow, received: Mapping[str, float]) -> int:
    """Return the most bytes that are live at once while a step runs, including those `received` for each node.

    A view takes memory of its own where it had to be received, since it is cut otherwise than what it views.
    """
    made = {name for node in step.nodes for name in node.results if name is not None}
    owner = owners(step, received)
    dying: dict[int, list[str]] = {}
    last = {owner[name]: at for at, node in enumerate(step.nodes) for name in node.tensors}
    for name, at in last.items():
        dying.setdefault(at, []).append(name)
    live = {owner[name] for name, tensor in step.tensors.items() if tensor.lasting or name not in made}
    held = sum(step.tensors[name].size_bytes for name in live)
    peak = float(held)
    for at, node in enumerate(step.nodes):
        born = {owner[name] for name in node.results if name is not None} - live
        live |= born
        held += sum(step.tensors[name].size_bytes for name in born)
        peak = max(peak, held + received.get(node.name, 0))
        dead = [name for name in dying.get(at, ()) if name in live and not step.tensors[name].lasting]
        live.difference_update(dead)
        held -= sum(step.tensors[name].size_bytes for name in dead)
    return int(peak)


def owners(step: Dataflow, received: Mapping[str, float]) -> dict[str, str]:
    """Return whose memory each tensor uses: its own, or its operand's if it is a view whose node receives nothing."""
    found = {name: item.viewed if item.viewed in step.tensors else name for name, item in step.tensors.items()}
    is_made: set[str] = set()
    for node in step.nodes:
        for name in node.results:
            if name is None or name in is_made:
                continue
            is_made.add(name)
            if received.get(node.name, 0):
                found[name] = name
            elif found[name] != name:
                sources = (item for item in node.operands if step.tensors[item].viewed == step.tensors[name].viewed)
                found[name] = found[next(sources, found[name])]
    return found
