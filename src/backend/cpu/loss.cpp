// Computes cross-entropy over a vocabulary, row by row, and the sum of its losses.
//   loss = log(sum exp(x - m)) + m - x[target], m = max x       dx = (exp(x - m) / sum exp(x - m) - onehot) scale
// Both are multiplied by the row's weight. Label smoothing and z-loss add their terms (program/ops.h).
#include "backend/cpu/kernels.h"
#include "backend/cpu/math.h"
#include "backend/cpu/runs.h"

namespace snug::cpu {
namespace {

// Returns x under a soft cap.
inline float capped(float x, float cap) { return cap * tanh(x / cap); }

// Returns the loss of a row; with `gradient`, x becomes its gradient times `scale`. It walks three times over a row
// that the first walk brings into the cache. `kTerms` says that there is label smoothing or z-loss.
template <bool kCapped, bool kTerms, class T>
double loss_of_row(T* x, int64_t n, int64_t target, float scale, const CrossEntropy& op) {
  const float cap = op.cap;
  const auto logit = [=](int64_t i) { return kCapped ? capped(to_float(x[i]), cap) : to_float(x[i]); };
  const auto slope = [=](float y) { return kCapped ? 1.0f - y / cap * (y / cap) : 1.0f; };
  const float m = maximum(n, logit);
  const float total = sum(n, [=](int64_t i) { return exp(logit(i) - m); });
  const float hit = logit(target);
  const double lse = std::log(static_cast<double>(total)) + static_cast<double>(m);
  double loss = lse - static_cast<double>(hit);
  if constexpr (kTerms) {
    const double e = static_cast<double>(op.smoothing), z = static_cast<double>(op.z_loss);
    const double mean = e > 0 ? static_cast<double>(sum(n, logit)) / static_cast<double>(n) : 0;
    loss = lse - (1 - e) * static_cast<double>(hit) - e * mean + z * lse * lse;
  }
  if (op.gradient) {
    const float inverse = 1.0f / total;
    const float factor = kTerms ? 1.0f + 2.0f * op.z_loss * static_cast<float>(lse) : 1.0f;
    const float share = op.smoothing / static_cast<float>(n);  // of each token of the vocabulary
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
      const float y = logit(i);
      const float p = exp(y - m) * inverse;
      store(x[i], (kTerms ? p * factor - share : p) * scale * slope(y));
    }
    const float p = exp(hit - m) * inverse;
    const float known = kTerms ? p * factor - share - (1.0f - op.smoothing) : p - 1.0f;
    store(x[target], known * scale * slope(hit));
  }
  return loss;
}

template <class T>
double loss_of_row(T* x, int64_t n, int64_t target, float scale, const CrossEntropy& op) {
  const bool terms = op.smoothing > 0 || op.z_loss > 0;
  if (op.cap > 0)
    return terms ? loss_of_row<true, true>(x, n, target, scale, op) : loss_of_row<true, false>(x, n, target, scale, op);
  return terms ? loss_of_row<false, true>(x, n, target, scale, op) : loss_of_row<false, false>(x, n, target, scale, op);
}

}  // namespace

Launch bind_cross_entropy(const CrossEntropy& attrs, Operands operands) {
  const auto of = cross_entropy_operands(operands);
  const TensorView logits = of.logits;
  const int64_t rows = logits.rows(), vocabulary = logits.cols();
  const int32_t* const targets = of.targets;
  const float* const weights = of.weights;
  float* const loss = of.loss;
  return dispatch_activation(logits.dtype, [&]<class T>() -> Launch {
    return [=, x = Rows<T>(logits)](const RuntimeScalars& runtime) {
      const int64_t active = std::clamp<int64_t>(runtime.loss_rows - attrs.row_begin, 0, rows);
      for (int64_t i = 0; i < active; i++)
        check(0 <= targets[i] && targets[i] < vocabulary, "cross_entropy: target {} of row {} is outside [0, {})",
              targets[i], i, vocabulary);
      share_rows(rows, vocabulary, [&](int64_t row) {
        if (row >= active) {
          loss[row] = 0;
          if (attrs.gradient) std::fill_n(x[row], vocabulary, T(0.0f));
          return;
        }
        const float weight = weights[row];
        const double found = loss_of_row(x[row], vocabulary, targets[row], runtime.loss_scale * weight, attrs);
        loss[row] = static_cast<float>(static_cast<double>(weight) * found);
      });
    };
  });
}

Launch bind_soft_cap(const SoftCap& attrs, Operands operands) {
  const TensorView x = operands.take("x", {DType::F32});
  operands.done();
  return [rows = Rows<float>(x), extent = Extent{x}, cap = attrs.cap](const RuntimeScalars&) {
    share_runs(extent, [&](int64_t row, int64_t begin, int64_t end) {
      float* const values = rows[row];
#pragma omp simd
      for (int64_t i = begin; i < end; i++) values[i] = capped(values[i], cap);
    });
  };
}

Launch bind_loss_sum(const LossSum& attrs, Operands operands) {
  const auto of = loss_sum_operands(operands);
  float* const sum = of.sum;
  return [=, loss = of.losses.as<float>(), all = of.losses.count()](const RuntimeScalars& runtime) {
    const int64_t count = loss_rows_of(runtime, all);
    double total = attrs.accumulate ? static_cast<double>(*sum) : 0;
    for (int64_t i = 0; i < count; i++) total += static_cast<double>(loss[i]);
    *sum = static_cast<float>(total);
  };
}

}  // namespace snug::cpu
