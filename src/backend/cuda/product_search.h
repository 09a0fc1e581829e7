// What a search among algorithms of a product does on the device. Nothing here is part of a step.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>

#include "tensor/view.h"

namespace snug::cuda {

// Numbers between -1/2 and 1/2 in bf16 and fp32, or any fp8 codes; the same for the same `stream_number`.
void fill_with_numbers(const TensorView& view, uint32_t stream_number, cudaStream_t stream);
// Of the bits of a matrix in bf16 or fp32, when they are there: of other bits, another number but for chance.
// `scratch`: 8 bytes.
uint64_t digest_of(const TensorView& view, std::byte* scratch, cudaStream_t stream);
// Of one launch on the stream, in the mean of some.
double seconds_of(cudaStream_t stream, int times, const std::function<void()>& launch);

}  // namespace snug::cuda
