"""Operators that find a place in one operand by the numbers in another: embeddings.

Where such a place may be anywhere, all of the dimension is needed.
"""

from collections.abc import Mapping

from outgrow.operators.catalogue.entry import Entry
from outgrow.operators.tdl import ALL, OperatorCall, OperatorResult, Sum, applied, indices, numbered

b, c = indices("b c")


def embedding(call: OperatorCall) -> list[OperatorResult | None]:
    """A row of the table for each number."""
    table, numbers = call.operands
    i = numbered("i", len(numbers.shape))
    return [OperatorResult.at((*i, c), applied(table[ALL, c], numbers[i]))]


def embedding_dense_backward(call: OperatorCall) -> list[OperatorResult | None]:
    """The gradient of a table: what arrives for a number is added to its row, divided by how often if that is asked."""
    y, numbers = call.operands
    if call.arguments[4] is True:
        around = (ALL,) * len(numbers.shape)
        return [OperatorResult.at((ALL, c), applied(y[*around, c], numbers[around]))]
    i = numbered("i", len(numbers.shape))
    return [OperatorResult.at((ALL, c), Sum(i, applied(y[*i, c], numbers[i])))]


ENTRIES: Mapping[str, Entry] = {
    "aten.embedding.default": Entry(embedding),
    "aten.embedding_dense_backward.default": Entry(embedding_dense_backward),
}
