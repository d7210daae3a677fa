// Memory that is kept when a tensor dies and used again for the next one. What it is for is said in arena.py.
//
//   region   a range of bytes; its pages are resident or come when touched. One of a chunk (2 MiB) or more begins on a
//            chunk
//   rests    freed regions, still resident, the last one freed on top
//
// A request is served by a resting region of its size, else by chunks moved out of resting regions (mremap moves
// page tables, not bytes), and only the rest by fresh memory. So the regions together never take more than the
// most that was live at once, however sizes change and whatever the order of frees: nothing is fragmented.

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <unordered_map>
#include <utility>
#include <vector>

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

namespace {

constexpr size_t kChunk = size_t{2} << 20;
constexpr size_t kLeast = size_t{256} << 10;

struct Region {
  char* begin;
  size_t bytes;
};

std::mutex guard;
// Not destroyed at the end of the process: tensors die after that.
auto& rests = *new std::vector<Region>;
auto& live = *new std::unordered_map<void*, size_t>;
bool has_lent = false;  // parts of a region: they may be lent still when it dies amid a failure
size_t resting_bytes = 0;
size_t most_resting = SIZE_MAX;  // what is freed beyond that goes to the kernel
size_t live_bytes = 0;
size_t peak_bytes = 0;

size_t round_up(size_t number, size_t multiple) {
  return (number + multiple - 1) / multiple * multiple;
}

size_t in_pages(size_t bytes) {
  static const size_t page = sysconf(_SC_PAGESIZE);
  return round_up(bytes, page);
}

// A child that is forked off has no part in what rests: pages that both had would be copied as soon as one writes them.
// A thread of the parent may hold the guard at a fork; the child has no such thread, and would wait for ever.
void inherit(int advice) {
  for (const Region& region : rests) madvise(region.begin, in_pages(region.bytes), advice);
}

const int at_fork = pthread_atfork(
    [] {
      guard.lock();
      inherit(MADV_DONTFORK);
    },
    [] {
      inherit(MADV_DOFORK);
      guard.unlock();
    },
    [] {
      rests.clear();
      resting_bytes = most_resting = 0;  // it runs no step yet: what a worker frees that loads batches is the kernel's
      guard.unlock();
    });

// Addresses that nobody may touch, beginning on a chunk if they have room for one; nullptr if there are none.
char* reserve(size_t bytes) {
  const size_t asked = bytes < kChunk ? bytes : bytes + kChunk;
  void* found = mmap(nullptr, asked, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (found == MAP_FAILED) return nullptr;
  if (asked == bytes) return static_cast<char*>(found);
  char* first = static_cast<char*>(found);
  char* begin = reinterpret_cast<char*>(round_up(reinterpret_cast<size_t>(first), kChunk));
  if (begin > first) munmap(first, begin - first);
  char* end = begin + bytes;
  if (first + asked > end) munmap(end, first + asked - end);
  madvise(begin, bytes, MADV_HUGEPAGE);
  return begin;
}

// Takes one resident chunk from the region that rests longest, and keeps the first `bytes` of it.
bool move_chunk_to(char* place, size_t bytes) {
  while (!rests.empty()) {
    Region& region = rests.front();
    const size_t tail = region.bytes % kChunk;
    if (tail != 0) {
      munmap(region.begin + region.bytes - tail, in_pages(tail));
      region.bytes -= tail;
      resting_bytes -= tail;
    }
    if (region.bytes == 0) {
      rests.erase(rests.begin());
      continue;
    }
    if (mremap(region.begin, kChunk, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, place) == MAP_FAILED) return false;
    region.begin += kChunk;  // the first one, so that chunks that follow each other do so again, in one mapping
    region.bytes -= kChunk;
    resting_bytes -= kChunk;
    return true;
  }
  return false;
}

// Makes reserved bytes usable: with resting chunks first, with fresh memory for what is left.
bool fill(char* begin, size_t bytes) {
  const size_t wanted = in_pages(bytes);
  size_t done = 0;
  while (done < wanted) {
    const size_t part = wanted - done < kChunk ? wanted - done : kChunk;
    if (!move_chunk_to(begin + done, part)) break;
    done += part;
  }
  return done == wanted || mprotect(begin + done, wanted - done, PROT_READ | PROT_WRITE) == 0;
}

void drop(const Region& region) {
  munmap(region.begin, in_pages(region.bytes));
}

void keep_at_most(size_t bytes) {
  while (resting_bytes > bytes) {
    Region& region = rests.front();
    const size_t excess = round_up(resting_bytes - bytes, kChunk);
    if (excess < region.bytes) {
      const size_t left = (region.bytes - excess) / kChunk * kChunk;
      drop({region.begin + left, region.bytes - left});
      resting_bytes -= region.bytes - left;
      region.bytes = left;
      if (left != 0) continue;
    } else {
      resting_bytes -= region.bytes;
      drop(region);
    }
    rests.erase(rests.begin());
  }
}

void note_live(char* begin, size_t bytes) {
  live[begin] = bytes;
  live_bytes += bytes;
  if (live_bytes > peak_bytes) peak_bytes = live_bytes;
}

// The region of this size that was freed last, which rests no more; nullptr if there is none.
char* awaken(size_t bytes) {
  for (size_t at = rests.size(); at-- > 0;) {
    if (rests[at].bytes == bytes) {
      char* begin = rests[at].begin;
      rests.erase(rests.begin() + at);
      resting_bytes -= bytes;
      return begin;
    }
  }
  return nullptr;
}

// While an op is watched: what the process took when it began, and since then at most, in all and beside the arena.
struct Watch {
  bool on = false;
  ptrdiff_t begin = 0;
  ptrdiff_t top = 0;
  ptrdiff_t beside = 0;
};
Watch watch;

// A field of what the kernel says of this process, in bytes; 0 if it does not say.
ptrdiff_t kernel_says(const char* field) {
  char text[1 << 14];
  const int file = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  const ssize_t size = read(file, text, sizeof text - 1);
  close(file);
  text[size < 0 ? 0 : size] = 0;
  const char* found = strstr(text, field);
  return found == nullptr ? 0 : ptrdiff_t{strtol(found + strlen(field), nullptr, 10)} * 1024;
}

void reset_high_water() {
  const int file = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
  if (file < 0 || write(file, "5", 1) != 1) watch.beside = PTRDIFF_MAX;  // what comes later would not be seen
  if (file >= 0) close(file);
}

ptrdiff_t held_bytes() {
  return static_cast<ptrdiff_t>(live_bytes + resting_bytes);
}

// Notes the high water since the arena last grew: all that it held was resident all that time.
void look() {
  const ptrdiff_t high = kernel_says("VmHWM:");
  watch.top = std::max(watch.top, high);
  watch.beside = std::max(watch.beside, high - held_bytes() - watch.begin);
}

// Touches every page of memory that an op was just given, so that what comes later is not taken for it.
void settle(char* begin, size_t bytes) {
  static const size_t page = sysconf(_SC_PAGESIZE);
  for (size_t at = 0; at < bytes; at += page) static_cast<volatile char*>(begin)[at] = 0;
  reset_high_water();
}

// A new region, of what rests and fresh memory; nullptr if there is none.
char* make(size_t bytes) {
  char* begin = reserve(in_pages(bytes));
  if (begin == nullptr || fill(begin, bytes)) return begin;
  munmap(begin, in_pages(bytes));
  return nullptr;
}

void* take(size_t bytes) {
  const std::lock_guard<std::mutex> lock(guard);
  char* begin = awaken(bytes);
  const bool is_new = begin == nullptr;
  if (is_new) {
    if (watch.on) look();
    begin = make(bytes);
    if (begin == nullptr) {  // limits of addresses (ulimit -v) and of mappings (vm.max_map_count) count what rests
      keep_at_most(0);
      begin = make(bytes);
    }
    if (begin == nullptr) return nullptr;
  }
  note_live(begin, bytes);
  if (watch.on && is_new) settle(begin, bytes);
  return begin;
}

bool has(void* begin) {
  const std::lock_guard<std::mutex> lock(guard);
  return live.count(begin) != 0;
}

void give(void* begin) {
  const std::lock_guard<std::mutex> lock(guard);
  const auto found = live.find(begin);
  const Region region{static_cast<char*>(begin), found->second};
  live_bytes -= region.bytes;
  live.erase(found);
  const bool has_room = most_resting >= resting_bytes && region.bytes <= most_resting - resting_bytes;
  if (has_room && (!has_lent || mprotect(begin, in_pages(region.bytes), PROT_READ | PROT_WRITE) == 0)) {
    rests.push_back(region);
    resting_bytes += region.bytes;
  } else {
    drop(region);
  }
}

// What this thread says of the tensors of `bytes` that it makes next: `idle` ones that nobody touches, then one that
// lies at `begin`, in memory that stays its owner's (nullptr: anywhere).
struct Expectation {
  size_t bytes;
  size_t idle;
  char* begin;
};
thread_local Expectation expected{0, 0, nullptr};

// Fresh memory that takes no pages until it is touched, and goes back to the kernel with its tensor.
struct Lazy {
  void* begin;
  size_t bytes;
};

void release_lazy(void* context) {
  Lazy* lazy = static_cast<Lazy*>(context);
  munmap(lazy->begin, lazy->bytes);
  delete lazy;
}

c10::DataPtr lazily(size_t bytes) {
  const size_t asked = in_pages(bytes);
  void* begin = mmap(nullptr, asked, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (begin == MAP_FAILED) throw std::bad_alloc();
  return {begin, new Lazy{begin, asked}, &release_lazy, c10::Device(c10::DeviceType::CPU)};
}

struct ArenaAllocator final : c10::Allocator {
  c10::Allocator* before = nullptr;

  c10::DataPtr allocate(size_t bytes) override {
    if (bytes != 0 && bytes == expected.bytes) {
      if (expected.idle > 0) {
        --expected.idle;
        return lazily(bytes);
      }
      char* begin = expected.begin;
      expected = {0, 0, nullptr};
      if (begin != nullptr) return {begin, c10::Device(c10::DeviceType::CPU)};
    }
    if (bytes < kLeast) return before->allocate(bytes);
    void* begin = take(bytes);
    if (begin == nullptr) return before->allocate(bytes);  // which says in its own words why there is no memory
    c10::profiledCPUMemoryReporter().New(begin, bytes);
    return {begin, begin, &release, c10::Device(c10::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return &release;
  }

  void copy_data(void* target, const void* source, size_t bytes) const override {
    std::memcpy(target, source, bytes);
  }

  static void release(void* begin);
};

ArenaAllocator arena;

void ArenaAllocator::release(void* begin) {
  if (!has(begin)) return arena.before->raw_deleter()(begin);
  c10::profiledCPUMemoryReporter().Delete(begin);  // before another tensor may be there
  give(begin);
}

}  // namespace

extern "C" {

// From now on torch's tensors of 256 KiB and more live here.
void arena_install() {
  if (arena.before != nullptr) return;
  arena.before = c10::GetCPUAllocator();
  c10::SetCPUAllocator(&arena, 255);
}

// Keeps the memory of whole chunks of a region in use for others; the addresses stay, with nothing behind them until
// arena_fill. Returns 0, or -1 where the kernel cannot: some of the memory may have gone then.
int arena_lend(void* begin, size_t bytes) {
  const std::lock_guard<std::mutex> lock(guard);
  has_lent = true;
  char* place = reserve(bytes);
  if (place == nullptr) return -1;
  size_t done = 0;
  for (; done < bytes; done += kChunk) {
    char* chunk = static_cast<char*>(begin) + done;
    const int flags = MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP;
    if (mremap(chunk, kChunk, kChunk, flags, place + done) == MAP_FAILED) break;
    mprotect(chunk, kChunk, PROT_NONE);  // so that a limit on the process's data does not count it
  }
  if (done < bytes) munmap(place + done, bytes - done);
  if (done != 0) rests.push_back({place, done});
  resting_bytes += done;
  return done == bytes ? 0 : -1;
}

// Says what tensors of `bytes` this thread makes next, see Expectation; 0 bytes: nothing.
void arena_expect(size_t bytes, size_t idle, void* begin) {
  expected = {bytes, idle, static_cast<char*>(begin)};
}

size_t arena_resting_bytes() {
  const std::lock_guard<std::mutex> lock(guard);
  return resting_bytes;
}

size_t arena_live_bytes() {
  const std::lock_guard<std::mutex> lock(guard);
  return live_bytes;
}

// The most bytes of tensors that were live at once since the last call, beyond those live at that call.
size_t arena_rise_bytes() {
  static size_t since = 0;
  const std::lock_guard<std::mutex> lock(guard);
  const size_t rise = peak_bytes > since ? peak_bytes - since : 0;
  since = peak_bytes = live_bytes;
  return rise;
}

// Begins to watch an op; memory that it is given is touched at once until `arena_watched`.
void arena_watch() {
  const std::lock_guard<std::mutex> lock(guard);
  watch = {true, kernel_says("VmRSS:") - held_bytes(), 0, 0};
  reset_high_water();
}

// Ends the watch. Writes the most that the process took meanwhile, and returns the most by which what it took beside
// the arena rose above what it takes of that now.
size_t arena_watched(size_t* top) {
  const std::lock_guard<std::mutex> lock(guard);
  look();
  watch.on = false;
  const ptrdiff_t stays = kernel_says("VmRSS:") - held_bytes() - watch.begin;
  *top = watch.top;
  return std::max(watch.beside - std::max(stays, ptrdiff_t{0}), ptrdiff_t{0});
}

void arena_keep_at_most(size_t bytes) {
  const std::lock_guard<std::mutex> lock(guard);
  keep_at_most(bytes);
}

// As arena_keep_at_most, now and whenever something is freed, until another limit is set.
void arena_rest_at_most(size_t bytes) {
  const std::lock_guard<std::mutex> lock(guard);
  most_resting = bytes;
  keep_at_most(bytes);
}

// Makes bytes of reserved memory usable; `begin` lies on a chunk. Returns 0, or -1 and sets errno.
int arena_fill(void* begin, size_t bytes) {
  const std::lock_guard<std::mutex> lock(guard);
  return fill(static_cast<char*>(begin), bytes) ? 0 : -1;
}

// Lets two storages of one size change places in memory; every tensor over either of them goes along.
void arena_exchange(c10::StorageImpl* one, c10::StorageImpl* other) {
  c10::DataPtr nowhere(nullptr, c10::Device(c10::DeviceType::CPU));
  c10::DataPtr held = one->set_data_ptr(std::move(nowhere));
  one->set_data_ptr_noswap(other->set_data_ptr(std::move(held)));
}

// Lets a storage say that its memory is that of another device, which can reach it; who owns it goes on owning it.
void arena_reach_from(c10::StorageImpl* storage, int type, int index) {
  c10::DataPtr nowhere(nullptr, storage->device());
  c10::DataPtr* held = new c10::DataPtr(storage->set_data_ptr(std::move(nowhere)));
  const c10::Device device(static_cast<c10::DeviceType>(type), static_cast<c10::DeviceIndex>(index));
  storage->set_data_ptr_noswap({held->get(), held, [](void* owner) { delete static_cast<c10::DataPtr*>(owner); }, device});
}

// Whether a storage has memory of torch's own that no allocator is noted for: what `torch.load` reads is like that. It
// cannot be told from memory whose address NumPy has by its being unresizable, which both are.
bool arena_is_loaded(const c10::StorageImpl* storage) {
  c10::Allocator* usual = arena.before != nullptr ? arena.before : c10::GetCPUAllocator();
  const c10::DeleterFnPtr deleter = storage->data_ptr().get_deleter();
  return storage->allocator() == nullptr && (deleter == &ArenaAllocator::release || deleter == usual->raw_deleter());
}

// Takes over a region that was filled whole.
void arena_adopt(void* begin, size_t bytes) {
  const std::lock_guard<std::mutex> lock(guard);
  rests.push_back({static_cast<char*>(begin), bytes});
  resting_bytes += bytes;
}
}
