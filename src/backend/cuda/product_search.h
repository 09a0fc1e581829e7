// Declares the device work of a search among algorithms of a product. Nothing here is part of a step.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>

#include "tensor/view.h"

namespace snug::cuda {

// Fills with numbers between -1/2 and 1/2 in bf16 and fp32, or any fp8 codes; equal ones for equal `stream_number`.
void fill_with_numbers(const TensorView& view, uint32_t stream_number, cudaStream_t stream);
// Returns a digest of the bits of a matrix in bf16 or fp32, once they are there; other bits give another digest except
// by chance. `scratch` has 8 bytes.
uint64_t digest_of(const TensorView& view, std::byte* scratch, cudaStream_t stream);
// Returns the mean seconds of several launches on the stream.
double seconds_of(cudaStream_t stream, int times, const std::function<void()>& launch);

}  // namespace snug::cuda
