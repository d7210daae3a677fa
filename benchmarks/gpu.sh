#!/usr/bin/env bash
# What does this machine's GPU say? The tests that need one, then the benchmark, in less than 8 minutes.
#
#     bash benchmarks/gpu.sh [--deadline 300] [options of benchmarks/gpu.py]
#
# The package need not be installed. OUT is a folder for copies of what is written: tests.txt, rows.log, and the file of
# results. TEST_SECONDS limits the tests (default 150, 0 leaves them out), PYTHON is the interpreter. With --smoke all of
# it runs on a machine without a GPU.
set -u
cd "$(dirname "$0")/.."

python=${PYTHON:-python}
export PYTHONPATH="src:.${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 CUBLAS_WORKSPACE_CONFIG=:4096:8

# Caches on a disk: memory that poses as a folder is refused.
for folder in "${XDG_CACHE_HOME:-}" "$HOME/.cache" /var/tmp/outgrow "$PWD/.cache"; do
    if [ -n "$folder" ] && mkdir -p "$folder" 2>/dev/null && [ "$(stat -f -c %T "$folder")" != tmpfs ]; then
        export XDG_CACHE_HOME=$folder
        break
    fi
done

nvidia-smi || echo "no nvidia-smi"
"$python" - <<'END'
import importlib.metadata as metadata
import platform
import shutil

print("python", platform.python_version())
for package in ("torch", "transformers", "torchvision", "numba", "numpy", "scipy", "pytest", "hypothesis"):
    try:
        print(package, metadata.version(package))
    except metadata.PackageNotFoundError:
        print(package, "is not there")
print("compiler", shutil.which("g++") or shutil.which("c++") or shutil.which("clang++") or "none", "nvcc", shutil.which("nvcc"))
END

# The plugins that the settings of pytest name may be missing here, so settings that nobody knows are let pass, and a
# file that cannot be imported does not stop the others. Only files with a test for a GPU are read: it has the mark, or is
# one of several of which the others need none.
seconds=${TEST_SECONDS:-150}
if [ "$seconds" -gt 0 ]; then
    said=${OUT:-$(mktemp -d)}/tests.txt
    grep -rlZE --include='test_*.py' 'mark\.cuda|needs_cuda' tests |
        PYTHONFAULTHANDLER=1 timeout -k 10 "$seconds" xargs -0 "$python" -m pytest -q -k cuda \
            --continue-on-collection-errors --maxfail=30 --durations=10 -W 'ignore::pytest.PytestConfigWarning' \
            -o 'addopts=--import-mode=importlib -p no:logging -p no:cacheprovider' >"$said" 2>&1
    echo "tests end with status $?"
    tail -n 40 "$said"
fi

"$python" benchmarks/gpu.py "$@"
