"""What should a user know although nothing is refused? A remark: a warning at the user's own line.

The command line tells it as one line.
"""

import importlib
import inspect
import os
from pathlib import Path
from warnings import warn

_OWN, _FROZEN = f"{Path(__file__).parent}{os.sep}", "<frozen importlib"
_IMPORTING = (_FROZEN, importlib.__file__)


class Remark(UserWarning):
    """Something of the user's that may not be meant, or costs time."""


def remark(message: str) -> None:
    """Warn at the line outside of this package that called into it last, or imported it."""
    level, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith((_OWN, *_IMPORTING)):
        level += not frame.f_code.co_filename.startswith(_FROZEN)  # `warn` does not count these
        frame = frame.f_back
    warn(message, Remark, stacklevel=level)
