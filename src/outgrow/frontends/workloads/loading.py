"""Where does a workload come from? From `path/to/file.py:function`, called with the settings of the command
line.

    file.py:function --import--> function --call with settings--> Workload

Everything that can be wrong with the user's file is an `InvalidWorkload` that names the file, the line where
there is one, and what to do. Its folder is importable while it is imported, as it would be for `python
file.py`.
"""

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from difflib import get_close_matches
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

from torch import nn
from torch.optim import Optimizer

from outgrow.errors import InvalidWorkload, OutgrowError
from outgrow.frontends.user.lines import user_line
from outgrow.frontends.user.refusals import refusals
from outgrow.frontends.user.unseen.unfinished import is_unfinished
from outgrow.frontends.workloads.workload import Workload

_EXAMPLE = "Name it as path/to/file.py:function."
_OVERLOADS = ", but expected one of:"
"""Behind it torch lists every way to call a function."""


def load_workload_function(spec: str) -> Callable[..., Workload]:
    """Return the function that `path/to/file.py:function` names.

    Raises `InvalidWorkload` if there is no such file or function, or if the file cannot be imported.
    """
    name, colon, function_name = spec.rpartition(":")
    if not colon or not name or not function_name:
        raise InvalidWorkload(f"{spec!r} does not name a workload: it has no function after a colon. {_EXAMPLE}")
    path = Path(name)
    if not path.is_file():
        found = "is a folder" if path.is_dir() else "does not exist"
        raise InvalidWorkload(f"The workload file {name} {found}. {_EXAMPLE}")
    module = _imported(path)
    function: Callable[..., Workload] | None = vars(module).get(function_name)
    if function is None:
        raise InvalidWorkload(f"{name} has no function {function_name!r}. {_instead(module, function_name)}")
    if not callable(function):
        raise InvalidWorkload(f"{function_name} in {name} is a {type(function).__name__}, not a function.")
    return function


def _imported(path: Path) -> ModuleType:
    name = f"outgrow_workload_{path.stem}"  # no other module's name: the file may be called json.py
    loader = SourceFileLoader(name, str(path))
    spec = spec_from_loader(name, loader)
    assert spec is not None, "a loader of a file gives a spec"
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    with _on_path(path.parent), blamed_on(f"{path} cannot be imported"):
        loader.exec_module(module)
    return module


@contextmanager
def _on_path(folder: Path) -> Iterator[None]:
    entry = str(folder.resolve())
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        if entry in sys.path:
            sys.path.remove(entry)


def _instead(module: ModuleType, wanted: str) -> str:
    own = [
        name for name, item in vars(module).items() if inspect.isfunction(item) and item.__module__ == module.__name__
    ]
    close = get_close_matches(wanted, own, n=3)
    if close:
        return f"Did you mean {' or '.join(close)}?"
    return f"Its functions are: {', '.join(own)}." if own else "It defines no functions."


def built(function: Callable[..., Workload], settings: Mapping[str, object]) -> Workload:
    """Return the workload that the function makes of the settings.

    Raises `InvalidWorkload` for settings that the function does not take or refuses, and for a result that is
    no `Workload`.
    """
    name, place = _name(function), _place(function)
    _check_settings(name, place, inspect.signature(function), settings)
    given = ", ".join(f"{key}={value!r}" for key, value in settings.items())
    with blamed_on(f"{name}({given}) cannot be built"):
        workload = function(**settings)
    if is_unfinished(workload):
        raise InvalidWorkload(
            f"{place}: {name} is a generator or a coroutine. Give a function that returns a Workload."
        )
    if not isinstance(workload, Workload):
        raise InvalidWorkload(
            f"{place}: {name} returned {type(workload).__name__}, not a Workload. "
            "Return outgrow.Workload(model, optimizer, step, batches)."
        )
    wrong = _wrong_field(workload)
    if wrong is not None:
        raise InvalidWorkload(f"{place}: {name} returned a Workload {wrong}")
    return workload


def _wrong_field(workload: Workload) -> str | None:
    """Return what is wrong with the fields of a workload, and the remedy; None if nothing is."""
    given: dict[str, object] = {field.name: getattr(workload, field.name) for field in fields(workload)}
    for field, (kind, wanted) in _FIELDS.items():
        if not isinstance(given[field], kind):
            several = _SEVERAL.get(field, "") if isinstance(given[field], list | tuple) else ""
            return f"whose {field} is a {type(given[field]).__name__}. Give {wanted}{several}."
    if not callable(workload.step):
        return f"whose step is a {type(given['step']).__name__}. Give the function that runs one step."
    if inspect.isgeneratorfunction(workload.step) or inspect.iscoroutinefunction(workload.step):
        return "whose step is a generator or a coroutine. Give a function that returns once the step has run."
    batches = workload.batches
    if len(batches) == 0:
        return "without batches. Give at least one."
    other = next((batch for batch in batches if not isinstance(batch, tuple | list)), None)
    if other is not None:
        return f"with a batch that is a {type(other).__name__}. Give tuples of the arguments of step."
    if workload.evaluate is not None and not callable(workload.evaluate):
        return f"whose evaluate is a {type(given['evaluate']).__name__}. Give a function that returns named scores."
    return None


_FIELDS: Mapping[str, tuple[type, str]] = {
    "model": (nn.Module, "the nn.Module that is trained"),
    "optimizer": (Optimizer, "the torch.optim.Optimizer"),
    "batches": (Sequence, "a list of them, each a tuple of the arguments of step"),
}
_SEVERAL: Mapping[str, str] = {
    "model": "; put several of them into one nn.ModuleList",
    "optimizer": "; the command line takes one, and a step of several is for outgrow.compile",
}
"""What is said of a list where the command line wants one."""


def _name(function: Callable[..., object]) -> str:
    return function.__name__ if inspect.isfunction(function) else type(function).__name__


def _place(function: Callable[..., object]) -> str:
    if not inspect.isfunction(function):
        return "the workload"
    return f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}"


def _check_settings(name: str, place: str, signature: inspect.Signature, settings: Mapping[str, object]) -> None:
    kinds = inspect.Parameter
    parameters = signature.parameters.values()
    named = {item.name: item for item in parameters if item.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)}
    if not any(item.kind is kinds.VAR_KEYWORD for item in parameters):
        for key in settings:
            if key not in named:
                close = get_close_matches(key, named, n=1)
                hint = f" Did you mean {close[0]}?" if close else ""
                accepted = f"It takes {_listed(named.values())}." if named else "It takes no settings."
                raise InvalidWorkload(f"{place}: {name} has no setting {key!r}.{hint} {accepted}")
    missing = [key for key, item in named.items() if item.default is kinds.empty and key not in settings]
    if missing:
        wanted = " ".join(f"--set {key}=..." for key in missing)
        raise InvalidWorkload(f"{place}: {name} needs {', '.join(missing)}. Give {wanted}.")


def _listed(parameters: Iterable[inspect.Parameter]) -> str:
    return ", ".join(
        item.name if item.default is inspect.Parameter.empty else f"{item.name} (default {item.default!r})"
        for item in parameters
    )


@contextmanager
def blamed_on(what: str) -> Iterator[None]:
    """Turn what the user's code raises into `InvalidWorkload`, naming the innermost of the user's lines.

    What needs the content of a tensor that has none is `Uncapturable`. Refusals of outgrow pass, and so do
    its own bugs: assertions that fail outside of the user's files.
    """
    try:
        with refusals():
            yield
    except OutgrowError:
        raise
    except (Exception, SystemExit) as error:
        place = user_line(error.__traceback__)
        if isinstance(error, AssertionError) and place is None:
            raise
        raise InvalidWorkload(f"{what}: {_described(error, place)}") from error


def _described(error: BaseException, place: str | None) -> str:
    if isinstance(error, SyntaxError):
        place = f"{error.filename}:{error.lineno}: " if error.filename else ""
        return f"{place}syntax error: {error.msg}."
    where = f"{place}: " if place else ""
    match error:
        case ModuleNotFoundError(name=str(name)):
            return f"{where}the module {name!r} is not installed."
        case SystemExit():
            return f"{where}it ends the process (SystemExit)."
        case _:
            text = str(error).partition(_OVERLOADS)[0].strip()
            return f"{where}{type(error).__name__}{f': {text}' if text else ''}"
