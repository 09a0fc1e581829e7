// Opens cuBLASLt, CUDA's library of products, when the first card is used: a program that has kernels for cards runs
// where the library is not.
#pragma once

#include <cublasLt.h>

#include "base/shared_library.h"

namespace snug::cuda {

// Holds the library's functions that snug calls.
struct CublasLt {
  CublasLt();

  SharedLibrary library;
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtGetStatusString) status_string = nullptr;
  decltype(&cublasLtGetVersion) version = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  decltype(&cublasLtMatmulDescInit_internal) init_description = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) set_description = nullptr;
  decltype(&cublasLtMatmulPreferenceInit_internal) init_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference = nullptr;
  decltype(&cublasLtMatrixLayoutInit_internal) init_layout = nullptr;
};

// Returns the library; it is opened by the first call. Throws DeviceError if it cannot be. Any thread may call.
const CublasLt& cublas_lt();

}  // namespace snug::cuda
