#include "backend/product.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <vector>

#include "backend/cpu/matmul.h"
#include "backend/cpu/products.h"
#include "base/parallel.h"
#include "base/rounding.h"

namespace snug::cpu {
namespace {

// Holds the addresses of a product's operands; c and bias may be null.
struct Addresses {
  const std::byte *a, *b, *c, *bias;
  std::byte *d, *scratch;
  uint64_t scratch_bytes;
};

Addresses addresses_of(const Product& p, std::span<const TensorView> views) {
  const bool scratch = views.size() > p.operands;
  return {.a = views[0].data,
          .b = views[1].data,
          .c = p.addend ? views[2].data : nullptr,
          .bias = p.bias ? views[p.operands - 2].data : nullptr,
          .d = views[p.operands - 1].data,
          .scratch = scratch ? views.back().data : nullptr,
          .scratch_bytes = scratch ? static_cast<uint64_t>(views.back().count()) : 0};
}

// ---- Products by the library ----------------------------------------------------------------------------------------

// Divides the result into equal parts, each the work of one thread; they follow from the shape alone. They are wide
// enough that packing B costs little, and small enough that A's rows stay in the cache.
struct Parts {
  explicit Parts(const Product& p) : rows(even_part(p.m, 256)), cols(even_part(p.n, 320)) {
    down = ceil_div(p.m, rows);
    across = ceil_div(p.n, cols);
  }
  static int64_t even_part(int64_t total, int64_t most) {
    const int64_t parts = ceil_div(total, most);
    const int64_t even = ceil_div(total, parts);
    return std::min(total, round_up(even, 32));
  }
  int64_t count() const { return down * across; }

  int64_t rows = 0, cols = 0, down = 0, across = 0;
};

MatmulSpec part_spec(const Product& p, int64_t rows, int64_t cols) {
  using Addend = MatmulSpec::Addend;
  return {.m = rows,
          .n = cols,
          .k = p.k,
          .factors = p.a.dtype,
          .c = p.c.dtype,
          .d = p.d.dtype,
          .bias_dtype = p.bias_dtype,
          .a_strides = {p.a.row_stride, p.a.col_stride},
          .b_strides = {p.b.row_stride, p.b.col_stride},
          .c_stride = p.c.row_stride,
          .d_stride = p.d.row_stride,
          .alpha = p.alpha,
          .addend = !p.addend    ? Addend::None
                    : p.in_place ? Addend::InPlace
                                 : Addend::Separate,
          .bias = p.bias};
}

// Holds the library's products for inner parts and for those at the lower and right edge.
class PartProducts {
 public:
  // Returns nothing if the library has none for this processor.
  static std::optional<PartProducts> make(const Product& p) {
    PartProducts made{Parts(p)};
    const std::array<int64_t, 2> rows{made.parts_.rows, p.m - (made.parts_.down - 1) * made.parts_.rows};
    const std::array<int64_t, 2> cols{made.parts_.cols, p.n - (made.parts_.across - 1) * made.parts_.cols};
    for (size_t i = 0; i < 4; i++) {
      made.specs_[i] = part_spec(p, rows[i / 2], cols[i % 2]);
      const auto same = static_cast<size_t>(std::ranges::find(made.specs_, made.specs_[i]) - made.specs_.begin());
      made.products_[i] = same < i ? made.products_[same] : Matmul::make(made.specs_[i]);
      if (!made.products_[i]) return std::nullopt;
    }
    return made;
  }

  const Parts& parts() const { return parts_; }
  // Returns the number of threads that work at once, each with a call of every product and scratch of its own.
  int64_t lanes() const { return std::min<int64_t>(threads(), parts_.count()); }
  uint64_t lane_scratch_bytes() const {
    uint64_t most = 0;
    for (const auto& product : products_) most = std::max(most, product->scratch_bytes());
    return (most + 63) / 64 * 64;
  }
  // Return the product by whether a part is the last downwards and the last across.
  const Matmul& product(size_t i) const { return *products_[i]; }
  const MatmulSpec& spec(size_t i) const { return specs_[i]; }

 private:
  explicit PartProducts(Parts parts) : parts_(parts) {}
  Parts parts_;
  std::array<MatmulSpec, 4> specs_;
  std::array<std::optional<Matmul>, 4> products_;
};

class LibraryGemm {
 public:
  LibraryGemm(const Product& product, const PartProducts& by_part, const Addresses& at, MatmulCalls& calls)
      : product_(product), parts_(by_part.parts()), at_(at), lane_scratch_bytes_(by_part.lane_scratch_bytes()) {
    const auto lanes = static_cast<uint64_t>(by_part.lanes());
    check(lanes * lane_scratch_bytes_ <= at.scratch_bytes,
          "gemm [{}, {}, {}]: the library wants {} bytes of scratch on {} threads, {} were declared", product.m,
          product.n, product.k, lanes * lane_scratch_bytes_, lanes, at.scratch_bytes);
    lanes_ = by_part.lanes();
    for (size_t i = 0; i < 4; i++) calls_[i] = calls.of(by_part.spec(i), by_part.product(i), lanes);
  }

  void run() {
    std::atomic<int64_t> next = 0;
    parallel_for(lanes_, [this, &next](int64_t lane) {
      for (int64_t part = next++; part < parts_.count(); part = next++) run_part(part, lane);
    });
  }

 private:
  void run_part(int64_t part, int64_t lane) {
    const int64_t down = part % parts_.down, across = part / parts_.down;
    const int64_t row = down * parts_.rows, col = across * parts_.cols;
    const auto edge = static_cast<size_t>(2 * (down == parts_.down - 1) + (across == parts_.across - 1));
    MatmulCall& call = (*calls_[edge])[static_cast<size_t>(lane)];
    call(at_.a + product_.a.offset(row, 0), at_.b + product_.b.offset(0, col),
         at_.c ? at_.c + product_.c.offset(row, col) : nullptr,
         at_.bias ? at_.bias + static_cast<uint64_t>(col) * element_bytes(product_.bias_dtype) : nullptr,
         at_.d + product_.d.offset(row, col), at_.scratch + static_cast<uint64_t>(lane) * lane_scratch_bytes_);
  }

  Product product_;
  Parts parts_;
  Addresses at_;
  uint64_t lane_scratch_bytes_;
  int64_t lanes_ = 0;
  std::array<MatmulCalls::Lanes, 4> calls_;
};

// ---- Products without it --------------------------------------------------------------------------------------------

// Multiplies row by row, for builds whose threads the library cannot share and processors that it does not know.
template <class T, class C, class D>
void plain_row(const Product& p, const Addresses& at, int64_t row) {
  constexpr int64_t kBlock = 64;
  const auto *a = reinterpret_cast<const T*>(at.a), *b = reinterpret_cast<const T*>(at.b);
  const auto* c = reinterpret_cast<const C*>(at.c);
  auto* d = reinterpret_cast<D*>(at.d) + row * p.d.row_stride;
  for (int64_t begin = 0; begin < p.n; begin += kBlock) {
    const int64_t width = std::min(kBlock, p.n - begin);
    std::array<float, kBlock> sums{};
    for (int64_t i = 0; i < p.k; i++) {
      const auto factor = static_cast<float>(a[row * p.a.row_stride + i * p.a.col_stride]);
      const T* b_row = b + i * p.b.row_stride + begin * p.b.col_stride;
      for (int64_t j = 0; j < width; j++)
        sums[static_cast<size_t>(j)] += factor * static_cast<float>(b_row[j * p.b.col_stride]);
    }
    for (int64_t j = 0; j < width; j++) {
      const int64_t col = begin + j;
      float value = p.alpha * sums[static_cast<size_t>(j)];
      if (c) value += static_cast<float>(c[row * p.c.row_stride + col]);
      if (at.bias && p.bias_dtype == DType::F32) value += reinterpret_cast<const float*>(at.bias)[col];
      if (at.bias && p.bias_dtype == DType::BF16)
        value += static_cast<float>(reinterpret_cast<const BFloat16*>(at.bias)[col]);
      d[col] = D(value);
    }
  }
}

template <class F>
void dispatch_product_dtype(DType dtype, F&& f) {
  if (dtype == DType::F32) return f.template operator()<float>();
  f.template operator()<BFloat16>();
}

Launch plain_gemm(const Product& p, const Addresses& at) {
  Launch launch;
  dispatch_product_dtype(p.a.dtype, [&]<class T>() {
    dispatch_product_dtype(p.c.dtype, [&]<class C>() {
      dispatch_product_dtype(p.d.dtype, [&]<class D>() {
        const auto bound = std::make_shared<const std::pair<Product, Addresses>>(p, at);
        launch = [bound](const RuntimeScalars&) {
          parallel_for(bound->first.m,
                       [&product = *bound](int64_t row) { plain_row<T, C, D>(product.first, product.second, row); });
        };
      });
    });
  });
  return launch;
}

// The library's threads are OpenMP's, which the thread sanitizer cannot follow.
std::optional<PartProducts> library_products(const Product& p) {
#ifdef SNUG_PLAIN_THREADS
  static_cast<void>(p);
  return std::nullopt;
#else
  return PartProducts::make(p);
#endif
}

}  // namespace

uint64_t gemm_scratch_bytes(const Gemm& gemm, std::span<const Operand> operands) {
  const auto by_part = library_products(product_of(gemm, operands));
  return by_part ? static_cast<uint64_t>(by_part->lanes()) * by_part->lane_scratch_bytes() : 0;
}

Launch bind_gemm(const Gemm& gemm, std::span<const TensorView> views, MatmulCalls& calls) {
  const Product product = product_of(gemm, views);
  const Addresses at = addresses_of(product, views);
  const auto by_part = library_products(product);
  if (!by_part) return plain_gemm(product, at);
  const auto bound = std::make_shared<LibraryGemm>(product, *by_part, at, calls);
  return [bound](const RuntimeScalars&) { bound->run(); };
}

}  // namespace snug::cpu
