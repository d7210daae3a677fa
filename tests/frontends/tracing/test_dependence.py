"""What a step keeps depends on what it is given if its memory does, by whichever view that was written."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx, nn

from outgrow.errors import Uncapturable
from outgrow.frontends.tracing.capture import capture
from outgrow.frontends.tracing.dependence import dependent


class Keeping(nn.Module):
    """Adds a memory, and makes another one."""

    def __init__(self, made: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.memory, self.made = nn.Linear(4, 4), torch.zeros(2, 4), made

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x) + self.memory.mean(0)
        self.memory = self.made(x)
        return y.sum()


def by_slices(x: Tensor) -> Tensor:
    new = torch.empty(2, 4)
    new[0] = x.mean(0)
    new[1] = 1.0
    return new


def drawn_into_a_slice(_x: Tensor) -> Tensor:
    new = torch.zeros(2, 4)
    new[0].uniform_()
    return new


def by_lists(x: Tensor) -> Tensor:
    new = torch.zeros(2, 4)
    torch._foreach_add_([new[0], new[1]], [x[0], x[1]])  # pyright: ignore[reportPrivateImportUsage]
    return new


def closing() -> Callable[[Tensor], Tensor]:
    state = torch.zeros(4)

    def made(_x: Tensor) -> Tensor:
        state.add_(1.0)
        return torch.ones(2, 4) * state

    return made


def counting() -> Callable[[Tensor], Tensor]:
    norm = nn.BatchNorm1d(4)

    def made(x: Tensor) -> Tensor:
        norm(x.detach())
        return torch.ones(2, 4) * norm.get_buffer("running_mean")

    return made


@pytest.mark.parametrize(
    "made",
    [by_slices, drawn_into_a_slice, by_lists, closing(), counting()],
    ids=["slices", "random numbers", "lists", "a closure that is written", "running statistics"],
)
def test_what_is_written_into_a_new_tensor_counts(made: Callable[[Tensor], Tensor]) -> None:
    """The next step would read it, and nothing is there."""
    model = Keeping(made)
    with pytest.raises(Uncapturable, match=r"an earlier call left in Keeping\.memory"):
        capture(model, [model], [], (torch.ones(2, 4),))


def test_what_is_made_of_shapes_and_constants_does_not_depend() -> None:
    """It is made again in every step, though its operands, or neighbours, are written later."""
    table = torch.arange(4.0)

    def made(x: Tensor) -> Tensor:
        new = torch.zeros_like(x)
        new[0] = table.cos()
        (new * 1).add_(x)
        return new

    model = Keeping(made)
    capture(model, [model], [], (torch.ones(2, 4),))


def test_an_operator_that_is_named_like_one_of_shapes_depends_on_its_operands() -> None:
    """`asym_quantize` holds "sym_", and reads its operand all the same; `zeros_like` does not."""
    with torch.library._scoped_library("outgrow_tests", "DEF") as library:
        library.define("asym_quantize(Tensor x) -> Tensor")
        graph = fx.Graph()
        x = graph.placeholder("x")
        looked_at = graph.call_function(torch.ops.outgrow_tests.asym_quantize.default, (x,))
        graph.call_function(torch.ops.aten.zeros_like.default, (x,))
        assert dependent(fx.GraphModule({}, graph)) == {x, looked_at}
