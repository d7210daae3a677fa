"""What an operator allocates lies where its site says, and everything else lies where it would have lain."""

import ctypes
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from time import sleep

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outgrow.runtime import directed, native
from outgrow.runtime.directed import SLOT_BYTES, Allocation, Directions, Site, install, scratch_needed, watched
from tests.children import ran

CPU = torch.device("cpu")
RANGE_BYTES = 64 << 10

needs_compiler = pytest.mark.skipif(directed._library("cpu") is None, reason="no C++ compiler")
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
on_each_device = pytest.mark.parametrize(
    "device",
    [
        pytest.param(CPU, id="cpu", marks=needs_compiler),
        pytest.param(torch.device("cuda", 0), id="cuda", marks=needs_cuda),
    ],
)


class Arena:
    """Memory of a test's own; `at` gives addresses in it, whose first one lies on a slot."""

    def __init__(self, size_bytes: int, device: torch.device) -> None:
        self.memory = torch.zeros(size_bytes + SLOT_BYTES, dtype=torch.uint8, device=device)
        self.begin = -(-self.memory.data_ptr() // SLOT_BYTES) * SLOT_BYTES
        self.end = self.begin + size_bytes

    def at(self, offset: int) -> int:
        return self.begin + offset

    def has(self, tensor: torch.Tensor) -> bool:
        return self.begin <= tensor.data_ptr() < self.end


@pytest.fixture
def arena() -> Iterator[Arena]:
    assert install(CPU)
    library = directed._library("cpu")
    assert library is not None
    before = library.directed_tables(), library.directed_owned()
    yield Arena(2 * RANGE_BYTES, CPU)
    assert (library.directed_tables(), library.directed_owned()) == before, "something was not given back"


def counts() -> tuple[int, int]:
    library = directed._library("cpu")
    assert library is not None
    return library.directed_tables(), library.directed_owned()


def take(size_bytes: int) -> torch.Tensor:
    return torch.empty(size_bytes, dtype=torch.uint8)


def in_thread(work: Callable[[], object]) -> None:
    """Return when the thread has left its site too, which it does after Python has done with it."""
    thread = Thread(target=work)
    thread.start()
    thread.join()
    while Path(f"/proc/self/task/{thread.native_id}").exists():
        sleep(0.001)


def product(device: torch.device) -> Callable[[], tuple[torch.Tensor, ...]]:
    left, right = torch.randn(33, 65, device=device), torch.randn(65, 17, device=device)
    return lambda: (torch.mm(left, right),)


def total(device: torch.device) -> Callable[[], tuple[torch.Tensor, ...]]:
    left, right = torch.randn(257, device=device), torch.randn(257, device=device)
    return lambda: (left + right,)


def normalized(device: torch.device) -> Callable[[], tuple[torch.Tensor, ...]]:
    x, scale = torch.randn(31, 64, device=device), torch.randn(64, device=device)
    return lambda: torch.native_layer_norm(x, [64], scale, scale, 1e-5)


def convolved(device: torch.device) -> Callable[[], tuple[torch.Tensor, ...]]:
    images, kernels = torch.randn(2, 8, 32, 32, device=device), torch.randn(16, 8, 3, 3, device=device)
    return lambda: (torch.conv2d(images, kernels),)


@on_each_device
@pytest.mark.parametrize("operator", [product, total, normalized, convolved])
def test_results_lie_where_the_plan_says(
    device: torch.device, operator: Callable[[torch.device], Callable[[], tuple[torch.Tensor, ...]]]
) -> None:
    """Each is bit by bit what it is elsewhere, and nothing is taken beside the results and the scratch."""
    assert install(device)
    torch.manual_seed(0)
    work = operator(device)
    expected = work()
    seen, allocations = watched(work, device)
    number_at = {made.address: number for number, made in enumerate(allocations) if made.died is None}
    numbers = [number_at[tensor.data_ptr()] for tensor in seen]
    scratch_bytes = scratch_needed(allocations, numbers)
    sizes = [allocations[number].bytes for number in numbers]
    place, memory = scratch_bytes, Arena(scratch_bytes + sum(sizes) + len(sizes) * SLOT_BYTES, device)
    placed = list[tuple[int, int, int]]()
    for number in reversed(numbers):
        placed.append((number, allocations[number].bytes, memory.at(place)))
        place += -(-allocations[number].bytes // SLOT_BYTES) * SLOT_BYTES
    directions = Directions(device, [None, Site(memory.at(0), scratch_bytes, tuple(placed))])
    directions.at(1)
    results = work()
    directions.off()
    assert [tensor.data_ptr() for tensor in results] == [address for *_, address in reversed(placed)]
    assert all(torch.equal(one, other) for one, other in zip(results, expected, strict=True))
    assert directions.strays() == 0


@needs_compiler
def test_a_convolution_has_scratch() -> None:
    """Or the test above would say nothing of it."""
    result, allocations = watched(convolved(CPU), CPU)
    assert len(allocations) > len(result) == 1
    assert sum(made.died is None for made in allocations) == 1


@needs_compiler
def test_other_numbers_and_sizes_go_to_scratch(arena: Arena) -> None:
    """A place is for one allocation; the site begins anew each time that a thread comes to it."""
    place = arena.at(RANGE_BYTES)
    site = Site(arena.at(0), RANGE_BYTES, ((1, 700, place), (2, 99, place), (3, 101, place)))
    directions = Directions(CPU, [site])
    for _ in range(2):
        directions.at(0)
        tensors = [take(700), take(700), take(100), take(100)]
        directions.off()
        offsets = [tensor.data_ptr() - arena.begin for tensor in tensors]
        assert offsets == [0, RANGE_BYTES, 2 * SLOT_BYTES, 3 * SLOT_BYTES]
        assert directions.strays() == 3
        tensors.clear()


@needs_compiler
def test_what_does_not_fit_is_forwarded(arena: Arena) -> None:
    """It counts among the site's allocations all the same."""
    directions = Directions(CPU, [Site(arena.at(0), 1024, ((2, 8, arena.at(RANGE_BYTES)),))])
    directions.at(0)
    large, small, placed, last, more = take(1025), take(1), take(8), take(512), take(1)
    directions.off()
    assert [arena.has(tensor) for tensor in (large, small, placed, last, more)] == [False, True, True, True, False]
    assert placed.data_ptr() == arena.at(RANGE_BYTES)


@needs_compiler
def test_no_bytes_take_no_place(arena: Arena) -> None:
    """They are not counted, by a site or by a watch."""
    directions = Directions(CPU, [Site(arena.at(0), RANGE_BYTES, ((0, 8, arena.at(RANGE_BYTES)),))])
    directions.at(0)
    empty, placed = take(0), take(8)
    directions.off()
    assert empty.data_ptr() == 0
    assert placed.data_ptr() == arena.at(RANGE_BYTES)
    assert watched(lambda: take(0), CPU)[1] == ()


@needs_compiler
def test_outside_of_a_site_all_is_forwarded(arena: Arena) -> None:
    """So it is at an instruction that has no site, and after the last one."""
    directions = Directions(CPU, [Site(arena.at(0), RANGE_BYTES, ()), None])
    directions.at(0)
    assert arena.has(take(8))
    directions.at(1)
    assert not arena.has(take(8))
    directions.at(0)
    directions.off()
    assert not arena.has(take(8))


@needs_compiler
def test_other_threads_are_not_directed(arena: Arena) -> None:
    """Each thread is where it went itself."""
    directions = Directions(CPU, [Site(arena.at(0), RANGE_BYTES, ()), Site(arena.at(RANGE_BYTES), RANGE_BYTES, ())])
    places = list[int]()

    def elsewhere() -> None:
        places.append(arena.has(take(8)))
        directions.at(1)
        places.append(take(8).data_ptr())

    directions.at(0)
    in_thread(elsewhere)
    assert places == [False, arena.at(RANGE_BYTES)]
    assert take(8).data_ptr() == arena.at(0)
    directions.off()


@needs_compiler
def test_another_thread_gives_scratch_back(arena: Arena) -> None:
    """Its bytes are free for the thread that took them."""
    directions = Directions(CPU, [Site(arena.at(0), 512, ())])
    directions.at(0)
    held = [take(8)]
    assert not arena.has(take(8))
    in_thread(held.clear)
    assert arena.has(take(8))
    directions.off()
    assert directions.strays() == 0


@needs_compiler
def test_strays_are_counted(arena: Arena) -> None:
    """Whatever lives on in scratch when the thread goes to the next site, goes off, or dies; each once."""
    site = Site(arena.at(0), RANGE_BYTES, ())
    directions = Directions(CPU, [site, site])
    directions.at(0)
    first = take(8)
    directions.at(1)
    assert directions.strays() == 1
    second = take(8)
    assert second.data_ptr() == first.data_ptr(), "each visit has the whole range"
    directions.off()
    assert directions.strays() == 1
    held = list[torch.Tensor]()

    def die() -> None:
        directions.at(0)
        held.extend([take(8), take(8)])

    in_thread(die)
    assert directions.strays() == 2
    assert directions.strays() == 0
    held.clear()
    del first, second
    directions.at(0)
    assert take(8).data_ptr() == arena.at(0)
    directions.off()
    assert directions.strays() == 0


@needs_compiler
def test_a_place_outlives_what_lay_there(arena: Arena) -> None:
    """The memory is the arena's: nothing is freed, and the next result lies there again."""
    directions = Directions(CPU, [Site(0, 0, ((0, 4096, arena.at(512)),))])
    for number in range(3):
        directions.at(0)
        result = take(4096)
        directions.off()
        assert result.data_ptr() == arena.at(512)
        result.fill_(number + 1)
        del result
        offset = arena.at(512) - arena.memory.data_ptr()
        assert (arena.memory[offset : offset + 4096] == number + 1).all()
    assert directions.strays() == 0


@needs_compiler
def test_tables_are_freed(arena: Arena) -> None:
    """With their directions, or when the last thread leaves; a site of directions that are gone directs nothing."""
    tables, _ = counts()
    directions = Directions(CPU, [Site(arena.at(0), RANGE_BYTES, ())] * 3)
    assert counts()[0] == tables + 1
    directions.at(2)
    assert arena.has(take(8))
    del directions
    assert counts()[0] == tables
    assert not arena.has(take(8))
    held = [Directions(CPU, [Site(arena.at(0), RANGE_BYTES, ())])]
    seen = list[bool]()

    def visit() -> None:
        held[0].at(0)
        seen.append(arena.has(take(8)))
        in_thread(held.clear)
        seen.append(arena.has(take(8)))

    in_thread(visit)
    assert seen == [True, False]
    assert counts()[0] == tables


@needs_compiler
def test_a_watch_sees_births_and_deaths() -> None:
    """In their order, with the addresses; what lives on when the watch ends has no death, whenever it dies."""

    def work() -> torch.Tensor:
        first = take(100)
        second = take(2000)
        del first
        third = take(300)
        in_thread(lambda: take(7).zero_())
        held = [second]
        del second
        in_thread(held.clear)
        return third

    before = take(8)
    result, allocations = watched(work, CPU)
    del before
    assert [(made.bytes, made.born, made.died) for made in allocations] == [(100, 0, 2), (2000, 1, 4), (300, 3, None)]
    assert allocations[2].address == result.data_ptr()
    owned = counts()[1]
    del result
    assert counts()[1] == owned - 1


@needs_compiler
def test_a_watch_ends_when_its_work_fails() -> None:
    """The error is the work's, what it made is freed, and the next watch is as the first."""
    held = list[torch.Tensor]()

    def fail() -> None:
        held.append(take(8))
        raise ZeroDivisionError

    owned = counts()[1]
    with pytest.raises(ZeroDivisionError):
        watched(fail, CPU)
    held.append(take(8))
    assert counts()[1] == owned + 1
    held.clear()
    assert counts()[1] == owned
    assert [made.bytes for made in watched(lambda: take(9), CPU)[1]] == [9]


@needs_compiler
def test_a_watch_is_not_directed(arena: Arena) -> None:
    """The site goes on where it was when the watch ends."""
    directions = Directions(CPU, [Site(arena.at(0), RANGE_BYTES, ((0, 8, arena.at(RANGE_BYTES)),))])
    directions.at(0)
    result, allocations = watched(lambda: take(8), CPU)
    assert take(8).data_ptr() == arena.at(RANGE_BYTES)
    directions.off()
    assert not arena.has(result)
    assert len(allocations) == 1


@needs_compiler
@given(
    moves=st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 7)), max_size=30),
    results=st.sets(st.integers(0, 29)),
)
def test_first_fit_is_the_same_in_both_languages(moves: list[tuple[int, int]], results: set[int]) -> None:
    """Every piece lies in C++ where Python says; `scratch_needed` is enough for all, and less is not."""

    def work() -> tuple[list[int], list[torch.Tensor]]:
        live, addresses = list[torch.Tensor](), list[int]()
        for size_bytes, kept in moves:
            live.append(take(size_bytes))
            addresses.append(live[-1].data_ptr())
            if kept < len(live):
                del live[kept]
        return addresses, live

    assert install(CPU)
    (_, live), allocations = watched(work, CPU)
    del live
    memory = Arena(512 << 10, CPU)
    far = memory.at(256 << 10)
    needed = scratch_needed(allocations, results)
    placed = tuple((number, made.bytes, far) for number, made in enumerate(allocations) if number in results)
    directions = Directions(CPU, [Site(memory.at(0), size, placed) for size in (needed, needed - 1) if size >= 0])
    directions.at(0)
    addresses, live = work()
    directions.off()
    pieces = [address for number, address in enumerate(addresses) if number not in results]
    assert pieces == [memory.at(begin) for begin, _ in directed._scratch(allocations, results)]
    assert all(address == far for number, address in enumerate(addresses) if number in results)
    assert directions.strays() == sum(memory.begin <= tensor.data_ptr() < far for tensor in live)
    del live
    if needed:
        directions.at(1)
        addresses, _ = work()
        directions.off()
        assert not all(memory.begin <= address < memory.end for address in addresses)


def test_scratch_is_what_lives_at_once() -> None:
    """In slots, without the results, and with the holes that first fit leaves."""
    made = [Allocation(1, 0, 0, 3), Allocation(600, 0, 1, None), Allocation(5000, 0, 2, None), Allocation(513, 0, 4, 5)]
    assert scratch_needed(made, {2}) == 512 + 1024 + 1024
    assert scratch_needed(made, {1, 2}) == 1024
    assert scratch_needed(made, range(4)) == scratch_needed([], ()) == 0


RAW = """
#include <c10/core/CPUAllocator.h>

extern "C" {
void* take(size_t bytes) { return c10::GetCPUAllocator()->raw_allocate(bytes); }
void give(void* begin) { c10::GetCPUAllocator()->raw_deallocate(begin); }
}
"""


@needs_compiler
def test_raw_memory_is_directed(arena: Arena, tmp_path: Path) -> None:
    """Some libraries ask torch's allocator for mere addresses, and give addresses back."""
    (tmp_path / "raw.cpp").write_text(RAW)
    raw = native.load(native.Source(tmp_path / "raw.cpp"))
    raw.take.argtypes, raw.take.restype = (ctypes.c_size_t,), ctypes.c_void_p
    raw.give.argtypes = (ctypes.c_void_p,)
    forwarded = raw.take(8)
    directions = Directions(CPU, [Site(arena.at(0), RANGE_BYTES, ())])
    directions.at(0)
    first, second = raw.take(8), raw.take(8)
    assert (first, second) == (arena.at(0), arena.at(512))
    raw.give(first)
    raw.give(forwarded)
    assert take(8).data_ptr() == arena.at(0)
    in_thread(lambda: raw.give(second))
    directions.off()
    assert directions.strays() == 0
    _, allocations = watched(lambda: raw.give(raw.take(24)), CPU)
    assert [(made.bytes, made.born, made.died) for made in allocations] == [(24, 0, 1)]


ORDER = """
import sys
import torch
from outgrow.runtime import arena, directed
from outgrow.runtime.directed import Directions, Site

CPU = torch.device("cpu")
MIB = 1 << 20
torch.save([torch.ones(64), torch.ones(MIB)], sys.argv[1])
loaded = torch.load(sys.argv[1])
for install in {"first": [directed.install, arena.install], "last": [arena.install, directed.install]}[sys.argv[2]]:
    assert install(CPU) if install is directed.install else install()
loaded += torch.load(sys.argv[1])
assert all(arena.is_loaded(tensor.untyped_storage()) for tensor in loaded)
own = torch.empty(8 * MIB, dtype=torch.uint8)
begin = own.data_ptr()
directions = Directions(CPU, [Site(begin, 2 * MIB, ((1, 4 * MIB, begin + 4 * MIB),))])
for _ in range(2):
    arena.install(), directed.install(CPU)
    resting = arena.resting_bytes()
    directions.at(0)
    scratch, placed, beside = (torch.ones(size) for size in (MIB // 4, MIB, MIB))
    directions.off()
    assert [scratch.data_ptr(), placed.data_ptr()] == [begin, begin + 4 * MIB]
    assert not begin <= beside.data_ptr() < begin + 8 * MIB
    result, (allocation,) = directed.watched(lambda: torch.empty(3 * MIB, dtype=torch.uint8), CPU)
    assert len(directed.watched(lambda: torch.empty(8), CPU)[1]) == 1
    del scratch, placed, beside, result
    assert arena.resting_bytes() >= 7 * MIB, "what was forwarded lived in the arena"
del own, loaded
assert directions.strays() == 2
print("both work")
"""


@needs_compiler
@pytest.mark.parametrize("place", ["first", "last"])
def test_the_arena_may_lie_above_or_below(place: str, tmp_path: Path) -> None:
    """Large tensors are directed at a site, live in the arena elsewhere, and are known as loaded where they were."""
    found = ran(ORDER, tmp_path / "saved", place)
    assert found.stdout == "both work\n", found.stderr


@pytest.mark.parametrize(("kind", "remedy"), [("cpu", "Install g\\+\\+"), ("cuda", "nvidia-cuda-runtime")])
def test_without_a_compiler_nothing_is_directed(
    kind: str, remedy: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nothing fails, and it is said what that means."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", "/nowhere/c++")
    monkeypatch.setattr(directed, "_library", directed._library.__wrapped__)
    with pytest.warns(UserWarning, match=f"results are copied to their places.*{remedy}"):
        assert not install(torch.device(kind))


def test_every_method_of_torch_is_forwarded() -> None:
    """One that is not would have the answer of the base class, or none: those that this torch has are all there."""
    include = Path(torch.__file__).parent / "include" / "c10"
    headers = ["core/Allocator.h", "core/CachingDeviceAllocator.h", "cuda/CUDACachingAllocator.h"]
    if not all((include / header).exists() for header in headers):
        pytest.skip("this torch has no headers of CUDA")
    text = "".join((include / header).read_text() for header in headers)
    bodies = re.findall(
        r"^(?:struct C10_API (?:Allocator|DeviceAllocator)|class CUDAAllocator)\b.*?^};", text, re.DOTALL | re.MULTILINE
    )
    methods = set(re.findall(r"virtual [^~;{(]*?(\w+)\(", "".join(bodies)))
    own = Path(directed.__file__).with_name("directed_cuda.cpp").read_text()
    forwarded = set(re.findall(r"before\.(\w+)\(", own))
    assert len(bodies) == 3
    assert methods - {"raw_deleter"} <= forwarded


@pytest.mark.skipif(directed.cuda_headers() is None, reason="no headers of CUDA")
@needs_compiler
def test_the_allocator_for_cuda_compiles(tmp_path: Path) -> None:
    """With the headers that are here, of any version of torch; it is linked where there is a device."""
    command = [word for word in native.command(directed.source("cuda"), tmp_path / "made.o") if word != "-shared"]
    generated = Path(torch.__file__).parent / "include" / "c10" / "cuda" / "impl" / "cuda_cmake_macros.h"
    without = [] if generated.exists() else ["-DC10_CUDA_NO_CMAKE_CONFIGURE_FILE"]  # as in a torch for CPUs
    subprocess.run([*command, *without, "-c"], check=True, timeout=240)
