"""How is a function run by several processes at once? Each is told its mesh, and what it returns is collected."""

import gc
import json
import multiprocessing
import os
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.multiprocessing.spawn import start_processes

from tests.children import LOADED

MOST_WAITED = timedelta(seconds=120)
"""Nobody waits longer for another process."""
Work = Callable[[DeviceMesh, Path], Any]
"""What each process does with the mesh and a folder of all; a function of a module, that returns plain data."""


def together(work: Work, workers: int) -> list[Any]:
    """Run `work` in so many processes of one thread, over gloo, and return what each returned."""
    multiprocessing.set_forkserver_preload(LOADED)
    with tempfile.TemporaryDirectory() as folder:
        start_processes(_one, (work, workers, folder), nprocs=workers, start_method="forkserver")
        return [json.loads((Path(folder) / f"{worker}.json").read_text()) for worker in range(workers)]


def _one(worker: int, work: Work, workers: int, folder: str) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # a machine's name need not be one that it knows
    torch.set_num_threads(1)
    gc.freeze()  # what was imported is long, and no garbage
    met = f"file://{folder}/met"
    dist.init_process_group("gloo", init_method=met, rank=worker, world_size=workers, timeout=MOST_WAITED)
    found = work(init_device_mesh("cpu", (workers,)), Path(folder))
    (Path(folder) / f"{worker}.json").write_text(json.dumps(found))
    dist.destroy_process_group()
