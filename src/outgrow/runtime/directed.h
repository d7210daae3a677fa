// Where the allocations of an operator go. What it is for is said in directed.py; each library includes this once.
//
//   site     what a plan says of one instruction: the places of some allocations, and a range of scratch for the others
//   table    the sites of a program
//   visit    the stay of a thread at a site, from one call of directed_at to the next
//   piece    bytes of a scratch range that are in use
//   log      what a thread allocates while it is watched, and when that dies
//
// Allocations are counted as they succeed, those of zero bytes excepted: these have no place, and are not logged.
// The context of what is handed out is its address, as raw_allocate requires, by which oneDNN takes its scratch. So
// what is ours is found by its address, and what has a place, and no owner but the plan, has no context at all.

#pragma once

#include <c10/core/Allocator.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

constexpr size_t kSlot = 512;

struct Assignment {
  size_t number;
  size_t bytes;
  char* address;
};

struct Table;

struct Site {
  Table* table;
  char* scratch;
  size_t scratch_bytes;
  std::vector<Assignment> assignments;
};

struct Table {
  c10::DeviceIndex device = -1;
  std::deque<Site> sites;  // which stay where they are
  std::atomic<size_t> strays{0};
  std::atomic<size_t> holders{1};  // its owner, and every thread that visits one of its sites
  std::atomic<bool> is_closed{false};
};

struct Piece {
  char* begin;
  size_t bytes;
  size_t visit;
};

// The moments are ordinal numbers of births and deaths in one log; nothing dies at 0, which says that it lives.
struct Entry {
  size_t bytes;
  void* address;
  size_t born;
  size_t died;
};

struct Log {
  c10::DeviceIndex device;
  size_t events;
  bool has_ended;
  std::vector<Entry> entries;
};

struct Watched {
  c10::DataPtr kept;
  std::shared_ptr<Log> log;
  size_t entry;
};

// What this library has handed out, and is to be told of when it dies.
struct Ledger {
  std::mutex guard;
  std::vector<Piece> pieces;  // in the order of their addresses
  std::unordered_map<void*, Watched> watched;
};

Ledger& ledger = *new Ledger;  // never destroyed: some tensors outlive all that is
std::atomic<size_t> owned{0};  // pieces and watched allocations in the ledger
std::atomic<size_t> tables{0};
std::atomic<size_t> visits{0};
std::atomic<c10::Allocator*> beneath{nullptr};  // the allocator that was there before

struct Here {
  Site* site;     // nullptr: everything is forwarded
  size_t visit;   // 0 until the visit takes scratch
  size_t number;  // of the visit's next allocation
  std::shared_ptr<Log>* log;
};
thread_local Here here{};

void drop(Table* table) {
  if (--table->holders != 0) return;
  delete table;
  --tables;
}

size_t count_pieces(size_t visit) {
  const std::lock_guard<std::mutex> lock(ledger.guard);
  const auto is_of_visit = [visit](const Piece& piece) { return piece.visit == visit; };
  return std::count_if(ledger.pieces.begin(), ledger.pieces.end(), is_of_visit);
}

void go(Site* site);

// A thread that dies leaves the site that it visits.
struct Departure {
  bool is_due = false;
  ~Departure() {
    if (is_due) go(nullptr);
  }
};
thread_local Departure departure;

void go(Site* site) {
  Table* left = here.site == nullptr ? nullptr : here.site->table;
  Table* reached = site == nullptr ? nullptr : site->table;
  if (here.visit != 0) left->strays += count_pieces(here.visit);
  here.site = site;
  here.visit = here.number = 0;
  if (left == reached) return;
  if (reached != nullptr) {
    ++reached->holders;
    departure.is_due = true;
  }
  if (left != nullptr) drop(left);
}

// The lowest bytes of the scratch that no piece of this visit has, in slots; nullptr if there are not as many.
char* first_fit(const Site& site, size_t bytes) {
  if (bytes > site.scratch_bytes) return nullptr;
  const size_t size = (bytes + kSlot - 1) / kSlot * kSlot;
  const std::lock_guard<std::mutex> lock(ledger.guard);
  if (here.visit == 0) here.visit = ++visits;
  size_t offset = 0;
  for (const Piece& piece : ledger.pieces) {
    if (piece.visit != here.visit) continue;
    const size_t begin = piece.begin - site.scratch;
    if (begin - offset >= size) break;
    offset = begin + piece.bytes;
  }
  if (offset > site.scratch_bytes || size > site.scratch_bytes - offset) return nullptr;
  char* place = site.scratch + offset;
  const auto is_below = [](const char* address, const Piece& piece) { return address < piece.begin; };
  const auto next = std::upper_bound(ledger.pieces.begin(), ledger.pieces.end(), place, is_below);
  ledger.pieces.insert(next, {place, size, here.visit});
  ++owned;
  return place;
}

bool give_piece(void* begin) {
  const auto is_it = [begin](const Piece& piece) { return piece.begin == begin; };
  const auto found = std::find_if(ledger.pieces.begin(), ledger.pieces.end(), is_it);
  if (found == ledger.pieces.end()) return false;
  ledger.pieces.erase(found);
  --owned;
  return true;
}

// Gives back what was handed out, here or beneath, on any thread.
void release(void* begin) {
  c10::DataPtr kept;  // which dies when the ledger is open again
  {
    const std::lock_guard<std::mutex> lock(ledger.guard);
    if (give_piece(begin)) return;
    const auto found = ledger.watched.find(begin);
    if (found != ledger.watched.end()) {
      Log& log = *found->second.log;
      if (!log.has_ended) log.entries[found->second.entry].died = log.events++;
      kept = std::move(found->second.kept);
      ledger.watched.erase(found);
      --owned;
      return;
    }
  }
  beneath.load()->raw_deleter()(begin);
}

c10::DataPtr noted(c10::DataPtr kept, size_t bytes) {
  void* address = kept.get();
  const c10::Device device = kept.device();
  const std::lock_guard<std::mutex> lock(ledger.guard);
  Log& log = **here.log;
  log.entries.push_back({bytes, address, log.events++, 0});
  if (kept.get_context() == nullptr) return kept;  // it has no owner whose death could be told
  ledger.watched.emplace(address, Watched{std::move(kept), *here.log, log.entries.size() - 1});
  ++owned;
  return {address, address, &release, device};
}

// Nothing where neither a place nor scratch is left for it.
c10::DataPtr directed(const Site& site, size_t bytes, c10::Device device) {
  for (const Assignment& assigned : site.assignments) {
    if (assigned.number == here.number && assigned.bytes == bytes) return {assigned.address, device};
  }
  char* begin = first_fit(site, bytes);
  if (begin == nullptr) return {};
  return {begin, begin, &release, device};
}

// Whether this thread's allocations are of interest at all.
bool is_forwarding() {
  return here.site == nullptr && here.log == nullptr;
}

// What `allocate` is, over the allocator that was there before.
c10::DataPtr serve(c10::Allocator& before, size_t bytes, c10::Device device) {
  if (bytes == 0 || is_forwarding()) return before.allocate(bytes);
  if (here.log != nullptr) {
    c10::DataPtr made = before.allocate(bytes);
    return (*here.log)->device == device.index() ? noted(std::move(made), bytes) : std::move(made);
  }
  const Table& table = *here.site->table;
  if (table.device != device.index() || table.is_closed) return before.allocate(bytes);
  c10::DataPtr made = directed(*here.site, bytes, device);
  if (!made) made = before.allocate(bytes);
  ++here.number;
  return made;
}

// What `raw_deleter` is. While nothing of ours is out it is that of the allocator beneath, by which others, our arena
// among them, tell whose memory a storage has.
c10::DeleterFnPtr deleter_over(const c10::Allocator& before) {
  return owned == 0 ? before.raw_deleter() : &release;
}

// The deleter that memory has beneath; nullptr for what lies where the plan says, as long as the plan says.
[[maybe_unused]] c10::DeleterFnPtr deleter_beneath(const c10::DataPtr& pointer) {
  const c10::DeleterFnPtr deleter = pointer.get_deleter();
  if (pointer.get_context() == nullptr) return nullptr;
  if (deleter != &release) return deleter;
  const std::lock_guard<std::mutex> lock(ledger.guard);
  const auto found = ledger.watched.find(pointer.get());
  return found == ledger.watched.end() ? nullptr : found->second.kept.get_deleter();
}

}  // namespace

extern "C" {

// Makes a table without sites, for a device of this library's type.
Table* directed_table(int device) {
  ++tables;
  Table* table = new Table;
  table->device = static_cast<c10::DeviceIndex>(device);
  return table;
}

Site* directed_site(Table* table, char* scratch, size_t scratch_bytes, const Assignment* assignments, size_t count) {
  return &table->sites.emplace_back(Site{table, scratch, scratch_bytes, {assignments, assignments + count}});
}

// Takes a table out of use, and frees it as soon as no thread visits its sites.
void directed_close(Table* table) {
  table->is_closed = true;
  if (here.site != nullptr && here.site->table == table) go(nullptr);
  drop(table);
}

// From now on this thread's allocations go where `site` says; nullptr: to the allocator that was there before.
void directed_at(Site* site) {
  go(site);
}

// The pieces that were in use when a visit ended, since the last call.
size_t directed_strays(Table* table) {
  return table->strays.exchange(0);
}

// From now on this thread's allocations of one device are logged, and forwarded whatever its site says. Returns nullptr
// if they are already.
std::shared_ptr<Log>* directed_watch(int device) {
  if (here.log != nullptr) return nullptr;
  here.log = new std::shared_ptr<Log>(new Log{static_cast<c10::DeviceIndex>(device), 0, false, {}});
  return here.log;
}

// Ends what directed_watch began on this thread. Returns the number of entries.
size_t directed_unwatch() {
  const std::lock_guard<std::mutex> lock(ledger.guard);
  Log& log = **here.log;
  here.log = nullptr;
  log.has_ended = true;
  return log.entries.size();
}

// Writes the entries of a log that has ended, and frees it.
void directed_entries(std::shared_ptr<Log>* log, Entry* entries) {
  std::vector<Entry> held = std::move((*log)->entries);  // what is still watched keeps the rest of the log
  std::copy(held.begin(), held.end(), entries);
  delete log;
}

// The tables that are not freed, for tests.
size_t directed_tables() {
  return tables;
}

// The pieces and the watched allocations that live, for tests.
size_t directed_owned() {
  return owned;
}
}
