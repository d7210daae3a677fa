"""What tests on a device that is none have in common."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from outgrow.frontends.preparing import measure
from outgrow.runtime import flights


@pytest.fixture
def caches_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plans_found_quickly: None) -> None:  # noqa: ARG001
    """No costs are known yet, nor plans; rates of a device that is none need no care."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(measure, "_MATRIX_BESIDE", 256)
    monkeypatch.setattr(measure, "_VECTOR_BYTES_BESIDE", 1 << 20)
    monkeypatch.setattr(flights, "MEASURED_BYTES", 1 << 20)


@pytest.fixture
def deterministic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels of a GPU that give the same bits each time."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
