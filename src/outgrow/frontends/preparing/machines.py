"""For which machines can a step be planned from afar? Those of the folder `machines`, and those of the user's files.

A file is TOML in the form of `report.machinefile`. In the folder `machines`, `source` says where the rates are from,
and rates are those that programs reach, not those of data sheets.
"""

from difflib import get_close_matches
from functools import partial
from importlib.resources import files
from pathlib import Path

from outgrow.errors import InvalidMachine
from outgrow.ir.machine import Machine
from outgrow.report.fields import text_of
from outgrow.report.machinefile import Description, description_from_toml

_FOLDER, _SUFFIX = files("outgrow") / "machines", ".toml"


def machine_names() -> tuple[str, ...]:
    """Return the names of all described machines, sorted.

    >>> "v100-pcie3" in machine_names()
    True
    """
    return tuple(sorted(file.name.removesuffix(_SUFFIX) for file in _FOLDER.iterdir() if file.name.endswith(_SUFFIX)))


def names_a_file(text: str) -> bool:
    """Return whether a text names a machine's file rather than a described machine.

    >>> names_a_file("v100-pcie3"), names_a_file("mine.toml"), names_a_file("machines/mine")
    (False, True, True)
    """
    try:
        is_there = Path(text).exists()
    except OSError:  # a name that is too long
        is_there = False
    return text not in machine_names() and ("/" in text or text.endswith(_SUFFIX) or is_there)


def described_machine(name: str) -> Machine:
    """Return the machine of this name or in this file; raises `InvalidMachine` as `machine_description` does."""
    return machine_description(name).machine


def machine_description(name: str) -> Description:
    """Return the description of this name or in this file.

    Raises `InvalidMachine` for a file that is none, and, listing the names, for a name that is not one of them.
    """
    if names_a_file(name):
        path = Path(name)
        return description_from_toml(text_of(path, partial(_unreadable, path)), name)
    require_known(name)
    return description_from_toml((_FOLDER / f"{name}{_SUFFIX}").read_text(), f"of {name}")


def require_known(name: str) -> None:
    """Raise `InvalidMachine`, listing the names, unless a machine of this name is described."""
    names = machine_names()
    if name not in names:
        close = get_close_matches(name, names, n=1)
        hint = f" Did you mean {close[0]}?" if close else ""
        known = ", ".join(names)
        raise InvalidMachine(f"No machine is called {name!r}.{hint} Described are: {known}. A file ends in {_SUFFIX}.")


def _unreadable(path: Path, reason: str) -> InvalidMachine:
    return InvalidMachine(
        f"The machine file {path} cannot be read: {reason}. "
        "Give a file such as `outgrow machine --out` writes, or a name that `outgrow machine --list` prints."
    )
