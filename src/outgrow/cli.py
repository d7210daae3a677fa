"""The command line: `outgrow train | plan | compare | fit | partition | explain | machine`.

Exit status: 0 done; 1 a refusal, with its reason on stderr; 2 wrong usage; 130 after Ctrl-C;
141 where nobody reads the output any more. Wrong usage is
found before torch is imported. Results go to stdout; with `--json -` the JSON does, and what people read goes
to stderr.
"""

import argparse
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outgrow import __version__
from outgrow.commands.machine import list_machines, measure_machine, show_machine
from outgrow.errors import InvalidGraph, InvalidMachine, InvalidQuantity, OutgrowError
from outgrow.frontends.preparing.machines import described_machine, machine_names, names_a_file, require_known
from outgrow.frontends.user.unseen.signals import signals_waiting
from outgrow.ir.machine import Machine
from outgrow.planning.names import KERNELS, PLANNER_NAMES, SOLVER_SECONDS
from outgrow.remarks import Remark
from outgrow.report.output import STDOUT, print_now, speak_plainly, stdout_for_results, unwritable
from outgrow.report.progress import Narrator, narrator
from outgrow.units import parse_budget, parse_bytes

if TYPE_CHECKING:
    from outgrow.commands.job import Job

_MOST_WORKERS = 1024
_EPILOG = (
    "WORKLOAD is path/to/file.py:function. The function takes keyword arguments, given as --set name=value, "
    "and returns outgrow.Workload(model, optimizer, step, batches)."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    speak_plainly()
    options = _parser().parse_args(arguments)
    _check(options)
    outputs = (vars(options)[name] for name in ("json", "report", "trace"))
    is_for_results = STDOUT in outputs
    stream = sys.stderr if is_for_results else sys.stdout
    try:
        with stdout_for_results() if is_for_results else nullcontext(), narrator(stream) as tell, _remarks_told(tell):
            _run(options, tell)
            print_now(stream, "")
    except InvalidGraph as fault:
        return _refused(*str(fault).splitlines())
    except OutgrowError as refusal:
        return _refused(str(refusal))
    except KeyboardInterrupt:
        _refused("interrupted")
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # Whoever read the output has gone. What is left in the buffer must not fail again when Python ends.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for output in (sys.stdout, stream):
            os.dup2(nowhere, output.fileno())
        return 128 + signal.SIGPIPE
    except MemoryError as error:
        return _refused(f"out of memory: {error}")
    except OSError as error:
        return _refused(f"{error.filename or 'a file'}: {error.strerror or error}")
    return 0


@contextmanager
def _remarks_told(tell: Narrator) -> Iterator[None]:
    """Tell remarks as one line each; other warnings are written as ever."""
    with warnings.catch_warnings():
        write = warnings.showwarning

        def shown(message: Warning | str, category: type[Warning], filename: str, lineno: int, *rest: Any) -> None:
            if issubclass(category, Remark):
                tell.say(str(message))
            else:
                write(message, category, filename, lineno, *rest)

        warnings.showwarning = shown
        yield


def _refused(reason: str, *instructions: str) -> int:
    """Print a reason on one line, and below it the instructions of the graph that it is about."""
    print("\n".join((f"outgrow: {' '.join(reason.split())}", *instructions)), file=sys.stderr)
    return 1


def _run(options: argparse.Namespace, tell: Narrator) -> None:
    if options.command == "machine":
        _run_machine(options, tell)
        return
    machine = None if options.machine is None else described_machine(options.machine)
    with signals_waiting():  # torch goes on without what an interrupted import lacks, and fails later
        from outgrow.commands import fit, partition, plan, train  # noqa: PLC0415  # torch takes seconds, and wrong usage is told without it

    match options.command:
        case "train":
            train.train(_job(options, machine), tell)
        case "plan":
            plan.plan(_job(options, machine), tell)
        case "compare":
            plan.compare(_job(options, machine), tell)
        case "fit":
            name, multiple = options.vary or (None, 1)
            fit.fit(_job(options, machine), fit.Wish(name, options.slowdown, multiple), tell)
        case "partition":
            partition.divide(_job(options, machine), options.workers, tell, verify=options.verify)
        case _:
            plan.explain(options.plan, tell)


def _job(options: argparse.Namespace, machine: Machine | None) -> "Job":
    from outgrow.commands.job import Job, Outputs  # noqa: PLC0415
    from outgrow.runtime.tiers import offload_folder  # noqa: PLC0415

    folder: Path | None = options.offload_dir  # what is relative is so to where the command began
    return Job(
        workload=options.workload,
        settings=dict(options.set),
        budget_bytes=options.memory_budget,
        planner=options.planner,
        kernels=options.kernels,
        machine=machine,
        offload_dir=None if folder is None else offload_folder(folder),
        disk_budget_bytes=options.disk_budget,
        steps=options.steps,
        solver_seconds=options.solver_seconds,
        outputs=Outputs(*map(_from_here, (options.json, options.report, options.trace))),
    )


def _from_here(path: Path | None) -> Path | None:
    """Return where a result goes, wherever the user's code takes the process before it is written."""
    return path if path is None or path == STDOUT else path.absolute()


def _run_machine(options: argparse.Namespace, tell: Narrator) -> None:
    if options.list:
        list_machines(tell)
    elif options.name is not None:
        show_machine(options.name, tell)
    else:
        with signals_waiting():
            import_module("outgrow.frontends.preparing.measure")
        measure_machine(options.device, options.offload_dir, options.out, tell)


def _check(options: argparse.Namespace) -> None:
    """Exit with wrong usage where options do not go together, or a result could not be written."""
    match options.command:
        case "fit":
            _check_fit(options)
        case "partition" if options.memory_budget is not None and options.machine is None:
            options.parser.error("--memory-budget asks for plans: name the --machine that they are for")
        case "machine":
            _check_machine(options)
        case _:
            pass
    _check_outputs(options)


def _check_fit(options: argparse.Namespace) -> None:
    """Exit with wrong usage unless either the largest setting under a budget is asked for, or the smallest budget."""
    if (options.vary is None) == (options.memory_budget is not None):
        options.parser.error("--vary needs a --memory-budget, and --memory-budget something to --vary")
    if options.vary is not None and options.report is not None:
        options.parser.error("--report draws what memory buys: leave --vary and --memory-budget out")


def _check_machine(options: argparse.Namespace) -> None:
    """Exit with wrong usage if a known machine is asked for and one to be measured as well."""
    is_measured = options.offload_dir is not None or options.out is not None or options.device is not None
    if options.list and (options.name is not None or is_measured):
        options.parser.error("--list stands alone: it prints the machines that are known")
    if options.name is not None and is_measured:
        options.parser.error("--device, --out and --offload-dir are for measuring this machine: leave the name out")
    if options.device == "cuda" and options.offload_dir is not None:
        options.parser.error("--offload-dir is for the CPU: the link of a GPU leads to memory of the host")


def _check_outputs(options: argparse.Namespace) -> None:
    """Exit with wrong usage if a result could not be written: said now, not after an hour of training."""
    workload, machine = (vars(options).get(name) for name in ("workload", "machine"))
    taken = {} if workload is None else {_place(Path(workload.rpartition(":")[0])): "the workload itself"}
    taken |= {} if machine is None else {_place(Path(machine)): "the machine that is planned for"}
    for name in ("json", "report", "trace", "out"):
        path: Path | None = vars(options)[name]
        if path is None:
            continue
        place = _place(path)
        reason = taken.get(place) or (None if path == STDOUT else unwritable(path))
        if reason is not None:
            options.parser.error(f"--{name} {path}: {reason}")
        taken[place] = f"--{name} writes there already"


def _place(path: Path) -> Path:
    """Return where a path leads, as far as it leads anywhere."""
    try:
        return path if path == STDOUT else path.resolve()
    except (OSError, RuntimeError):  # a name that is too long, a link that leads to itself
        return path


# The options ------------------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="outgrow", description="Train PyTorch models that outgrow their device.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"outgrow {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_train(_added(commands, "train", "train a workload under a memory budget"))
    _add_plan(_added(commands, "plan", "say what training would take; the step is not run"))
    _add_compare(_added(commands, "compare", "plan with every planner, side by side"))
    _add_fit(_added(commands, "fit", "find the largest setting that fits, or the smallest budget; nothing is run"))
    _add_partition(_added(commands, "partition", "say how a step is divided among workers; nothing is run"))
    explain = _added(commands, "explain", "say in words what a plan does")
    explain.add_argument("plan", type=Path, metavar="PLAN.json", help="what --json of train or plan wrote")
    _add_measuring(_added(commands, "machine", "measure this machine, or show one that can be planned for"))
    return parser


def _added(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, text: str
) -> argparse.ArgumentParser:
    epilog = None if name in {"explain", "machine"} else _EPILOG
    parser = commands.add_parser(name, help=text, description=text, epilog=epilog, allow_abbrev=False)
    parser.set_defaults(
        parser=parser,
        planner="search",
        kernels="eager",
        machine=None,
        offload_dir=None,
        disk_budget=None,
        steps=1,
        solver_seconds=SOLVER_SECONDS,
        json=None,
        report=None,
        trace=None,
        out=None,
        memory_budget=None,
    )
    return parser


def _add_train(parser: argparse.ArgumentParser) -> None:
    _add_workload(parser)
    parser.add_argument("--steps", type=_count, metavar="N", help="steps to train (default 1)")
    parser.add_argument("--disk-budget", type=_disk_bytes, metavar="SIZE", help="limit of the spill file")
    _add_planner(parser)
    parser.add_argument("--kernels", choices=KERNELS, help="what runs the arithmetic: torch's operators, or Inductor's")
    _add_outputs(parser)


def _add_plan(parser: argparse.ArgumentParser) -> None:
    _add_workload(parser)
    _add_machine(parser)
    _add_planner(parser)
    _add_solver(parser)
    _add_outputs(parser)


def _add_compare(parser: argparse.ArgumentParser) -> None:
    _add_workload(parser)
    _add_machine(parser)
    _add_solver(parser)
    parser.add_argument("--json", type=Path, metavar="OUT", help="write a list with one object a planner; - is stdout")


def _add_fit(parser: argparse.ArgumentParser) -> None:
    _add_workload(parser, needs_budget=False)
    parser.add_argument(
        "--vary",
        type=_varied,
        metavar="NAME[:N]",
        help="find the largest whole number for this argument of the function that fits the memory budget; with N, "
        "the largest multiple of N; the search begins at --set NAME=VALUE, else at 1 or N",
    )
    parser.add_argument(
        "--slowdown",
        type=_slowdown,
        default=1.1,
        metavar="FACTOR",
        help="how many times as long as in core a step may take (default 1.1)",
    )
    _add_machine(parser)
    _add_planner(parser)
    parser.add_argument("--json", type=Path, metavar="OUT", help="write what was tried and found; - is stdout")
    parser.add_argument("--report", type=Path, metavar="OUT.svg", help="write a picture of seconds against budget")


def _add_partition(parser: argparse.ArgumentParser) -> None:
    _add_function(parser)
    parser.add_argument("--workers", type=_workers, required=True, metavar="N", help="how many devices there are")
    _add_machine(parser, default="none: no seconds are said")
    parser.add_argument(
        "--memory-budget",
        type=_memory_bytes,
        metavar="SIZE",
        help='what each device may take: "12GiB" (default: as little as can be, and no plans)',
    )
    parser.add_argument("--verify", action="store_true", help="first run each operator of the step whole and in pieces")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the figures; - is stdout")


def _add_function(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("workload", metavar="WORKLOAD", help="path/to/file.py:function")
    parser.add_argument(
        "--set",
        type=_setting,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an argument of the function",
    )


def _add_workload(parser: argparse.ArgumentParser, *, needs_budget: bool = True) -> None:
    _add_function(parser)
    parser.add_argument(
        "--memory-budget",
        type=_memory_bytes,
        required=needs_budget,
        metavar="SIZE",
        help='what the step may take: "4GiB"',
    )
    parser.add_argument(
        "--offload-dir",
        type=_folder,
        metavar="DIR",
        help="folder of the spill file, on a disk (default: the user's cache)",
    )


def _add_machine(parser: argparse.ArgumentParser, default: str = "this machine") -> None:
    parser.add_argument(
        "--machine",
        type=_machine,
        metavar="NAME|FILE",
        help=f"plan for: {', '.join(machine_names())}, or a file of `outgrow machine` (default: {default})",
    )


def _add_measuring(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", type=_machine, nargs="?", metavar="NAME|FILE", help="show this machine instead of measuring"
    )
    parser.add_argument("--list", action="store_true", help="show the rates of all machines that are known")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="what to measure (default: cpu)")
    parser.add_argument(
        "--offload-dir", type=_folder, metavar="DIR", help="folder to measure the link to (default: the user's cache)"
    )
    parser.add_argument("--out", type=Path, metavar="OUT.toml", help="write what is measured for --machine to read")


def _add_planner(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--planner", choices=PLANNER_NAMES, metavar="NAME", help=", ".join(PLANNER_NAMES))


def _add_solver(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--solver-seconds",
        type=_seconds,
        metavar="SECONDS",
        help=f"when to stop the solver of a planner that has one, olla (default {SOLVER_SECONDS:g})",
    )


def _add_outputs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the figures and the plan; - is stdout")
    parser.add_argument("--report", type=Path, metavar="OUT.html", help="write a page with pictures")
    parser.add_argument("--trace", type=Path, metavar="OUT.json", help="write a timeline for ui.perfetto.dev")


# The values of options --------------------------------------------------------------------------------------


def _memory_bytes(text: str) -> int:
    return _parsed(text, parse_budget)


def _disk_bytes(text: str) -> int:
    return _parsed(text, partial(parse_bytes, what="disk budget"))


def _parsed(text: str, parse: Callable[[str], int]) -> int:
    try:
        return parse(text)
    except InvalidQuantity as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _folder(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("the folder is empty. Give a path.")
    return Path(text)


def _machine(text: str) -> str:
    try:
        if not names_a_file(text):
            require_known(text)
    except InvalidMachine as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more.")
    return int(text)


def _workers(text: str) -> int:
    found = _count(text)
    if found > _MOST_WORKERS:
        raise argparse.ArgumentTypeError(f"a step is divided among {_MOST_WORKERS} workers at most, not {found}.")
    return found


def _varied(text: str) -> tuple[str, int]:
    """Return name and N of `name:N`; N is 1 where it is left out.

    >>> _varied("batch"), _varied("size:16")
    (('batch', 1), ('size', 16))
    """
    name, colon, multiple = text.partition(":")
    if not name.isidentifier():
        raise argparse.ArgumentTypeError(f"{name!r} is not the name of an argument")
    return name, _count(multiple) if colon else 1


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds


def _slowdown(text: str) -> float:
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not 1 <= factor < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a factor of 1 or more, such as 1.1")
    return factor


def _setting(text: str) -> tuple[str, int | float | bool | str]:
    """Return name and value of `name=value`: an int, a float, true or false, else a string.

    >>> _setting("size=64"), _setting("lr=1e-3"), _setting("augment=true"), _setting("loss=dice")
    (('size', 64), ('lr', 0.001), ('augment', True), ('loss', 'dice'))
    """
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form name=value")
    if value in _WORDS:
        return name, _WORDS[value]
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    return name, value


_WORDS: Mapping[str, bool] = {"true": True, "True": True, "false": False, "False": False}
