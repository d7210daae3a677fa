"""What does a function see beyond its own variables, and what does it wrap?

It sees what it closes over, the global variables that it names, and what it is bound to. Nothing of it is called.
"""

from collections.abc import Iterable
from functools import cached_property, partial
from types import CellType, FunctionType, MethodType


def surroundings(step: object) -> list[object]:
    """Return what a function, a method, a partial function or another callable closes over or is bound to."""
    match step:
        case MethodType():
            return [step.__self__, *surroundings(step.__func__)]
        case partial():
            return [step.args, step.keywords, *surroundings(step.func)]
        case FunctionType():
            *around, innermost = wrapped_by(step)
            functions = [item for item in (*around, innermost) if isinstance(item, FunctionType)]
            named = [value for item in functions for value in names_of(item).values()]
            return named if isinstance(innermost, FunctionType) else [*named, *surroundings(innermost)]
        case _:
            return [step]


def behind(attribute: object) -> tuple[object, ...]:
    """Return the functions of what stands for some in a class: a property, or a method of the class; or it itself."""
    match attribute:
        case property():
            return (attribute.fget, attribute.fset)
        case cached_property():
            return (attribute.func,)
        case staticmethod() | classmethod():
            return (attribute.__func__,)
        case _:
            return (attribute,)


def wrapped_by(function: object) -> list[object]:
    """Return a function, what it wraps (`functools.wraps`), what that wraps, and so on."""
    found, last = [function], function
    while not isinstance(last, MethodType | partial) and "__wrapped__" in getattr(last, "__dict__", ()):
        last = vars(last)["__wrapped__"]
        found.append(last)
    return found


def wraps(function: object, methods: Iterable[object]) -> bool:
    """Whether a function is one of some methods, or wraps one, as a scheduler does with the `step` of an optimizer."""
    around = wrapped_by(function)
    return any(item is method for method in methods for item in around)


def names_of(function: FunctionType) -> dict[str, object]:
    """Return what a function sees beyond its own variables, by name; what has no value yet is left out."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    around = {name: cell.cell_contents for name, cell in cells if has_value(cell)}
    names, table = function.__code__.co_names, function.__globals__
    return {name: table[name] for name in names if name in table} | around


def has_value(cell: CellType) -> bool:
    """Whether the variable in a closure's cell has a value by now."""
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True
