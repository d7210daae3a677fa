"""A GPU has a name for what it is and how its libraries choose kernels, which a machine without one can say too."""

import subprocess
import sys

SET = """
import torch
from outgrow.runtime.device import library_settings

backends, found = torch.backends, [library_settings()]
"""
OLDER = ("backends.cuda.matmul.allow_tf32 = True", "backends.cudnn.allow_tf32 = False")
BY_NAME = (
    "backends.cudnn.conv.fp32_precision = 'ieee'",
    "backends.cudnn.rnn.fp32_precision = 'ieee'",
    "backends.fp32_precision = 'tf32'",
    "backends.cuda.matmul.fp32_precision = 'ieee'",
)


def test_a_name_follows_precisions_however_they_are_set() -> None:
    """They can be read after each setting, though torch raises where older getters meet those that are set by name."""
    for settings in (OLDER + BY_NAME[:2], BY_NAME[2:]):  # of a whole process, so of another one
        lines = [f"{setting}; found.append(library_settings())" for setting in settings]
        script = "\n".join([SET, *lines, "print(*found)"])
        said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
        names = said.split()
        assert len(set(names)) == len(settings) + 1, names
