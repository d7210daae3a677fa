"""What does torch's build for CUDA do on a machine without a GPU? All but to compute, on a pretended one.

    python -m tests.pretend_gpu COMMAND [ARGUMENT ...]

The command runs with libraries of ours in place of CUDA's runtime and driver, cuBLAS and cuDNN. Torch finds one GPU.
Its dispatch, its allocator, its calls of libraries, and the layouts and sizes of what they return are torch's own; only
kernels do nothing, so numbers mean nothing, and neither do times, but for those that the host takes. So what one can
see here is whether a step is captured and planned, whether its allocations go where they should, what is reserved, and
what a step costs the host. It needs torch for CUDA, headers of the CUDA toolkit, g++ and nm.

PRETEND_BYTES sets the memory of the GPU; copies of PRETEND_COPY bytes and more are not made. With PRETEND_OPEN=1 the
host may use memory of the device, as `tests.pretend_gpu.computing` does. NCCL is not pretended.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import torch

from outgrow.files import cache_folder
from outgrow.runtime.directed import source

FOLDER = Path(__file__).parent
SOURCES = (FOLDER / "runtime.cpp", FOLDER / "libraries.cpp")
PRETENDED = ("cuda", "__cuda", "cublas", "cudnn")


def main() -> None:
    """Become the command, with the libraries in place."""
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    library = built()
    environment = {**os.environ, "LD_PRELOAD": str(library), "LD_LIBRARY_PATH": str(library.parent)}
    os.execvpe(sys.argv[1], sys.argv[1:], environment)


def built() -> Path:
    """Return the library, from the cache folder if it is there."""
    key = sha256(b"".join(path.read_bytes() for path in SOURCES) + torch.__version__.encode()).hexdigest()[:16]
    folder = cache_folder("pretend_gpu") / key
    library = folder / "libcuda.so.1"  # the driver's own name, by which it is loaded as well
    if library.exists():
        return library
    try:
        headers = [f"-I{folder}" for folder in source("cuda").include_folders]
    except FileNotFoundError as error:
        sys.exit(f"There are {error}: install nvidia-cuda-runtime, or the toolkit.")
    folder.mkdir(parents=True, exist_ok=True)
    objects = [folder / f"{path.stem}.o" for path in SOURCES]
    for path, made in zip(SOURCES, objects, strict=True):
        run("g++", "-std=c++20", "-O1", "-fPIC", "-c", str(path), "-o", str(made), *headers)
    written = set(names("--defined-only", *objects))
    rest = folder / "rest.c"
    rest.write_text("".join(f"long {name}(void) {{ return 0; }}\n" for name in sorted(set(asked_for()) - written)))
    run("gcc", "-w", "-fno-builtin", "-fPIC", "-c", str(rest), "-o", str(rest.with_suffix(".o")))
    parts = [*map(str, objects), str(rest.with_suffix(".o"))]
    run("g++", "-shared", *parts, "-o", str(library), "-ldl", "-Wl,-soname,libcuda.so.1")
    return library


def asked_for() -> Iterator[str]:
    """Yield the functions of the pretended libraries that torch's libraries ask for."""
    root = Path(torch.__file__).parent / "lib"
    for name in names("-D", "--undefined-only", *sorted(root.glob("*.so"))):
        is_drivers = name.startswith("cu") and name[2:3].isupper() and not name.startswith("cuFile")
        if name.startswith(PRETENDED) or is_drivers:
            yield name


def names(*arguments: str | Path) -> Iterator[str]:
    """Yield the symbols that nm finds, without their versions."""
    for line in run("nm", *map(str, arguments)).splitlines():
        if line and not line.endswith(":"):
            yield line.split()[-1].partition("@")[0]


def run(*command: str) -> str:
    """Return what a command writes; if it fails, so do we."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
