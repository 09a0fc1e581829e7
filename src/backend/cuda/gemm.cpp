#include "backend/cuda/gemm.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <mutex>

#include "backend/cuda/check.h"
#include "backend/cuda/cublas_lt.h"
#include "backend/cuda/facts.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/product_search.h"
#include "backend/product.h"
#include "program/op_call.h"

namespace snug::cuda {
namespace {

void check_product(cublasStatus_t status, const Product& p, std::string_view what) {
  if (status == CUBLAS_STATUS_ALLOC_FAILED) [[unlikely]]
    fail(cudaErrorMemoryAllocation, "a product");
  if (status != CUBLAS_STATUS_SUCCESS) [[unlikely]]
    device_error("gemm [{}, {}, {}] of {}: cuBLASLt's {} says {}", p.m, p.n, p.k, name(p.a.dtype), what,
                 cublas_lt().status_string(status));
}

cudaDataType_t library_dtype(DType dtype) {
  return dtype == DType::F32 ? CUDA_R_32F : dtype == DType::U8 ? CUDA_R_8F_E4M3 : CUDA_R_16BF;
}

// Holds the scales of the rows of a and b, for an Fp8Gemm.
struct RowScales {
  TensorView a, b;
};

// Returns the alignment as a power of two, up to the most for which the library asks.
uint32_t alignment(const std::byte* data) {
  return 1u << std::min(8, std::countr_zero(reinterpret_cast<uintptr_t>(data) | 256));
}

constexpr int kMostAlgorithms = 8, kRounds = 3;
constexpr double kRoundSeconds = 2e-3;  // for which an algorithm runs at most in a round, except for a single run

// Lists the properties that decide a product's algorithm: shape, layout, alignment.
using ProductKey = std::vector<int64_t>;
using Algorithms = std::map<ProductKey, cublasLtMatmulAlgo_t>;

}  // namespace
}  // namespace snug::cuda

namespace snug {

struct ProductTable {
  std::mutex mutex;  // held while a rank searches: the others take the algorithm that it finds
  cuda::Algorithms known;
};

std::shared_ptr<ProductTable> make_product_table() { return std::make_shared<ProductTable>(); }

}  // namespace snug

namespace snug::cuda {
namespace {

// Runs a product that was made ready. The library's matrices lie column by column, as ours do row by row when
// transposed: it computes d^T = op(b)^T op(a)^T, so its A is our b.
class BoundProduct {
 public:
  BoundProduct(cublasLtHandle_t library, ProductTable& table, const Gemm& gemm, const Product& p,
               std::span<const TensorView> views, const std::optional<RowScales>& scales, cudaStream_t stream)
      : library_(library), stream_(stream), alpha_(p.alpha), beta_(p.addend ? 1 : 0), product_(p) {
    a_ = views[0].data;
    b_ = views[1].data;
    d_ = views[p.operands - 1].data;
    c_ = p.addend ? views[2].data : d_;
    scratch_ = views.back().data;
    describe(gemm, p, p.bias ? views[p.operands - 2].data : nullptr);
    if (scales) scale_rows(*scales);
    const ProductKey key = key_of(gemm, p);
    const std::lock_guard lock(table.mutex);
    const auto same = table.known.find(key);
    if (same == table.known.end()) {
      std::vector<TensorView> factors(views.begin(), views.begin() + static_cast<ptrdiff_t>(p.operands) - 1);
      if (scales) factors.insert(factors.end(), {scales->a, scales->b});
      choose(factors, views[p.operands - 1]);
    }
    algorithm_ = table.known.try_emplace(key, algorithm_).first->second;
  }

  void run() {
    check_product(lt_.matmul(library_, &operation_, &alpha_, b_, &b_layout_, a_, &a_layout_, &beta_, c_, &c_layout_, d_,
                             &d_layout_, &algorithm_, scratch_, kGemmScratchBytes, stream_),
                  product_, "product");
  }

 private:
  void describe(const Gemm& gemm, const Product& p, const std::byte* bias) {
    check_product(lt_.init_description(&operation_, sizeof(operation_), CUBLAS_COMPUTE_32F, CUDA_R_32F), p,
                  "description");
    set(CUBLASLT_MATMUL_DESC_TRANSA, gemm.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, gemm.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (bias) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, library_dtype(p.bias_dtype));
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    }
    lay_out(a_layout_, p.a, p.k, p.m, gemm.transpose_a);
    lay_out(b_layout_, p.b, p.n, p.k, gemm.transpose_b);
    lay_out(d_layout_, p.d, p.n, p.m, false);
    lay_out(c_layout_, p.addend ? p.c : p.d, p.n, p.m, false);
  }

  void scale_rows(const RowScales& scales) {
    constexpr cublasLtMatmulMatrixScale_t kByRow = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, static_cast<int32_t>(kByRow));
    set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, static_cast<int32_t>(kByRow));
    set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, scales.b.data);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, scales.a.data);
    set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t{1});
  }

  template <class Value>
  void set(cublasLtMatmulDescAttributes_t attribute, const Value& value) {
    check_product(lt_.set_description(&operation_, attribute, &value, sizeof(value)), product_, "description");
  }

  // Lays out a matrix of rows x cols in the library's sense, as it is multiplied.
  void lay_out(cublasLtMatrixLayoutOpaque_t& layout, const MatrixLayout& matrix, int64_t rows, int64_t cols,
               bool transposed) {
    if (transposed) std::swap(rows, cols);
    const int64_t stride = std::max({matrix.row_stride, matrix.col_stride, rows});
    check_product(lt_.init_layout(&layout, sizeof(layout), library_dtype(matrix.dtype), static_cast<uint64_t>(rows),
                                  static_cast<uint64_t>(cols), stride),
                  product_, "layout");
  }

  ProductKey key_of(const Gemm& gemm, const Product& p) const {
    ProductKey key{gemm.transpose_a,
                   gemm.transpose_b,
                   p.m,
                   p.n,
                   p.k,
                   p.addend,
                   p.in_place,
                   p.bias,
                   static_cast<int64_t>(p.bias_dtype)};
    for (const MatrixLayout* matrix : {&p.a, &p.b, &p.d, p.addend ? &p.c : &p.d})
      key.insert(key.end(), {static_cast<int64_t>(matrix->dtype), matrix->row_stride, matrix->col_stride});
    for (const std::byte* data : {a_, b_, c_, static_cast<const std::byte*>(d_)}) key.push_back(alignment(data));
    return key;
  }

  // Returns the library's candidates, its first choice first.
  std::vector<cublasLtMatmulAlgo_t> candidates(int most) {
    const Product& p = product_;
    cublasLtMatmulPreferenceOpaque_t preference;
    check_product(lt_.init_preference(&preference, sizeof(preference)), p, "preference");
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      check_product(lt_.set_preference(&preference, attribute, &value, sizeof(value)), p, "preference");
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kGemmScratchBytes);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(b_));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(a_));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(c_));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(d_));
    std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(most));
    int found = 0;
    check_product(lt_.heuristic(library_, &operation_, &b_layout_, &a_layout_, &c_layout_, &d_layout_, &preference,
                                most, results.data(), &found),
                  p, "choice of an algorithm");
    std::vector<cublasLtMatmulAlgo_t> algorithms;
    for (const cublasLtMatmulHeuristicResult_t& result : std::span(results).first(static_cast<size_t>(found)))
      if (result.state == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= kGemmScratchBytes)
        algorithms.push_back(result.algo);
    check(!algorithms.empty(), "gemm [{}, {}, {}]: cuBLASLt has no algorithm within {} bytes of scratch", p.m, p.n, p.k,
          kGemmScratchBytes);
    return algorithms;
  }

  // Chooses the fastest of those that give the bits of the library's first choice, so that searches on a warm card and
  // on a cool one differ only in time.
  void choose(std::span<const TensorView> factors, const TensorView& result) {
    std::vector<cublasLtMatmulAlgo_t> algorithms = candidates(product_.flops() >= kLargeProduct ? kMostAlgorithms : 1);
    algorithm_ = algorithms[0];
    if (algorithms.size() == 1) return;
    for (size_t i = 0; i < factors.size(); i++) fill_with_numbers(factors[i], static_cast<uint32_t>(i), stream_);
    const TensorView& addend = product_.addend ? factors[2] : result;
    uint64_t expected = 0;
    std::erase_if(algorithms, [&](const cublasLtMatmulAlgo_t& algorithm) {
      algorithm_ = algorithm;
      fill_with_numbers(addend, 2, stream_);  // the result may have taken its place
      run();
      const uint64_t digest = digest_of(result, scratch_, stream_);
      if (&algorithm == algorithms.data()) expected = digest;
      return digest != expected;
    });
    algorithm_ = fastest(algorithms);
  }

  cublasLtMatmulAlgo_t fastest(const std::vector<cublasLtMatmulAlgo_t>& algorithms) {
    algorithm_ = algorithms[0];
    const double once = seconds_of(stream_, 1, [&] { run(); });
    const int times = std::clamp(static_cast<int>(kRoundSeconds / once), 1, 20);
    std::vector<double> seconds(algorithms.size(), std::numeric_limits<double>::infinity());
    for (int round = 0; round < kRounds; round++)  // in turn, as a card slows down when it grows warm
      for (size_t i = 0; i < algorithms.size(); i++) {
        algorithm_ = algorithms[i];
        seconds[i] = std::min(seconds[i], seconds_of(stream_, times, [&] { run(); }));
      }
    return algorithms[static_cast<size_t>(std::ranges::min_element(seconds) - seconds.begin())];
  }

  const CublasLt& lt_ = cublas_lt();
  cublasLtHandle_t library_;
  cudaStream_t stream_;
  float alpha_, beta_;
  Product product_;
  const std::byte *a_, *b_, *c_;
  std::byte *d_, *scratch_;
  cublasLtMatmulDescOpaque_t operation_;
  cublasLtMatrixLayoutOpaque_t a_layout_, b_layout_, c_layout_, d_layout_;
  cublasLtMatmulAlgo_t algorithm_;
};

void expect_scratch(const Product& p, std::span<const TensorView> views) {
  check(views.size() == p.operands + 1 && views.back().dtype == DType::U8 &&
            static_cast<uint64_t>(views.back().count()) >= kGemmScratchBytes,
        "gemm: {} bytes of scratch expected", kGemmScratchBytes);
}

// ---- Sides that 8 does not divide ----

struct Part {
  Gemm gemm;
  std::vector<TensorView> views;
};

// Gives the product over [begin, end) of one of its sides.
class Side {
 public:
  Side(const Gemm& gemm, const Product& p, std::span<const TensorView> views) : gemm_(gemm), p_(p), views_(views) {}

  Part along_k(int64_t begin, int64_t end, bool adds, bool biased) const {
    Part part{gemm_, {}};
    part.gemm.addend = adds || gemm_.addend;
    part.gemm.bias = biased && gemm_.bias;
    const TensorView& d = views_[p_.operands - 1];
    part.views = {gemm_.transpose_a ? rows(views_[0], begin, end) : columns(views_[0], begin, end),
                  gemm_.transpose_b ? columns(views_[1], begin, end) : rows(views_[1], begin, end)};
    if (part.gemm.addend) part.views.push_back(adds ? d : views_[2]);
    if (part.gemm.bias) part.views.push_back(views_[p_.operands - 2]);
    part.views.insert(part.views.end(), {d, views_.back()});
    return part;
  }
  Part along_n(int64_t begin, int64_t end) const {
    Part part{gemm_, {views_[0], gemm_.transpose_b ? rows(views_[1], begin, end) : columns(views_[1], begin, end)}};
    if (gemm_.addend) part.views.push_back(columns(views_[2], begin, end));
    if (gemm_.bias) {
      TensorView bias = columns(views_[p_.operands - 2], begin, end);
      bias.shape = {end - begin};
      part.views.push_back(bias);
    }
    part.views.insert(part.views.end(), {columns(views_[p_.operands - 1], begin, end), views_.back()});
    return part;
  }
  Part along_m(int64_t begin, int64_t end) const {
    Part part{gemm_, {columns(views_[0], begin, end), views_[1]}};  // a is transposed
    if (gemm_.addend) part.views.push_back(rows(views_[2], begin, end));
    if (gemm_.bias) part.views.push_back(views_[p_.operands - 2]);
    part.views.insert(part.views.end(), {rows(views_[p_.operands - 1], begin, end), views_.back()});
    return part;
  }

 private:
  const Gemm& gemm_;
  const Product& p_;
  std::span<const TensorView> views_;
};

// Returns the parts of the product; none if one product does it. The few elements of the summed dimension come first,
// so that the sum that is rounded twice is small.
std::vector<Part> parts_of(const Gemm& gemm, const Product& p, std::span<const TensorView> views) {
  const Side side(gemm, p, views);
  const auto whole = [](int64_t size) { return size - size % kVectorElements; };
  switch (odd_side(gemm, p, views)) {
    case OddSide::None:
      return {};
    case OddSide::K:
      return {side.along_k(whole(p.k), p.k, false, false), side.along_k(0, whole(p.k), true, true)};
    case OddSide::N:
      return {side.along_n(0, whole(p.n)), side.along_n(whole(p.n), p.n)};
    case OddSide::M:
      return {side.along_m(0, whole(p.m)), side.along_m(whole(p.m), p.m)};
  }
  return {};
}

}  // namespace

struct Products::Library {
  std::shared_ptr<BoundProduct> bind(const Gemm& gemm, const Product& p, std::span<const TensorView> views,
                                     const std::optional<RowScales>& scales, cudaStream_t stream) {
    return std::make_shared<BoundProduct>(handle, *table, gemm, p, views, scales, stream);
  }
  cublasLtHandle_t handle = nullptr;
  std::shared_ptr<ProductTable> table;
};

Products::Products(std::shared_ptr<ProductTable> table)
    : library_(std::make_unique<Library>(nullptr, std::move(table))) {
  const cublasStatus_t status = cublas_lt().create(&library_->handle);
  if (status == CUBLAS_STATUS_ALLOC_FAILED) fail(cudaErrorMemoryAllocation, "starting cuBLASLt");
  if (status != CUBLAS_STATUS_SUCCESS) device_error("cuBLASLt does not start: {}", cublas_lt().status_string(status));
}

Products::~Products() { cublas_lt().destroy(library_->handle); }

Launch Products::bind(const Gemm& gemm, std::span<const TensorView> views, cudaStream_t stream) {
  Product p = product_of(gemm, views);
  expect_scratch(p, views);
  check(!p.bias || p.bias_dtype == p.d.dtype, "gemm: a bias of {} and a result of {}, which CUDA has no kernel for",
        name(p.bias_dtype), name(p.d.dtype));
  if (const std::vector<Part> parts = parts_of(gemm, p, views); !parts.empty())
    return [first = bind(parts[0].gemm, parts[0].views, stream),
            second = bind(parts[1].gemm, parts[1].views, stream)](const RuntimeScalars& runtime) {
      first(runtime);
      second(runtime);
    };
  std::vector<TensorView> used(views.begin(), views.end());
  Launch widen;  // the library wants c in d's dtype
  if (p.addend && p.c.dtype != p.d.dtype) {
    check(p.d.dtype == DType::F32, "gemm: an addend of fp32 and a result of bf16, which CUDA has no kernel for");
    Op cast;
    cast.attrs = Cast{};
    cast.site = "gemm";
    const std::array operands{views[2], views[p.operands - 1]};
    widen = bind_cast(Operands(cast, operands), stream);
    used[2] = views[p.operands - 1];
    p.c = p.d;
  }
  const auto bound = library_->bind(gemm, p, used, std::nullopt, stream);
  if (!widen) return [bound](const RuntimeScalars&) { bound->run(); };
  return [bound, widen](const RuntimeScalars& runtime) {
    widen(runtime);
    bound->run();
  };
}

Launch Products::bind(const Fp8Gemm& gemm, std::span<const TensorView> views, cudaStream_t stream) {
  const Product p = product_of(gemm, views);
  const std::vector<TensorView> order = without_scales(views);
  expect_scratch(p, order);
  const Gemm plain{.transpose_b = true, .addend = gemm.addend, .bias = gemm.bias};
  const auto bound = library_->bind(plain, p, order, RowScales{views[1], views[3]}, stream);
  return [bound](const RuntimeScalars&) { bound->run(); };
}

}  // namespace snug::cuda
