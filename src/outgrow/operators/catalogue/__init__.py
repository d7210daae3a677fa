"""Which operators are described? One module for each family of ATen's."""

from collections.abc import Mapping

from outgrow.operators.catalogue import (
    attention,
    convolution,
    elementwise,
    joining,
    lookups,
    losses,
    making,
    normalisation,
    pooling,
    products,
    reductions,
    shapes,
)
from outgrow.operators.catalogue.entry import Entry

CATALOGUE: Mapping[str, Entry] = {
    **attention.ENTRIES,
    **convolution.ENTRIES,
    **elementwise.ENTRIES,
    **joining.ENTRIES,
    **lookups.ENTRIES,
    **losses.ENTRIES,
    **making.ENTRIES,
    **normalisation.ENTRIES,
    **pooling.ENTRIES,
    **products.ENTRIES,
    **reductions.ENTRIES,
    **shapes.ENTRIES,
}
"""What is known of operators, by name."""


def entry_of(operator: str) -> Entry | None:
    """Return what is known of an operator; one that writes in place computes what its other form does.

    >>> entry_of("aten.add_.Tensor") is entry_of("aten.add.Tensor")
    True
    """
    library, _, rest = operator.partition(".")
    name, _, overload = rest.partition(".")
    return CATALOGUE.get(operator) or CATALOGUE.get(f"{library}.{name.removesuffix('_')}.{overload}")
