"""Memory is used again: no byte is lost, no two tensors share one, and nothing is taken beyond what was live."""

from pathlib import Path

import pytest

from outgrow.runtime import arena, native
from tests.children import ran

FUZZ = """
import random
import sys
import torch
from outgrow.runtime import arena
from outgrow.runtime.memory import Block, lend, make_usable, room_for, take_back

assert arena.install() and arena.install() and arena.is_installed()
draw = random.Random(int(sys.argv[1]))
MIB = 1 << 20
live, most = {}, 0
for number in range(400):
    if live and draw.random() < 0.5:
        tensor, mark = live.pop(draw.choice(list(live)))
        assert (tensor.numpy() == mark).all(), "bytes were lost or shared"
        del tensor
    large = [2 * MIB, 3 * MIB + 4096, 4 * MIB, 5 * MIB + 12, 16 * MIB, draw.randrange(2 * MIB, 9 * MIB)]
    small = [arena.LEAST_BYTES, 512 << 10, draw.randrange(arena.LEAST_BYTES, 2 * MIB)]
    size = draw.choice(draw.choice([large, small]))
    kind = draw.random()
    if kind < 0.2:
        block = Block(size)
        cut = min(size, 2 * MIB * draw.randrange(1, 8))
        block.commit(0, cut)
        if cut < size:
            block.commit(cut, size)
        storage = block.storage()
        tensor = torch.empty(0, dtype=torch.uint8).set_(storage, 0, (size,))
        del block, storage
    elif kind < 0.4:
        tensor = torch.empty(0, dtype=torch.uint8).set_(room_for(size), 0, (size,))
    else:
        tensor = torch.empty(size, dtype=torch.uint8)
    live[number] = (tensor.fill_(number % 251), number % 251)
    most = max(most, sum(-(-tensor.numel() // 4096) * 4096 for tensor, _ in live.values()))
    held = sum(tensor.numel() for tensor, _ in live.values())
    assert held + arena.resting_bytes() <= most, "more is kept than was live at once"
    larger = [at for at, (tensor, _) in live.items() if tensor.numel() > 2 * MIB]
    if larger and draw.random() < 0.3:
        tensor, mark = live[draw.choice(larger)]
        size = draw.randrange(1, -(-tensor.numel() // (2 * MIB))) * 2 * MIB
        before = arena.resting_bytes()
        lend(tensor.data_ptr(), size)
        assert arena.resting_bytes() == before + size
        other = torch.empty(draw.choice([size, 2 * MIB, 3 * MIB]), dtype=torch.uint8).fill_(255)
        assert (tensor[size:].numpy() == mark).all() and (other.numpy() == 255).all()
        most = max(most, held - size + other.numel())
        if draw.random() < 0.5:
            other = None
        else:
            most = max(most, held + other.numel())
        if draw.random() < 0.8:
            take_back(tensor.data_ptr(), size)
        else:
            assert make_usable(tensor.data_ptr(), tensor.numel())
            most += size
        tensor[:size] = mark
        assert (tensor.numpy() == mark).all()
        tensor = other = None
        assert held + arena.resting_bytes() <= most, "more is kept than was live at once"
    if draw.random() < 0.1:
        keep = draw.randrange(0, 20 * MIB)
        arena.keep_at_most(keep)
        assert arena.resting_bytes() <= keep
for tensor, mark in live.values():
    assert (tensor.numpy() == mark).all()
live.clear()
del tensor
arena.keep_at_most(0)
assert arena.resting_bytes() == 0
print("sound")
"""


needs_compiler = pytest.mark.skipif(arena._library() is None, reason="no C++ compiler")


@needs_compiler
@pytest.mark.parametrize("seed", [1, 2])
def test_no_byte_is_lost_and_nothing_is_kept_beyond_the_most_that_was_live(seed: int) -> None:
    """Tensors and blocks of many sizes come and go, in pieces, whole, and lent in part; each keeps its bytes."""
    found = ran(FUZZ, seed)
    assert found.stdout == "sound\n", found.stderr


REUSE = """
import torch
from outgrow.runtime import arena
from outgrow.runtime.memory import room_for
from outgrow.runtime.process import process_bytes
arena.install()
first = torch.ones(64 << 18)
before, address = process_bytes(), first.data_ptr()
del first
assert arena.resting_bytes() == 64 << 20
second = torch.ones(64 << 18)
assert second.data_ptr() == address and arena.resting_bytes() == 0
del second
third = room_for(64 << 20)
assert third.data_ptr() == address and arena.resting_bytes() == 0
del third
assert arena.resting_bytes() == 64 << 20
halves = [torch.ones(32 << 18) for _ in range(2)]
assert process_bytes() - before < 8 << 20
del halves
arena.keep_at_most(0)
assert before - process_bytes() > 56 << 20
small = torch.ones(1024)
del small
assert arena.resting_bytes() == 0
print("used again")
"""


@needs_compiler
def test_a_tensor_takes_the_memory_of_the_last_that_died() -> None:
    """The same size takes the same place; other sizes take the same pages."""
    found = ran(REUSE)
    assert found.stdout == "used again\n", found.stderr


LIMITED = """
import resource
import sys
from pathlib import Path
import torch
from outgrow.runtime import arena
from outgrow.runtime.memory import Block
arena.install()
MIB = 1 << 20
status = Path("/proc/self/status").read_text().splitlines()
size = int(next(line.split()[1] for line in status if line.startswith("VmSize:"))) << 10
torch.ones(200 * MIB, dtype=torch.uint8)
assert arena.resting_bytes() == 200 * MIB
resource.setrlimit(resource.RLIMIT_AS, (size + 300 * MIB, size + 300 * MIB))
if sys.argv[1] == "tensor":
    torch.ones(210 * MIB, dtype=torch.uint8)
else:
    Block(210 * MIB)
print(arena.resting_bytes() // MIB)
"""


@needs_compiler
@pytest.mark.parametrize(("taken", "rests"), [("tensor", 210), ("block", 0)])
def test_what_rests_makes_way_where_addresses_are_limited(taken: str, rests: int) -> None:
    """A limit of addresses counts those of what rests, and those of a tensor that is to have its pages."""
    found = ran(LIMITED, taken)
    assert found.stdout == f"{rests}\n", found.stderr


NOT_TAKEN_BACK = """
import resource
from pathlib import Path
import torch
from outgrow.runtime import arena
from outgrow.runtime.heap import Heap
from outgrow.runtime.memory import take_back
arena.install()
MIB, memory = 1 << 20, Heap()
storage = torch.ones(16 * MIB, dtype=torch.uint8).untyped_storage()
memory.lend("storage", storage, 0, 8 * MIB)
other = torch.ones(8 * MIB, dtype=torch.uint8)
status = Path("/proc/self/status").read_text().splitlines()
data = int(next(line.split()[1] for line in status if line.startswith("VmData:"))) << 10
resource.setrlimit(resource.RLIMIT_DATA, (data + MIB, resource.RLIM_INFINITY))
try:
    take_back(storage.data_ptr(), 8 * MIB)
except MemoryError:
    memory.abandon({"storage": storage}, {"storage": 16 * MIB}, {})
    del storage
    resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(int(torch.ones(16 * MIB, dtype=torch.uint8).sum()) // MIB)
"""


@needs_compiler
def test_memory_that_could_not_be_taken_back_serves_nobody() -> None:
    """A run that fails for want of memory leaves no tensor to later ones of which a part cannot be touched."""
    found = ran(NOT_TAKEN_BACK)
    assert found.stdout == "16\n", (found.returncode, found.stderr)


PROFILED = """
import torch
from outgrow.runtime import arena
arena.install()
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as seen:
    x = torch.empty(4 << 20)
    del x
print({event.key: event.self_cpu_memory_usage >> 20 for event in seen.key_averages()})
"""


@needs_compiler
def test_a_profiler_sees_what_is_taken_and_given_back() -> None:
    """As it does of torch's own allocator."""
    found = ran(PROFILED)
    assert found.stdout == "{'aten::empty': 16, '[memory]': -16}\n", found.stderr


SMALL_AFTER_LARGE = """
import torch
from outgrow.analysis.liveness import live_bytes
from outgrow.frontends import calls
from outgrow.frontends.tracing.capture import capture
from outgrow.frontends.lowering.lower import lower
from outgrow.frontends.user.training.state import Training
from outgrow.runtime import arena
from outgrow.runtime.execute import Run
from outgrow.runtime.heap import Heap
from outgrow.runtime.repeated import execute

arena.install()

def step(x, small):
    total = (x * 2).sum()
    return [small + total for _ in range(400)]

batch = torch.ones(16 << 20), torch.ones(32 << 10)
captured = capture(step, [], [], batch)
capacity = max(live_bytes(captured.graph, {}))
run = calls.made_ready(
    calls.Feed(captured.given(Training((), ()), batch), lower(captured.graph), Training((), ())),
    None, Heap(), capacity, observe=False,
)
record, most = Run._record, []

def noted(self, *arguments):
    record(self, *arguments)
    most.append(self.held + arena.resting_bytes())

Run._record = noted
execute(run)
assert arena.resting_bytes() > 0, "the large tensor's memory rests"
assert max(most) <= capacity, (max(most), capacity)
print("made room")
"""


WORKSPACE = """
import sys
import torch
from outgrow.analysis.cost import Cost
from outgrow.analysis.liveness import live_bytes
from outgrow.frontends import calls
from outgrow.frontends.tracing.capture import capture
from outgrow.frontends.lowering.lower import lower
from outgrow.frontends.user.training.state import Training
from outgrow.runtime import arena
from outgrow.runtime.execute import Run
from outgrow.runtime.heap import Heap
from outgrow.runtime.repeated import execute

arena.install()

def step(x, y):
    total = (x * 2).sum()
    return y + total

batch = torch.ones(16 << 20), torch.ones(1 << 20)
captured = capture(step, [], [], batch)
program = lower(captured.graph, costs={"add": Cost(0.0, 48 << 20, int(sys.argv[1]) << 20)})
run = calls.made_ready(
    calls.Feed(captured.given(Training((), ()), batch), program, Training((), ())),
    None, Heap(), max(live_bytes(captured.graph, {})), observe=False,
)
apply, rested = Run._apply, {}

def noted(self, call):
    rested[call.name] = arena.resting_bytes() >> 20
    return apply(self, call)

Run._apply = noted
execute(run)
print(rested["add"])
"""


BESIDE = """
import mmap
import torch
from outgrow.runtime import arena
from outgrow.runtime.heap import Heap
from outgrow.runtime.process import high_water_bytes, reset_high_water
arena.install()
MIB = 1 << 20
numbers = lambda mebibytes: torch.empty(mebibytes << 18)

def elsewhere(mebibytes):
    block = mmap.mmap(-1, mebibytes * MIB)
    for page in range(0, len(block), mmap.PAGESIZE):
        block[page] = 1
    return block

def tensors_alone():
    return numbers(64), numbers(3)

def freed_before_a_larger_tensor():
    elsewhere(32).close()
    return numbers(96)

def freed_between_tensors_that_nobody_touched():
    one = numbers(96)
    elsewhere(48).close()
    return one, numbers(160)

def amid_memory_that_is_used_again():
    numbers(64)
    elsewhere(32).close()
    return numbers(64), numbers(48)

def kept():
    return elsewhere(32)

for work in tensors_alone, freed_before_a_larger_tensor, freed_between_tensors_that_nobody_touched, \\
        amid_memory_that_is_used_again, kept:
    arena.keep_at_most(0)
    arena.watch()
    rest = work()
    top, beside = arena.watched()
    print(work.__name__, round(beside / MIB / 4) * 4)
    del rest

memory = Heap()
memory.watch()
numbers(40)
elsewhere(8).close()
result = numbers(16)
workspace, served = memory.watched(16 * MIB)
print(round(workspace / MIB / 4) * 4, round(served / MIB / 4) * 4)

memory.watch()
loaded, made = numbers(64), numbers(16)
print(round(memory.watched(16 * MIB)[0] / MIB / 4) * 4)
del loaded, made

memory.watch()
memory.abandon({}, {}, {})
arena.keep_at_most(0)
reset_high_water()
mark = high_water_bytes()
numbers(80)
assert high_water_bytes() - mark < 8 * MIB, "what is given is not touched"
elsewhere(32).close()
numbers(96)
assert high_water_bytes() - mark > 24 * MIB, "the mark stays"
"""


PARTLY = """
import sys
from pathlib import Path
import torch
from outgrow.frontends import calls
from outgrow.frontends.tracing.capture import capture
from outgrow.frontends.lowering.lower import lower
from outgrow.frontends.user.training.state import Training
from outgrow.plan import Piece, Swap
from outgrow.rewriting.derive import apply_laws
from outgrow.runtime import arena
from outgrow.runtime.execute import Run
from outgrow.runtime.heap import Heap
from outgrow.runtime.repeated import execute
from outgrow.runtime.process import process_bytes
from outgrow.runtime.medium import OnDisk
from outgrow.runtime.spill import Spill

if sys.argv[2] == "arena":
    arena.install()

def step(x):
    first = x.exp()
    second = first.sin()
    third = (second * 3).sum() + x.sum()
    return first * third, first + second

x = torch.rand(8 << 20)
expected = step(x)
captured = capture(step, [], [], (x,))
names = [op.name for op in captured.graph.ops]
held = next(captured.graph.values[op.results[0]].storage for op in captured.graph.ops if "exp" in op.operator)
uses = [op.name for op in captured.graph.ops if held in captured.graph.touched(op)]
after, before = uses[1], uses[2]
between = names[names.index(after) + 1 : names.index(before)]
pieces = (Piece(0, 8 << 20, between[-1]), Piece(8 << 20, 20 << 20, before))
derived = apply_laws(captured.graph, [Swap(held, after, between[0], pieces, before)])
program = lower(derived)
spill = Spill(OnDisk(Path(sys.argv[1])))
spill.reserve(program.scratch_bytes, 0)
seen, drop = [], Run._drop

def noted(self, storage, begin, end):
    arena.keep_at_most(0)
    size = process_bytes()
    drop(self, storage, begin, end)
    arena.keep_at_most(0)
    seen.append(round((size - process_bytes()) / (1 << 20)))

Run._drop = noted
feed = calls.Feed(captured.given(Training((), ()), (x,)), program, Training((), ()))
outcome = execute(calls.made_ready(feed, spill, Heap(), 1 << 40, observe=False))
assert all(torch.equal(one, other) for one, other in zip(outcome.results, expected, strict=True))
spill.close()
print(seen)
"""


@pytest.mark.parametrize("memory", [pytest.param("arena", marks=needs_compiler), "torch"])
def test_a_part_of_a_storage_leaves_and_comes_back(memory: str, disk_folder: Path) -> None:
    """20 of its 32 MiB are free for others meanwhile, and the step computes the same."""
    found = ran(PARTLY, disk_folder, memory)
    assert found.returncode == 0, found.stderr
    assert found.stdout == "[20]\n"


@needs_compiler
def test_what_rests_makes_room_for_small_tensors() -> None:
    """They take other memory than the arena's; both together keep within what the step holds at most."""
    found = ran(SMALL_AFTER_LARGE)
    assert found.stdout == "made room\n", found.stderr


@needs_compiler
@pytest.mark.parametrize(("served", "rests"), [(48, 64), (16, 32), (0, 16)])
def test_what_rests_serves_workspace_and_makes_room_for_what_it_cannot_serve(served: int, rests: int) -> None:
    """Of an op that takes 48 MiB, beside 64 MiB that rest and may stay."""
    found = ran(WORKSPACE, served)
    assert found.stdout == f"{rests}\n", found.stderr


FREED = """
import os

import torch

from outgrow.runtime import arena

arena.install()
first, second = torch.ones(8 << 20), torch.ones(2 << 20)
arena.rest_at_most(16 << 20)
del first
beyond = arena.resting_bytes()
del second
print(beyond, arena.resting_bytes() >> 20)
if os.fork() == 0:
    torch.empty(1 << 20)
    print(arena.resting_bytes(), flush=True)
    os._exit(0)
os.wait()
arena.rest_at_most(0)
torch.empty(1 << 20)
print(arena.resting_bytes())
"""


@needs_compiler
def test_what_is_freed_beyond_a_limit_goes_to_the_kernel() -> None:
    """In a process that is forked off all of it does, and behind the last step."""
    found = ran(FREED)
    assert found.stdout == "0 8\n0\n0\n", found.stderr


FORKED = """
import os
import sys
from pathlib import Path

import torch

from outgrow.runtime import arena
from outgrow.runtime.medium import OnDisk
from outgrow.runtime.resting import forget
from outgrow.runtime.spill import Spill

torch.set_num_threads(1)  # a child has none of the threads that its parent computes with
arena.install()
weight, kept = torch.zeros(1 << 20), torch.ones(1 << 20)
spill = Spill(OnDisk(Path(sys.argv[1])))
spill.reserve(0, weight.nbytes)
extents = spill.arrange({"weight": weight.untyped_storage()}, {"weight"}, {})
freed = torch.ones(8 << 20)
del freed
resting = arena.resting_bytes()
child = os.fork()
if child == 0:
    weight += 1
    forget(weight.untyped_storage())
    is_right = weight[-1] == 1 and kept.sum() == 1 << 20 and arena.resting_bytes() == 0
    torch.ones(8 << 20)
    os._exit(0 if is_right else 1)
_, status = os.waitpid(child, 0)
again = torch.full((8 << 20,), 2.0)
print(os.waitstatus_to_exitcode(status), resting >> 20, arena.resting_bytes(), int(weight.sum()), int(again[-1]))
"""


@needs_compiler
def test_a_child_has_no_part_in_what_rests(disk_folder: Path) -> None:
    """It reads weights that rest on the disk and may write them for itself; memory that rests stays its parent's."""
    found = ran(FORKED, disk_folder)
    assert found.stdout == "0 32 0 0 2\n", found.stderr


@needs_compiler
def test_what_an_op_takes_beside_the_arena_is_seen() -> None:
    """Whenever it took it, and even if it was free again before the arena grew by more.

    A tensor that stays and is no result, such as a batch that a thread loads meanwhile, is no workspace of the op.
    """
    found = ran(BESIDE)
    assert found.stdout.splitlines() == [
        "tensors_alone 0",
        "freed_before_a_larger_tensor 32",
        "freed_between_tensors_that_nobody_touched 48",
        "amid_memory_that_is_used_again 32",
        "kept 0",
        "32 24",
        "0",
    ], found.stderr
    assert found.returncode == 0, found.stderr


def test_without_a_compiler_tensors_take_fresh_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """There is no arena then, nothing fails, and it is said what that means."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", "/nowhere/c++")
    monkeypatch.setattr(arena, "_library", arena._library.__wrapped__)
    monkeypatch.setattr(arena, "_installed", [])
    with pytest.warns(UserWarning, match="no C\\+\\+ compiler that works, so steps are slower, and weights"):
        assert not arena.install()
    assert not arena.is_installed()
    assert arena.resting_bytes() == 0
    arena.keep_at_most(0)


@needs_compiler
def test_a_library_that_does_not_load_is_made_anew(tmp_path: Path) -> None:
    """A cache folder may be shared by machines of which each needs its own."""
    path = tmp_path / "arena.so"
    path.write_bytes(b"of another machine")
    assert native.load_from(path, arena._SOURCE).arena_resting_bytes() == 0
    assert path.stat().st_size > 1000
