"""What does `import outgrow` load, and what does it offer?"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import outgrow

ROOT = Path(outgrow.__file__).parent
MAPPED = [
    str(path.parent.relative_to(ROOT))
    for package in ("frontends", "planning")
    for path in sorted((ROOT / package).rglob("__init__.py"))
]


def run(code: str) -> str:
    """Return what `code` prints in a fresh interpreter."""
    process = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return process.stdout.strip()


def test_importing_outgrow_does_not_import_torch() -> None:
    """The command line starts, and refuses wrong usage, without the seconds that torch takes."""
    assert run("import outgrow, sys; print('torch' in sys.modules)") == "False"


def test_tensors_begin_on_a_page() -> None:
    """Imported after torch, but before the first tensor, outgrow still gets page-aligned memory."""
    code = "import os; os.environ.pop('THP_MEM_ALLOC_ENABLE', None); import torch, outgrow; "
    assert run(code + "print([torch.empty(2**20 + n).data_ptr() % 4096 for n in range(3)])") == "[0, 0, 0]"


def test_the_users_allocator_setting_stays() -> None:
    """A setting that is there already is not overwritten."""
    code = "import os; name = 'THP_MEM_ALLOC_ENABLE'; os.environ[name] = '0'; import outgrow; "
    assert run(code + "print(os.environ[name])") == "0"


def modules(folder: Path) -> set[str]:
    """Return the modules of a package, and its folders with a slash."""
    folders = {f"{path.name}/" for path in folder.iterdir() if (path / "__init__.py").exists()}
    return folders | {path.stem for path in folder.glob("*.py")} - {"__init__"}


@pytest.mark.parametrize("folder", MAPPED)
def test_every_module_has_a_line_in_the_map_of_its_package(folder: str) -> None:
    """The docstring of a package begins with a question, and has a line for each module and folder in it."""
    question, _, *rest = (ROOT / folder / "__init__.py").read_text().splitlines()
    assert question.startswith('"""')
    assert "?" in question
    listed = [found[1] for line in rest if (found := re.match(r"([a-z0-9_]+/?)  +\S", line))]
    assert len(listed) == len(set(listed))
    assert set(listed) == modules(ROOT / folder)


def test_every_module_stands_in_the_map_of_the_runtime() -> None:
    """Its docstring names them in groups."""
    text = (ROOT / "runtime" / "__init__.py").read_text()
    listed = {word for line in text.splitlines()[2:] for word in re.findall(r"[a-z_]+(?=[,;:\n]|$)", line)}
    assert modules(ROOT / "runtime") <= listed


@pytest.mark.parametrize("name", outgrow.__all__)
def test_every_public_name_is_there(name: str) -> None:
    """The public list names nothing that cannot be had."""
    assert getattr(outgrow, name) is not None
    assert name in dir(outgrow)


def test_an_unknown_name_is_an_attribute_error() -> None:
    """A typing mistake is told as Python tells it."""
    with pytest.raises(AttributeError, match="module 'outgrow' has no attribute 'complie'"):
        _ = outgrow.complie
