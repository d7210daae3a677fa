"""Which numbers does a step take from the machine's entropy? None: they would be the same in every run of a plan.

A generator without a seed asks the operating system for one: Python's in `Random.seed`; NumPy's, `random.SystemRandom`
and `secrets` by `random._urandom`. While a step is traced, both refuse. Modules that are imported meanwhile may make
generators, and `tempfile` may, for its names.
"""

import os
import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from operator import index
from threading import get_ident
from typing import NoReturn, TypeAlias
from unittest.mock import patch

from torch import SymInt

from outgrow.errors import Uncapturable
from outgrow.frontends.user.lines import past

_Seed: TypeAlias = float | str | bytes | bytearray | None
_seed = random.Random.seed
_HERE = (__file__, random.__file__)


@contextmanager
def nothing_from_entropy() -> Iterator[None]:
    """Raise `Uncapturable` if the block makes a generator without a seed, also where it catches the refusal."""
    refused: list[Uncapturable] = []
    own = get_ident()  # what others do meanwhile is no part of the step

    def refuse() -> NoReturn:
        refused.append(
            Uncapturable(
                "the step makes a generator of random numbers without a seed, which the captured step would not "
                "repeat; draw with torch, or outside of the step and pass the number as a tensor"
            )
        )
        raise refused[0]

    def seed(generator: random.Random, a: _Seed | SymInt = None, version: int = 2) -> None:
        if a is None and get_ident() == own and not _is_allowed():
            refuse()
        _seed(generator, index(a) if isinstance(a, SymInt) else a, version)  # a symbol is asked, and refuses itself

    def urandom(size: int) -> bytes:
        if get_ident() == own and not _is_allowed():
            refuse()
        return os.urandom(size)

    with patch.object(random.Random, "seed", seed), patch.object(random, "_urandom", urandom):
        yield
    if refused:
        raise refused[0]


def _is_allowed() -> bool:
    """Whether whoever asks for entropy is a module that is being imported, or `tempfile`."""
    frame = past(sys._getframe(), _HERE)
    return frame is None or frame.f_code.co_name == "<module>" or frame.f_code.co_filename == tempfile.__file__
