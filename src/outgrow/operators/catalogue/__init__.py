"""Which operators are described? One module for each family of ATen's."""

from collections.abc import Mapping

from outgrow.operators.catalogue import (
    convolution,
    elementwise,
    lookups,
    normalisation,
    pooling,
    products,
    reductions,
    shapes,
)
from outgrow.operators.catalogue.entry import Entry

CATALOGUE: Mapping[str, Entry] = {
    **convolution.ENTRIES,
    **elementwise.ENTRIES,
    **lookups.ENTRIES,
    **normalisation.ENTRIES,
    **pooling.ENTRIES,
    **products.ENTRIES,
    **reductions.ENTRIES,
    **shapes.ENTRIES,
}
"""What is known of operators, by name."""
