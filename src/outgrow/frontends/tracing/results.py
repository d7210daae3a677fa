"""What does the graph of a trace return?"""

from collections.abc import Sequence

from torch import fx


def results_of(graph: fx.Graph) -> Sequence[object]:
    """Return what the graph of a trace returns."""
    (output,) = graph.find_nodes(op="output")
    (results,) = output.args
    assert isinstance(results, list | tuple), "it returns a list"
    return results


def returning(graph: fx.Graph, results: Sequence[object]) -> None:
    """Let the graph of a trace return these results; of those that it returned, what nothing uses goes."""
    (output,) = graph.find_nodes(op="output")
    before = results_of(graph)
    output.args = ([*results],)
    for node in dict.fromkeys(node for node in before if isinstance(node, fx.Node)):
        if not node.users and node.op == "call_function":
            graph.erase_node(node)
