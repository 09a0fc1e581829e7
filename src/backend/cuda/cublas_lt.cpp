#include "backend/cuda/cublas_lt.h"

#include "backend/cuda/cards.h"

#define SNUG_TEXT_OF(number) #number
#define SNUG_TEXT(number) SNUG_TEXT_OF(number)

namespace snug::cuda {
namespace {

constexpr const char* kName = "libcublasLt.so." SNUG_TEXT(CUBLAS_VER_MAJOR);

}  // namespace

CublasLt::CublasLt()
    : library({kName, SNUG_CUBLASLT}, "cuBLASLt comes with the CUDA toolkit " SNUG_TEXT(
                                          CUBLAS_VER_MAJOR) ", or with `pip install nvidia-cublas`") {
  library.get("cublasLtCreate", create);
  library.get("cublasLtDestroy", destroy);
  library.get("cublasLtGetStatusString", status_string);
  library.get("cublasLtGetVersion", version);
  library.get("cublasLtMatmul", matmul);
  library.get("cublasLtMatmulAlgoGetHeuristic", heuristic);
  library.get("cublasLtMatmulDescInit_internal", init_description);
  library.get("cublasLtMatmulDescSetAttribute", set_description);
  library.get("cublasLtMatmulPreferenceInit_internal", init_preference);
  library.get("cublasLtMatmulPreferenceSetAttribute", set_preference);
  library.get("cublasLtMatrixLayoutInit_internal", init_layout);
}

const CublasLt& cublas_lt() {
  static const CublasLt library;
  return library;
}

}  // namespace snug::cuda

namespace snug {

std::string cublas_lt_version() { return version_text(static_cast<int64_t>(cuda::cublas_lt().version())); }

}  // namespace snug
