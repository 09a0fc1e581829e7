#include "backend/cuda/tensor_map.h"

#include <cudaTypedefs.h>

#include <algorithm>

#include "backend/cuda/check.h"

namespace snug::cuda {
namespace {

// Returns the driver's own function: programs that run without a driver cannot link to it.
PFN_cuTensorMapEncodeTiled_v12000 encoder() {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result),
             "cuTensorMapEncodeTiled");
  if (result != cudaDriverEntryPointSuccess) device_error("the driver has no cuTensorMapEncodeTiled");
  return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(found);
}

CUtensorMapSwizzle swizzle_of(int row_bytes) {
  check(row_bytes == 64 || row_bytes == 128, "a box has rows of {} bytes", row_bytes);
  return row_bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B;
}

}  // namespace

CUtensorMap tensor_map(const BFloat16* data, std::initializer_list<int64_t> extents,
                       std::initializer_list<int64_t> strides, std::initializer_list<int> box_extents, bool ahead) {
  static const auto encode = encoder();
  constexpr size_t kMost = 3;
  cuuint64_t extent[kMost], stride[kMost];
  cuuint32_t box[kMost], step[kMost] = {1, 1, 1};
  std::ranges::transform(extents, extent, [](int64_t x) { return static_cast<cuuint64_t>(x); });
  std::ranges::transform(strides, stride, [](int64_t x) { return static_cast<cuuint64_t>(x) * sizeof(BFloat16); });
  std::ranges::transform(box_extents, box, [](int x) { return static_cast<cuuint32_t>(x); });
  CUtensorMap map;
  const CUresult status = encode(
      &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, static_cast<cuuint32_t>(extents.size()), const_cast<BFloat16*>(data),
      extent, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle_of(static_cast<int>(box[0] * sizeof(BFloat16))),
      ahead ? CU_TENSOR_MAP_L2_PROMOTION_L2_256B : CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS)
    device_error("the driver refuses a map of rows of {} elements, {} apart: error {}", *extents.begin(),
                 strides.end()[-1], static_cast<int>(status));
  return map;
}

}  // namespace snug::cuda
