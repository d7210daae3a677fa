"""Is a machine read as it was written, and is what cannot be a machine named?"""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outgrow.errors import InvalidMachine
from outgrow.ir.machine import Device, LinkRates, Machine, Peers
from outgrow.report.machinefile import Description, description_from_toml, description_to_toml

RATES = st.floats(1e-3, 1e18).map(lambda rate: float(f"{rate:.4g}"))
SECONDS = st.floats(0, 1).map(lambda seconds: float(f"{seconds:.4g}"))
NAMES = st.text(st.characters(codec="utf-8"), min_size=1).filter(lambda text: text.strip())
SOURCES = st.text(st.characters(codec="utf-8")).map(str.strip)
PEERS = st.builds(Peers, st.integers(2, 64), RATES, SECONDS)
DESCRIPTIONS = st.builds(
    Description,
    st.builds(
        Machine,
        NAMES,
        st.builds(Device, NAMES, RATES, RATES, SECONDS, st.booleans(), st.booleans(), st.booleans()),
        st.builds(LinkRates, RATES, RATES, SECONDS, half_duplex=st.booleans()),
        peers=st.tuples() | st.tuples(PEERS, PEERS),
        shares_link=st.booleans(),
    ),
    SOURCES,
    SOURCES,
)
TEXT = """\
name = "toy"
[device]
name = "cpu"
flops_per_second = 1e9
bytes_per_second = 2e9
[link]
out_bytes_per_second = 3e8
in_bytes_per_second = 3e8
"""


@given(description=DESCRIPTIONS)
def test_reading_is_the_inverse_of_writing(description: Description) -> None:
    """Numbers of four digits come back equal, and so do names and sources of any letters."""
    description = replace(description, peer_sources=tuple("from here" for _ in description.machine.peers))
    assert description_from_toml(description_to_toml(description, {"half_duplex": "why"}), "toy.toml") == description


def test_what_has_a_default_may_be_left_out() -> None:
    """Rates and names are enough."""
    expected = Machine("toy", Device("cpu", 1e9, 2e9), LinkRates(3e8, 3e8))
    assert description_from_toml(TEXT, "toy.toml") == Description(expected)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("flops_per_second = 1e9\n", "", "machine.device has no 'flops_per_second'."),
        ("= 1e9", "= -1e9", "machine.device.flops_per_second is -1000000000.0, not a finite number above 0"),
        ("= 1e9", "= 0", "machine.device.flops_per_second is 0, not a finite number above 0"),
        ("= 1e9", "= nan", "machine.device.flops_per_second is NaN, not a finite number above 0"),
        ("= 1e9", "= inf", "machine.device.flops_per_second is Infinity, not a finite number above 0"),
        (
            "= 1e9",
            f"= {10**400}",
            "machine.device.flops_per_second is 1000000000000000000000000000000000000..., not a finite",
        ),
        ("= 1e9", "= 5e-324", "machine.device.flops_per_second is 5e-324, not a number of 0.001 or more"),
        ("[link]\n", "[link]\nlatency_seconds = 1e308\n", "is 1e+308, not a number of seconds of 1000000 or less"),
        ("= 1e9", '= "fast"', 'machine.device.flops_per_second is "fast", not a number'),
        ("= 1e9", "= 2026-11-24", 'machine.device.flops_per_second is "2026-11-24", not a number'),
        ("= 1e9", "= true", "machine.device.flops_per_second is true, not a number"),
        ("= 1e9", "= [1e9]", "machine.device.flops_per_second is [1000000000.0], not a number"),
        ("[link]\n", "[link]\nlatency_seconds = -1\n", "machine.link.latency_seconds is -1, not a finite number"),
        ("[link]\n", "[link]\nlatency_seconds = nan\n", "machine.link.latency_seconds is NaN, not a finite number"),
        ("[link]\n", '[link]\nhalf_duplex = "no"\n', 'machine.link.half_duplex is "no", not true or false'),
        ("[link]\n", "[link]\nsource = 3\n", "machine.link.source is 3, not a string"),
        ("flops_per_second", "flop_per_second", "unknown key 'flop_per_second'. Did you mean flops_per_second?"),
        ("[link]", "[lnk]", "machine has an unknown key 'lnk'. Did you mean link?"),
        ("[device]\nname", "[link2]\nname", "machine has an unknown key 'link2'. Did you mean link?"),
        ('name = "toy"', 'name = ""', 'machine.name is "", not a name'),
        ('name = "cpu"', "name = 3", "machine.device.name is 3, not a string"),
        (TEXT[TEXT.index("[device]") :], "device = 3\nlink = 3", "machine.device is 3, not an object"),
        (TEXT[TEXT.index("[link]") :], "", "machine has no 'link'."),
        ("[link]\n", "[peers]\ncount = 2\n[link]\n", 'machine.peers is {"count": 2}, not a list'),
        ("[link]\n", "[[peers]]\ncount = 1\n[link]\n", "machine.peers[0].count is 1, not a number of 2 or more"),
        ("[link]\n", "[[peers]]\ncount = 8\n[link]\n", "machine.peers[0] has no 'bytes_per_second'."),
        ("[link]\n", "[[peers]]\nrate = 8\n[link]\n", "machine.peers[0] has an unknown key 'rate'"),
    ],
)
def test_what_is_wrong_is_named(old: str, new: str, reason: str) -> None:
    """The refusal names file, table and key, what stands there, and where to find a file that is right."""
    assert old in TEXT
    with pytest.raises(InvalidMachine, match=re.escape(reason)) as refusal:
        description_from_toml(TEXT.replace(old, new, 1), "mine.toml")
    assert str(refusal.value).startswith("The machine file mine.toml is not valid: ")
    assert str(refusal.value).endswith("`outgrow machine --out FILE` writes a file of this form.")


def test_a_text_that_is_not_toml_is_named_with_its_line() -> None:
    """The refusal says in which line the text ends to be TOML."""
    with pytest.raises(InvalidMachine, match=r"mine.toml is not TOML: .* \(at line 2, column \d+\)"):
        description_from_toml('name = "toy"\n[device\n', "mine.toml")


@pytest.mark.parametrize("text", [f"name = {'9' * 5000}", f"name = {'[' * 5000}"])
def test_a_text_that_no_reader_bears_is_refused(text: str) -> None:
    """Numbers of thousands of digits, and lists in lists in lists."""
    with pytest.raises(InvalidMachine, match=r"mine.toml is not TOML: "):
        description_from_toml(text, "mine.toml")
