"""Is what is freed on the heap free for others, where the C library is asked for it?"""

import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]

_FREED_BY_THE_HEAP = """
import torch
from outgrow.runtime.freeing import fix_mmap_threshold, trim
from tests.runtime.memory import is_mapped
fix_mmap_threshold(65536)
behind = []
for size in (32 << 20, 24 << 20, 16 << 20):
    tensor = torch.ones(size, dtype=torch.uint8)
    behind.append(torch.ones(1 << 10))
    address = tensor.data_ptr()
    del tensor
    print(is_mapped(address))
trim()
"""


def test_a_fixed_threshold_frees_tensors_at_once() -> None:
    """Where glibc is asked to, a large tensor goes back to the kernel when it dies, as others did before."""
    assert _run(_FREED_BY_THE_HEAP).split() == ["False"] * 3


def _run(code: str) -> str:
    """Return what `code` prints in an interpreter of its own."""
    path = f"{_ROOT / 'src'}:{_ROOT}"
    environment = {"PYTHONPATH": path, "THP_MEM_ALLOC_ENABLE": "0"}
    process = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment)
    return process.stdout
