"""A graph while laws edit it: the same content, arranged so that a law costs what it touches, not all there is.

    order     instructions are a linked list of places; labels say which of two places comes first
    indexes   the places of the ops by name, the places that touch, write or move a storage, the values in it

A draft is made from a graph and gives a graph; in between it belongs to one derivation. Labels are those of Bender
et al. 2002, "Two Simplified Algorithms for Maintaining Order in a List", https://doi.org/10.1007/3-540-45749-6_17, with
the simplest remedy where they run out: new labels for all.
"""

from collections.abc import Iterator
from dataclasses import replace

from outgrow.ir.graph import Graph, Instruction, Op, Storage, Value, result_values

Place = int

_BEGIN, _END = 0, 1
_SPACING = 1 << 40


class Draft:
    """A graph that laws edit. A place names an instruction for as long as that is in the draft."""

    def __init__(self, graph: Graph) -> None:
        self.storages: dict[str, Storage] = dict(graph.storages)
        self.values: dict[str, Value] = {}
        self.results: tuple[str, ...] = graph.results
        self._items: dict[Place, Instruction] = {}
        self._next: dict[Place, Place] = {_BEGIN: _END}
        self._previous: dict[Place, Place] = {_END: _BEGIN}
        self._label: dict[Place, int] = {_BEGIN: 0, _END: _SPACING}
        self._by_name: dict[str, Place] = {}
        self._touching: dict[str, dict[Place, None]] = {}
        self._written: dict[Place, tuple[str, ...]] = {}
        self._writing: dict[str, dict[Place, None]] = {}
        self._values_of: dict[str, dict[str, None]] = {}
        self._born: set[str] = set()
        self._fresh = _END + 1
        self._transfers = 0
        self._moving: dict[str, dict[Place, None]] = {}
        for value in graph.values.values():
            self.add_value(value)
        for item in graph.instructions:
            self.insert_before(_END, item)

    def graph(self) -> Graph:
        """Return the graph as it stands."""
        items = tuple(self._items[place] for place in self._places(_BEGIN))
        return Graph(dict(self.storages), dict(self.values), items, self.results)

    # Order -----------------------------------------------------------------------------------------------------------

    @property
    def begin(self) -> Place:
        """The place before the first instruction, at which nothing stands."""
        return _BEGIN

    @property
    def end(self) -> Place:
        """The place behind the last instruction, at which nothing stands."""
        return _END

    @property
    def first(self) -> Place:
        """The place of the first instruction."""
        return self._next[_BEGIN]

    def place_of(self, op: str) -> Place | None:
        """Return the place of the op of this name."""
        return self._by_name.get(op)

    def item(self, place: Place) -> Instruction | None:
        """Return the instruction at a place; None before the first and behind the last."""
        return self._items.get(place)

    def op(self, place: Place) -> Op:
        """Return the op at a place."""
        item = self._items[place]
        assert isinstance(item, Op), "the place of an op was asked for"
        return item

    def precedes(self, place: Place, other: Place) -> bool:
        """Return whether `place` comes before `other`."""
        return self._label[place] < self._label[other]

    def in_order(self, places: list[Place]) -> list[Place]:
        """Return places in the order of the draft."""
        return sorted(places, key=self._label.__getitem__)

    def following(self, place: Place) -> Place:
        """Return the place directly behind this one."""
        return self._next[place]

    def preceding(self, place: Place) -> Place:
        """Return the place directly before this one."""
        return self._previous[place]

    def has_transfer_between(self, place: Place, other: Place) -> bool:
        """Return whether a transfer stands between two places."""
        if not self._transfers:
            return False
        for between in self._places(place):
            if between == other:
                return False
            if not isinstance(self._items[between], Op):
                return True
        return False

    def _places(self, after: Place) -> Iterator[Place]:
        place = self._next[after]
        while place != _END:
            yield place
            place = self._next[place]

    # Edits -----------------------------------------------------------------------------------------------------------

    def insert_before(self, place: Place, item: Instruction) -> Place:
        """Put an instruction directly before a place."""
        return self.insert_after(self._previous[place], item)

    def insert_after(self, place: Place, item: Instruction) -> Place:
        """Put an instruction directly behind a place."""
        own = self._fresh
        self._fresh += 1
        self._link(own, place)
        self._note(own, item)
        return own

    def replace(self, place: Place, item: Instruction) -> None:
        """Let another instruction stand at a place."""
        self._forget(place)
        self._note(place, item)

    def remove(self, place: Place) -> None:
        """Take the instruction at a place away, and the place with it."""
        self._forget(place)
        self._unlink(place)
        del self._items[place], self._written[place], self._label[place]

    def remove_storage(self, name: str) -> None:
        """Take a storage away that no instruction touches any more, and the values in it."""
        assert not self._touching.get(name), "no instruction touches it"
        for value in self._values_of.pop(name, ()):
            del self.values[value]
        del self.storages[name]
        self._born.discard(name)

    def move_after(self, place: Place, anchor: Place) -> None:
        """Take an instruction from its place and put it directly behind another; its place goes with it."""
        self._unlink(place)
        self._link(place, anchor)

    def add_value(self, value: Value) -> None:
        """Declare a value, or declare it anew."""
        known = self.values.get(value.name)
        if known is not None:
            self._values_of[known.storage].pop(known.name, None)
        self.values[value.name] = value
        self._values_of.setdefault(value.storage, {})[value.name] = None

    def age(self, storage: str, by: int) -> None:
        """Let every value in a storage be `by` versions later."""
        for name in [*self._values_of.get(storage, ())]:
            value = self.values[name]
            self.add_value(replace(value, version=value.version + by))

    def _link(self, place: Place, after: Place) -> None:
        behind = self._next[after]
        if behind == _END:
            self._label[_END] = self._label[after] + 2 * _SPACING
        elif self._label[behind] - self._label[after] < 2:
            self._relabel()
        self._label[place] = (self._label[after] + self._label[behind]) // 2
        self._next[after] = self._previous[behind] = place
        self._previous[place], self._next[place] = after, behind

    def _unlink(self, place: Place) -> None:
        before, behind = self._previous.pop(place), self._next.pop(place)
        self._next[before], self._previous[behind] = behind, before

    def _relabel(self) -> None:
        label = 0
        for place in self._places(_BEGIN):
            label += _SPACING
            self._label[place] = label
        self._label[_END] = label + _SPACING

    def _note(self, place: Place, item: Instruction) -> None:
        self._items[place] = item
        if not isinstance(item, Op):
            self._transfers += 1
            self._touching.setdefault(item.storage, {})[place] = None
            self._moving.setdefault(item.storage, {})[place] = None
            self._written[place] = ()
            return
        self._by_name[item.name] = place
        results = [self.values[name] for name in result_values(item)]
        self._born.update([value.storage for value in results if value.version == 0])
        self._written[place] = tuple(dict.fromkeys([*(value.storage for value in results), *item.writes]))
        for name in self._written[place]:
            self._writing.setdefault(name, {})[place] = None
        for name in self.touched(place):
            self._touching.setdefault(name, {})[place] = None

    def _forget(self, place: Place) -> None:
        item = self._items[place]
        for name in self.touched(place):
            del self._touching[name][place]
        for name in self._written[place]:
            del self._writing[name][place]
        if isinstance(item, Op):
            del self._by_name[item.name]
        else:
            self._transfers -= 1
            del self._moving[item.storage][place]

    # Who touches what ------------------------------------------------------------------------------------------------

    def touched(self, place: Place) -> tuple[str, ...]:
        """Return the storages that the instruction at a place touches, each once."""
        item = self._items[place]
        if not isinstance(item, Op):
            return (item.storage,)
        reads = [self.values[name].storage for name in item.operands]
        return tuple(dict.fromkeys([*reads, *self._written[place]]))

    def written(self, place: Place) -> tuple[str, ...]:
        """Return the storages that the instruction at a place writes, each once."""
        return self._written[place]

    def is_born(self, storage: str) -> bool:
        """Return whether an op brings a storage into being."""
        return storage in self._born

    def touching(self, storage: str) -> list[Place]:
        """Return the places that touch a storage, in order."""
        return self.in_order(list(self._touching.get(storage, ())))

    def transfers(self, storage: str) -> list[Place]:
        """Return the places of the transfers of a storage, in order."""
        return self.in_order(list(self._moving.get(storage, ())))

    def writers(self, storage: str, before: Place) -> list[Place]:
        """Return the places before `before` that write a storage, in order."""
        return self.in_order([place for place in self._writing.get(storage, ()) if self.precedes(place, before)])

    def version(self, storage: str, before: Place) -> int:
        """Return the version of a storage directly before a place."""
        return len(self.writers(storage, before)) - (storage in self._born)

    def conflicts(self, place: Place) -> Iterator[Place]:
        """Yield the places of the ops that must keep their order with the one at `place` (`analysis.precedence`)."""
        own = self._written[place]
        for storage in self.touched(place):
            others = self._touching[storage] if storage in own else self._writing.get(storage, ())
            for other in others:
                if other != place:
                    yield other

    def rename_storage(self, old: str, new: str, version: int) -> None:
        """Let what lies in `old`, which no transfer moves, lie in `new` instead, `version` versions later."""
        assert not self._moving.get(old), "no transfer moves it"
        for name in [*self._values_of.get(old, ())]:
            value = self.values[name]
            self.add_value(replace(value, storage=new, version=value.version + version))
        for place in self._touching.pop(old, {}):
            item = self._items[place]
            self._written[place] = _renamed(self._written[place], old, new)
            if isinstance(item, Op) and old in item.writes:
                self._items[place] = replace(item, writes=_renamed(item.writes, old, new))
            self._touching.setdefault(new, {})[place] = None
        self._writing.setdefault(new, {}).update(self._writing.pop(old, {}))
        del self.storages[old]
        self._born.discard(old)


def _renamed(names: tuple[str, ...], old: str, new: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(new if name == old else name for name in names))
