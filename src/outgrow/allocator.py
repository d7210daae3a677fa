"""Which allocator serves the tensors? torch's own, asked for huge pages.

With `THP_MEM_ALLOC_ENABLE=1` torch begins every tensor of 2 MiB and more on a page and asks the kernel for
huge pages there. Two things follow that the rest of the package stands on. Such tensors are read and written
by direct I/O where they lie, without a bounce copy. And the high-water mark of the process follows the live
tensors instead of the heap's fragmentation. Eager training gains too: it takes fewer page faults.

torch reads the variable once, at its first allocation. Importing outgrow after torch is therefore in time,
and importing it after the first tensor is not. What the user has set is left as it is.
"""

import os

VARIABLE = "THP_MEM_ALLOC_ENABLE"


def prefer_huge_pages() -> None:
    """Ask torch for huge pages, unless the environment says otherwise already."""
    os.environ.setdefault(VARIABLE, "1")
