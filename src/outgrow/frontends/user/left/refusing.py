"""What stands for a value that a captured step has left in an attribute, so that nobody reads what is not there?

An object that refuses to be read, and is of the same type to whoever asks. It is there after each call, unless what it
stands for is left there, and whenever a step is captured or looked for.
"""

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from torch.utils.weak import WeakIdKeyDictionary

from outgrow.errors import Uncapturable
from outgrow.frontends.user.filling import Container, is_container, like, refill
from outgrow.frontends.user.reach.configuration import is_settled
from outgrow.frontends.user.reach.locations import MISSING, Location
from outgrow.frontends.user.refusals import DROP_IN
from outgrow.frontends.user.unreadable import Unreadable


@dataclass(frozen=True, slots=True)
class Left:
    """An attribute in which a step leaves `count` values; the next step must not read them if they `depend` on it.

    They `depend` if they are made of what the step was given, as numbers of tensors are, or of what was there before.
    A `count` of 0 says that the step leaves another object there, which is not looked into. `kind` and `form` are as in
    `Kept`, and so is `within`. `is_alike` says that the next step does the same whether or not something is left there.
    `node` is the name of what in the trace each call leaves there; empty if it leaves nothing.
    """

    owner: object
    name: str
    count: int
    depend: bool
    kind: type
    form: object = field(default=None, compare=False)
    is_alike: bool = False
    node: str = ""
    within: Location | None = field(default=None, compare=False)

    @property
    def is_there(self) -> bool:
        """Whether the owner is still what a module or an optimizer has, if it is a configuration."""
        return self.within is None or self.within.read() is vars(self.owner)

    @property
    def of(self) -> str:
        """The name of the attribute in messages, with the type of its owner."""
        return f"{type(self.owner).__name__}.{self.name}"

    @property
    def is_inside(self) -> bool:
        """Whether the attribute is a container, which stays there: the values are in it."""
        return is_container(vars(self.owner).get(self.name))

    def refusing(self) -> "Refusing":
        """Return an object that takes the place of a value and refuses to be read."""
        return Refusing(self.of, self.kind, id(self.owner))

    @property
    def key(self) -> tuple[int, str]:
        """What is the same for all steps that leave something in this attribute."""
        return (id(self.owner), self.name)

    def merged(self, known: Mapping[tuple[int, str], "Left"]) -> "Left":
        """Return this attribute for all steps that leave something in it: alike only if it is so for each of them."""
        other = known.get(self.key)
        return self if other is None or other.is_alike else replace(self, is_alike=False)

    def is_told(self, there: object) -> bool:
        """Whether a call that finds `there`, nothing or a settled value, in the attribute has its own signature."""
        return not self.is_alike and (there is MISSING or is_settled(there))

    def show(self) -> None:
        """Note that what is there now was left there by a call."""
        _shown.setdefault(self.owner, {})[self.name] = (self.refusing(), vars(self.owner)[self.name])

    def withhold(self) -> None:
        """Put an object there that refuses to be read; into a container, such objects for the values in it."""
        table = vars(self.owner)
        there, refusing = table.get(self.name), self.refusing()
        if is_container(there):
            refill(there, _with_refusing(there, refusing, self))
        else:
            table[self.name] = refusing


_shown: MutableMapping[object, dict[str, tuple[object, object]]] = WeakIdKeyDictionary()
"""Results that calls of any step have left, by owner and attribute, each with what refuses to be read in its place."""


@contextmanager
def nothing_shown(owners: Iterable[object]) -> Iterator[None]:
    """Within this context objects that refuse to be read are in attributes in place of results that calls have left."""
    shown = [(vars(owner), _shown.get(owner, {})) for owner in (owners if _shown else ())]
    places = [(table, name, *found) for table, each in shown for name, found in each.items()]
    with _exchanged([(table, name, item) for table, name, item, value in places if table.get(name) is value]):
        yield


@contextmanager
def withheld(items: Iterable[Left]) -> Iterator[None]:
    """Within this context attributes look as if the steps that leave something there had just run.

    So a signature does not depend on whether they have, except where that makes another step (`Left.is_told`).
    """
    places = [(vars(item.owner), item) for item in items]
    alike = [(table, item) for table, item in places if not item.is_told(table.get(item.name, MISSING))]
    with _exchanged([(table, item.name, item.refusing()) for table, item in alike]):
        yield


@contextmanager
def _exchanged(places: Sequence[tuple[dict[str, object], str, object]]) -> Iterator[None]:
    """Within this context other values are in attributes: their tables, their names, and the values."""
    before = [(table, name, table.get(name, MISSING)) for table, name, _ in places]
    for table, name, value in places:
        table[name] = value
    try:
        yield
    finally:
        for table, name, value in before:
            if value is MISSING:
                del table[name]
            else:
                table[name] = value


class Read(Uncapturable):
    """Raised where a step reads what an earlier call left in an attribute of the object with the identity `owner`."""

    def __init__(self, message: str, owner: int = 0) -> None:
        super().__init__(message)
        self.owner = owner


class Refusing(Unreadable):
    """Stands for a value of an earlier step in an attribute, which has a name; its type is told."""

    def __init__(self, name: str, kind: type, owner: int) -> None:
        self._name, self._kind, self._owner = name, kind, owner

    __class__ = property(lambda self: self._kind)  # for those who ask what it is

    def __reduce_ex__(self, _protocol: object) -> tuple[object, ...]:
        """Copy it, or pickle it, as what it is."""
        return (Refusing, (self._name, self._kind, self._owner))

    def error(self) -> Read:
        """Return the refusal."""
        return Read(
            f"what an earlier call left in {self._name} is read. A captured step leaves only small results there, and "
            "none for the next one; return it from the step, and pass it as an argument where the next one needs it, "
            "or keep it in a buffer that the step writes with copy_. What a forward pass makes, as one after "
            "torch.nn.utils.prune does, is there again once the model has run by itself, under "
            f"torch.no_grad(){DROP_IN}",
            self._owner,
        )

    def __repr__(self) -> str:
        return f"<what a captured step left in {self._name}>"


def _with_refusing(there: Container, refusing: Refusing, left: Left) -> Container:
    """Return a container like one in which a step has left values, of whose entries nobody knows which."""
    if isinstance(there, set):
        return {refusing}
    found = there.copy()
    if isinstance(found, dict):
        for form in (there, left.form):
            dict[object, object].update(found, like(form, refusing) if isinstance(form, dict) else {})
    else:
        settled = [item for item in there if not isinstance(item, Refusing)]
        new = [*settled, *[refusing] * left.count]
        if isinstance(left.form, tuple) and len(left.form) == len(there):
            new = [refusing if is_left else item for item, is_left in zip(there, left.form, strict=True)]
        refill(found, new)
    return found


def all_refusing(there: Container, refusing: Refusing, left: Left) -> Container:
    """Return a container of which nobody may read anything that may be another one than that which is there."""
    found = _with_refusing(there, refusing, left)
    if not isinstance(found, set | dict) and not isinstance(left.form, tuple):
        refill(found, [refusing] * len(found))
    return found
