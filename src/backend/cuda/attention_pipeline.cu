#include "backend/cuda/attention_pipeline.cuh"

namespace snug::cuda {

Panels panels_of(const Rows<BFloat16>& matrix, int64_t columns, int64_t rows, int box_rows) {
  return {tensor_map(matrix.data, {columns, rows}, {matrix.stride}, {kPanel, box_rows})};
}

}  // namespace snug::cuda
