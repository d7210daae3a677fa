"""Operators of a GPU run on the stream that is current, and what outgrow keeps between two calls is one for all."""

from dataclasses import dataclass, field

import pytest
import torch

from outgrow.runtime.streams import CudaStreams


@dataclass(eq=False)
class _Stream:
    """A stream of the user's, and those that it waits for."""

    cuda_stream: int
    behind: list["_Stream"] = field(default_factory=list["_Stream"])

    def wait_stream(self, other: "_Stream") -> None:
        self.behind.append(other)


def test_another_stream_waits_for_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that only reads may be called on two streams in turn; both runs have one arena."""
    first, second = _Stream(1), _Stream(2)
    current = [first]
    monkeypatch.setattr(torch.cuda, "Stream", lambda _device: _Stream(0))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: current[0])
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _index: current[0].cuda_stream, raising=False)
    streams = CudaStreams(torch.device("cuda", 0))
    for current[0] in (first, second, second, first):
        streams.follow()
    assert second.behind == [first]
    assert first.behind == [second]
