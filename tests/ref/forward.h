// The forward mathematics of a decoder, as plainly as it can be written, over any scalar.
//
// With double it is the reference that ops are held against. With std::complex<double> it gives derivatives free of
// cancellation (the complex step: Squire and Trapp, SIAM Review 40, 1998): f(x + i h) = f(x) + i h f'(x) + O(h^2), so
// Im f / h with h = 1e-50 is f' to the last bits. For that every path is analytic: no abs, no comparison but of real
// parts, a softmax's maximum taken over real parts (any constant may be subtracted there).
//
// Shapes: activations are [tokens, features]; weights [out, in] as Hugging Face stores them.
#pragma once

#include <cmath>
#include <complex>
#include <cstdint>
#include <numbers>
#include <optional>
#include <span>
#include <vector>

#include "program/ops.h"

namespace snug::ref {

inline double real_part(double x) { return x; }
inline double real_part(const std::complex<double>& x) { return x.real(); }

template <class S>
struct Matrix {
  Matrix() = default;
  Matrix(int64_t rows, int64_t cols) : rows(rows), cols(cols), data(static_cast<size_t>(rows * cols)) {}
  S& operator()(int64_t r, int64_t c) { return data[static_cast<size_t>(r * cols + c)]; }
  const S& operator()(int64_t r, int64_t c) const { return data[static_cast<size_t>(r * cols + c)]; }
  int64_t rows = 0, cols = 0;
  std::vector<S> data;  // row-major
};

// Element of a vector by a signed index.
template <class V>
decltype(auto) at(V& v, int64_t i) {
  return v[static_cast<size_t>(i)];
}

// ---- Ops ------------------------------------------------------------------------------------------------------------

// y = x w^T + bias.   x [T, in], w [out, in], bias [out] or empty.
template <class S>
Matrix<S> linear(const Matrix<S>& x, const Matrix<S>& w, const std::vector<S>& bias = {}) {
  Matrix<S> y(x.rows, w.rows);
  for (int64_t t = 0; t < x.rows; t++)
    for (int64_t o = 0; o < w.rows; o++) {
      S sum = bias.empty() ? S(0) : at(bias, o);
      for (int64_t i = 0; i < x.cols; i++) sum += x(t, i) * w(o, i);
      y(t, o) = sum;
    }
  return y;
}

// y = gain x / sqrt(mean(x^2) + epsilon), row by row, where gain is the weight and `more`; rstd, if given, takes the
// factors.
template <class S>
Matrix<S> rms_norm(const Matrix<S>& x, const std::vector<S>& weight, double epsilon, double more = 0,
                   std::vector<S>* rstd = nullptr) {
  Matrix<S> y(x.rows, x.cols);
  for (int64_t t = 0; t < x.rows; t++) {
    S squares = 0;
    for (int64_t i = 0; i < x.cols; i++) squares += x(t, i) * x(t, i);
    const S r = S(1) / std::sqrt(squares / S(static_cast<double>(x.cols)) + S(epsilon));
    for (int64_t i = 0; i < x.cols; i++) y(t, i) = (at(weight, i) + more) * x(t, i) * r;
    if (rstd) rstd->push_back(r);
  }
  return y;
}

// y = gain (x - mean) / sqrt(mean((x - mean)^2) + epsilon) + bias, row by row, where gain is the weight and `more`;
// moments, if given, takes the means, then the factors. Rows take the rows of a longer weight and bias in turn.
template <class S>
Matrix<S> layer_norm(const Matrix<S>& x, const std::vector<S>& weight, const std::vector<S>& bias, double epsilon,
                     double more = 0, std::vector<S>* moments = nullptr) {
  Matrix<S> y(x.rows, x.cols);
  std::vector<S> factors;
  const S count = static_cast<double>(x.cols);
  for (int64_t t = 0; t < x.rows; t++) {
    S sum = 0, squares = 0;
    for (int64_t i = 0; i < x.cols; i++) sum += x(t, i);
    const S mean = sum / count;
    for (int64_t i = 0; i < x.cols; i++) squares += (x(t, i) - mean) * (x(t, i) - mean);
    const S r = S(1) / std::sqrt(squares / count + S(epsilon));
    const int64_t own = t * x.cols % std::ssize(weight);
    for (int64_t i = 0; i < x.cols; i++)
      y(t, i) = (at(weight, own + i) + more) * ((x(t, i) - mean) * r) + (bias.empty() ? S(0) : at(bias, own + i));
    if (moments) moments->push_back(mean);
    factors.push_back(r);
  }
  if (moments) moments->insert(moments->end(), factors.begin(), factors.end());
  return y;
}

// The normal distribution. Its derivative is known, so that a complex step needs no erf of complex numbers.
inline double normal(double x) { return 0.5 * std::erfc(-x / std::numbers::sqrt2); }
inline double normal_density(double x) { return std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi); }
inline std::complex<double> normal(const std::complex<double>& x) {
  return {normal(x.real()), normal_density(x.real()) * x.imag()};
}

template <class S>
S activated(Activation activation, const S& x) {
  if (activation == Activation::Silu) return x / (S(1) + std::exp(-x));
  if (activation == Activation::GeluQuick) return x / (S(1) + std::exp(-1.702 * x));
  if (activation == Activation::ReluSquared) return real_part(x) < 0 ? S(0) : S(x * x);
  if (activation == Activation::Gelu) return x * normal(x);
  return 0.5 * x * (S(1) + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

// activation(gate) up.   gate_up [T, 2 F], gate columns first.
template <class S>
Matrix<S> swiglu(const Matrix<S>& gate_up, Activation activation = Activation::Silu) {
  const int64_t n = gate_up.cols / 2;
  Matrix<S> h(gate_up.rows, n);
  for (int64_t t = 0; t < h.rows; t++)
    for (int64_t i = 0; i < n; i++) h(t, i) = activated(activation, gate_up(t, i)) * gate_up(t, n + i);
  return h;
}

// The factor of a position's row in a table of rotary angles.
inline double rope_factor(const RopeTable& table, int64_t position) {
  if (table.growth == 0) return table.attention_factor;
  const double lengths = std::floor(static_cast<double>(position) / static_cast<double>(table.growth_length));
  return table.attention_factor * (1 + table.growth * std::log(1 + lengths));
}

// Turns queries and keys of qkv [T, width] by their positions: halves of the first elements of each head, or
// neighbours. A table that grows does so for queries.
template <class S>
Matrix<S> rope(Matrix<S> qkv, const HeadShape& shape, std::span<const int32_t> positions, const RopeTable& table,
               bool interleaved = false) {
  const int64_t half = std::ssize(table.frequencies);
  for (int64_t t = 0; t < qkv.rows; t++)
    for (int64_t h = 0; h < shape.heads + shape.kv_heads; h++)
      for (int64_t i = 0; i < half; i++) {
        const double angle = static_cast<double>(at(positions, t)) * at(table.frequencies, i);
        const double factor = h < shape.heads ? rope_factor(table, at(positions, t)) : table.attention_factor;
        const S c = std::cos(angle) * factor, s = std::sin(angle) * factor;
        S& first = qkv(t, h * shape.dim + (interleaved ? 2 * i : i));
        S& second = qkv(t, h * shape.dim + (interleaved ? 2 * i + 1 : i + half));
        const S x1 = first, x2 = second;
        first = x1 * c - x2 * s;
        second = x2 * c + x1 * s;
      }
  return qkv;
}

template <class S>
struct Attended {
  Matrix<S> out;  // [T, heads dim]
  Matrix<S> lse;  // [heads, T]
};

// x under a soft cap; 0: x.
template <class S>
S capped(const S& x, double cap) {
  return cap > 0 ? S(cap * std::tanh(x / cap)) : x;
}

// The scores of query t of head h over keys [begin, end), and the softmax of them in their place; returns the log of
// the sum of exponentials. keys: row j holds its keys from column `first`.
template <class S>
S attention_weights(std::span<const S> query, const Matrix<S>& keys, int64_t first, int64_t begin, int64_t end,
                    double scale, double cap, std::vector<S>& weights) {
  weights.clear();
  double largest = -std::numeric_limits<double>::infinity();
  for (int64_t j = begin; j < end; j++) {
    S score = 0;
    for (int64_t i = 0; i < static_cast<int64_t>(query.size()); i++) score += at(query, i) * keys(j, first + i);
    weights.push_back(capped(score * scale, cap));
    largest = std::max(largest, real_part(weights.back()));
  }
  S sum = 0;
  for (S& w : weights) sum += (w = std::exp(w - largest));
  for (S& w : weights) w /= sum;
  return std::log(sum) + largest;
}

// The first of the tokens from `begin` on that token t sees through a window (Attention).
inline int64_t first_seen(int64_t begin, int64_t t, int64_t window) {
  return window > 0 ? std::max(begin, t + 1 - window) : begin;
}

// Causal attention within documents, whose starts and the end of the last are `documents`; rows outside are 0.
template <class S>
Attended<S> attention(const Matrix<S>& qkv, const HeadShape& shape, double scale, std::span<const int32_t> documents,
                      int64_t window = 0, double cap = 0) {
  Attended<S> y{Matrix<S>(qkv.rows, shape.heads * shape.dim), Matrix<S>(shape.heads, qkv.rows)};
  std::vector<S> weights;
  for (size_t d = 0; d + 1 < documents.size(); d++)
    for (int64_t t = documents[d]; t < documents[d + 1]; t++)
      for (int64_t h = 0; h < shape.heads; h++) {
        const int64_t kv = h / (shape.heads / shape.kv_heads);
        const int64_t key = (shape.heads + kv) * shape.dim, value = key + shape.kv_heads * shape.dim;
        const std::span<const S> query(&qkv(t, h * shape.dim), static_cast<size_t>(shape.dim));
        const int64_t begin = first_seen(documents[d], t, window);
        y.lse(h, t) = attention_weights(query, qkv, key, begin, t + 1, scale, cap, weights);
        for (int64_t j = begin; j <= t; j++)
          for (int64_t i = 0; i < shape.dim; i++)
            y.out(t, h * shape.dim + i) += at(weights, j - begin) * qkv(j, value + i);
      }
  return y;
}

// log(sum exp logits) - logits[target] of each row; 0 where the target is negative.
template <class S>
std::vector<S> cross_entropy(const Matrix<S>& logits, std::span<const int32_t> targets) {
  std::vector<S> losses;
  for (int64_t t = 0; t < logits.rows; t++) {
    losses.push_back(0);
    if (at(targets, t) < 0) continue;
    double largest = real_part(logits(t, 0));
    for (int64_t v = 0; v < logits.cols; v++) largest = std::max(largest, real_part(logits(t, v)));
    S sum = 0;
    for (int64_t v = 0; v < logits.cols; v++) sum += std::exp(logits(t, v) - largest);
    losses.back() = std::log(sum) + largest - logits(t, at(targets, t));
  }
  return losses;
}

template <class S>
Matrix<S> embedding(std::span<const int32_t> ids, const Matrix<S>& table) {
  Matrix<S> x(static_cast<int64_t>(ids.size()), table.cols);
  for (int64_t t = 0; t < x.rows; t++)
    for (int64_t i = 0; i < x.cols; i++) x(t, i) = table(at(ids, t), i);
  return x;
}

// ---- A whole decoder ------------------------------------------------------------------------------------------------

// y += scale x a^T b^T.   a [rank, in], b [out, rank].
template <class S>
struct LowRank {
  Matrix<S> a, b;
  double scale = 1;
};

template <class S>
struct Linear {
  Matrix<S> weight;     // [out, in]
  std::vector<S> bias;  // [out], or empty
  std::optional<LowRank<S>> adapter;
};

template <class S>
struct Block {
  std::vector<S> attention_norm, mlp_norm;                // [hidden], or none
  Linear<S> q, k, v, o;                                   // in: hidden; o from heads dim to hidden
  Linear<S> gate, up, down;                               // hidden to F, F to hidden
  int64_t window = 0;                                     // of attention
  bool rope = true;                                       // of queries and keys
  std::vector<S> query_norm{}, key_norm{};                // of each head, of each its own, of all as one row, or none
  double scale = 0;                                       // of scores; 0: 1 / sqrt(dim)
  double cap = 0;                                         // of scores; 0: none
  double residual_multiplier = 1;                         // of what is added to the residual stream
  std::vector<S> attention_post_norm{}, mlp_post_norm{};  // of what is added, or none
  Activation activation = Activation::Silu;               // of the gate
  bool local_rope = false;
  bool rope_interleaved = false;                          // neighbours turn together
  std::vector<S> attention_norm_bias{}, mlp_norm_bias{};  // of LayerNorms
  bool gated = true;                                      // whether the MLP has a gate
  bool rope_before_norms = false;                         // of queries and keys
  bool parallel = false;                                  // whether the MLP reads what attention reads
};

template <class S>
struct Decoder {
  HeadShape heads;
  RopeTable rope, local_rope{};
  double epsilon = 1e-5;    // of every norm
  double more = 0;          // beside every norm's weight
  bool layer_norm = false;  // whether norms before branches and at the end are LayerNorms
  Matrix<S> embedding;      // [V, hidden]
  std::vector<Block<S>> blocks;
  std::vector<S> final_norm;  // [hidden]
  std::vector<S> final_norm_bias{};
  Matrix<S> head;  // [V, hidden]; empty: tied to the embedding
  double embedding_factor = 1, logits_factor = 1, logits_cap = 0;
};

struct Batch {
  std::vector<int32_t> ids, positions;  // [T]
  std::vector<int32_t> documents;       // starts, then the end of the last
  std::vector<int32_t> targets;         // [T]; negative: no loss
};

template <class S>
Matrix<S> linear(const Linear<S>& l, const Matrix<S>& x) {
  Matrix<S> y = linear(x, l.weight, l.bias);
  if (!l.adapter) return y;
  const Matrix<S> low = linear(linear(x, l.adapter->a), l.adapter->b);
  for (size_t i = 0; i < y.data.size(); i++) y.data[i] += l.adapter->scale * low.data[i];
  return y;
}

// Matrices of equally many rows, side by side.
template <class S>
Matrix<S> beside(std::initializer_list<Matrix<S>> parts) {
  int64_t cols = 0, first = 0;
  for (const Matrix<S>& part : parts) cols += part.cols;
  Matrix<S> all(parts.begin()->rows, cols);
  for (const Matrix<S>& part : parts) {
    for (int64_t r = 0; r < all.rows; r++)
      for (int64_t c = 0; c < part.cols; c++) all(r, first + c) = part(r, c);
    first += part.cols;
  }
  return all;
}

// Columns [begin, end).
template <class S>
Matrix<S> columns_of(const Matrix<S>& x, int64_t begin, int64_t end) {
  Matrix<S> part(x.rows, end - begin);
  for (int64_t r = 0; r < x.rows; r++)
    for (int64_t c = begin; c < end; c++) part(r, c - begin) = x(r, c);
  return part;
}

// a + factor b.
template <class S>
Matrix<S> sum(Matrix<S> a, const Matrix<S>& b, double factor = 1) {
  for (size_t i = 0; i < a.data.size(); i++) a.data[i] += factor * b.data[i];
  return a;
}

template <class S>
Matrix<S> scaled(Matrix<S> a, double factor) {
  for (S& x : a.data) x *= factor;
  return a;
}

// The norm before a branch or at the end; x where there is none.
template <class S>
Matrix<S> normed(const Decoder<S>& model, const Matrix<S>& x, const std::vector<S>& weight,
                 const std::vector<S>& bias) {
  if (weight.empty()) return x;
  return model.layer_norm ? layer_norm(x, weight, bias, model.epsilon, model.more)
                          : rms_norm(x, weight, model.epsilon, model.more);
}

// Norms every gain.size() values of a row by themselves; LayerNorms have a gain for each head.
template <class S>
Matrix<S> norm_heads(const Decoder<S>& model, Matrix<S> x, const std::vector<S>& gain) {
  const int64_t n = model.layer_norm ? model.heads.dim : std::ssize(gain);
  Matrix<S> heads(x.rows * x.cols / n, n);
  heads.data = std::move(x.data);
  x.data = normed(model, heads, gain, {}).data;
  return x;
}

// x [T, hidden] through one block.
template <class S>
Matrix<S> forward(const Decoder<S>& model, const Block<S>& block, const Matrix<S>& x, const Batch& batch) {
  const auto norm = [&](const Matrix<S>& from, const std::vector<S>& weight) {
    return weight.empty() ? from : rms_norm(from, weight, model.epsilon, model.more);
  };
  const Matrix<S> n1 = normed(model, x, block.attention_norm, block.attention_norm_bias);
  Matrix<S> qkv = beside({linear(block.q, n1), linear(block.k, n1), linear(block.v, n1)});
  const auto rotate = [&] {
    if (block.rope)
      qkv = rope(std::move(qkv), model.heads, batch.positions, block.local_rope ? model.local_rope : model.rope,
                 block.rope_interleaved);
  };
  if (block.rope_before_norms) rotate();
  if (!block.query_norm.empty()) {
    const int64_t q = model.heads.query_columns(), k = q + model.heads.key_columns();
    qkv = beside({norm_heads(model, columns_of(qkv, 0, q), block.query_norm),
                  norm_heads(model, columns_of(qkv, q, k), block.key_norm), columns_of(qkv, k, qkv.cols)});
  }
  if (!block.rope_before_norms) rotate();
  const double scale = block.scale > 0 ? block.scale : 1 / std::sqrt(static_cast<double>(model.heads.dim));
  const Matrix<S> attended = attention(qkv, model.heads, scale, batch.documents, block.window, block.cap).out;
  const Matrix<S> r = sum(x, norm(linear(block.o, attended), block.attention_post_norm), block.residual_multiplier);
  const Matrix<S> n2 = block.parallel ? n1 : normed(model, r, block.mlp_norm, block.mlp_norm_bias);
  Matrix<S> h = linear(block.up, n2);
  if (block.gated)
    h = swiglu(beside({linear(block.gate, n2), h}), block.activation);
  else
    for (S& value : h.data) value = activated(block.activation, value);
  return sum(r, norm(linear(block.down, h), block.mlp_post_norm), block.residual_multiplier);
}

// [T, V]
template <class S>
Matrix<S> logits(const Decoder<S>& model, const Batch& batch) {
  Matrix<S> x = scaled(embedding(batch.ids, model.embedding), model.embedding_factor);
  for (const Block<S>& block : model.blocks) x = forward(model, block, x, batch);
  x = normed(model, x, model.final_norm, model.final_norm_bias);
  x = scaled(linear(x, model.head.data.empty() ? model.embedding : model.head), model.logits_factor);
  for (S& logit : x.data) logit = capped(logit, model.logits_cap);
  return x;
}

// The sum of all losses times `scale` (1 / loss tokens of the step for their mean).
template <class S>
S loss(const Decoder<S>& model, const Batch& batch, double scale) {
  S total = 0;
  for (const S& l : cross_entropy(logits(model, batch), batch.targets)) total += l;
  return total * scale;
}

// ---- Derivatives ----------------------------------------------------------------------------------------------------

using Complex = std::complex<double>;

// d f() / d x[i] for every i, where f reads x.
template <class F>
std::vector<double> complex_step(std::vector<Complex>& x, const F& f) {
  constexpr double kStep = 1e-50;
  std::vector<double> derivatives;
  for (Complex& element : x) {
    const Complex before = element;
    element += Complex(0, kStep);
    derivatives.push_back(Complex(f()).imag() / kStep);
    element = before;
  }
  return derivatives;
}

}  // namespace snug::ref
