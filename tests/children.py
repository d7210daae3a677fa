"""How does a test run code in a process of its own? It is forked where what takes seconds to import is imported.

There has been no thread yet, no tensor and no operator. The environment is the present one, for what looks at it later
than at its import.
"""

import multiprocessing
import os
import sys
import tempfile
from pathlib import Path
from subprocess import CompletedProcess, TimeoutExpired

LOADED = ["outgrow.frontends.compile", "outgrow.frontends.workloads.loading"]


def ran(code: str, *arguments: object, seconds: float = 120.0) -> "CompletedProcess[str]":
    """Run `code`, which finds `arguments` in `sys.argv`, and return how it ended, and what it said."""
    multiprocessing.set_forkserver_preload(LOADED)
    given = ["-c", *map(str, arguments)]
    with tempfile.TemporaryDirectory() as folder:
        said = [Path(folder) / name for name in ("stdout", "stderr")]
        for path in said:
            path.touch()
        process = multiprocessing.get_context("forkserver").Process
        child = process(target=_run, args=(code, given, said, dict(os.environ)))
        child.start()
        child.join(seconds)
        if child.exitcode is None:
            child.kill()
            child.join()
            raise TimeoutExpired(given, seconds)
        return CompletedProcess(given, child.exitcode, *(path.read_text() for path in said))


def _run(code: str, given: list[str], said: list[Path], environment: dict[str, str]) -> None:
    for number, path in enumerate(said, start=1):
        os.dup2(os.open(path, os.O_WRONLY), number)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = given
    exec(compile(code, "<child>", "exec"), {"__name__": "__main__"})
