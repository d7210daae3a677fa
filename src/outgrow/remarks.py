"""What should a user know although nothing is refused? A remark: a warning at the user's own line.

The command line tells it as one line.
"""

import inspect
import os
from pathlib import Path
from warnings import warn

_OWN = f"{Path(__file__).parent}{os.sep}"


class Remark(UserWarning):
    """Something of the user's that may not be meant, or costs time."""


def remark(message: str) -> None:
    """Warn at the line outside of this package that called into it last."""
    level, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(_OWN):
        level, frame = level + 1, frame.f_back
    warn(message, Remark, stacklevel=level)
