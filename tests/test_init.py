"""What does `import outgrow` load, and what does it offer?"""

import subprocess
import sys

import pytest

import outgrow


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


@pytest.mark.parametrize("name", outgrow.__all__)
def test_every_public_name_is_there(name: str) -> None:
    """The public list names nothing that cannot be had."""
    assert getattr(outgrow, name) is not None
    assert name in dir(outgrow)


def test_an_unknown_name_is_an_attribute_error() -> None:
    """A typing mistake is told as Python tells it."""
    with pytest.raises(AttributeError, match="module 'outgrow' has no attribute 'complie'"):
        _ = outgrow.complie
