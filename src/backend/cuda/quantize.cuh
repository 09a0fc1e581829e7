// Declares the functions that kernels of 8-bit and of 4-bit formats share.
#pragma once

#include "backend/cuda/device.cuh"

namespace snug::cuda {

// Returns |x| as bits, whose order is that of the absolute values.
__device__ inline uint32_t abs_bits(float x) { return __float_as_uint(x) & 0x7fffffffu; }

// Bind the operands after x, or all of them.
Launch quantize_nf4(Operands& operands, const TensorView& x, cudaStream_t stream);
Launch dequantize_nf4(const Dequantize& attrs, Operands& operands, cudaStream_t stream);

}  // namespace snug::cuda
