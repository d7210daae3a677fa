#!/usr/bin/env bash
# What does this machine's GPU say? The tests that need one, then the benchmark, all in less than ten minutes.
#
#     bash benchmarks/gpu.sh [options of benchmarks/gpu.py]
#
# The package need not be installed, but what a training of it needs. OUT is a folder for copies of what is written:
# tests.txt, rows.log, and the file of results. TEST_SECONDS limits the tests (default 150, 0 leaves them out), --deadline
# the benchmark, which otherwise has what is left of MOST_SECONDS (default 560). COMMIT is for a copy without git.
# LEAST_HOST_BYTES is what is left to the host, or a turn is ended; HOST_GIB is what a host has that gets its memory as it
# is used. PYTHON is the interpreter. With --smoke all of it runs on a machine without a GPU.
#
# Where time is short, in three goes, each with OUT=FOLDER COMMIT=HASH, and HOST_GIB where that applies:
#
#     bash benchmarks/gpu.sh --only checks
#     TEST_SECONDS=0 bash benchmarks/gpu.sh --resume
#     TEST_SECONDS=0 MOST_SECONDS=what is left bash benchmarks/gpu.sh --resume
#
# A go does not repeat what benchmarks/results has from this commit and card, and what failed comes last. Where each goes
# to another copy, copy the file of results from FOLDER to benchmarks/results before the next one, also where the next
# one brings the working tree along anew. What a go has compiled is in the cache folder.
set -u
cd "$(dirname "$0")/.."

python=${PYTHON:-$(command -v python3 || command -v python)}
export PYTHONPATH="src:.${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 CUBLAS_WORKSPACE_CONFIG=:4096:8
export PYTHONFAULTHANDLER=1

# What changes torch's allocator, or the kernels, is not measured here.
unset PYTORCH_ALLOC_CONF PYTORCH_CUDA_ALLOC_CONF PYTORCH_NO_CUDA_MEMORY_CACHING PYTORCH_NVML_BASED_CUDA_CHECK
unset CUDA_LAUNCH_BLOCKING NVIDIA_TF32_OVERRIDE TORCH_ALLOW_TF32_CUBLAS_OVERRIDE
env | grep -E '^(CUDA|CUBLAS|CUDNN|NVIDIA|PYTORCH|TORCH)' || true

# Caches on a disk: memory that poses as a folder is refused.
for folder in "${XDG_CACHE_HOME:-}" "${HOME:-/root}/.cache" /var/tmp/outgrow "$PWD/.cache"; do
    if [ -n "$folder" ] && mkdir -p "$folder" 2>/dev/null && [ "$(stat -f -c %T "$folder")" != tmpfs ]; then
        export XDG_CACHE_HOME=$folder
        break
    fi
done

nvidia-smi || echo "no nvidia-smi"
head -n 3 /proc/meminfo
echo "locked memory: $(ulimit -l) KiB; cache: $(df -hT "${XDG_CACHE_HOME:-/}" | tail -n 1)"
"$python" - <<'END' || exit 1
import importlib.metadata as metadata
import platform
import re
import shutil
import subprocess
import sys

print("python", platform.python_version())
lacking = [] if sys.version_info >= (3, 11) else ["python>=3.11"]
for package, least in (("torch", (2, 11)), ("numba", (0, 61)), ("numpy", (1, 26)), ("rich", (13, 0))):
    try:
        found = tuple(int(re.match(r"\d*", part)[0] or 0) for part in metadata.version(package).split(".")[:2])
    except metadata.PackageNotFoundError:
        found = (0, 0)
    if found < least:
        lacking.append(f"{package}>={least[0]}.{least[1]}")
for package in ("torch", "transformers", "torchvision", "numba", "numpy", "rich", "pytest", "hypothesis"):
    try:
        print(package, metadata.version(package))
    except metadata.PackageNotFoundError:
        print(package, "is not there")
compiler = shutil.which("g++") or shutil.which("c++") or shutil.which("clang++")
said = subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout.splitlines()[0] if compiler else ""
print("compiler", compiler, said, "nvcc", shutil.which("nvcc"))
if lacking:
    sys.exit(f"This needs what is not there: python -m pip install {' '.join(map(repr, lacking))}")
END

# Some machines get their memory as it is used. It is used once, so that what is free can be asked for.
[ -z "${HOST_GIB:-}" ] || timeout 60 "$python" - "$HOST_GIB" <<'END'
import mmap
import sys
import time


def told(name):
    with open("/proc/meminfo") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))


begin, total = time.monotonic(), told("MemTotal:")
grown, used = begin, []
while told("MemTotal:") < int(sys.argv[1]) << 30 and time.monotonic() - grown < 4:
    if told("MemTotal:") > total:
        grown, total = time.monotonic(), told("MemTotal:")
    if told("MemAvailable:") > 1 << 30:
        used.append(mmap.mmap(-1, 128 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE))
    else:
        time.sleep(0.05)
print(f"{told('MemTotal:') / 2**30:.0f} GiB of the host after {time.monotonic() - begin:.0f} s")
END

# What is compiled once is compiled now, and not within the time limit of whoever comes first; what does not work at all
# ends this at once.
timeout -s INT -k 10 240 "$python" - "$*" <<'END' || exit 1
import sys
import time

import hypothesis  # noqa: F401 - that it can be imported is asked
import pytest  # noqa: F401
import torch

from outgrow.frontends.preparing.warmup import warm_up
from outgrow.runtime import arena, directed

begin = time.perf_counter()
if "--smoke" not in sys.argv[1]:
    print("the GPU gives", torch.ones(2, device="cuda").sum().item())
warm_up()
kinds = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
print("arena", arena.is_available(), *(f"{kind} is directed: {directed.install(torch.device(kind))}" for kind in kinds))
print(f"warm after {time.perf_counter() - begin:.0f} s")
END

# The plugins that the settings of pytest name may be missing here, so settings that nobody knows are let pass. Only files
# with a test for a GPU are read: it has the mark, or is one of several of which the others need none. Each has a process
# of its own, so that one that dies takes no other along, and they run beside each other; but the pages of the GPU are
# counted, so those who do that come before the others, and have a minute.
seconds=${TEST_SECONDS:-150}
told=$(mktemp -d)

tested() {
    timeout -s INT -k 10 "$2" "$python" -m pytest -q -k cuda --tb=short --maxfail=30 --durations=5 \
        -W default -W 'ignore::pytest.PytestConfigWarning' \
        -o 'addopts=--import-mode=importlib -p no:logging -p no:cacheprovider' "$1" >"$told/$(basename "$1")" 2>&1
    local status=$?
    [ "$status" = 5 ] && status="5, none was chosen"
    echo "$1 ends with status $status" | tee -a "$told/$(basename "$1")"
}

if [ "$seconds" -gt 0 ]; then
    tested tests/runtime/test_pages.py $((seconds < 60 ? seconds : 60))
    for file in $(grep -rlE --include='test_*.py' 'mark\.cuda|needs_cuda' tests); do
        [ "$file" = tests/runtime/test_pages.py ] || tested "$file" "$seconds" &
    done
    wait
    cat "$told"/* >"${OUT:-$told}/tests.txt"
    tail -q -n 25 "$told"/test_*.py
fi

case " $* " in
*" --deadline"*) ;;
*) set -- "$@" --deadline $((${MOST_SECONDS:-560} - SECONDS)) ;;
esac
"$python" benchmarks/gpu.py "$@"
