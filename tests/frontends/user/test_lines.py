"""The user's line is told from those of libraries."""

import sys
from pathlib import Path

import pytest
import torch

from outgrow.errors import Uncapturable
from outgrow.frontends.tracing.capture import capture
from outgrow.frontends.user import lines


def test_the_line_of_a_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is what "this" is, and the user's is where to look for who calls it."""
    installed = tmp_path / "installed"
    (installed / "masks").mkdir(parents=True)
    (installed / "masks" / "__init__.py").write_text("def is_whole(x):\n    return int(x.relu().all()) > 0\n")
    monkeypatch.syspath_prepend(str(installed))
    beginnings = lines._beginnings((str(installed),))
    monkeypatch.setattr(lines, "_PACKAGES", beginnings)
    monkeypatch.setattr(lines, "_LIBRARIES", (*lines._LIBRARIES, *beginnings))
    from masks import is_whole  # type: ignore[import-not-found]

    model = torch.nn.Linear(2, 2)
    with pytest.raises(Uncapturable) as refused:
        capture(lambda x: model(x) if is_whole(model(x)) else x, [model], [], (torch.ones(1, 2),))
    assert "test_lines.py:" in str(refused.value)
    assert ", in masks/__init__.py:2: `return int(x.relu().all()) > 0`: float(), int() or" in str(refused.value)
    del sys.modules["masks"]
