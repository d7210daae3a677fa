"""How is a machine kept in a file? As TOML: its name, the rates of its device and its link, where they are from.

    name = "v100-pcie3"
    [device]   name, flops_per_second, bytes_per_second, seconds_per_op, needs_workspace, places_results,
               reorders_gradients, source
    [link]     out_bytes_per_second, in_bytes_per_second, latency_seconds, half_duplex, source
    [[peers]]  count, bytes_per_second, latency_seconds, source: a table for each level, the slowest first

`shares_link` beside the name says that all devices use the one link at once. Rates are finite and above 0, seconds
finite and 0 or more, counts 2 or more. What a record of `ir.machine` has a default for may be left out, and so may
`source`. Anything else is an `InvalidMachine` that names the file, the key and what stands there.
"""

import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from difflib import get_close_matches
from types import MappingProxyType

from outgrow.errors import InvalidMachine
from outgrow.ir.machine import Device, Link, Machine, Peers

_DIGITS = 4
_NO_COMMENTS: Mapping[str, str] = MappingProxyType({})
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
    except tomllib.TOMLDecodeError as error:
        raise InvalidMachine(f"The machine file {file} is not TOML: {error}. {_EXAMPLE}") from error
    top = _Table(file, "the file", data)
    top.require_known(("name", "device", "link", "peers", "shares_link"))
    device, link, peers = top.table("device"), top.table("link"), top.tables("peers")
    for level in peers:
        level.require_known(_keys(Peers))
    device.require_known(_keys(Device))
    link.require_known(_keys(Link))
    return Description(
        Machine(
            top.text("name"),
            Device(
                device.text("name"),
                device.rate("flops_per_second"),
                device.rate("bytes_per_second"),
                device.seconds("seconds_per_op", _default(Device, "seconds_per_op")),
                needs_workspace=device.flag("needs_workspace", default=True),
                places_results=device.flag("places_results", default=True),
                reorders_gradients=device.flag("reorders_gradients", default=False),
            ),
            Link(
                link.rate("out_bytes_per_second"),
                link.rate("in_bytes_per_second"),
                link.seconds("latency_seconds", _default(Link, "latency_seconds")),
                half_duplex=link.flag("half_duplex", default=False),
            ),
            peers=tuple(
                Peers(
                    level.count("count"),
                    level.rate("bytes_per_second"),
                    level.seconds("latency_seconds", _default(Peers, "latency_seconds")),
                )
                for level in peers
            ),
            shares_link=top.flag("shares_link", default=False),
        ),
        device.source(),
        link.source(),
        tuple(level.source() for level in peers),
    )


def description_to_toml(description: Description, comments: Mapping[str, str] = _NO_COMMENTS) -> str:
    """Return a description as TOML, from which `description_from_toml` makes an equal one, up to digits.

    Numbers are written with four digits, since a measurement has no more. `comments` are put above the keys that they
    are given for.

    >>> machine = Machine("toy", Device("cpu", 1e9, 2e9), Link(3e8, 3e8))
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


def _keys(record: type[Device | Link | Peers]) -> tuple[str, ...]:
    return (*(field.name for field in fields(record)), "source")


def _default(record: type[Device | Link | Peers], key: str) -> float:
    (default,) = (field.default for field in fields(record) if field.name == key)
    assert default is not MISSING, f"{key} of {record.__name__} has a default"
    return default


@dataclass(frozen=True, slots=True)
class _Table:
    """One table of the file. Every reader raises `InvalidMachine` for what it does not find."""

    file: str
    place: str
    data: Mapping[str, object]

    def require_known(self, keys: tuple[str, ...]) -> None:
        for key in self.data:
            if key not in keys:
                close = get_close_matches(key, keys, n=1)
                hint = f" Did you mean {close[0]}?" if close else ""
                raise self._refusal(f"{self.place} has an unknown key {key!r}.{hint} Known are: {', '.join(keys)}")

    def table(self, key: str) -> "_Table":
        item = self._item(key, "Give a table")
        if not isinstance(item, dict):
            raise self._refusal(f"{key} is {_shown(item)}, not a table [{key}]")
        return _Table(self.file, f"[{key}]", item)

    def tables(self, key: str) -> "tuple[_Table, ...]":
        items = self.data.get(key, [])
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise self._refusal(f"{key} is {_shown(items)}, not tables [[{key}]]")
        return tuple(_Table(self.file, f"[[{key}]]", item) for item in items)

    def count(self, key: str) -> int:
        item = self._item(key, "Give a number of 2 or more")
        if not isinstance(item, int) or isinstance(item, bool) or item < 2:
            raise self._refusal(f"{key} in {self.place} is {_shown(item)}, not a number of 2 or more")
        return item

    def text(self, key: str) -> str:
        item = self._item(key, "Give a string")
        if not isinstance(item, str) or not item.strip():
            raise self._refusal(f"{key} in {self.place} is {_shown(item)}, not a name")
        return item

    def source(self) -> str:
        item = self.data.get("source", "")
        if not isinstance(item, str):
            raise self._refusal(f"source in {self.place} is {_shown(item)}, not a string")
        return item.strip()

    def rate(self, key: str) -> float:
        number = self._number(key, self._item(key, "Give a number above 0"))
        if not 0 < number < math.inf:
            raise self._refusal(f"{key} in {self.place} is {number}, not a finite number above 0")
        return number

    def seconds(self, key: str, default: float) -> float:
        number = self._number(key, self.data.get(key, default))
        if not 0 <= number < math.inf:
            raise self._refusal(f"{key} in {self.place} is {number}, not a finite number of seconds, 0 or more")
        return number

    def flag(self, key: str, *, default: bool) -> bool:
        item = self.data.get(key, default)
        if not isinstance(item, bool):
            raise self._refusal(f"{key} in {self.place} is {_shown(item)}, not true or false")
        return item

    def _item(self, key: str, remedy: str) -> object:
        if key not in self.data:
            raise self._refusal(f"{self.place} has no {key}. {remedy}")
        return self.data[key]

    def _number(self, key: str, item: object) -> float:
        if not isinstance(item, int | float) or isinstance(item, bool):
            raise self._refusal(f"{key} in {self.place} is {_shown(item)}, not a number")
        try:
            return float(item)
        except OverflowError:  # an integer of more digits than a float can hold
            return math.inf

    def _refusal(self, fault: str) -> InvalidMachine:
        return InvalidMachine(f"The machine file {self.file} is not valid: {fault}. {_EXAMPLE}")


def _shown(item: object) -> str:
    text = json.dumps(item) if isinstance(item, bool | str) else str(item)
    return text if len(text) <= 40 else f"{text[:37]}..."
