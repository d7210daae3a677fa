// The allocator of CPU tensors, directed. What that means is said in directed.py, and how it is done in directed.h.

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <atomic>

#include "directed.h"

namespace {

struct DirectedAllocator final : c10::Allocator {
  c10::Allocator& before;
  std::atomic<bool> is_on_top{true};  // another allocator lies between it and the one that is, otherwise

  explicit DirectedAllocator(c10::Allocator& allocator) : before(allocator) {}

  c10::DataPtr allocate(size_t bytes) override {
    return is_on_top ? serve(before, bytes, c10::Device(c10::DeviceType::CPU)) : before.allocate(bytes);
  }

  bool is_simple_data_ptr(const c10::DataPtr& pointer) const override {
    return before.is_simple_data_ptr(pointer);
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return is_on_top ? deleter_over(before) : before.raw_deleter();
  }

  void copy_data(void* target, const void* source, size_t bytes) const override {
    before.copy_data(target, source, bytes);
  }
};

}  // namespace

extern "C" {

// From now on the allocations of threads that visit a site are directed. What was installed since the last call keeps
// serving what is forwarded.
void directed_install() {
  static DirectedAllocator* top = nullptr;
  c10::Allocator* now = c10::GetCPUAllocator();
  if (now == top) return;
  if (top != nullptr) top->is_on_top = false;
  beneath = now;
  top = new DirectedAllocator(*now);
  c10::SetCPUAllocator(top, 255);
}
}
