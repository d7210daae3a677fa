"""Do guards keep every digit of what they compare?"""

import sympy
import torch
from torch import Tensor, nn
from torch._dynamo.source import ConstantSource
from torch.fx.experimental.symbolic_shapes import DimDynamic

from outgrow.frontends.tracing.capture import capture
from outgrow.frontends.user.training.guards import Symbols, guards, symbol
from outgrow.frontends.user.training.state import Training


def test_a_value_with_many_digits_meets_its_own_guard() -> None:
    """A hyper-parameter that had to become a number is compared with that number exactly."""
    environment, value = Symbols(), 0.1 + 0.2
    source = ConstantSource("rate")
    symbol = environment.create_unspecified_symbol(value, source=source, dynamic_dim=DimDynamic.DYNAMIC)
    assert isinstance(symbol, sympy.Symbol)
    rate = environment.create_symfloatnode(symbol, hint=value, source=source)
    assert rate < 0.5
    assert rate * 2 == 2 * value  # pyright: ignore[reportOperatorIssue]
    found = guards(environment, [symbol], [value])
    assert found.hold([value])
    assert not found.hold([0.3])


def test_numbers_that_were_equal_have_to_be_equal_again() -> None:
    """Torch takes one of them for the other from then on; what was compared counts still."""
    environment = Symbols()
    numbers = [symbol(environment, name, 0.1) for name in ("first", "second", "third")]
    expressions = [number.node.expr for number in numbers]
    assert numbers[0] == numbers[1]
    assert numbers[1] < 2 * numbers[2]  # pyright: ignore[reportOperatorIssue]
    found = guards(environment, expressions, [0.1, 0.1, 0.1])
    assert found.hold([0.1, 0.1, 0.1])
    assert not found.hold([0.1, 0.2, 0.1])
    assert not found.hold([0.1, 0.1, 0.04])


def test_what_is_assumed_not_to_be_negative_has_to_be_so_again() -> None:
    """A power of a negative number may be no real one: nobody has asked about the sign, and it counts."""
    environment = Symbols()
    number = symbol(environment, "rate", 0.5)
    environment.assume_not_negative(1 - number)  # pyright: ignore[reportOperatorIssue]
    found = guards(environment, [number.node.expr], [0.5])
    assert found.hold([1.0])
    assert not found.hold([1.5])


def test_a_step_with_the_root_of_a_rate_holds_while_there_is_one() -> None:
    """For other rates the root is another number; of a negative one there is none among real numbers."""
    weight = nn.ParameterList([torch.ones(2)])
    optimizer = torch.optim.SGD(weight.parameters(), lr=0.5)

    def step() -> Tensor:
        loss = weight[0].sum() * (1 - optimizer.param_groups[0]["lr"]) ** 0.5
        loss.backward()
        optimizer.step()
        return loss.detach()

    captured, training = capture(step, [weight], [optimizer], ()), Training((weight,), (optimizer,))
    for rate, holds in ((0.5, True), (0.75, True), (1.5, False)):
        optimizer.param_groups[0]["lr"] = rate
        assert captured.guards_hold(training) == holds
