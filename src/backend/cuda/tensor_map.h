// Describes where the Tensor Memory Accelerator finds a matrix in global memory (CUDA driver API, "Tensor Map Object
// Management").
#pragma once

#include <cuda.h>

#include <initializer_list>

#include "tensor/dtype.h"

namespace snug::cuda {

// Returns the map of up to three dimensions, the densest first, with strides, in elements, of all but that one. A box
// becomes a tile in shared memory, its rows of 64 or 128 bytes with the swizzle of as many; parts of a box outside are
// read as zeros, and not written. Data begin at a multiple of 16 bytes, and strides are such multiples. `ahead` makes
// the L2 cache read 256 bytes where fewer are asked for. It may be called from any thread.
CUtensorMap tensor_map(const BFloat16* data, std::initializer_list<int64_t> extents,
                       std::initializer_list<int64_t> strides, std::initializer_list<int> box_extents,
                       bool ahead = true);

}  // namespace snug::cuda
