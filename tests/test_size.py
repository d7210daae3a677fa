"""Complexity has a budget: a module is read in one go, a function seen on one screen."""

import ast
from pathlib import Path

import outgrow

ROOT = Path(outgrow.__file__).parent
MOST_LINES_OF_A_MODULE, MOST_LINES_OF_A_FUNCTION = 500, 100
COMPILED = {"planning.search.transfers.schedule", "planning.search.sequence.expanded"}
"""Loops that are one function each, since numba compiles them as a whole, and quicker so."""


def name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def test_no_module_is_longer_than_one_idea() -> None:
    """Every module of the package."""
    lengths = {name(path): len(path.read_text().splitlines()) for path in ROOT.rglob("*.py")}
    assert {module: length for module, length in lengths.items() if length > MOST_LINES_OF_A_MODULE} == {}


def test_no_function_is_longer_than_a_screen() -> None:
    """Every function, with its docstring, but for those that have to be one."""
    found: set[str] = set()
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                found |= {f"{name(path)}.{node.name}"} if length > MOST_LINES_OF_A_FUNCTION else set()
    assert found == COMPILED
