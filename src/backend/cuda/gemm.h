// Computes products by cuBLASLt. This is the only file that knows the library.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "backend/cuda/backend.h"

namespace snug::cuda {

// Holds the library's handle; one a backend.
class Products {
 public:
  explicit Products(std::shared_ptr<ProductTable> table);
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  // Binds a product. It looks for the fastest of the library's algorithms for the shape, layout and alignment, once for
  // each, among those that give the bits of its first choice. Large products run here for that, and overwrite their
  // operands.
  Launch bind(const Gemm& gemm, std::span<const TensorView> views, cudaStream_t stream);
  Launch bind(const Fp8Gemm& gemm, std::span<const TensorView> views, cudaStream_t stream);

 private:
  struct Library;
  std::unique_ptr<Library> library_;
};

}  // namespace snug::cuda
