"""Which neighbours of a score are one call? Those of one operator that write over lists of tensors.

A captured step calls such an operator for each tensor (`frontends.fake.kernels.lists`), so that a plan may put copies
between the calls. Where it put nothing between, their lists are one again, since a GPU takes longer to be told of a
call than to update a small tensor.

    aten._foreach_add_.List([p], [g])   ->   aten._foreach_add_.List([p, q], [g, h])
    aten._foreach_add_.List([q], [h])

provided:
    the calls stand side by side, and what is no list is the same in all; their tensors are at known addresses, and no
    call brings a storage into being or takes scratch; none writes what another one reads or writes; together they get
    the kernel that each of them gets alone.
because:
    nothing is born or arrives between them, so all that they touch is there when the first one begins, and nothing
    else has those bytes before the last one ends.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from torch import Tensor
from torch._ops import OpOverload

from outgrow.runtime.lists import get_one_kernel, is_on_lists, lists_and_others, schema_of
from outgrow.runtime.score import Loose, Part, Played, Score


def joined(score: Score) -> Score:
    """Return a score whose neighbours are one call where that is allowed; nothing is left to do at the others."""
    parts = list(score.parts)
    for begin, end in _neighbours(score.parts):
        own = [part for part in parts[begin:end] if isinstance(part, Played)]
        parts[begin:end] = [_as_one(own), *[None] * (len(own) - 1)]
    return replace(score, parts=tuple(parts))


def _neighbours(parts: Sequence[Part]) -> Iterator[tuple[int, int]]:
    """Yield where several calls that may be one begin and end."""
    begin, group = 0, list[_OnLists]()
    for at, part in enumerate((*parts, None)):
        found = _OnLists.of(part) if isinstance(part, Played) else None
        if found is not None and group and _may_join(group, found):
            group.append(found)
            continue
        if len(group) > 1:
            yield begin, at
        begin, group = at, [] if found is None else [found]


@dataclass(frozen=True, slots=True)
class _OnLists:
    """A call on lists: its `tensors` in them, and other arguments; `touched` and `written` are storages, by address.

    `form` says which arguments it is given, in which way.
    """

    func: OpOverload
    form: tuple[object, ...]
    tensors: tuple[Tensor, ...]
    others: Mapping[str, object]
    touched: frozenset[int]
    written: frozenset[int]

    @staticmethod
    def of(part: Played) -> "_OnLists | None":
        """Return a part as such a call; None for one that cannot be joined."""
        func = part.call.function
        if part.is_placing or part.numbers or not isinstance(func, OpOverload) or not is_on_lists(func):
            return None
        lists, others = lists_and_others(func, part.arguments, part.keywords)
        all_given = [*chain.from_iterable(lists.values()), *others.values()]
        if any(isinstance(item, Loose) and not item.is_number for item in all_given):
            return None
        writes = [
            item.name for item in schema_of(func).arguments if item.alias_info is not None and item.alias_info.is_write
        ]
        return _OnLists(
            func,
            (len(part.arguments), tuple(part.keywords), tuple(lists)),
            _tensors(chain.from_iterable(lists.values())),
            others,
            _storages(all_given),
            _storages(chain.from_iterable(lists[name] for name in writes if name in lists)),
        )


def _may_join(group: Sequence[_OnLists], found: _OnLists) -> bool:
    """Whether a call may be one with those of a group, which is not empty."""
    first = group[0]
    return (
        found.func is first.func
        and found.form == first.form
        and all(_are_same(found.others[name], item) for name, item in first.others.items())
        and all(found.written.isdisjoint(other.touched) and found.touched.isdisjoint(other.written) for other in group)
        and get_one_kernel(found.func, [first.tensors, found.tensors])
    )


def _are_same(one: object, other: object) -> bool:
    """Whether two arguments are equal numbers, or tensors of the same elements."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return _elements(one) == _elements(other)
    return type(one) is type(other) and one == other


def _elements(tensor: Tensor) -> tuple[object, ...]:
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def _tensors(items: Iterable[object]) -> tuple[Tensor, ...]:
    return tuple([item for item in items if isinstance(item, Tensor)])


def _storages(items: Iterable[object]) -> frozenset[int]:
    """Return the storages of tensors, each by its first address."""
    return frozenset(item.untyped_storage().data_ptr() for item in _tensors(items))


def _as_one(parts: Sequence[Played]) -> Played:
    """Return one call on the lists of several; what is no list is the same in all."""
    first = parts[0]
    return replace(
        first,
        call=replace(first.call, results=(), updates=any(part.call.updates for part in parts)),
        arguments=tuple([_together(items) for items in zip(*(part.arguments for part in parts), strict=True)]),
        keywords={key: _together([part.keywords[key] for part in parts]) for key in first.keywords},
        nested=any(part.nested for part in parts),
    )


def _together(arguments: Sequence[object]) -> object:
    """Return lists as one, one after the other, and of what is no list the first."""
    lists = [items for items in arguments if isinstance(items, list)]
    return list(chain.from_iterable(lists)) if lists else arguments[0]
