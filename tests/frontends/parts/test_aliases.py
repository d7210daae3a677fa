"""A result of a part that is a view of its input is one for autograd, too."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from outgrow.errors import Uncapturable
from outgrow.frontends.parts.aliases import ViewOf
from tests.frontends.parts.test_between import WIDTH, compiled, rows, same

pytestmark = [
    pytest.mark.usefixtures("parts_apart"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]


class Skipping(nn.Module):
    """Keeps a view of what it writes later."""

    def __init__(self, *, is_sliced: bool) -> None:
        super().__init__()
        self.linear, self.is_sliced = nn.Linear(WIDTH, WIDTH), is_sliced

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        torch._dynamo.graph_break()
        view = x[:, : WIDTH // 2] if self.is_sliced else x.t()
        other = x.sigmoid()
        torch._dynamo.graph_break()
        x.mul_(other.detach()).clamp_(min=0.1)
        torch._dynamo.graph_break()
        return view.square().sum() + x.sum()


@pytest.mark.parametrize("is_sliced", [True, False])
def test_what_is_written_later_is_in_the_history_of_a_view(is_sliced: bool) -> None:
    """The view was made by a part, and its base is written behind it."""
    same(Skipping(is_sliced=is_sliced), lambda model: model(rows()).backward())


def test_views_are_made_as_they_lie() -> None:
    """By permuting or reshaping the input where that gives them, else by strides; from where it begins itself."""
    base = torch.arange(24.0).view(4, 6)
    for view in (
        base.t(),
        base.view(2, 12),
        base[1:, ::2],
        base.view(-1),
        base[:, 3],
        base.unsqueeze(1).expand(4, 3, 6),
    ):
        lying = ViewOf(0, tuple(view.shape), view.stride(), int(view.storage_offset()))
        for given in (base, torch.arange(30.0)[6:].view(4, 6)):
            found: Any = lying.of([given])
            assert found._base is (given if given._base is None else given._base)
            expected = given.as_strided(view.shape, view.stride(), given.storage_offset() + view.storage_offset())
            assert torch.equal(found, expected)
            assert found.stride() == expected.stride()


def test_a_view_that_a_part_writes_is_refused() -> None:
    """Its gradient would be that of before."""
    linear, flatten, relu = map(compiled, (nn.Linear(WIDTH, WIDTH), nn.Flatten(0), nn.ReLU(inplace=True)))
    with pytest.raises(Uncapturable, match="which is a view"):
        relu(flatten(linear(torch.randn(2, WIDTH))))
