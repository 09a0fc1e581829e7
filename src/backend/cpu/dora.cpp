// Computes what adapters with trained norms of rows (DoRA) have beside their products.
#include "backend/cpu/kernels.h"
#include "backend/cpu/math.h"
#include "backend/cpu/runs.h"

namespace snug::cpu {
namespace {

constexpr int64_t kColumns = 64;  // whose gradients one thread sums

template <class T>
double norm_of_row(const T* x, int64_t n) {
  double squares = 0;
  for (int64_t begin = 0; begin < n; begin += kSumBlock) {
    double lane[kLanes] = {};
    const int64_t end = std::min(begin + kSumBlock, n);
    for (int64_t i = begin; i < end; i++) {
      const auto value = static_cast<double>(to_float(x[i]));
      lane[(i - begin) % kLanes] += value * value;
    }
    for (const double sum : lane) squares += sum;
  }
  return std::sqrt(squares);
}

// Multiplies the columns of no part, which no bit of them changes.
constexpr auto kOnes = [] {
  std::array<float, kColumns> ones{};
  ones.fill(1);
  return ones;
}();

// Holds the factors of some columns of a linear's result; `inverses` is null for columns of no part.
struct Stretch {
  int64_t begin, end;
  const float *factors, *inverses;
};

// Returns all columns in stretches of at most kColumns, in their order.
std::vector<Stretch> stretches_of(const AdaptedParts& parts, const TensorView& factors, int64_t cols) {
  std::vector<Stretch> stretches;
  const Rows<float> rows(factors);
  const auto add = [&](int64_t begin, int64_t end, const float* factor, const float* inverse) {
    for (int64_t next = begin; next < end; next += kColumns) {
      const int64_t done = next - begin;
      stretches.push_back({next, std::min(next + kColumns, end), factor ? factor + done : kOnes.data(),
                           inverse ? inverse + done : nullptr});
    }
  };
  int64_t done = 0, row = 0;
  for (size_t i = 0; i < parts.begin.size(); i++) {
    if (parts.end[i] <= parts.begin[i]) continue;
    add(done, parts.begin[i], nullptr, nullptr);
    add(parts.begin[i], parts.end[i], rows[0] + row, rows[1] + row);
    row += parts.end[i] - parts.begin[i];
    done = parts.end[i];
  }
  add(done, cols, nullptr, nullptr);
  return stretches;
}

// Scales, and sums the gradients of, the columns of one stretch.
template <class T>
void scale_backward(const Stretch& at, const Rows<T>& dy, const Rows<T>& z, const Rows<T>& dz, int64_t rows,
                    double (&sums)[kColumns]) {
  const int64_t n = at.end - at.begin;
  for (int64_t row = 0; row < rows; row++) {
    const T *from = dy[row] + at.begin, *value = z[row] + at.begin;
    T* const to = dz[row] + at.begin;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
      const float d = to_float(from[i]);
      store(to[i], d * at.factors[i]);
      sums[i] += static_cast<double>(d) * static_cast<double>(to_float(value[i]));
    }
  }
}

}  // namespace

Launch bind_row_norms(Operands operands) {
  const TensorView x = operands.take("x", kActivation);
  float* const norms = operands.vector("norms", {DType::F32}, x.rows()).as<float>();
  operands.done();
  return dispatch_activation(x.dtype, [&]<class T>() -> Launch {
    return [from = Rows<T>(x), norms, rows = x.rows(), n = x.cols()](const RuntimeScalars&) {
      share_rows(rows, n, [&](int64_t row) { norms[row] = static_cast<float>(norm_of_row(from[row], n)); });
    };
  });
}

Launch bind_adapted_norms(const AdaptedNorms& attrs, Operands operands) {
  const auto of = adapted_norms_operands(operands);
  return dispatch_activation(of.b.dtype, [&]<class B>() {
    return dispatch_activation(of.change.dtype, [&]<class C>() -> Launch {
      return [of, scale = static_cast<double>(attrs.scale)](const RuntimeScalars&) {
        const int64_t rank = of.b.cols();
        const Rows<float> wa(of.wa), aa(of.aa), factors(of.factors);
        const Rows<B> b(of.b);
        share_rows(of.b.rows(), rank * rank, [&](int64_t row) {
          double along = 0, own = 0;  // the products of B's row with W A^T's, and with itself through A A^T
          for (int64_t i = 0; i < rank; i++) {
            const auto left = static_cast<double>(to_float(b[row][i]));
            double inner = 0;
            for (int64_t j = 0; j < rank; j++)
              inner += static_cast<double>(aa[i][j]) * static_cast<double>(to_float(b[row][j]));
            along += left * static_cast<double>(wa[row][i]);
            own += left * inner;
          }
          const auto norm = static_cast<double>(of.norms[row]);
          const double square = norm * norm + 2 * scale * along + scale * scale * own;
          const double m =
              static_cast<double>(of.initial[row]) + static_cast<double>(to_float(of.change.template as<C>()[row]));
          factors[0][row] = square > 0 ? static_cast<float>(m / std::sqrt(square)) : 1.0f;
          factors[1][row] = square > 0 ? static_cast<float>(1 / std::sqrt(square)) : 0.0f;
        });
      };
    });
  });
}

Launch bind_scale_columns(const ScaleColumns& scale, Operands operands) {
  const auto of = scale_columns_operands(scale, operands);
  return dispatch_activation(of.z.dtype, [&]<class T>() -> Launch {
    return [of, attrs = scale, stretches = stretches_of(scale.parts, of.factors, of.z.cols())](const RuntimeScalars&) {
      const Rows<T> z(of.z), c(attrs.addend ? of.c : of.z), y(of.y);
      const T* const bias = attrs.bias ? of.bias.as<T>() : nullptr;
      share_rows(of.z.rows(), of.z.cols(), [&](int64_t row) {
        for (const Stretch& at : stretches) {
          const T *from = z[row] + at.begin, *addend = c[row] + at.begin, *shift = bias ? bias + at.begin : addend;
          T* const to = y[row] + at.begin;
#pragma omp simd
          for (int64_t i = 0; i < at.end - at.begin; i++)
            store(to[i], to_float(from[i]) * at.factors[i] + (bias ? to_float(shift[i]) : 0.0f) +
                             (attrs.addend ? to_float(addend[i]) : 0.0f));
        }
      });
    };
  });
}

Launch bind_scale_columns_backward(const ScaleColumnsBackward& scale, Operands operands) {
  const auto of = scale_columns_backward_operands(scale, operands);
  return dispatch_activation(of.dy.dtype, [&]<class T>() {
    return dispatch_activation(of.dm.dtype, [&]<class D>() -> Launch {
      return [of, stretches = stretches_of(scale.parts, of.factors, of.dy.cols())](const RuntimeScalars&) {
        const Rows<T> dy(of.dy), z(of.z), dz(of.dz);
        const float* const inverses = Rows<float>(of.factors)[1];
        share(std::ssize(stretches), [&](int64_t s) {
          const Stretch& at = stretches[static_cast<size_t>(s)];
          double sums[kColumns] = {};
          scale_backward(at, dy, z, dz, of.dy.rows(), sums);
          for (int64_t i = 0; at.inverses && i < at.end - at.begin; i++)
            store(of.dm.as<D>()[at.inverses - inverses + i],
                  static_cast<float>(sums[i] * static_cast<double>(at.inverses[i])));
        });
      };
    });
  });
}

Launch bind_set_row_norms(Operands operands) {
  const auto of = set_row_norms_operands(operands);
  return [of](const RuntimeScalars&) {
    const Rows<float> x(of.x);
    const int64_t n = of.x.cols();
    share_rows(of.x.rows(), n, [&](int64_t row) {
      const double norm = norm_of_row(x[row], n);
      const double factor = norm > 0 ? static_cast<double>(of.magnitudes[row]) / norm : 1;
      for (int64_t i = 0; i < n; i++) x[row][i] = static_cast<float>(static_cast<double>(x[row][i]) * factor);
    });
  };
}

}  // namespace snug::cpu
