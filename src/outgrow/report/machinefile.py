"""How is a machine kept in a file? As TOML: its name, the rates of its device and its link, where they are from.

    name = "v100-pcie3"
    [device]   name, flops_per_second, bytes_per_second, seconds_per_op, needs_workspace, places_results,
               reorders_gradients, source
    [link]     out_bytes_per_second, in_bytes_per_second, latency_seconds, half_duplex, source
    [[peers]]  count, bytes_per_second, latency_seconds, source: a table for each level, the slowest first

`shares_link` beside the name says that all devices use the one link at once. Rates are finite and 0.001 or more,
seconds from 0 to 1,000,000, counts 2 or more. What a record of `ir.machine` has a default for may be left out, and so
may `source`. Anything else is an `InvalidMachine` that names the file, the key and what stands there.
"""

import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from difflib import get_close_matches
from typing import TypeVar

from outgrow.errors import InvalidMachine
from outgrow.ir.machine import Device, LinkRates, Machine, Peers
from outgrow.report.fields import Fields

_Record = TypeVar("_Record", Device, LinkRates, Peers)

_DIGITS = 4
_EXAMPLE = "`outgrow machine --out FILE` writes a file of this form."


@dataclass(frozen=True, slots=True)
class Description:
    """A machine, and where the rates of its device, of its link and of each level of its peers are from."""

    machine: Machine
    device_source: str = ""
    link_source: str = ""
    peer_sources: tuple[str, ...] = ()


def description_from_toml(text: str, file: str) -> Description:
    """Return the description that was written as `text`; raises `InvalidMachine`, naming `file`, where it is none."""
    try:
        data: dict[str, object] = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # of TOML; a number of thousands of digits, lists in lists in lists
        raise InvalidMachine(f"The machine file {file} is not TOML: {error}. {_EXAMPLE}") from error
    try:
        return _description(Fields(data, "machine", InvalidMachine))
    except InvalidMachine as error:
        raise InvalidMachine(f"The machine file {file} is not valid: {error} {_EXAMPLE}") from None


def _description(file: Fields) -> Description:
    top = _completed(file, {"name": MISSING, "device": MISSING, "link": MISSING, "peers": [], "shares_link": False})
    device, device_source = _sourced(Device, top.fields("device"))
    link, link_source = _sourced(LinkRates, top.fields("link"))
    peers = top.each("peers", lambda level: _sourced(Peers, level))
    machine = Machine(
        top.text("name"), device, link, peers=tuple(level for level, _ in peers), shares_link=top.flag("shares_link")
    )
    return Description(machine, device_source, link_source, tuple(source for _, source in peers))


def _sourced(kind: type[_Record], table: Fields) -> tuple[_Record, str]:
    """Return the record of a table, and where its rates are from."""
    table = _completed(table, {field.name: field.default for field in fields(kind)} | {"source": ""})
    return table.record(kind), table.text("source").strip()


def _completed(table: Fields, defaults: Mapping[str, object]) -> Fields:
    """Return a table with the defaults of what it leaves out.

    Raises for a key that is none of theirs, and for a value that cannot be.
    """
    for key in map(str, table.data):
        if key not in defaults:
            close = get_close_matches(key, defaults, n=1)
            hint = f" Did you mean {close[0]}?" if close else ""
            raise table.error(f"{table.path} has an unknown key {key!r}.{hint} Known are: {', '.join(defaults)}.")
    left_out = {key: value for key, value in defaults.items() if value is not MISSING}
    completed = Fields(left_out | table.data, table.path, table.error)
    _require_possible(completed)
    return completed


_LEAST_RATE, _MOST_SECONDS = 0.001, 1_000_000


def _require_possible(table: Fields) -> None:
    """Raise for a field of a machine, or of a part of one, that cannot be."""
    for key in map(str, table.data):
        if key == "name" and not table.text(key).strip():
            raise table.wrong(key, "a name")
        if key == "count" and table.integer(key) < 2:
            raise table.wrong(key, "a number of 2 or more")
        if key.endswith("per_second") and not 0 < table.number(key) < math.inf:
            raise table.wrong(key, "a finite number above 0")
        if key.endswith("per_second") and table.number(key) < _LEAST_RATE:
            raise table.wrong(key, f"a number of {_LEAST_RATE} or more")
        if key in {"seconds_per_op", "latency_seconds"} and not 0 <= table.number(key) < math.inf:
            raise table.wrong(key, "a finite number of seconds, 0 or more")
        if key in {"seconds_per_op", "latency_seconds"} and table.number(key) > _MOST_SECONDS:
            raise table.wrong(key, f"a number of seconds of {_MOST_SECONDS} or less")


def description_to_toml(description: Description, comments: Mapping[str, str]) -> str:
    """Return a description as TOML, from which `description_from_toml` makes an equal one, up to digits.

    Numbers are written with four digits, since a measurement has no more. `comments` are put above the keys that they
    are given for.

    >>> machine = Machine("toy", Device("cpu", 1e9, 2e9), LinkRates(3e8, 3e8))
    >>> print(description_to_toml(Description(machine), {"flops_per_second": "a guess"}))
    name = "toy"
    <BLANKLINE>
    [device]
    name = "cpu"
    # a guess
    flops_per_second = 1e+09
    bytes_per_second = 2e+09
    seconds_per_op = 1e-05
    needs_workspace = true
    places_results = true
    reorders_gradients = false
    <BLANKLINE>
    [link]
    out_bytes_per_second = 3e+08
    in_bytes_per_second = 3e+08
    latency_seconds = 0
    half_duplex = false
    <BLANKLINE>
    """
    machine = description.machine
    lines = [f"name = {_spelled(machine.name)}"]
    if machine.shares_link:
        lines.append("shares_link = true")
    levels = zip(machine.peers, description.peer_sources or [""] * len(machine.peers), strict=True)
    parts = (
        ("[device]", machine.device, description.device_source),
        ("[link]", machine.link, description.link_source),
        *(("[[peers]]", level, source) for level, source in levels),
    )
    for name, record, source in parts:
        lines += ["", name]
        for key, value in asdict(record).items():
            if key in comments:
                lines.append(f"# {comments[key]}")
            lines.append(f"{key} = {_spelled(value)}")
        if source:
            lines.append(f"source = {_spelled(source)}")
    return "\n".join([*lines, ""])


def _spelled(value: object) -> str:
    """A string, truth value or number as TOML spells it; a basic string of TOML is one of JSON."""
    match value:
        case bool() | str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")
        case int() | float():
            return f"{value:.{_DIGITS}g}"
        case _:
            return str(value)
