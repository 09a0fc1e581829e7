// Products by cuBLASLt: the only file that knows the library.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "backend/backend.h"

namespace snug::cuda {

// The library's handle; one a backend.
class Products {
 public:
  Products();
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  // The algorithm is the library's first choice for the shape, layout and alignment, looked up here and kept.
  Launch bind(const Gemm& gemm, std::span<const TensorView> views, cudaStream_t stream);

 private:
  struct Library;
  std::unique_ptr<Library> library_;
};

}  // namespace snug::cuda
