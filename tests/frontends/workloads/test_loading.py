"""Is a workload found and built, and is whatever is wrong with its file said in a sentence that helps?"""

from pathlib import Path

import pytest
import torch
from torch import nn

from outgrow.errors import InvalidWorkload
from outgrow.frontends.workloads.loading import built, load_workload_function
from outgrow.frontends.workloads.workload import Workload
from tests.workloads import written


def test_a_workload_is_loaded_and_built(tmp_path: Path) -> None:
    """The function gets the settings and returns its workload."""
    function = load_workload_function(f"{written(tmp_path)}:perceptron")
    assert built(function, {"rows": 3}).batches[0][0].shape == (3, 8)


def test_a_file_may_have_the_name_of_a_module(tmp_path: Path) -> None:
    """The workload json.py and the standard library's json do not take each other's place."""
    function = load_workload_function(f"{written(tmp_path, name='json.py')}:perceptron")
    assert len(built(function, {}).batches) == 1


def test_neighbours_of_the_file_can_be_imported(tmp_path: Path) -> None:
    """While it is imported, the folder of the file is on the path of modules."""
    (tmp_path / "its_neighbour.py").write_text("ROWS = 5")
    path = written(tmp_path, "from its_neighbour import ROWS\n\ndef rows():\n    return ROWS\n")
    assert load_workload_function(f"{path}:rows")() == 5


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("def workload(:", r"toy.py:1: syntax error: "),
        ("x = 1\ny = 1 / 0", r"toy.py:2: `y = 1 / 0`: ZeroDivisionError: division by zero"),
        ("import a_module_nobody_has", r"toy.py:1: .*: the module 'a_module_nobody_has' is not installed"),
        ("raise SystemExit(3)", r"toy.py:1: .*ends the process"),
        ("assert 1 == 2", r"toy.py:1: `assert 1 == 2`: AssertionError"),
        ("def other_name(): ...", r"has no function 'workload'. Its functions are: other_name"),
        ("def workloads(): ...", r"Did you mean workloads\?"),
        ("", r"It defines no functions"),
        ("workload = 3", r"workload in .* is a int, not a function"),
    ],
)
def test_a_file_that_is_wrong_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    """The refusal names the file, the line where there is one, and what is wrong with it."""
    with pytest.raises(InvalidWorkload, match=reason):
        load_workload_function(f"{written(tmp_path, text)}:workload")


@pytest.mark.parametrize("spec", ["toy.py", ":workload", "toy.py:", ""])
def test_a_name_without_file_or_function_is_refused(spec: str) -> None:
    """The refusal says how a workload is named."""
    with pytest.raises(InvalidWorkload, match=r"Name it as path/to/file\.py:function"):
        load_workload_function(spec)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    """The refusal says which of the two it is."""
    with pytest.raises(InvalidWorkload, match="does not exist"):
        load_workload_function(f"{tmp_path}/nothing.py:workload")
    with pytest.raises(InvalidWorkload, match="is a folder"):
        load_workload_function(f"{tmp_path}:workload")


@pytest.mark.parametrize(
    ("name", "settings", "reason"),
    [
        (
            "perceptron",
            {"row": 3},
            r"no setting 'row'. Did you mean rows\? It takes rows \(default 8\), width",
        ),
        ("perceptron", {"rows": -1}, r"toy.py:\d+: .*: ValueError: rows -1 is negative"),
        (
            "perceptron",
            {"rows": "many"},
            r"perceptron\(rows='many'\) cannot be built: .*toy.py:\d+: .*TypeError",
        ),
        ("needs_rows", {}, r"needs_rows needs rows. Give --set rows=\.\.\."),
        ("returns_nothing", {}, r"returned NoneType, not a Workload"),
        ("without_batches", {}, r"a Workload without batches"),
    ],
)
def test_a_workload_that_cannot_be_built_is_refused(
    tmp_path: Path, name: str, settings: dict[str, object], reason: str
) -> None:
    """The refusal names the setting, the line of the user's that refuses it, or what is wrong with the
    result.
    """
    function = load_workload_function(f"{written(tmp_path)}:{name}")
    with pytest.raises(InvalidWorkload, match=reason):
        built(function, settings)


def test_a_device_that_torch_is_not_built_for_is_named() -> None:
    """It is no matter of how the workload is written."""

    def on_xpu() -> Workload:
        model = nn.Linear(2, 2).xpu()
        return Workload(model, torch.optim.SGD(model.parameters()), model, batches=[()])

    with pytest.raises(InvalidWorkload, match=r"test_loading\.py:\d+: .*Torch not compiled with XPU enabled"):
        built(on_xpu, {})
