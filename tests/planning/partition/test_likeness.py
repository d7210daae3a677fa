"""Are calls alike where a step repeats itself, and nowhere else?"""

from collections.abc import Mapping
from itertools import islice

from outgrow.operators.dataflow import Dataflow
from outgrow.planning.partition import likeness
from tests.planning.partition.test_partition import layers


def kinds(
    step: Dataflow, rounds: int, states: Mapping[str, tuple[int, ...]] | None = None
) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """The kinds where all have the same to choose from, but for some states."""
    calls = {call: number for number, call in enumerate(dict.fromkeys(node.call for node in step.nodes))}
    domains: dict[str, tuple[int, ...]] = dict.fromkeys(step.tensors, (0, 1))
    domains |= states or {}
    found = likeness.kinds(step, domains, {node.name: calls[node.call] for node in step.nodes})
    return next(islice(found, rounds, None))


def test_layers_in_the_midst_are_alike() -> None:
    """The first and the last have other neighbours; their weights are of other kinds, too."""
    step = layers((8, 8, 8, 8, 8, 8), 4)
    nodes, tensors = kinds(step, 1)
    assert nodes["y1"] == nodes["y2"] == nodes["y3"]
    assert len({nodes["y0"], nodes["y1"], nodes["y4"]}) == len("012")
    assert tensors["w1"] == tensors["w2"]
    assert tensors["w1"] != tensors["y1"]


def test_what_may_be_chosen_tells_calls_apart() -> None:
    """A tensor of other states is of another kind, and so are the calls on it."""
    step = layers((8, 8, 8, 8, 8, 8), 4)
    nodes, tensors = kinds(step, 1, {"w2": (0,)})
    assert tensors["w1"] != tensors["w2"]
    assert nodes["y1"] != nodes["y2"]


def test_the_further_one_looks_the_less_is_alike() -> None:
    """Without looking all equal calls are alike; calls of other shapes never are."""
    step = layers((8, 8, 8, 8, 8, 8, 4), 4)
    counts = [len(set(kinds(step, rounds)[0].values())) for rounds in range(5)]
    assert counts[0] == len({node.call for node in step.nodes})
    assert counts == sorted(counts)
    assert counts[-1] == len(step.nodes)
