#include "backend/cuda/attention_pipeline.cuh"

namespace snug::cuda {
namespace {

// The driver's own function: programs that run without a driver cannot link to it.
PFN_cuTensorMapEncodeTiled_v12000 encoder() {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result),
             "cuTensorMapEncodeTiled");
  if (result != cudaDriverEntryPointSuccess) device_error("the driver has no cuTensorMapEncodeTiled");
  return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(found);
}

}  // namespace

Panels panels_of(const Rows<BFloat16>& matrix, int64_t columns, int64_t rows, int box_rows) {
  static const auto encode = encoder();
  Panels panels;
  const cuuint64_t extent[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t stride[] = {static_cast<cuuint64_t>(matrix.stride) * sizeof(BFloat16)};
  const cuuint32_t box[] = {kPanel, static_cast<cuuint32_t>(box_rows)}, step[] = {1, 1};
  const CUresult status = encode(&panels.map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, matrix.data, extent, stride, box,
                                 step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS)
    device_error("attention: the driver refuses rows of {} elements, {} apart: error {}", columns, matrix.stride,
                 static_cast<int>(status));
  return panels;
}

}  // namespace snug::cuda
