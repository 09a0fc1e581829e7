// What every op should give: its definition in program/ops.h, in plain loops over double.
#pragma once

#include <algorithm>
#include <bit>
#include <limits>

#include "base/rng.h"
#include "ref/activation_slope.h"
#include "ref/dora.h"
#include "ref/embedding_noise.h"
#include "ref/layer_norm.h"
#include "ref/losses.h"
#include "ref/matrices.h"
#include "ref/quantize.h"
#include "ref/rope.h"
#include "ref/rows.h"
#include "ref/update.h"

namespace snug::ref {

// Computes what an op writes; one call operator a kind. Operands stand in ops.h's order, without scratch.
class Reference {
 public:
  Reference(std::vector<Tensor>& operands, const RuntimeScalars& runtime) : o_(operands), facts_(runtime) {}

  void operator()(const Gemm& op) {
    const Tensor &a = o_[0], &b = o_[1];
    Tensor& d = o_.back();
    const int64_t k = op.transpose_a ? a.rows() : a.cols();
    for (int64_t r = 0; r < d.rows(); r++)
      for (int64_t c = 0; c < d.cols(); c++) {
        double sum = 0;
        for (int64_t i = 0; i < k; i++)
          sum += (op.transpose_a ? a(i, r) : a(r, i)) * (op.transpose_b ? b(c, i) : b(i, c));
        sum *= static_cast<double>(op.alpha);
        if (op.addend) sum += o_[2](r, c);
        if (op.bias) sum += o_[op.addend ? 3 : 2][c];
        d(r, c) = sum;
      }
  }

  void operator()(const Fp8Gemm& op) {
    const Tensor &a = o_[0], &a_scales = o_[1], &b = o_[2], &b_scales = o_[3];
    Tensor& d = o_.back();
    const auto number = [](const Tensor& codes, int64_t row, int64_t i) {
      return fp8_number(codes.index(row * codes.cols() + i));
    };
    for (int64_t r = 0; r < d.rows(); r++)
      for (int64_t c = 0; c < d.cols(); c++) {
        double sum = 0;
        for (int64_t i = 0; i < a.cols(); i++) sum += number(a, r, i) * number(b, c, i);
        sum *= a_scales[r] * b_scales[c];
        if (op.addend) sum += o_[4](r, c);
        if (op.bias) sum += o_[op.addend ? 5 : 4][c];
        d(r, c) = sum;
      }
  }

  void operator()(const AdaptedGemm& op) {
    const Tensor &a = o_[0], &b = o_[1], &u = o_[2], &v = o_[3];
    Tensor& d = o_.back();
    const int64_t rank = v.cols();
    for (int64_t r = 0; r < d.rows(); r++)
      for (int64_t c = 0; c < d.cols(); c++) {
        double sum = 0;
        for (int64_t i = 0; i < a.cols(); i++) sum += a(r, i) * (op.transpose_b ? b(c, i) : b(i, c));
        if (!op.transpose_b)
          for (int64_t i = 0; i < u.cols(); i++) sum += u(r, i) * v(i, c);
        int64_t row = 0, first = 0;
        for (size_t p = 0; op.transpose_b && p < op.parts.end.size(); p++) {
          if (op.parts.begin[p] <= c && c < op.parts.end[p])
            for (int64_t i = 0; i < rank; i++) sum += u(r, first + i) * v(row + c - op.parts.begin[p], i);
          row += op.parts.end[p] - op.parts.begin[p];
          first += rank;
        }
        if (op.addend) sum += o_[4](r, c);
        if (op.bias) sum += o_[op.addend ? 5 : 4][c];
        d(r, c) = sum;
      }
  }

  void operator()(const AdapterBackward& op) {
    const Tensor &dy = o_[0], &b = o_[1], &xa = o_[2];
    Tensor &dxa = o_[3], &db = o_[4];
    const int64_t rank = b.cols();
    int64_t row = 0;
    for (size_t p = 0; p < op.parts.end.size() && op.parts.end[p] > op.parts.begin[p]; p++) {
      const int64_t begin = op.parts.begin[p], columns = op.parts.end[p] - begin,
                    first = static_cast<int64_t>(p) * rank;
      for (int64_t i = 0; i < rank; i++) {
        for (int64_t r = 0; r < dy.rows(); r++) {
          dxa(r, first + i) = 0;
          for (int64_t c = 0; c < columns; c++) dxa(r, first + i) += dy(r, begin + c) * b(row + c, i);
          dxa(r, first + i) *= static_cast<double>(op.scale);
        }
        for (int64_t c = 0; c < columns; c++) {
          db(row + c, i) = 0;
          for (int64_t r = 0; r < dy.rows(); r++) db(row + c, i) += dy(r, begin + c) * xa(r, first + i);
        }
      }
      row += columns;
    }
  }

  void operator()(const Transpose&) {
    for (int64_t r = 0; r < o_[0].rows(); r++)
      for (int64_t c = 0; c < o_[0].cols(); c++) o_[1](c, r) = o_[0](r, c);
  }

  void operator()(const ColumnSum&) {
    for (int64_t c = 0; c < o_[0].cols(); c++) {
      o_[1][c] = 0;
      for (int64_t r = 0; r < o_[0].rows(); r++) o_[1][c] += o_[0](r, c);
    }
  }

  void operator()(const RopeTable& op) {
    const int64_t half = o_[0].cols() / 2;
    for (int64_t p = 0; p < o_[0].rows(); p++)
      for (int64_t i = 0; i < half; i++) {
        const double angle = static_cast<double>(p) * at(op.frequencies, i);
        o_[0](p, i) = std::cos(angle) * rope_factor(op, p);
        o_[0](p, i + half) = std::sin(angle) * rope_factor(op, p);
      }
  }

  void operator()(const Rope& op) { rotate(op, o_[0], o_[1], o_[2]); }

  // Calls f(d, h, t, j, score) for every head, query t and key j that it sees; `at` is the place of the documents.
  template <class F>
  void for_each_score(const Attention& op, const Tensor& q, const Tensor& k, size_t at, const F& f) const {
    const std::vector<int32_t> documents = o_[at].integers(facts_.documents + 1);
    const std::vector<int32_t> keys = op.cross ? o_[at + 1].integers(facts_.documents + 1) : documents;
    const int64_t dim = op.shape.dim, group = op.shape.heads / op.shape.kv_heads;
    for (size_t d = 0; d + 1 < documents.size(); d++)
      for (int64_t h = 0; h < op.shape.heads; h++)
        for (int64_t t = documents[d]; t < documents[d + 1]; t++)
          for (int64_t j = keys[d]; j < keys[d + 1]; j++) {
            const bool before = j <= t && (op.window == 0 || j > t - op.window) &&
                                (op.chunk == 0 || (j - keys[d]) / op.chunk == (t - keys[d]) / op.chunk);
            if (!op.bidirectional && !before) continue;
            double score = 0;
            for (int64_t i = 0; i < dim; i++)
              score += static_cast<double>(op.scale) * q(t, h * dim + i) * k(j, h / group * dim + i);
            f(h, t, j, capped(score, static_cast<double>(op.cap)));
          }
  }

  void operator()(const Attention& op) {
    const size_t sinks = op.cross ? 5 : 4, result = sinks + (op.sinks ? 1 : 0);
    attend(op, o_[0], o_[1], o_[2], 3, op.sinks ? &o_[sinks] : nullptr, o_[result], o_[result + 1]);
  }

  void attend(const Attention& op, const Tensor& q, const Tensor& k, const Tensor& v, size_t documents,
              const Tensor* sinks, Tensor& out, Tensor& lse) const {
    const int64_t dim = op.dim_of_values(), group = op.shape.heads / op.shape.kv_heads;
    std::ranges::fill(out.values, 0.0);
    std::ranges::fill(lse.values, 0.0);
    Tensor sums = lse, largest = lse;
    std::ranges::fill(largest.values, -std::numeric_limits<double>::infinity());
    std::vector<std::tuple<int64_t, int64_t, int64_t, double>> seen;
    for_each_score(op, q, k, documents, [&](int64_t h, int64_t t, int64_t j, double score) {
      largest(h, t) = std::max(largest(h, t), score);
      seen.emplace_back(h, t, j, score);
    });
    for (const auto& [h, t, j, score] : seen) sums(h, t) += std::exp(score - largest(h, t));
    for (int64_t h = 0; h < sums.rows(); h++)
      for (int64_t t = 0; t < sums.cols(); t++)
        if (sums(h, t) > 0)
          lse(h, t) = largest(h, t) + std::log(sums(h, t) + (sinks ? std::exp((*sinks)[h] - largest(h, t)) : 0));
    for (const auto& [h, t, j, score] : seen) {
      const double weight = std::exp(score - lse(h, t));
      for (int64_t i = 0; i < dim; i++) out(t, h * dim + i) += weight * v(j, h / group * dim + i);
    }
  }

  // p = exp(score - lse);   dv = p dout;   ds = p (dout v - dout out);   dq = scale ds k;   dk = scale ds q
  void operator()(const AttentionBackward& op) {
    const Tensor &dout = o_[0], &q = o_[1], &k = o_[2], &v = o_[3], &out = o_[4], &lse = o_[5];
    const size_t sinks = op.cross ? 8 : 7, first = sinks + (op.sinks ? 1 : 0);
    Tensor &dq = o_[first], &dk = o_[first + 1], &dv = o_[first + 2];
    const int64_t dim = op.shape.dim, value_dim = op.dim_of_values(), group = op.shape.heads / op.shape.kv_heads;
    const auto scale = static_cast<double>(op.scale);
    for (Tensor* gradient : {&dq, &dk, &dv}) std::ranges::fill(gradient->values, 0.0);
    for_each_score(op, q, k, 6, [&](int64_t h, int64_t t, int64_t j, double score) {
      const int64_t own = h * dim, key = h / group * dim, result = h * value_dim, value = h / group * value_dim;
      double along = 0;
      for (int64_t i = 0; i < value_dim; i++) along += dout(t, result + i) * (v(j, value + i) - out(t, result + i));
      const double p = std::exp(score - lse(h, t));
      along *= cap_slope(score, static_cast<double>(op.cap));
      for (int64_t i = 0; i < dim; i++) {
        dq(t, own + i) += scale * p * along * k(j, key + i);
        dk(j, key + i) += scale * p * along * q(t, own + i);
      }
      for (int64_t i = 0; i < value_dim; i++) dv(j, value + i) += p * dout(t, result + i);
    });
    for (int64_t h = 0; op.sinks && h < op.shape.heads; h++) {
      o_[first + 3][h] = 0;  // out is 0 outside documents
      for (int64_t t = 0; t < out.rows(); t++)
        for (int64_t i = h * value_dim; i < (h + 1) * value_dim; i++)
          o_[first + 3][h] -= std::exp(o_[sinks][h] - lse(h, t)) * dout(t, i) * out(t, i);
    }
  }

  void operator()(const CacheAppend&) {
    const int64_t width = o_[0].cols();
    for (int64_t t = 0; t < o_[0].rows(); t++)
      for (int64_t i = 0; i < 2 * width; i++)
        o_[2](facts_.position + t, i) = i < width ? o_[0](t, i) : o_[1](t, i - width);
  }

  void operator()(const CachedAttention& op) {
    const Tensor& q = o_[0];
    const int64_t dim = op.shape.dim;
    const Matrix<double> cache = o_[1].matrix();
    std::vector<double> weights;
    for (int64_t t = 0; t < q.rows(); t++)
      for (int64_t h = 0; h < op.shape.heads; h++) {
        const int64_t key = h / (op.shape.heads / op.shape.kv_heads) * dim, value = key + op.shape.kv_heads * dim;
        const std::span<const double> query(&q.values[static_cast<size_t>(t * q.cols() + h * dim)],
                                            static_cast<size_t>(dim));
        const int64_t end = facts_.position + t + 1, begin = first_seen(0, end - 1, op.window);
        attention_weights(query, cache, key, begin, end, static_cast<double>(op.scale), static_cast<double>(op.cap),
                          weights);
        for (int64_t i = 0; i < dim; i++) {
          o_[2](t, h * dim + i) = 0;
          for (size_t j = 0; j < weights.size(); j++)
            o_[2](t, h * dim + i) += weights[j] * cache(begin + static_cast<int64_t>(j), value + i);
        }
      }
  }

  void operator()(const RmsNorm& op) {
    std::vector<double> rstd;
    o_[2].values =
        rms_norm(by_heads(o_[0], o_[1]).matrix(), o_[1].values, static_cast<double>(op.epsilon), op.plus_one, &rstd)
            .data;
    o_[3].values = rstd;
  }

  void operator()(const RmsNormBackward& op) {
    const Tensor &rstd = o_[3], x = by_heads(o_[1], o_[2]);
    Tensor gain = o_[2];
    for (double& value : gain.values) value += op.plus_one;
    Tensor dy = by_heads(o_[0], o_[2]), dx = by_heads(o_[4], o_[2]);
    if (op.gain_gradient) std::ranges::fill(o_[5].values, 0.0);
    for (int64_t t = 0; t < x.rows(); t++) {
      double mean = 0;
      for (int64_t i = 0; i < x.cols(); i++) mean += gain[i] * dy(t, i) * x(t, i) / static_cast<double>(x.cols());
      for (int64_t i = 0; i < x.cols(); i++) {
        const double before = op.accumulate ? dx(t, i) : 0;
        dx(t, i) = before + rstd[t] * (gain[i] * dy(t, i) - x(t, i) * rstd[t] * rstd[t] * mean);
        if (op.gain_gradient) o_[5][i] += dy(t, i) * x(t, i) * rstd[t];
      }
      for (int64_t i = 0; op.restore && i < x.cols(); i++) dy(t, i) = gain[i] * x(t, i) * rstd[t];
    }
    o_[0].values = dy.values;
    o_[4].values = dx.values;
  }

  void operator()(const RowNorms&) { row_norms(o_); }
  void operator()(const AdaptedNorms& op) { adapted_norms(op, o_); }
  void operator()(const ScaleColumns& op) { scale_columns(op, o_); }
  void operator()(const ScaleColumnsBackward& op) { scale_columns_backward(op, o_); }
  void operator()(const SetRowNorms&) { set_row_norms(o_); }
  void operator()(const LayerNorm& op) { layer_norm(op, o_); }
  void operator()(const LayerNormBackward& op) { layer_norm_backward(op, o_); }
  void operator()(const Activate& op) {
    for (size_t i = 0; i < o_[0].values.size(); i++) o_[1].values[i] = activated(op.activation, o_[0].values[i]);
  }

  void operator()(const ActivateBackward& op) {
    for (size_t i = 0; i < o_[0].values.size(); i++) {
      const double x = o_[1].values[i];
      o_[2].values[i] = o_[0].values[i] * activation_slope(op.activation, x);
      if (op.restore) o_[0].values[i] = activated(op.activation, x);
    }
  }

  void operator()(const SwiGlu& op) { o_[1].values = swiglu(o_[0].matrix(), op.activation).data; }

  void operator()(const SwiGluBackward& op) {
    const int64_t n = o_[0].cols();
    for (int64_t t = 0; t < o_[0].rows(); t++)
      for (int64_t i = 0; i < n; i++) {
        const double d = o_[0](t, i), gate = o_[1](t, i), up = o_[1](t, n + i), h = activated(op.activation, gate);
        o_[2](t, i) = d * up * activation_slope(op.activation, gate);
        o_[2](t, n + i) = d * h;
        if (op.restore) o_[0](t, i) = h * up;
      }
  }

  void operator()(const SwiGluQuantize& op) {
    (*this)(SwiGlu{op.activation});
    quantize_after(1, {BaseFormat::Fp8, false, false, op.column_scales}, {1});
  }
  void operator()(const SwiGluBackwardQuantize& op) {
    std::vector<Tensor> pointwise{o_[0], o_[1], o_[3]};
    Reference(pointwise, facts_)(SwiGluBackward{op.restore, op.activation});
    o_[0] = pointwise[0];
    o_[3] = pointwise[2];
    quantize_after(3, {BaseFormat::Fp8, true, false, op.column_scales}, {3, 2});
  }

  void operator()(const SwiGluGemm& op) {
    const bool adapted = op.parts.end[0] > 0;
    const size_t gate_up = adapted ? 4 : 2;
    o_[gate_up] = adapted ? product(AdaptedGemm{true, op.parts}, gate_up, o_[gate_up])
                          : product(Gemm{.transpose_b = true}, gate_up, o_[gate_up]);
    if (op.result) o_[gate_up + 1].values = swiglu(o_[gate_up].matrix(), op.activation).data;
  }

  void operator()(const SwiGluGemmBackward& op) {
    const size_t gate_up = op.adapted ? 4 : 2, dh = gate_up + 2;
    std::vector<Tensor> pointwise{
        op.adapted ? product(AdaptedGemm{}, gate_up, o_[dh]) : product(Gemm{}, gate_up, o_[dh]), o_[gate_up],
        o_[gate_up + 1]};
    Reference(pointwise, facts_)(SwiGluBackward{op.restore, op.activation});
    o_[dh] = pointwise[0];
    o_[gate_up + 1] = pointwise[2];
  }

  void operator()(const Accumulate&) {
    for (size_t i = 0; i < o_[1].values.size(); i++) o_[1].values[i] += o_[0].values[i % o_[0].values.size()];
  }

  void operator()(const Rescale& op) {
    for (size_t i = 0; i < o_[0].values.size(); i++)
      o_.back().values[i] = static_cast<double>(op.factor) * o_[0].values[i] + (op.addend ? o_[1].values[i] : 0);
  }

  void operator()(const Cast&) { o_[1].values = o_[0].values; }
  void operator()(const Copy&) { o_[1].values = o_[0].values; }
  void operator()(const Fill&) { std::ranges::fill(o_[0].values, 0.0); }
  void operator()(const FitColumns&) {
    for (int64_t r = 0; r < o_[1].rows(); r++)
      for (int64_t c = 0; c < o_[1].cols(); c++) o_[1](r, c) = c < o_[0].cols() ? o_[0](r, c) : 0;
  }

  void operator()(const SplitMaster&) {
    for (size_t i = 0; i < o_[0].values.size(); i++) split(o_[0].values[i], o_[1].values[i], o_[2].values[i]);
  }

  void operator()(const JoinMaster&) {
    for (size_t i = 0; i < o_[0].values.size(); i++) o_[2].values[i] = join(o_[0].values[i], o_[1].values[i]);
  }

  void operator()(const RandomFill& op) {
    const Random random(op.seed, RandomPurpose::Initialisation, op.stream);
    const uint64_t first = op.every == 0 ? op.first : at_step(1 + (facts_.step - 1) / op.every, op.first);
    for (size_t i = 0; i < o_[0].values.size(); i++)
      o_[0].values[i] =
          static_cast<double>(op.scale) *
          (op.distribution == Distribution::Normal    ? static_cast<double>(random.normal(first + i))
           : op.distribution == Distribution::Uniform ? 2 * static_cast<double>(random.uniform(first + i)) - 1
                                                      : 1.0);
  }

  void operator()(const Embedding&) {
    o_[2].values = embedding<double>(o_[0].integers(o_[0].shape.count()), o_[1].matrix()).data;
  }

  void operator()(const EmbeddingBackward& op) {
    const Tensor &dx = o_[0], &order = o_[1], &starts = o_[2], &ids = o_[3];
    if (!op.accumulate) std::ranges::fill(o_[4].values, 0.0);
    for (int64_t s = 0; s < (op.patches ? facts_.patch_segments : facts_.segments); s++)
      for (int64_t i = starts.index(s); i < starts.index(s + 1); i++)
        for (int64_t c = 0; c < dx.cols(); c++) o_[4](ids.index(s), c) += dx(order.index(i), c);
  }

  void operator()(const ResizeRows& op) { resize_rows(op, o_[0], o_[1]); }
  void operator()(const ResizeRowsBackward& op) { resize_rows_backward(op, o_[0], o_[1]); }

  void operator()(const GatherRows&) { gather_rows(o_[0], o_[1], o_[2]); }
  void operator()(const ScatterRows& op) { scatter_rows(op, o_[0], o_[1], o_[2]); }

  void operator()(const SoftCap& op) {
    for (double& x : o_[0].values) x = capped(x, static_cast<double>(op.cap));
  }

  void operator()(const CrossEntropy& op) { cross_entropy(op, o_, facts_); }
  void operator()(const TopTokens& op) { top_tokens(op, o_, facts_); }
  void operator()(const Distillation& op) { distillation(op, o_, facts_); }

  void operator()(const LossSum& op) {
    double total = op.accumulate ? o_[1][0] : 0;
    for (int64_t i = 0; i < facts_.loss_rows; i++) total += o_[0][i];
    o_[1][0] = total;
  }

  void operator()(const Quantize& op) { quantize(op, o_); }

  void operator()(const QuantizeScales&) {
    std::vector<double> centred;
    for (const double scale : o_[0].values)
      centred.push_back(static_cast<double>(static_cast<float>(scale) - static_cast<float>(o_[1][0])));
    for (int64_t i = 0; i < o_[0].shape.count(); i++) {
      const int64_t begin = i / 256 * 256, n = std::min<int64_t>(256, o_[0].shape.count() - begin);
      const float scale = absmax(&at(centred, begin), n);
      o_[3][i / 256] = static_cast<double>(scale);
      o_[2][i] = nearest_code(kSignedMap, at(centred, i), scale);
    }
  }

  void operator()(const Dequantize& op) {
    const Tensor &codes = o_[0], &scales = o_[1];
    Tensor& x = o_.back();
    for (int64_t i = 0; i < x.shape.count(); i++) {
      if (op.format == BaseFormat::Int8) x[i] = int8_value(codes[i], scales[i / x.cols()]);
      if (op.format == BaseFormat::Fp8) x[i] = fp8_value(codes.index(i), scales[i / x.cols()]);
      if (op.format != BaseFormat::Nf4) continue;
      auto scale = static_cast<float>(scales[i / 64]);
      if (!op.plain_scales)
        scale = at(kSignedMap, scales.index(i / 64)) * static_cast<float>(o_[2][i / 64 / 256]) +
                static_cast<float>(o_[3][0]);
      const int64_t pair = codes.index(i / 2);
      x[i] = static_cast<double>(at(kNf4Codebook, i % 2 == 0 ? pair / 16 : pair % 16) * scale);
    }
  }

  void operator()(const NormPartials&) {
    std::ranges::fill(o_.back().values, 0.0);
    int64_t first = 0;
    for (size_t g = 0; g + 1 < o_.size(); first += (o_[g++].shape.count() + kUnit - 1) / kUnit)
      for (int64_t i = 0; i < o_[g].shape.count(); i++) o_.back()[first + i / kUnit] += o_[g][i] * o_[g][i];
  }

  void operator()(const ClipFactor& op) {
    double squares = 0;
    for (const double partial : o_[0].values) squares += partial;
    const double norm = std::sqrt(squares), factor = static_cast<double>(op.max_norm) / (norm + 1e-6);
    o_[2].values = {norm, op.max_norm > 0 && factor < 1 ? factor : 1,
                    std::isfinite(norm) && std::isfinite(o_[1][0]) ? 1.0 : 0.0};
  }

  void operator()(const AdamW& op) {
    const size_t lo = op.split ? 1 : 0;
    Tensor &m = o_[2 + lo], &v = o_[3 + lo];
    if (o_.back()[2] == 0) return;
    if (op.format != StateFormat::Fp32) return rounded_adamw(op, o_[1], m, v);
    update_weights(op.split, [&](int64_t i, double w) {
      return adamw_step<double>(op, facts_, w, o_[0][i] * o_.back()[1], m[i], v[i]);
    });
  }

  void operator()(const Lion& op) {
    Tensor& m = o_[op.split ? 3 : 2];
    if (o_.back()[2] == 0) return;
    update_weights(op.split,
                   [&](int64_t i, double w) { return lion_step(op, facts_, w, o_[0][i] * o_.back()[1], m[i]); });
  }

  void operator()(const Momentum& op) { momentum(op, o_); }
  void operator()(const Normalize&) { normalize(o_); }

  void operator()(const Descend& op) {
    if (o_.back()[2] == 0) return;
    const double lr = facts_.learning_rate * op.rate;
    update_weights(op.split, [&](int64_t i, double w) { return w * (1 - lr * op.weight_decay) - lr * o_[0][i]; });
  }

  void operator()(const FactoredMeans& op) { factored_means(op, facts_, o_); }
  void operator()(const FactoredScales&) { factored_scales(o_); }
  void operator()(const SquareLimit& op) { o_[1][0] = 1 / std::max(1.0, std::sqrt(o_[0][0]) / op.threshold); }
  void operator()(const ScaledSquares& op) { scaled_squares(op, o_); }
  void operator()(const ScaleMatrix& op) { scale_matrix(op, o_); }
  void operator()(const ProjectedMoments& op) { projected_moments(op, o_); }
  void operator()(const ChannelScales&) { channel_scales(o_); }
  void operator()(const GrowthLimit& op) { growth_limit(op, facts_, o_); }

  void operator()(const ScheduleFreeAdamW& op) {
    Tensor &d = o_[op.split ? 3 : 2], &v = o_[op.split ? 4 : 3];
    if (o_.back()[2] == 0) return;
    update_weights(op.split, [&](int64_t i, double y) {
      return schedule_free_step(op, facts_, y, o_[0][i] * o_.back()[1], d[i], v[i]);
    });
  }

  void operator()(const ScheduleFreeAverage& op) {
    update_weights(op.split, [&](int64_t i, double y) { return y - (1 - op.beta1) / op.beta1 * o_[0][i]; });
  }

  void operator()(const SumRanks& op) {
    for (int64_t c = 0; c < o_[0].cols(); c++) {
      if (!op.accumulate) o_[1][c] = 0;
      for (int64_t r = 0; r < o_[0].rows(); r++) o_[1][c] += o_[0](r, c);
    }
  }

  void operator()(const TreeSum& op) {
    for (int64_t b = 0; b < o_[1].shape.count(); b++) o_[1][b] = 0;
    for (int64_t i = 0; i < op.count; i++)
      o_[1][op.block ? i / op.block : 0] += o_[0][i] * static_cast<double>(op.scale);
  }

  void operator()(const Dropout& op) {
    const Random random(op.seed, RandomPurpose::Dropout, op.stream);
    for (int64_t t = 0; t < o_[0].rows(); t++)
      for (int64_t j = 0; j < o_[0].cols(); j++) {
        const auto element = static_cast<uint64_t>((facts_.first_token + t) * o_[0].cols() + j);
        const bool keep = static_cast<double>(random.uniform(at_step(facts_.step, element))) >= op.p;
        o_[1](t, j) = keep ? o_[0](t, j) / (1 - op.p) : 0;
      }
  }

  void operator()(const EmbeddingNoise& op) { add_noise(op, facts_, o_[0], o_[1]); }

  template <class Executors>
  void operator()(const Executors&) {  // HostTask, ReadFile, WriteFile: no backend's
    internal_error("an op of the executor has no reference");
  }

 private:
  // Replaces every weight, operand 1 and where `is_split` its low bits behind it, by what step(i, weight) returns.
  template <class Step>
  void update_weights(bool is_split, const Step& step) {
    Tensor& w = o_[1];
    for (int64_t i = 0; i < w.shape.count(); i++) {
      const double x = step(i, is_split ? join(w[i], o_[2][i]) : w[i]);
      if (is_split)
        split(x, w[i], o_[2][i]);
      else
        w[i] = x;
    }
  }

  // Quantizes what has just been computed: the operands `from`, and those after the one numbered `last`.
  void quantize_after(size_t last, const Quantize& op, const std::vector<size_t>& from) {
    std::vector<Tensor> operands;
    for (const size_t i : from) operands.push_back(o_[i]);
    operands.insert(operands.end(), o_.begin() + static_cast<ptrdiff_t>(last) + 1, o_.end());
    Reference(operands, facts_)(op);
    std::copy(operands.begin() + static_cast<ptrdiff_t>(from.size()), operands.end(),
              o_.begin() + static_cast<ptrdiff_t>(last) + 1);
  }

  // State in bf16 or 8 bits: the step in fp32, block by block.
  void rounded_adamw(const AdamW& op, Tensor& w, Tensor& m, Tensor& v) {
    const bool bit8 = op.format == StateFormat::Bit8;
    const std::vector<double> m_map = dynamic_map(true), v_map = dynamic_map(false);
    const Random random(op.seed, RandomPurpose::Rounding, op.stream);
    const int64_t n = w.shape.count();
    for (int64_t begin = 0; begin < n; begin += kStateBlock) {
      const int64_t end = std::min(n, begin + kStateBlock), block = begin / kStateBlock;
      std::vector<float> means, squares;
      for (int64_t i = begin; i < end; i++) {
        means.push_back(static_cast<float>(bit8 ? at(m_map, m.index(i)) : m[i]));
        squares.push_back(static_cast<float>(bit8 ? at(v_map, v.index(i)) : v[i]));
        const uint64_t element = op.first + static_cast<uint64_t>(i);
        uint32_t bits = random.bits(at_step(facts_.step, bit8 ? element / 2 : element));
        if (bit8 && element % 2 == 1) bits >>= 16;
        const double before = op.split ? join(w[i], o_[2][i]) : w[i];
        const auto g = static_cast<float>(o_[0][i]), factor = static_cast<float>(o_.back()[1]);
        const auto weight = static_cast<float>(before);
        const auto scale = [&](size_t scales) { return static_cast<float>(o_[scales][block]); };
        const float x =
            bit8 ? adamw_step_bit8(op, facts_, weight, g, factor, means.back(), scale(4), squares.back(), scale(5))
                 : adamw_step<float>(op, facts_, weight, g * factor, means.back(), squares.back());
        if (op.split)
          split(static_cast<double>(x), w[i], o_[2][i]);
        else
          w[i] = w.dtype == DType::BF16 ? stochastic_bf16(x, bits & 0xffffu) : static_cast<double>(x);
        if (bit8) continue;
        m[i] = stochastic_bf16(means.back(), bits & 0xffffu);
        v[i] = stochastic_bf16(squares.back(), bits >> 16);
      }
      if (!bit8) continue;
      // m's largest magnitude stands at the number of code 254, as its negative has a code too; v's at 1.
      const auto encode = [&](std::vector<float>& x, float rise, Tensor& codes, size_t scales, const auto& code) {
        float largest = 0;
        for (const float number : x) largest = std::max(largest, std::abs(number));
        const float scale = std::max(largest * rise, 0x1p-100f);
        o_[scales][block] = static_cast<double>(scale);
        for (size_t i = 0; i < x.size(); i++) codes[begin + static_cast<int64_t>(i)] = code(x[i], 1.0f / scale);
      };
      encode(means, 1.0f / static_cast<float>(m_map[254]), m, 4, [&](float x, float inverse) {
        const double code = nearest_code(m_map, 127, 254, std::abs(x * inverse) + 0x1p-24f);
        return x < 0 ? 254 - code : code;
      });
      encode(squares, 1, v, 5,
             [&](float x, float inverse) { return nearest_code(v_map, 0, 255, std::fma(x, inverse, 0x1p-24f)); });
    }
  }

  // Of the first operands, into one like `d`.
  template <class Kind>
  Tensor product(const Kind& op, size_t factors, const Tensor& d) const {
    std::vector<Tensor> operands(o_.begin(), o_.begin() + static_cast<ptrdiff_t>(factors));
    operands.push_back(d);
    Reference(operands, facts_)(op);
    return operands.back();
  }

  std::vector<Tensor>& o_;
  const RuntimeScalars& facts_;
};

}  // namespace snug::ref
