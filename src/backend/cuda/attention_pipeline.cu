#include "backend/cuda/attention_pipeline.cuh"

namespace snug::cuda {

CUtensorMap head_tensor_map(const Rows<BFloat16>& matrix, int dim, int columns, int heads, int64_t rows, int box_rows) {
  // If heads begin at no multiple of 128 bytes, the L2 cache would read more than is asked for.
  return tensor_map(matrix.data, {dim, rows, heads}, {matrix.stride, dim}, {columns, box_rows, 1},
                    dim % kSmemTileColumns == 0);
}

}  // namespace snug::cuda
