// The allocator of CUDA tensors, directed. What that means is said in directed.py, and how it is done in directed.h.
//
// Only `allocate` is ours. All else is the business of the allocator that was there before, also where its base class
// has an answer of its own: so statistics, pools, graphs, history and the memory fraction stay what they are.

// torch's headers ask for cuda_runtime.h and use the C half of it. Its C++ half is taken as read: that needs headers of
// nvcc, which may not be there.
#define __CUDA_RUNTIME_H__
#include <cuda_runtime_api.h>

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <torch/headeronly/version.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "directed.h"

#define OUTGROW_TORCH (TORCH_VERSION_MAJOR * 1000 + TORCH_VERSION_MINOR)

namespace {

namespace native = c10::cuda::CUDACachingAllocator;
using c10::DeviceIndex;
using c10::MempoolId_t;

struct DirectedAllocator final : native::CUDAAllocator {
  native::CUDAAllocator& before;
  std::atomic<bool> is_on_top{true};  // another allocator lies between it and the one that is, otherwise

  explicit DirectedAllocator(native::CUDAAllocator& allocator) : before(allocator) {}

  // c10::Allocator

  c10::DataPtr allocate(size_t bytes) override {
    DeviceIndex device = -1;
    if (!is_on_top || is_forwarding() || c10::cuda::GetDevice(&device) != cudaSuccess) return before.allocate(bytes);
    return serve(before, bytes, c10::Device(c10::DeviceType::CUDA, device));
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

  // c10::DeviceAllocator

  bool initialized() override {
    return before.initialized();
  }
  void emptyCache(MempoolId_t pool) override {
    before.emptyCache(pool);
  }
  void recordStream(const c10::DataPtr& pointer, c10::Stream stream) override {
    record(pointer, stream);
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override {
    return before.getDeviceStats(device);
  }
  void resetAccumulatedStats(DeviceIndex device) override {
    before.resetAccumulatedStats(device);
  }
  void resetPeakStats(DeviceIndex device) override {
    before.resetPeakStats(device);
  }
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex device) override {
    return before.getMemoryInfo(device);
  }

  // CUDAAllocator

  void* raw_alloc(size_t bytes) override {
    return before.raw_alloc(bytes);
  }
  void* raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override {
    return before.raw_alloc_with_stream(bytes, stream);
  }
  void raw_delete(void* pointer) override {
    before.raw_delete(pointer);
  }
  void init(int device_count) override {
    before.init(device_count);
  }
  double getMemoryFraction(DeviceIndex device) override {
    return before.getMemoryFraction(device);
  }
  void setMemoryFraction(double fraction, DeviceIndex device) override {
    before.setMemoryFraction(fraction, device);
  }
  std::vector<native::StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex device) override {
    return before.getExpandableSegmentSizes(device);
  }
  void enable(bool value) override {
    before.enable(value);
  }
  bool isEnabled() const override {
    return before.isEnabled();
  }
  void cacheInfo(DeviceIndex device, size_t* largest_block) override {
    before.cacheInfo(device, largest_block);
  }
  void* getBaseAllocation(void* pointer, size_t* bytes) override {
    return before.getBaseAllocation(pointer, bytes);
  }
  void recordStream(const c10::DataPtr& pointer, c10::cuda::CUDAStream stream) override {
    record(pointer, stream);
  }
  native::SnapshotInfo snapshot(MempoolId_t pool, bool include_traces) override {
    return before.snapshot(pool, include_traces);
  }
  void beginAllocateToPool(DeviceIndex device, MempoolId_t pool, std::function<bool(cudaStream_t)> filter) override {
    before.beginAllocateToPool(device, pool, std::move(filter));
  }
  void endAllocateToPool(DeviceIndex device, MempoolId_t pool) override {
    before.endAllocateToPool(device, pool);
  }
  void releasePool(DeviceIndex device, MempoolId_t pool) override {
    before.releasePool(device, pool);
  }
  int getPoolUseCount(DeviceIndex device, MempoolId_t pool) override {
    return before.getPoolUseCount(device, pool);
  }
  void createOrIncrefPool(DeviceIndex device, MempoolId_t pool, std::shared_ptr<CUDAAllocator> allocator) override {
    before.createOrIncrefPool(device, pool, std::move(allocator));
  }
  void setUseOnOOM(DeviceIndex device, MempoolId_t pool, bool use_on_oom) override {
    before.setUseOnOOM(device, pool, use_on_oom);
  }
  void setNoSplit(DeviceIndex device, MempoolId_t pool) override {
    before.setNoSplit(device, pool);
  }
  bool checkPoolLiveAllocations(
      DeviceIndex device,
      MempoolId_t pool,
      const std::unordered_set<void*>& expected) override {
    return before.checkPoolLiveAllocations(device, pool, expected);
  }
  native::ShareableHandle shareIpcHandle(void* pointer) override {
    return before.shareIpcHandle(pointer);
  }
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override {
    return before.getIpcDevPtr(std::move(handle));
  }
  bool isHistoryEnabled() override {
    return before.isHistoryEnabled();
  }
  void recordHistory(
      bool enabled,
      native::CreateContextFn recorder,
      size_t most_entries,
      native::RecordContext when,
      bool clear,
      const std::vector<std::string>& skipped) override {
    before.recordHistory(enabled, recorder, most_entries, when, clear, skipped);
  }
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& annotation) override {
    before.recordAnnotation(annotation);
  }
  void pushCompileContext(std::string& context) override {
    before.pushCompileContext(context);
  }
  void popCompileContext() override {
    before.popCompileContext();
  }
  void setUserMetadata(const std::string& metadata) override {
    before.setUserMetadata(metadata);
  }
  std::string getUserMetadata() override {
    return before.getUserMetadata();
  }
  void attachOutOfMemoryObserver(native::OutOfMemoryObserver observer) override {
    before.attachOutOfMemoryObserver(std::move(observer));
  }
  void attachAllocatorTraceTracker(native::AllocatorTraceTracker tracker) override {
    before.attachAllocatorTraceTracker(std::move(tracker));
  }
  void enablePeerAccess(DeviceIndex device, DeviceIndex accessed) override {
    before.enablePeerAccess(device, accessed);
  }
  cudaError_t memcpyAsync(
      void* target,
      int target_device,
      const void* source,
      int source_device,
      size_t bytes,
      cudaStream_t stream,
      bool has_peer_access) override {
    return before.memcpyAsync(target, target_device, source, source_device, bytes, stream, has_peer_access);
  }
  std::shared_ptr<native::AllocatorState> getCheckpointState(DeviceIndex device, MempoolId_t pool) override {
    return before.getCheckpointState(device, pool);
  }
  native::CheckpointDelta setCheckpointPoolState(
      DeviceIndex device,
      std::shared_ptr<native::AllocatorState> state) override {
    return before.setCheckpointPoolState(device, std::move(state));
  }
  std::string name() override {
    return before.name();
  }
#if OUTGROW_TORCH >= 2012
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* pointer) override {
    return before.getContextForPointer(pointer);
  }
  void attachOomRejectionObserver(native::OomRejectionObserver observer) override {
    before.attachOomRejectionObserver(std::move(observer));
  }
#endif
#if OUTGROW_TORCH >= 2013
  void markCaptureBegin(DeviceIndex device) override {
    before.markCaptureBegin(device);
  }
  void markCaptureEnd(DeviceIndex device) override {
    before.markCaptureEnd(device);
  }
  c10::DataPtr allocateWithAddress(size_t bytes, void* address) override {
    return before.allocateWithAddress(bytes, address);
  }
#endif
#if OUTGROW_TORCH >= 2014
  bool supportsUserMetadata() override {
    return before.supportsUserMetadata();
  }
  void annotateMemory(const void* pointer, const std::string& metadata) override {
    before.annotateMemory(pointer, metadata);
  }
#endif

 private:
  // Says beneath that a stream uses memory of there. Pieces and places need no such word: the plan orders their uses.
  template <class Stream>
  void record(const c10::DataPtr& pointer, Stream stream) {
    const c10::DeleterFnPtr deleter = deleter_beneath(pointer);
    if (deleter != nullptr) before.recordStream({pointer.get(), nullptr, deleter, pointer.device()}, stream);
  }
};

}  // namespace

extern "C" {

// From now on the allocations of threads that visit a site are directed. What was installed since the last call keeps
// serving what is forwarded.
void directed_install() {
  static DirectedAllocator* top = nullptr;
  native::CUDAAllocator* now = native::allocator.load();
  if (now == top) return;
  if (top != nullptr) top->is_on_top = false;
  beneath = now;
  top = new DirectedAllocator(*now);
  native::allocator.store(top);
}
}
