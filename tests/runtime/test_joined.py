"""Neighbours of one operator on lists are one call where none of them touches what another one writes."""

from collections.abc import Mapping, Sequence
from itertools import chain

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch._ops import OpOverload

from outgrow.ir.graph import Wait
from outgrow.runtime.joined import joined
from outgrow.runtime.lists import get_one_kernel
from outgrow.runtime.program import Call
from outgrow.runtime.score import Loose, Part, Played, Score

aten = torch.ops.aten
ADD, MUL, COPY = aten._foreach_add_.List, aten._foreach_mul_.Scalar, aten._foreach_copy_.default
FUSED = aten._fused_sgd_.default
BY_EACH = aten._foreach_addcdiv_.ScalarList
NO_KEYWORDS: Mapping[str, object] = {}


def played(func: OpOverload, *arguments: object, keywords: Mapping[str, object] = NO_KEYWORDS) -> Played:
    """An op of a score that writes in place, with all that it reads at known addresses."""
    call = Call("op", "op", func, arguments, (), (), keywords, (), (), updates=False, slowdown=1.0)
    nested = any(isinstance(items, list) and any(isinstance(item, Loose) for item in items) for items in arguments)
    return Played(call, arguments, keywords, (), (), nested, (), (), (), is_placing=False)


def parts_of(*parts: Part) -> Sequence[Part]:
    return joined(Score(parts, {}, {})).parts


def lengths(*parts: Part) -> list[int | None]:
    """How long the first list of each call is; None for what is no call any more."""
    found: list[int | None] = []
    for part in parts_of(*parts):
        first = part.arguments[0] if isinstance(part, Played) else None
        found.append(len(first) if isinstance(first, list) else None)
    return found


def test_fused_optimizers_of_a_gpu_get_lists_of_one_type() -> None:
    """They refuse others there, which a CPU takes."""
    half, single = torch.ones(2, dtype=torch.bfloat16), torch.ones(2)
    calls = [[item, item.clone()] for item in (single, half)]
    assert get_one_kernel(FUSED, calls)
    of_gpu = [[item.to("meta") for item in items] for items in calls]
    assert not get_one_kernel(FUSED, of_gpu)
    assert get_one_kernel(FUSED, of_gpu[:1] * 2)


def several(count: int) -> list[Tensor]:
    return [torch.ones(2) for _ in range(count)]


def test_neighbours_are_one_call() -> None:
    """Its lists are theirs, in order, and numbers that are looked up in each run stay in them."""
    (p, q), (g, h), (a, b) = several(2), several(2), several(2)
    rate = Loose("%rate", is_number=True)
    first, *others = parts_of(played(BY_EACH, [p], [g], [a], [rate]), played(BY_EACH, [q], [h], [b], [0.5]))
    assert others == [None]
    assert isinstance(first, Played)
    assert first.nested
    assert first.arguments == ([p, q], [g, h], [a, b], [rate, 0.5])


def test_what_stands_between_keeps_calls_apart() -> None:
    """A copy, a wait, or a drop: the plan has put it there."""
    p, q = several(2)
    assert lengths(played(MUL, [p], 2.0), Wait("storage"), played(MUL, [q], 2.0)) == [1, None, 1]
    assert lengths(played(MUL, [p], 2.0), None, played(MUL, [q], 2.0)) == [1, None, 1]


def test_other_operators_and_other_numbers_keep_calls_apart() -> None:
    p, q, r = several(3)
    assert lengths(played(MUL, [p], 2.0), played(MUL, [q], 3.0), played(ADD, [q], [r])) == [1, 1, 1]
    assert lengths(played(MUL, [p], 2.0), played(MUL, [q], 2)) == [1, 1]
    assert lengths(played(ADD, [p], [r]), played(ADD, [q], [r], keywords={"alpha": 2})) == [1, 1]
    loose = [Loose(name, is_number=True) for name in ("%one", "%one", "%other")]
    assert lengths(*(played(MUL, [item], rate) for item, rate in zip((p, q, r), loose, strict=True))) == [2, None, 1]


def test_what_a_call_writes_no_other_one_touches() -> None:
    """Neither a list, nor a tensor that all read; what all only read may be the same."""
    p, q, r = several(3)
    assert lengths(played(ADD, [p], [q]), played(ADD, [q], [r])) == [1, 1]
    assert lengths(played(ADD, [q], [r]), played(ADD, [p], [q])) == [1, 1]
    assert lengths(played(MUL, [p], 2.0), played(MUL, [p[:1]], 2.0)) == [1, 1]
    assert lengths(played(ADD, [p], [r]), played(ADD, [q], [r])) == [2, None]
    by_one = aten._foreach_mul_.Tensor
    assert lengths(played(by_one, [p], r), played(by_one, [q], r)) == [2, None]
    assert lengths(played(by_one, [p], p), played(by_one, [q], p)) == [1, 1]


def test_tensors_that_lie_elsewhere_in_the_next_run_keep_calls_apart() -> None:
    p, q = several(2)
    gradient = Loose("%gradient", is_number=False)
    assert lengths(played(ADD, [p], [gradient]), played(ADD, [q], [gradient])) == [1, 1]


@given(
    st.lists(
        st.tuples(st.sampled_from([ADD, COPY]), st.lists(st.integers(0, 5), min_size=2, max_size=2, unique=True)),
        max_size=12,
    )
)
def test_joined_calls_are_the_same_ones_in_the_same_order(calls: list[tuple[OpOverload, list[int]]]) -> None:
    """And no storage that one writes is in another one that it is joined with, so a kernel may take any order."""
    tensors = several(6)
    names = {item.data_ptr(): at for at, item in enumerate(tensors)}
    found: list[tuple[object, list[int]]] = []
    for part in parts_of(*(played(func, [tensors[target]], [tensors[source]]) for func, (target, source) in calls)):
        if not isinstance(part, Played):
            continue
        targets, sources = (
            [names[item.data_ptr()] for item in items] for items in part.arguments if isinstance(items, list)
        )
        pairs = list(zip(targets, sources, strict=True))
        found += [(part.call.function, list(pair)) for pair in pairs]
        for at, target in enumerate(targets):
            assert target not in chain.from_iterable(pair for other, pair in enumerate(pairs) if other != at)
    assert found == calls
