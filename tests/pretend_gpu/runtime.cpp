// A GPU that is none, below torch's build for CUDA: what that is for is said in __main__.py.
//
// Memory of the device is memory of the host, taken from the kernel as it is touched. Kernels do nothing. Copies are
// made, and streams and events have done their work, by the time a call returns. What is not here succeeds and does
// nothing, too: those functions are made from the names that torch's libraries ask for.

#define __CUDA_RUNTIME_H__  // as in directed_cuda.cpp: the C half is enough
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <mutex>
#include <vector>

#undef cudaGetDeviceProperties
#undef cudaStreamGetCaptureInfo

namespace {

struct Piece {
  size_t bytes;
  cudaMemoryType kind;
};

constexpr size_t kAlignment = 2u << 20;
std::mutex guard;
std::map<char*, Piece> pieces;
size_t taken = 0;
const int page_file = memfd_create("pages", 0);
size_t page_count = 0;
std::vector<size_t> free_pages;
thread_local cudaError_t last = cudaSuccess;

size_t setting(const char* name, size_t otherwise) {
  const char* text = getenv(name);
  return text == nullptr ? otherwise : strtoull(text, nullptr, 10);
}

// The bytes of the device, and those from which on a copy is left out: few machines have the memory for large ones.
const size_t total = setting("PRETEND_BYTES", size_t{139} << 30);
const size_t most_copied = setting("PRETEND_COPY", ~size_t{0});
// How the host may use memory of the device: not at all, unless it computes in place of kernels.
const int shut = setting("PRETEND_OPEN", 0) != 0 ? PROT_READ | PROT_WRITE : PROT_NONE;

cudaError_t failed(cudaError_t error) {
  return last = error;
}

void* mapped(size_t bytes) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* begin = mmap(nullptr, bytes + kAlignment, PROT_READ | PROT_WRITE, flags, -1, 0);
  return reinterpret_cast<void*>((reinterpret_cast<size_t>(begin) + kAlignment - 1) / kAlignment * kAlignment);
}

cudaError_t take(void** begin, size_t bytes, cudaMemoryType kind) {
  const std::lock_guard<std::mutex> lock(guard);
  const bool counts = kind == cudaMemoryTypeDevice;
  if (counts && taken + bytes > total) {
    *begin = nullptr;
    return failed(cudaErrorMemoryAllocation);
  }
  *begin = mapped(bytes);
  if (counts) mprotect(*begin, (bytes + 4095) / 4096 * 4096, shut);
  pieces[static_cast<char*>(*begin)] = {bytes, kind};
  taken += counts ? bytes : 0;
  return cudaSuccess;
}

cudaError_t give(void* begin) {
  const std::lock_guard<std::mutex> lock(guard);
  const auto found = pieces.find(static_cast<char*>(begin));
  if (begin == nullptr) return cudaSuccess;
  if (found == pieces.end()) return failed(cudaErrorInvalidValue);
  if (found->second.kind == cudaMemoryTypeDevice) taken -= found->second.bytes;
  munmap(begin, found->second.bytes);
  pieces.erase(found);
  return cudaSuccess;
}

std::map<char*, Piece>::iterator piece_at(const void* address) {
  auto found = pieces.upper_bound(static_cast<char*>(const_cast<void*>(address)));
  if (found == pieces.begin()) return pieces.end();
  --found;
  return static_cast<const char*>(address) < found->first + found->second.bytes ? found : pieces.end();
}

void open_up(const void* address, size_t bytes, int how) {
  const auto found = piece_at(address);
  if (found == pieces.end() || found->second.kind != cudaMemoryTypeDevice || bytes == 0) return;
  size_t first = reinterpret_cast<size_t>(address) / 4096 * 4096;
  size_t end = (reinterpret_cast<size_t>(address) + bytes + 4095) / 4096 * 4096;
  if (mprotect(reinterpret_cast<void*>(first), end - first, how) != 0) perror("mprotect");
}

// A copy beyond the end of what was allocated is told, and made all the same.
void check(const char* side, const void* address, size_t bytes) {
  const auto found = piece_at(address);
  if (found == pieces.end() || static_cast<const char*>(address) + bytes <= found->first + found->second.bytes) return;
  fprintf(stderr, "pretended GPU: a copy goes beyond its %s\n", side);
}

cudaError_t copied(void* target, const void* source, size_t bytes) {
  {
    const std::lock_guard<std::mutex> lock(guard);
    check("target", target, bytes);
    check("source", source, bytes);
    open_up(target, bytes, PROT_READ | PROT_WRITE);
    open_up(source, bytes, PROT_READ | PROT_WRITE);
    if (bytes < most_copied) memmove(target, source, bytes);
    open_up(target, bytes, shut);
    open_up(source, bytes, shut);
  }
  return cudaSuccess;
}

struct Event {
  double milliseconds = 0;
};

cudaError_t noted(cudaEvent_t event) {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  reinterpret_cast<Event*>(event)->milliseconds = now.tv_sec * 1e3 + now.tv_nsec * 1e-6;
  return cudaSuccess;
}

struct Configuration {
  dim3 grid, block;
  size_t shared;
  void* stream;
};
thread_local Configuration configuration;

CUresult nothing() {
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

// Memory

cudaError_t cudaMalloc(void** begin, size_t bytes) {
  return take(begin, bytes, cudaMemoryTypeDevice);
}
cudaError_t cudaFree(void* begin) {
  return give(begin);
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* all) {
  const std::lock_guard<std::mutex> lock(guard);
  *all = total;
  *free = total - taken;
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** begin, size_t bytes, unsigned) {
  return take(begin, bytes, cudaMemoryTypeHost);
}
cudaError_t cudaFreeHost(void* begin) {
  return give(begin);
}
cudaError_t cudaHostRegister(void* begin, size_t bytes, unsigned) {
  const std::lock_guard<std::mutex> lock(guard);
  if (piece_at(begin) != pieces.end()) return failed(cudaErrorHostMemoryAlreadyRegistered);
  pieces[static_cast<char*>(begin)] = {bytes, cudaMemoryTypeHost};
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* begin) {
  const std::lock_guard<std::mutex> lock(guard);
  if (msync(reinterpret_cast<void*>(reinterpret_cast<size_t>(begin) / 4096 * 4096), 4096, MS_ASYNC) != 0)
    fprintf(stderr, "pretended GPU: unregistered after it was unmapped\n");
  return pieces.erase(static_cast<char*>(begin)) == 1 ? cudaSuccess : failed(cudaErrorHostMemoryNotRegistered);
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* found, const void* address) {
  const std::lock_guard<std::mutex> lock(guard);
  const auto piece = piece_at(address);
  memset(found, 0, sizeof *found);
  found->type = piece == pieces.end() ? cudaMemoryTypeUnregistered : piece->second.kind;
  found->device = piece == pieces.end() ? -2 : 0;
  found->devicePointer = piece == pieces.end() ? nullptr : const_cast<void*>(address);
  found->hostPointer = found->type == cudaMemoryTypeDevice ? nullptr : const_cast<void*>(address);
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* target, const void* source, size_t bytes, cudaMemcpyKind) {
  return copied(target, source, bytes);
}
cudaError_t cudaMemcpyAsync(void* target, const void* source, size_t bytes, cudaMemcpyKind, cudaStream_t) {
  return copied(target, source, bytes);
}
cudaError_t cudaMemset(void* target, int value, size_t bytes) {
  const std::lock_guard<std::mutex> lock(guard);
  open_up(target, bytes, PROT_READ | PROT_WRITE);
  if (bytes < most_copied) memset(target, value, bytes);
  open_up(target, bytes, shut);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* target, int value, size_t bytes, cudaStream_t) {
  return cudaMemset(target, value, bytes);
}
cudaError_t cudaGetSymbolAddress(void** address, const void*) {
  static char room[1 << 20];
  *address = room;
  return cudaSuccess;
}

// The device: one like an H200

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* found, int) {
  memset(found, 0, sizeof *found);
  strcpy(found->name, "Pretended GPU");
  found->totalGlobalMem = total;
  found->major = 9;
  found->multiProcessorCount = 132;
  found->warpSize = 32;
  found->regsPerBlock = found->regsPerMultiprocessor = 65536;
  found->sharedMemPerBlock = 49152;
  found->sharedMemPerBlockOptin = 232448;
  found->sharedMemPerMultiprocessor = 233472;
  found->totalConstMem = 65536;
  found->l2CacheSize = 52428800;
  found->maxThreadsPerBlock = 1024;
  found->maxThreadsPerMultiProcessor = 2048;
  found->maxBlocksPerMultiProcessor = 32;
  found->maxThreadsDim[0] = found->maxThreadsDim[1] = 1024;
  found->maxThreadsDim[2] = 64;
  found->maxGridSize[0] = 2147483647;
  found->maxGridSize[1] = found->maxGridSize[2] = 65535;
  found->memPitch = 2147483647;
  found->textureAlignment = 512;
  found->unifiedAddressing = found->managedMemory = found->concurrentKernels = found->cooperativeLaunch = 1;
  found->canMapHostMemory = found->canUseHostPointerForRegisteredMem = 1;
  found->asyncEngineCount = 3;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* found, cudaDeviceAttr asked, int) {
  static const std::map<cudaDeviceAttr, int> known = {
      {cudaDevAttrMultiProcessorCount, 132},
      {cudaDevAttrMaxThreadsPerBlock, 1024},
      {cudaDevAttrMaxThreadsPerMultiProcessor, 2048},
      {cudaDevAttrWarpSize, 32},
      {cudaDevAttrComputeCapabilityMajor, 9},
      {cudaDevAttrMaxSharedMemoryPerBlock, 49152},
      {cudaDevAttrMaxSharedMemoryPerBlockOptin, 232448},
      {cudaDevAttrMaxSharedMemoryPerMultiprocessor, 233472},
      {cudaDevAttrMaxRegistersPerBlock, 65536},
      {cudaDevAttrMaxGridDimX, 2147483647},
      {cudaDevAttrMaxGridDimY, 65535},
      {cudaDevAttrMaxGridDimZ, 65535},
      {cudaDevAttrL2CacheSize, 52428800},
  };
  const auto value = known.find(asked);
  *found = value == known.end() ? 0 : value->second;
  return cudaSuccess;
}
const char* cudaGetErrorName(cudaError_t) {
  return "cudaErrorPretended";
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory" : "an error of a pretended GPU";
}
cudaError_t cudaGetLastError(void) {
  const cudaError_t error = last;
  last = cudaSuccess;
  return error;
}
cudaError_t cudaPeekAtLastError(void) {
  return last;
}

// Streams and events

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  *stream = static_cast<cudaStream_t>(malloc(64));
  return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithPriority(stream, 0, 0);
}
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(
    cudaStream_t,
    cudaStreamCaptureStatus* status,
    unsigned long long* id,
    cudaGraph_t*,
    const cudaGraphNode_t**,
    const cudaGraphEdgeData**,
    size_t*) {
  *status = cudaStreamCaptureStatusNone;
  if (id != nullptr) *id = 0;
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t function, void* data) {
  function(data);
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = reinterpret_cast<cudaEvent_t>(new Event);
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, 0);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete reinterpret_cast<Event*>(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  return noted(event);
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t, unsigned) {
  return noted(event);
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  *milliseconds = reinterpret_cast<Event*>(end)->milliseconds - reinterpret_cast<Event*>(begin)->milliseconds;
  return cudaSuccess;
}

// Kernels

void** __cudaRegisterFatBinary(void*) {
  static void* handle;
  return &handle;
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void* stream) {
  configuration = {grid, block, shared, stream};
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  *grid = configuration.grid;
  *block = configuration.block;
  *shared = configuration.shared;
  *static_cast<void**>(stream) = configuration.stream;
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* found, const void*) {
  memset(found, 0, sizeof *found);
  found->maxThreadsPerBlock = 1024;
  found->numRegs = 32;
  found->binaryVersion = found->ptxVersion = 90;
  found->maxDynamicSharedSizeBytes = 232448;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* count, const void*, int, size_t, unsigned) {
  *count = 2;
  return cudaSuccess;
}

// The driver

CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = reinterpret_cast<CUcontext>(1);
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned* flags, int* is_active) {
  *flags = 0;
  *is_active = 1;
  return CUDA_SUCCESS;
}

// Pages: of a file in memory of the host, so that one is seen at several addresses

CUresult cuInit(unsigned) { return CUDA_SUCCESS; }

CUresult cuDeviceGetAttribute(int* found, CUdevice_attribute asked, CUdevice) {
  *found = asked != CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS || getenv("PRETEND_HMM") != nullptr;
  return CUDA_SUCCESS;
}
CUresult cuMemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) {
  *bytes = kAlignment;
  return CUDA_SUCCESS;
}
CUresult cuMemCreate(CUmemGenericAllocationHandle* page, size_t bytes, const CUmemAllocationProp*, unsigned long long) {
  const std::lock_guard<std::mutex> lock(guard);
  if (taken + bytes > total) return CUDA_ERROR_OUT_OF_MEMORY;
  taken += bytes;
  if (free_pages.empty()) {
    if (ftruncate(page_file, (page_count + 1) * kAlignment) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
    free_pages.push_back(page_count++);
  }
  *page = free_pages.back();
  free_pages.pop_back();
  return CUDA_SUCCESS;
}
CUresult cuMemRelease(CUmemGenericAllocationHandle page) {
  const std::lock_guard<std::mutex> lock(guard);
  taken -= kAlignment;
  free_pages.push_back(page);
  return CUDA_SUCCESS;
}
CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t, CUdeviceptr, unsigned long long) {
  const std::lock_guard<std::mutex> lock(guard);
  void* begin = mapped(bytes);
  mprotect(begin, bytes, shut);
  pieces[static_cast<char*>(begin)] = {bytes, cudaMemoryTypeDevice};
  *address = reinterpret_cast<CUdeviceptr>(begin);
  return CUDA_SUCCESS;
}
CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  const std::lock_guard<std::mutex> lock(guard);
  munmap(reinterpret_cast<void*>(address), bytes);
  return pieces.erase(reinterpret_cast<char*>(address)) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t, CUmemGenericAllocationHandle page, unsigned long long) {
  const int flags = MAP_SHARED | MAP_FIXED | MAP_NORESERVE;
  void* begin = reinterpret_cast<void*>(address);
  const bool is_mapped = mmap(begin, bytes, shut, flags, page_file, page * kAlignment) == begin;
  return is_mapped ? CUDA_SUCCESS : CUDA_ERROR_MAP_FAILED;
}
CUresult cuMemSetAccess(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) {
  return CUDA_SUCCESS;
}
CUresult cuMemUnmap(CUdeviceptr, size_t) {
  return CUDA_SUCCESS;
}
cudaError_t cudaGetDriverEntryPointByVersion(
    const char* name, void** function, unsigned, unsigned long long, cudaDriverEntryPointQueryResult* result) {
  *function = dlsym(RTLD_DEFAULT, name);
  if (*function == nullptr) *function = reinterpret_cast<void*>(&nothing);
  if (result != nullptr) *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
}
