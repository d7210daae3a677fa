"""What stands where a captured step must not look: whoever reads it, in whatever way, is refused."""

from collections.abc import Mapping, Sequence
from typing import NoReturn

import torch.utils._pytree as pytree

from outgrow.errors import Uncapturable


class Unreadable:
    """Stands for a value that a captured step cannot know; it may be passed on, but not looked at."""

    def error(self) -> Uncapturable:
        """Return what is to be raised where it is read."""
        raise NotImplementedError

    def refuse(self, *_args: object, **_kwargs: object) -> NoReturn:
        """Raise it."""
        raise self.error()

    @classmethod
    def __torch_function__(
        cls, _function: object, _types: object, args: Sequence[object] = (), kwargs: Mapping[str, object] | None = None
    ) -> NoReturn:
        found = [leaf for leaf in pytree.tree_leaves((args, kwargs or {})) if isinstance(leaf, Unreadable)]
        raise found[0].error()

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # whoever copies or pickles a module asks whether there are such methods
            raise AttributeError(name)
        raise self.error()

    __hash__ = object.__hash__
    __bool__ = __int__ = __float__ = __index__ = __str__ = __format__ = __call__ = refuse
    __len__ = __iter__ = __contains__ = __getitem__ = __setitem__ = refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = refuse
    __neg__ = __abs__ = __round__ = __iadd__ = __isub__ = __imul__ = refuse
    __add__ = __sub__ = __mul__ = __matmul__ = __truediv__ = __floordiv__ = __mod__ = __divmod__ = __pow__ = refuse
    __radd__ = __rsub__ = __rmul__ = __rmatmul__ = __rtruediv__ = __rfloordiv__ = __rmod__ = __rdivmod__ = refuse
    __rpow__ = refuse
