"""Do the tables of results hold what was made, and nothing twice?"""

import json
import time
from dataclasses import dataclass
from pathlib import Path

import distance
import fragmentation
import largest
import order_alone
import pytest
import rows
import simulator
import tables
from cells import machine_of
from claims import CLAIMS
from patience import within

CELLS = (
    *(claim.cell for claim in CLAIMS),
    *(squeeze.cell for squeeze in distance.SQUEEZES),
    *(graph.cell for graph in order_alone.GRAPHS),
)


@dataclass(frozen=True)
class Item:
    name: str


def run(monkeypatch: pytest.MonkeyPatch, out: Path, *arguments: str, commit: str = "a") -> list[str]:
    """Write a table of three rows, the last of them large, and return the names of those that were made."""
    made: list[str] = []

    def measured(item: Item) -> rows.Row:
        made.append(item.name)
        return {"figure": len(made)}

    monkeypatch.setattr(rows, "setting", lambda command: {"command": command, "commit": commit})
    monkeypatch.setattr("sys.argv", ["table.py", "--out", str(out), *arguments])
    items = (Item("large"), Item("one"), Item("two"))
    rows.write_rows("table", items, measured, str, large=items[:1])
    return made


def test_a_table_is_continued(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is there from this commit is not made again, large rows come last and are asked for."""
    out = tmp_path / "table.json"
    assert run(monkeypatch, out, "--only", "two") == ["two"]
    assert run(monkeypatch, out, "--resume") == ["one"]
    assert run(monkeypatch, out, "--resume", "--large") == ["large"]
    assert [row["name"] for row in rows.read_rows(out)] == ["one", "two", "large"]
    assert run(monkeypatch, out, "--resume", commit="b") == ["one", "two"]
    assert [row["commit"] for row in rows.read_rows(out)] == ["b", "b", "a"]


def test_a_method_is_ended_when_its_time_is_up() -> None:
    """What takes too long has no result; what fails says so."""
    assert within(20, divmod, 7, 2) == (3, 1)
    assert within(0.1, time.sleep, 60) is None
    with pytest.raises(RuntimeError, match="exit status 1"):
        within(20, divmod, 7, 0)


@pytest.mark.parametrize(
    "items",
    [CLAIMS, distance.SQUEEZES, fragmentation.STEPS, largest.BATCHES, order_alone.GRAPHS, simulator.TRIALS],
)
def test_rows_are_told_apart_by_their_names(items: tuple[rows.Item, ...]) -> None:
    """No two rows of a table have one name, which is what a restarted run goes by."""
    assert len({item.name for item in items}) == len(items)


def test_every_cell_names_what_exists() -> None:
    """Workload files, functions and machines of all cells are there."""
    for cell in CELLS:
        assert callable(rows.workload_function(cell.workload))
        assert machine_of(cell).device.flops_per_second > 0


def test_a_page_keeps_what_is_not_between_the_marks(tmp_path: Path) -> None:
    """The section is written anew from the files that are there; a page without marks is refused."""
    page = f"before\n{tables.BEGIN}\nold\n{tables.END}\nafter\n"
    row = {
        "name": "a net, 1/2",
        "commit": "0123456789abcdef",
        "feasible": False,
        "floor_bytes": 2 * 10**9,
    }
    (tmp_path / "distance.json").write_text(json.dumps({"rows": [row]}))
    found = tables.replaced(page, tables.section(tmp_path))
    assert found.startswith("before\n")
    assert found.endswith("\nafter\n")
    assert "old" not in found
    assert "Below the floor: a net, 1/2 (2 GB)." in found
    assert tables.replaced(found, tables.section(tmp_path)) == found
    with pytest.raises(ValueError, match="put both"):
        tables.replaced("no marks", "text")
