// cuBLAS and cuDNN of a GPU that is none: handles, descriptors and sizes of workspaces; nothing is computed.
//
// Their headers are not used, so that any version of them will do: handles are pointers, and enumerations numbers. A
// descriptor of cuDNN's backend keeps what is set, and gives it again; the one engine that it finds wants a workspace.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

namespace {

constexpr size_t kWorkspace = 8u << 20;
constexpr size_t kReserve = 4096;

int made(void** handle) {
  *handle = calloc(1, 256);
  return 0;
}

int told(size_t* found, size_t size) {
  *found = size;
  return 0;
}

// Values of cudnnBackendAttributeName_t and cudnnBackendAttributeType_t.
constexpr int kHeuristicResults = 202, kPlanWorkspace = 402;
constexpr int kKnobs = 1302, kNumericalNote = 1303, kBehaviorNote = 1305;
constexpr int kHandle = 0, kBoolean = 2, kInt64 = 3, kDouble = 5, kPointer = 6, kDescriptor = 15, kChar = 24;
constexpr int kFraction = 26;

size_t size_of(int type) {
  switch (type) {
    case kHandle:
    case kInt64:
    case kDouble:
    case kPointer:
    case kDescriptor:
    case kFraction:
      return 8;
    case kBoolean:
    case kChar:
      return 1;
    default:
      return 4;
  }
}

struct Attribute {
  int64_t count;
  std::string bytes;
};
using Descriptor = std::map<int, Attribute>;

}  // namespace

extern "C" {

// cuBLAS

int cublasCreate_v2(void** handle) {
  return made(handle);
}
int cublasGetMathMode(void*, int* mode) {
  return *mode = 0;
}
int cublasGetPointerMode_v2(void*, int* mode) {
  return *mode = 0;
}
size_t cublasLtGetVersion() {
  return 130100;
}
int cublasLtMatmulDescCreate(void** handle, int, int) {
  return made(handle);
}
int cublasLtMatmulPreferenceCreate(void** handle) {
  return made(handle);
}
int cublasLtMatrixLayoutCreate(void** handle, int, uint64_t, uint64_t, int64_t) {
  return made(handle);
}
int cublasLtMatmulAlgoGetHeuristic(
    void*, void*, void*, void*, void*, void*, void*, int, void* results, int* count) {
  memset(results, 0, 96);  // one cublasLtMatmulHeuristicResult_t: any algorithm, no workspace, success
  *count = 1;
  return 0;
}

// cuDNN

size_t cudnnGetVersion() {
  return 91900;
}
size_t cudnnGetCudartVersion() {
  return 13000;
}
int cudnnGetProperty(int part, int* found) {
  *found = part == 0 ? 9 : part == 1 ? 19 : 0;
  return 0;
}
const char* cudnnGetErrorString(int) {
  return "an error of a pretended GPU";
}
int cudnnCreate(void** handle) {
  return made(handle);
}
int cudnnSetStream(void* handle, void* stream) {
  *static_cast<void**>(handle) = stream;
  return 0;
}
int cudnnGetStream(void* handle, void** stream) {
  *stream = *static_cast<void**>(handle);
  return 0;
}
int cudnnCreateTensorDescriptor(void** handle) {
  return made(handle);
}
int cudnnCreateFilterDescriptor(void** handle) {
  return made(handle);
}
int cudnnCreateConvolutionDescriptor(void** handle) {
  return made(handle);
}
int cudnnCreateActivationDescriptor(void** handle) {
  return made(handle);
}
int cudnnCreateDropoutDescriptor(void** handle) {
  return made(handle);
}
int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
    void*, int, int, void*, void*, void*, void*, void*, size_t* found) {
  return told(found, kWorkspace);
}
int cudnnGetBatchNormalizationBackwardExWorkspaceSize(
    void*, int, int, void*, void*, void*, void*, void*, void*, void*, size_t* found) {
  return told(found, kWorkspace);
}
int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(void*, int, int, void*, void*, size_t* found) {
  return told(found, kReserve);
}
int cudnnGetRNNWeightSpaceSize(void*, void*, size_t* found) {
  return *found = 1 << 20, 0;
}
int cudnnDropoutGetStatesSize(void*, size_t* found) {
  return told(found, kWorkspace);
}
int cudnnBackendCreateDescriptor(int, void** handle) {
  *handle = new Descriptor;
  return 0;
}
int cudnnBackendDestroyDescriptor(void* handle) {
  delete static_cast<Descriptor*>(handle);
  return 0;
}
int cudnnBackendSetAttribute(void* handle, int name, int type, int64_t count, const void* values) {
  std::string bytes;
  if (values != nullptr && count > 0) bytes.assign(static_cast<const char*>(values), count * size_of(type));
  (*static_cast<Descriptor*>(handle))[name] = {count, bytes};
  return 0;
}
int cudnnBackendGetAttribute(void* handle, int name, int type, int64_t asked, int64_t* count, void* values) {
  const Descriptor& known = *static_cast<Descriptor*>(handle);
  int64_t unasked;
  if (count == nullptr) count = &unasked;
  const auto found = known.find(name);
  if (found != known.end()) {
    *count = found->second.count;
    const size_t most = std::min<size_t>(asked * size_of(type), found->second.bytes.size());
    if (values != nullptr) memcpy(values, found->second.bytes.data(), most);
    return 0;
  }
  *count = name == kKnobs || name == kNumericalNote || name == kBehaviorNote ? 0 : 1;
  if (values == nullptr || *count == 0 || name == kHeuristicResults || type == kDescriptor) return 0;
  memset(values, 0, asked * size_of(type));
  if (name == kPlanWorkspace) *static_cast<int64_t*>(values) = kWorkspace;
  return 0;
}
}
