"""Are calls alike where a step repeats itself, and nowhere else?"""

from outgrow.planning.likeness import kinds
from tests.planning.test_partition import layers


def test_layers_in_the_midst_are_alike() -> None:
    """The first and the last have other neighbours; their weights are of other kinds, too."""
    step = layers((8, 8, 8, 8, 8, 8), 4)
    nodes, tensors = kinds(step, 1)
    assert nodes["y1"] == nodes["y2"] == nodes["y3"]
    assert len({nodes["y0"], nodes["y1"], nodes["y4"]}) == len("012")
    assert tensors["w1"] == tensors["w2"]
    assert tensors["w1"] != tensors["y1"]


def test_the_further_one_looks_the_less_is_alike() -> None:
    """Without looking all equal calls are alike; calls of other shapes never are."""
    step = layers((8, 8, 8, 8, 8, 8, 4), 4)
    counts = [len(set(kinds(step, rounds)[0].values())) for rounds in range(5)]
    assert counts[0] == len({node.call for node in step.nodes})
    assert counts == sorted(counts)
    assert counts[-1] == len(step.nodes)
