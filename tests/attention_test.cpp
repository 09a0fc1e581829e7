// Attention and its gradient against naive loops in fp64, which complex-step derivatives hold to account themselves.
#include <gtest/gtest.h>

#include <complex>

#include "backend/cpu/products.h"
#include "base/parallel.h"
#include "guarded.h"

namespace snug {
namespace {

// Binds as a program does: the operands are taken one after the other.
template <auto bind>
constexpr auto kByOperands = [](const auto& attrs, const std::vector<TensorView>& views) {
  Op op;
  op.attrs = attrs;
  return bind(attrs, Operands(op, views));
};

// ---- The reference --------------------------------------------------------------------------------------------------

template <class S>
using Matrix = std::vector<std::vector<S>>;

// out [T][heads * dim] of qkv [T][width], causal within [begin, end) of each document; rows outside stay 0.
template <class S>
Matrix<S> naive_attention(const HeadShape& shape, double scale, const std::vector<int32_t>& documents,
                          const Matrix<S>& qkv) {
  const auto dim = static_cast<size_t>(shape.dim), heads = static_cast<size_t>(shape.heads),
             kv_heads = static_cast<size_t>(shape.kv_heads);
  Matrix<S> out(qkv.size(), std::vector<S>(heads * dim));
  for (size_t d = 0; d + 1 < documents.size(); d++) {
    const auto begin = static_cast<size_t>(documents[d]), end = static_cast<size_t>(documents[d + 1]);
    for (size_t t = begin; t < end; t++) {
      for (size_t h = 0; h < heads; h++) {
        const size_t query = h * dim, key = (heads + h / (heads / kv_heads)) * dim, value = key + kv_heads * dim;
        std::vector<S> weights;
        double most = -1e300;
        for (size_t u = begin; u <= t; u++) {
          S product = 0;
          for (size_t i = 0; i < dim; i++) product += qkv[t][query + i] * qkv[u][key + i];
          weights.push_back(product * scale);
          most = std::max(most, std::real(weights.back()));
        }
        S sum = 0;
        for (S& weight : weights) sum += weight = std::exp(weight - most);
        for (size_t u = begin; u <= t; u++)
          for (size_t i = 0; i < dim; i++) out[t][query + i] += weights[u - begin] / sum * qkv[u][value + i];
      }
    }
  }
  return out;
}

// A result in fp64 and, element by element, the sum of the magnitudes that it was added up from.
struct Bounded {
  Bounded(size_t rows, size_t cols) : value(rows, std::vector<double>(cols)), magnitude(value) {}
  void add(size_t row, size_t col, double term, double size) {
    value[row][col] += term;
    magnitude[row][col] += size;
  }
  Matrix<double> value, magnitude;
};

struct Reference {
  Bounded out, dqkv;
  Matrix<double> lse;  // [heads][T]
};

int64_t width_of(const HeadShape& shape) { return shape.query_columns() + 2 * shape.key_columns(); }

// Forward and backward of sum(dout * out).
Reference naive_gradient(const HeadShape& shape, double scale, const std::vector<int32_t>& documents,
                         const Matrix<double>& qkv, const Matrix<double>& dout) {
  const auto dim = static_cast<size_t>(shape.dim), heads = static_cast<size_t>(shape.heads),
             kv_heads = static_cast<size_t>(shape.kv_heads);
  Reference r{Bounded(qkv.size(), heads * dim), Bounded(qkv.size(), static_cast<size_t>(width_of(shape))),
              Matrix<double>(heads, std::vector<double>(qkv.size()))};
  r.out.value = naive_attention(shape, scale, documents, qkv);
  for (size_t d = 0; d + 1 < documents.size(); d++) {
    const auto begin = static_cast<size_t>(documents[d]), end = static_cast<size_t>(documents[d + 1]);
    for (size_t t = begin; t < end; t++) {
      for (size_t h = 0; h < heads; h++) {
        const size_t query = h * dim, key = (heads + h / (heads / kv_heads)) * dim, value = key + kv_heads * dim;
        std::vector<double> products;
        double most = -1e300, sum = 0, delta = 0, delta_size = 0;
        for (size_t u = begin; u <= t; u++) {
          double product = 0;
          for (size_t i = 0; i < dim; i++) product += scale * qkv[t][query + i] * qkv[u][key + i];
          products.push_back(product);
          most = std::max(most, product);
        }
        for (const double product : products) sum += std::exp(product - most);
        r.lse[h][t] = most + std::log(sum);
        for (size_t i = 0; i < dim; i++) {
          delta += dout[t][query + i] * r.out.value[t][query + i];
          delta_size += std::abs(dout[t][query + i] * r.out.value[t][query + i]);
        }
        for (size_t u = begin; u <= t; u++) {
          const double p = std::exp(products[u - begin] - r.lse[h][t]);
          double dp = 0, dp_size = 0;
          for (size_t i = 0; i < dim; i++) {
            const double term = dout[t][query + i] * qkv[u][value + i];
            dp += term;
            dp_size += std::abs(term);
          }
          const double ds = scale * p * (dp - delta), ds_size = scale * p * (dp_size + delta_size);
          for (size_t i = 0; i < dim; i++) {
            r.out.magnitude[t][query + i] += p * std::abs(qkv[u][value + i]);
            r.dqkv.add(t, query + i, ds * qkv[u][key + i], ds_size * std::abs(qkv[u][key + i]));
            r.dqkv.add(u, key + i, ds * qkv[t][query + i], ds_size * std::abs(qkv[t][query + i]));
            r.dqkv.add(u, value + i, p * dout[t][query + i], p * std::abs(dout[t][query + i]));
          }
        }
      }
    }
  }
  return r;
}

Matrix<double> numbers(const Guarded& matrix) {
  Matrix<double> all(static_cast<size_t>(matrix.view().rows()));
  for (size_t row = 0; row < all.size(); row++)
    for (int64_t col = 0; col < matrix.view().cols(); col++)
      all[row].push_back(matrix.at(static_cast<int64_t>(row), col));
  return all;
}

TEST(NaiveAttention, GradientIsTheComplexStepDerivative) {
  const HeadShape shape{.heads = 4, .kv_heads = 2, .dim = 3};
  const std::vector<int32_t> documents{1, 4, 9};
  std::mt19937 random(3);
  Guarded qkv(DType::F32, 10, width_of(shape)), dout(DType::F32, 10, shape.heads * shape.dim);
  qkv.fill_normal(random);
  dout.fill_normal(random);
  const Matrix<double> inputs = numbers(qkv), direction = numbers(dout);
  const Reference reference = naive_gradient(shape, 0.4, documents, inputs, direction);
  Matrix<std::complex<double>> complex;
  for (const auto& row : inputs) complex.emplace_back(row.begin(), row.end());
  for (size_t t = 0; t < inputs.size(); t++) {
    for (size_t c = 0; c < inputs[t].size(); c++) {
      complex[t][c] += std::complex<double>(0, 1e-50);
      const auto out = naive_attention(shape, 0.4, documents, complex);
      double derivative = 0;
      for (size_t u = 0; u < out.size(); u++)
        for (size_t i = 0; i < out[u].size(); i++) derivative += direction[u][i] * out[u][i].imag() / 1e-50;
      complex[t][c] = inputs[t][c];
      ASSERT_NEAR(reference.dqkv.value[t][c], derivative, 1e-14 * (1 + reference.dqkv.magnitude[t][c]));
    }
  }
}

// Queries, keys and values of a matrix that has them side by side, as a product gives them.
std::array<TensorView, 3> parts_of(const TensorView& qkv, const HeadShape& shape) {
  std::array<TensorView, 3> parts{qkv, qkv, qkv};
  int64_t begin = 0;
  for (size_t i = 0; i < 3; i++) {
    const int64_t columns = i == 0 ? shape.query_columns() : shape.key_columns();
    parts[i].data += static_cast<uint64_t>(begin) * element_bytes(qkv.dtype);
    parts[i].shape = {qkv.rows(), columns};
    begin += columns;
  }
  return parts;
}

// ---- The kernels ----------------------------------------------------------------------------------------------------

struct AttentionCase {
  HeadShape shape;
  std::vector<int32_t> documents;
  int64_t tokens = 0;
  DType dtype = DType::F32;
  int64_t gap = 0;
  int64_t spare = 0;  // documents the operand has room for beyond those there are
};

std::ostream& operator<<(std::ostream& out, const AttentionCase& x) {
  return out << name(x.dtype) << " heads " << x.shape.heads << ":" << x.shape.kv_heads << " of " << x.shape.dim << ", "
             << x.tokens << " tokens, documents " << testing::PrintToString(x.documents) << ", gap " << x.gap;
}

struct AttentionData {
  explicit AttentionData(const AttentionCase& x)
      : x(x),
        qkv(x.dtype, x.tokens, width_of(x.shape), x.gap),
        out(x.dtype, x.tokens, x.shape.heads * x.shape.dim, x.gap),
        dout(x.dtype, x.tokens, x.shape.heads * x.shape.dim, 2 * x.gap),
        dqkv(x.dtype, x.tokens, width_of(x.shape), 3 * x.gap),
        lse(DType::F32, x.shape.heads, x.tokens, x.gap),
        documents(x.documents) {
    std::mt19937 random(5);
    qkv.fill_normal(random);
    dout.fill_normal(random);
    documents.resize(x.documents.size() + static_cast<size_t>(x.spare), -1);
  }

  void run() {
    const Shape shape{static_cast<int64_t>(documents.size())};
    const TensorView bounds{reinterpret_cast<std::byte*>(documents.data()), DType::I32, shape, shape.cols()};
    const RuntimeScalars runtime{.documents = static_cast<int64_t>(x.documents.size()) - 1};
    const auto [q, k, v] = parts_of(qkv.view(), x.shape);
    const auto [dq, dk, dv] = parts_of(dqkv.view(), x.shape);
    run_op(Attention{x.shape, scale()}, {q, k, v, bounds, out.view(), lse.view()}, runtime,
           cpu::attention_scratch_bytes, kByOperands<cpu::bind_attention>);
    run_op(AttentionBackward{{x.shape, scale()}}, {dout.view(), q, k, v, out.view(), lse.view(), bounds, dq, dk, dv},
           runtime, cpu::attention_backward_scratch_bytes, kByOperands<cpu::bind_attention_backward>);
  }
  float scale() const { return 1 / std::sqrt(static_cast<float>(x.shape.dim)); }

  AttentionCase x;
  Guarded qkv, out, dout, dqkv, lse;
  std::vector<int32_t> documents;
};

void expect_close(const Guarded& found, const Bounded& expected, double rounding) {
  for (size_t t = 0; t < expected.value.size(); t++)
    for (size_t c = 0; c < expected.value[t].size(); c++)
      ASSERT_LE(std::abs(found.at(static_cast<int64_t>(t), static_cast<int64_t>(c)) - expected.value[t][c]),
                rounding * expected.magnitude[t][c])
          << "at " << t << ", " << c;
}

// Bounds are relative to the magnitudes added up. bf16: weights and their gradients are rounded (2^-8 each), and so are
// the output that delta is taken from and the result: at most four such roundings meet in one element. fp32: sums of
// some hundreds of terms in an order of the kernel's own, and an exponential of a product that is off by some 2^-22.
void expect_right(const AttentionCase& x) {
  SCOPED_TRACE(testing::PrintToString(x));
  AttentionData data(x);
  data.run();
  const Reference reference = naive_gradient(x.shape, data.scale(), x.documents, numbers(data.qkv), numbers(data.dout));
  const double rounding = x.dtype == DType::BF16 ? 4 * 0x1p-8 : 0x1p-18;
  {
    SCOPED_TRACE("out");
    expect_close(data.out, reference.out, rounding);
  }
  for (int64_t h = 0; h < x.shape.heads; h++)
    for (int64_t t = 0; t < x.tokens; t++)
      ASSERT_NEAR(data.lse.at(h, t), reference.lse[static_cast<size_t>(h)][static_cast<size_t>(t)], 1e-5);
  {
    SCOPED_TRACE("dqkv");
    expect_close(data.dqkv, reference.dqkv, rounding);
  }
  EXPECT_TRUE(data.out.guards_hold() && data.lse.guards_hold() && data.dqkv.guards_hold());
}

TEST(Attention, MatchesLoopsForEveryHeadShape) {
  for (const HeadShape& shape : {HeadShape{1, 1, 8}, HeadShape{3, 1, 24}, HeadShape{4, 2, 18}, HeadShape{9, 3, 64},
                                 HeadShape{2, 2, 128}, HeadShape{7, 1, 5}, HeadShape{1, 1, 256}})
    for (const DType dtype : {DType::F32, DType::BF16})
      expect_right({.shape = shape, .documents = {0, 10, 75, 76, 140}, .tokens = 140, .dtype = dtype});
}

TEST(Attention, MatchesLoopsForEveryLayoutOfDocuments) {
  const HeadShape shape{4, 2, 24};
  for (const DType dtype : {DType::F32, DType::BF16})
    for (const std::vector<int32_t>& documents : std::vector<std::vector<int32_t>>{
             {0, 200}, {0, 64, 128}, {3, 130}, {0, 1, 2, 3}, {7, 7, 39, 39, 71}, {0, 65}, {5}, {0, 63, 191, 200}})
      for (const int64_t gap : {0, 6})
        expect_right({.shape = shape, .documents = documents, .tokens = 200, .dtype = dtype, .gap = gap, .spare = 9});
}

TEST(Attention, MatchesLoopsForALongDocument) {
  for (const DType dtype : {DType::F32, DType::BF16})
    expect_right({.shape = {2, 1, 16}, .documents = {0, 1111}, .tokens = 1111, .dtype = dtype});
}

TEST(Attention, IsBitEqualForAnyNumberOfThreads) {
  for (const DType dtype : {DType::F32, DType::BF16}) {
    const AttentionCase x{.shape = {6, 2, 24}, .documents = {0, 10, 300, 363}, .tokens = 370, .dtype = dtype};
    set_threads(1);
    AttentionData one(x);
    one.run();
    for (const int team : {2, 3, 4}) {
      set_threads(team);
      AttentionData many(x);
      many.run();
      EXPECT_EQ(one.out.all(), many.out.all());
      EXPECT_EQ(one.lse.all(), many.lse.all());
      EXPECT_EQ(one.dqkv.all(), many.dqkv.all());
    }
    set_threads(1);
  }
}

TEST(Attention, OfADocumentIsBitEqualWhereverItLies) {
  constexpr int64_t kLength = 150;
  for (const DType dtype : {DType::F32, DType::BF16}) {
    const HeadShape shape{6, 2, 24};
    AttentionData alone({.shape = shape, .documents = {0, kLength}, .tokens = kLength, .dtype = dtype});
    AttentionData packed({.shape = shape,
                          .documents = {3, 20, 101, 101 + kLength, 300},
                          .tokens = 333,
                          .dtype = dtype,
                          .gap = 5,
                          .spare = 2});
    for (int64_t t = 0; t < kLength; t++) {
      for (int64_t c = 0; c < width_of(shape); c++) packed.qkv.set(101 + t, c, alone.qkv.at(t, c));
      for (int64_t c = 0; c < shape.heads * shape.dim; c++) packed.dout.set(101 + t, c, alone.dout.at(t, c));
    }
    alone.run();
    packed.run();
    EXPECT_EQ(alone.out.all(), packed.out.rows(101, 101 + kLength));
    EXPECT_EQ(alone.dqkv.all(), packed.dqkv.rows(101, 101 + kLength));
    for (int64_t h = 0; h < shape.heads; h++)
      for (int64_t t = 0; t < kLength; t++) ASSERT_EQ(alone.lse.at(h, t), packed.lse.at(h, 101 + t));
  }
}

TEST(Attention, OfHugeProductsStaysFinite) {
  AttentionData data({.shape = {1, 1, 8}, .documents = {0, 70}, .tokens = 70, .dtype = DType::F32});
  for (int64_t t = 0; t < 70; t++)
    for (int64_t c = 0; c < 16; c++) data.qkv.set(t, c, 1e4 * data.qkv.at(t, c));
  data.run();
  for (int64_t t = 0; t < 70; t++)
    for (int64_t c = 0; c < 8; c++) ASSERT_TRUE(std::isfinite(data.out.at(t, c)) && std::isfinite(data.dqkv.at(t, c)));
}

// ---- The cache ------------------------------------------------------------------------------------------------------

TEST(CachedAttention, ContinuesWhatAttentionComputes) {
  for (const DType dtype : {DType::F32, DType::BF16})
    for (const HeadShape& shape : {HeadShape{6, 2, 24}, HeadShape{4, 4, 18}, HeadShape{70, 1, 8}}) {
      constexpr int64_t kTokens = 150;
      std::mt19937 random(11);
      Guarded qkv(dtype, kTokens, width_of(shape), 4), cache(dtype, 160, 2 * shape.kv_heads * shape.dim, 2);
      qkv.fill_normal(random);
      const float scale = 1 / std::sqrt(static_cast<float>(shape.dim));
      const Matrix<double> inputs = numbers(qkv);
      const Matrix<double> zeros(kTokens, std::vector<double>(static_cast<size_t>(shape.heads * shape.dim)));
      const Reference reference = naive_gradient(shape, scale, {0, kTokens}, inputs, zeros);
      int64_t position = 0;
      for (const int64_t n : {1, 64, 5, 1, 1, 64, 14}) {
        TensorView part = qkv.view();
        part.data += static_cast<uint64_t>(position * part.row_stride) * element_bytes(dtype);
        part.shape = {n, width_of(shape)};
        const auto [q, k, v] = parts_of(part, shape);
        Guarded out(dtype, n, shape.heads * shape.dim, 3);
        const RuntimeScalars runtime{.position = position};
        run_op(CacheAppend{shape}, {k, v, cache.view()}, runtime, cpu::cache_append_scratch_bytes,
               kByOperands<cpu::bind_cache_append>);
        run_op(CachedAttention{shape, scale}, {q, cache.view(), out.view()}, runtime,
               cpu::cached_attention_scratch_bytes, kByOperands<cpu::bind_cached_attention>);
        for (int64_t i = 0; i < n; i++)
          for (int64_t c = 0; c < shape.heads * shape.dim; c++) {
            const auto t = static_cast<size_t>(position + i), column = static_cast<size_t>(c);
            ASSERT_LE(std::abs(out.at(i, c) - reference.out.value[t][column]),
                      (dtype == DType::BF16 ? 3 * 0x1p-8 : 0x1p-18) * reference.out.magnitude[t][column]);
          }
        EXPECT_TRUE(out.guards_hold() && cache.guards_hold());
        position += n;
      }
    }
}

}  // namespace
}  // namespace snug
