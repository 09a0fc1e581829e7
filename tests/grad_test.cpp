// Backward ops in fp32 against complex-step derivatives of the naive forward (ref/forward.h): for L = sum(dy y) with a
// random dy, what the op gives must be dL / dx for every element of every input.
#include <gtest/gtest.h>

#include <cstring>

#include "backend/cpu/backend.h"
#include "backend/cpu/facts.h"
#include "op_cases.h"

namespace snug {
namespace {

using ref::Complex;

// A dense fp32 or int32 operand with memory of its own.
struct Array {
  Array(DType dtype, Shape shape) : dtype(dtype), shape(shape), bytes(static_cast<size_t>(shape.count()) * 4) {}
  float& operator[](size_t i) { return reinterpret_cast<float*>(bytes.data())[i]; }
  size_t count() const { return bytes.size() / 4; }

  DType dtype;
  Shape shape;
  std::vector<std::byte> bytes;
};

Array zeros(const Shape& shape) { return {DType::F32, shape}; }

Array random(const Shape& shape, uint64_t seed, double low = -1, double high = 1) {
  Array x = zeros(shape);
  Numbers numbers(seed);
  for (size_t i = 0; i < x.count(); i++) x[i] = static_cast<float>(numbers.uniform(low, high));
  return x;
}

Array indices(const std::vector<int32_t>& values) {
  Array x(DType::I32, {static_cast<int64_t>(values.size())});
  std::memcpy(x.bytes.data(), values.data(), x.bytes.size());
  return x;
}

// Runs an op on arrays in ops.h's order; scratch is added.
void run(const Attrs& attrs, std::vector<Array*> arrays, const RuntimeScalars& runtime = {}) {
  Op op;
  op.attrs = attrs;
  op.site = "grad_test";
  std::vector<TensorView> views;
  for (Array* a : arrays) {
    op.operands.push_back(
        {static_cast<BufferId>(views.size()), Access::ReadWrite, a->dtype, a->shape, 0, a->shape.cols()});
    views.push_back({a->bytes.data(), a->dtype, a->shape, a->shape.cols()});
  }
  const auto scratch = static_cast<int64_t>(CpuFacts().scratch_bytes(attrs, op.operands));
  std::vector<float> memory(static_cast<size_t>(scratch + 3) / 4);
  if (scratch > 0) views.push_back({reinterpret_cast<std::byte*>(memory.data()), DType::U8, {scratch}, scratch});
  CpuBackend().bind(op, views)(runtime);
}

ref::Matrix<Complex> matrix(Array& x) {
  ref::Matrix<Complex> m(x.shape.rows(), x.shape.cols());
  for (size_t i = 0; i < x.count(); i++) m.data[i] = static_cast<double>(x[i]);
  return m;
}

// Columns of several arrays, one after the other.
Array beside(const std::vector<Array*>& parts) {
  int64_t columns = 0;
  for (const Array* part : parts) columns += part->shape.cols();
  Array all = zeros({parts[0]->shape.rows(), columns});
  size_t at = 0;
  for (int64_t r = 0; r < all.shape.rows(); r++)
    for (Array* part : parts)
      for (int64_t c = 0; c < part->shape.cols(); c++)
        all[at++] = (*part)[static_cast<size_t>(r * part->shape.cols() + c)];
  return all;
}

Complex contract(const std::vector<Complex>& y, Array& dy) {
  Complex sum = 0;
  for (size_t i = 0; i < y.size(); i++) sum += y[i] * static_cast<double>(dy[i]);
  return sum;
}

// Sums of fp32 terms: the limit goes by the largest derivative of the tensor.
void expect_near(Array& got, const std::vector<double>& want, const char* what) {
  ASSERT_EQ(got.count(), want.size()) << what;
  double largest = 0;
  for (const double x : want) largest = std::max(largest, std::abs(x));
  EXPECT_GT(largest, 0) << what;
  for (size_t i = 0; i < want.size(); i++)
    ASSERT_TRUE(std::abs(static_cast<double>(got[i]) - want[i]) <= 3e-6 * largest)
        << what << ", element " << i << ": " << got[i] << " found, " << want[i] << " expected";
}

TEST(Grad, RmsNorm) {
  for (const Shape& shape : {Shape{5, 24}, Shape{70, 9}}) {
    const int64_t rows = shape[0], n = shape[1];
    Array x = random(shape, 1, -2, 2), gain = random({n}, 2), dy = random(shape, 3);
    Array y = zeros(shape), rstd = zeros({rows}), dx = zeros(shape), dgain = zeros({n});
    for (const bool plus_one : {false, true}) {
      run(RmsNorm{1e-3f, plus_one}, {&x, &gain, &y, &rstd});
      run(RmsNormBackward{.gain_gradient = true, .plus_one = plus_one}, {&dy, &x, &gain, &rstd, &dx, &dgain});

      auto cx = matrix(x), cgain = matrix(gain);
      const auto loss = [&] {
        return contract(ref::rms_norm(cx, cgain.data, static_cast<double>(1e-3f), plus_one).data, dy);
      };
      expect_near(dx, ref::complex_step(cx.data, loss), "dx");
      expect_near(dgain, ref::complex_step(cgain.data, loss), "dgain");
    }
  }
}

TEST(Grad, LayerNorm) {
  for (const Shape& shape : {Shape{5, 24}, Shape{70, 9}}) {
    const int64_t rows = shape[0], n = shape[1];
    Array x = random(shape, 1, -1, 3), gain = random({n}, 2), bias = random({n}, 5), dy = random(shape, 3);
    Array before = random(shape, 4), y = zeros(shape), moments = zeros({2, rows}), dgain = zeros({n}),
          dbias = zeros({n});
    for (const bool plus_one : {false, true}) {
      Array dx = before;
      run(LayerNorm{1e-3f, plus_one, true}, {&x, &gain, &bias, &y, &moments});
      run(LayerNormBackward{.accumulate = true, .gain_gradient = true, .bias_gradient = true, .plus_one = plus_one},
          {&dy, &x, &gain, &moments, &dx, &dgain, &dbias});

      auto cx = matrix(x), cgain = matrix(gain), cbias = matrix(bias);
      const auto loss = [&] {  // a residual beside the norm
        const auto normed = ref::layer_norm(cx, cgain.data, cbias.data, static_cast<double>(1e-3f), plus_one);
        return contract(normed.data, dy) + contract(cx.data, before);
      };
      expect_near(dx, ref::complex_step(cx.data, loss), "dx");
      expect_near(dgain, ref::complex_step(cgain.data, loss), "dgain");
      expect_near(dbias, ref::complex_step(cbias.data, loss), "dbias");
    }
  }
}

// Heads have gains of their own.
TEST(Grad, LayerNormOfHeads) {
  const int64_t rows = 70, heads = 3, n = 9;
  Array x = random({rows, heads * n}, 1, -1, 3), gain = random({heads, n}, 2), dy = random({rows, heads * n}, 3);
  Array y = zeros({rows, heads * n}), moments = zeros({2, rows * heads}), dx = zeros({rows, heads * n}),
        dgain = zeros({heads, n});
  run(LayerNorm{1e-3f}, {&x, &gain, &y, &moments});
  run(LayerNormBackward{.gain_gradient = true}, {&dy, &x, &gain, &moments, &dx, &dgain});

  auto cx = matrix(x), cgain = matrix(gain);
  const auto loss = [&] {
    std::complex<double> sum = 0;
    for (int64_t head = 0; head < heads; head++)
      for (int64_t t = 0; t < rows; t++) {
        auto one = decltype(cx)(1, n), own = decltype(cx)(1, n);
        for (int64_t i = 0; i < n; i++) one(0, i) = cx(t, head * n + i), own(0, i) = cgain(head, i);
        const auto normed = ref::layer_norm(one, own.data, {}, static_cast<double>(1e-3f));
        for (int64_t i = 0; i < n; i++)
          sum += normed(0, i) * static_cast<double>(dy[static_cast<size_t>(t * heads * n + head * n + i)]);
      }
    return sum;
  };
  expect_near(dx, ref::complex_step(cx.data, loss), "dx");
  expect_near(dgain, ref::complex_step(cgain.data, loss), "dgain");
}

TEST(Grad, RmsNormAddsToAGradientThatIsThere) {
  const Shape shape{5, 24};
  Array x = random(shape, 1), gain = random({24}, 2), dy = random(shape, 3), before = random(shape, 4);
  Array y = zeros(shape), rstd = zeros({5}), dx = before;
  run(RmsNorm{1e-3f}, {&x, &gain, &y, &rstd});
  run(RmsNormBackward{.accumulate = true}, {&dy, &x, &gain, &rstd, &dx});

  auto cx = matrix(x), cgain = matrix(gain);
  const auto loss = [&] {  // a residual beside the norm
    return contract(ref::rms_norm(cx, cgain.data, static_cast<double>(1e-3f)).data, dy) + contract(cx.data, before);
  };
  expect_near(dx, ref::complex_step(cx.data, loss), "dx");
}

// The factors of columns are m / g, and g is a constant.
TEST(Grad, ScaleColumns) {
  const AdaptedParts parts{{2, 9}, {7, 13}};
  Array z = random({70, 13}, 1), m = random({9}, 2, 0.5, 2), g = random({9}, 3, 0.5, 2), dy = random({70, 13}, 4);
  Array factors = zeros({2, 9}), dz = zeros({70, 13}), dm = zeros({9});
  for (size_t i = 0; i < 9; i++) factors[i] = m[i] / g[i], factors[9 + i] = 1 / g[i];
  run(ScaleColumnsBackward{parts}, {&dy, &z, &factors, &dz, &dm});

  auto cz = matrix(z), cm = matrix(m);
  const auto loss = [&] {
    auto y = cz.data;
    for (size_t i = 0; i < y.size(); i++)
      if (const int64_t at = ref::factor_of(parts, static_cast<int64_t>(i % 13)); at >= 0)
        y[i] *= cm.data[static_cast<size_t>(at)] / static_cast<double>(g[static_cast<size_t>(at)]);
    return contract(y, dy);
  };
  expect_near(dz, ref::complex_step(cz.data, loss), "dz");
  expect_near(dm, ref::complex_step(cm.data, loss), "dm");
}

TEST(Grad, SwiGlu) {
  Array gate_up = random({7, 26}, 1, -6, 6), dh = random({7, 13}, 2), dgate_up = zeros({7, 26});
  for (const Activation activation : kAllActivations) {
    run(SwiGluBackward{false, activation}, {&dh, &gate_up, &dgate_up});
    auto c = matrix(gate_up);
    const auto loss = [&] { return contract(ref::swiglu(c, activation).data, dh); };
    expect_near(dgate_up, ref::complex_step(c.data, loss), "dgate_up");
  }
}

TEST(Grad, Activations) {
  Array x = random({7, 26}, 1, -6, 6), dh = random({7, 26}, 2), dx = zeros({7, 26});
  for (const Activation activation : kAllActivations) {
    run(ActivateBackward{false, activation}, {&dh, &x, &dx});
    auto c = matrix(x);
    const auto loss = [&] {
      auto h = c.data;
      for (Complex& value : h) value = ref::activated(activation, value);
      return contract(h, dh);
    };
    expect_near(dx, ref::complex_step(c.data, loss), word(activation).data());
  }
}

// The op itself, over what comes back.
TEST(Grad, Dropout) {
  const Dropout attrs{0.25, 5, 2};
  const RuntimeScalars runtime{.step = 3, .first_token = 6};
  Array x = random({9, 14}, 1), dy = random({9, 14}, 2), dx = zeros({9, 14});
  run(attrs, {&dy, &dx}, runtime);
  const Random stream(5, RandomPurpose::Dropout, 2);
  auto c = matrix(x);
  const auto loss = [&] {
    auto y = c.data;
    for (size_t i = 0; i < y.size(); i++) y[i] *= stream.uniform(at_step(3, 6 * 14 + i)) >= 0.25f ? 1 / 0.75 : 0.0;
    return contract(y, dy);
  };
  expect_near(dx, ref::complex_step(c.data, loss), "dx");
}

TEST(Grad, Rope) {
  const HeadShape shape{3, 1, 8};  // four heads that turn, of which six elements do
  const RopeTable attrs{{1, 0.2f, 0.04f}, 1.25f};
  const std::vector<int32_t> positions{0, 1, 2, 0, 9};
  for (const bool interleaved : {false, true}) {
    Array table = zeros({10, 6}), at = indices(positions), x = random({5, 32}, 1);
    Array dx = random({5, 32}, 2), dy = dx;
    run(attrs, {&table});
    run(Rope{8, true, interleaved}, {&dx, &at, &table});
    auto c = matrix(x);
    const auto loss = [&] { return contract(ref::rope(c, shape, positions, attrs, interleaved).data, dy); };
    expect_near(dx, ref::complex_step(c.data, loss), "dx");
  }
}

// Also with grouped heads; several documents, one of a single token; tokens outside any.
TEST(Grad, Attention) {
  const std::vector<int32_t> documents{0, 1, 8, 13};
  const int64_t tokens = 15;
  for (const HeadShape& shape : {HeadShape{2, 2, 8}, HeadShape{7, 1, 4}, HeadShape{4, 2, 6}}) {
    const Shape queries{tokens, shape.query_columns()}, keys{tokens, shape.key_columns()};
    Array q = random(queries, 1, -2, 2), k = random(keys, 3, -2, 2), v = random(keys, 4, -2, 2);
    Array dout = random(queries, 2), out = zeros(queries), lse = zeros({shape.heads, tokens});
    Array dq = zeros(queries), dk = zeros(keys), dv = zeros(keys);
    Array bounds = indices(documents);
    const RuntimeScalars runtime{.documents = 3};
    for (const float cap : {0.0f, 2.0f}) {
      run(Attention{shape, 0.4f, 0, 0, cap}, {&q, &k, &v, &bounds, &out, &lse}, runtime);
      run(AttentionBackward{{shape, 0.4f, 0, 0, cap}}, {&dout, &q, &k, &v, &out, &lse, &bounds, &dq, &dk, &dv},
          runtime);
      Array qkv = beside({&q, &k, &v}), dqkv = beside({&dq, &dk, &dv});
      auto c = matrix(qkv);
      const auto loss = [&] {
        const auto y = ref::attention(c, shape, static_cast<double>(0.4f), documents, 0, static_cast<double>(cap));
        return contract(y.out.data, dout);
      };
      expect_near(dqkv, ref::complex_step(c.data, loss), "dqkv");
    }
  }
}

TEST(Grad, CrossEntropy) {
  const std::vector<int32_t> targets{3, 0, 16, 5};
  Array logits = random({4, 17}, 1, -5, 5), losses = zeros({4}), at = indices(targets);
  Array weights = random({4}, 2, -1, 2);
  for (const auto& [cap, smoothing, z_loss] :
       {std::tuple(0.0f, 0.0f, 0.0f), {3.0f, 0.0f, 0.0f}, {0.0f, 0.25f, 0.5f}, {3.0f, 0.25f, 0.5f}}) {
    Array gradient = logits;
    auto c = matrix(logits);
    run(CrossEntropy{.gradient = true, .cap = cap, .smoothing = smoothing, .z_loss = z_loss},
        {&gradient, &at, &weights, &losses}, {.loss_rows = 3, .loss_scale = 0.25f});
    const auto most = static_cast<double>(cap), e = static_cast<double>(smoothing), z = static_cast<double>(z_loss);
    const auto loss = [&c, &targets, &weights, most, e, z] {
      auto y = c;
      for (Complex& logit : y.data) logit = ref::capped(logit, most);
      const auto rows = ref::cross_entropy<Complex>(y, targets);
      Complex sum = 0;
      for (int64_t r = 0; r < 3; r++) {
        const Complex hit = y(r, targets[static_cast<size_t>(r)]), lse = rows[static_cast<size_t>(r)] + hit;
        Complex mean = 0;
        for (int64_t v = 0; v < y.cols; v++) mean += y(r, v) / static_cast<double>(y.cols);
        sum += (lse - (1 - e) * hit - e * mean + z * lse * lse) * static_cast<double>(weights[static_cast<size_t>(r)]);
      }
      return sum * 0.25;
    };
    expect_near(gradient, ref::complex_step(c.data, loss), "dlogits");
  }
}

TEST(Grad, Embedding) {
  const std::vector<int32_t> ids{4, 1, 4, 4, 6, 1};
  const SortedTokens sorted(ids);
  Array dx = random({6, 5}, 1), dtable = random({8, 5}, 2);
  Array order = indices(sorted.order), starts = indices(sorted.starts), segment_ids = indices(sorted.ids);
  run(EmbeddingBackward{}, {&dx, &order, &starts, &segment_ids, &dtable},
      {.segments = static_cast<int64_t>(sorted.segments)});
  ref::Matrix<Complex> table(8, 5);
  const auto loss = [&] { return contract(ref::embedding<Complex>(ids, table).data, dx); };
  expect_near(dtable, ref::complex_step(table.data, loss), "dtable");
}

// y = x w^T + bias + scale (x a^T) b^T, as blocks emit it.
TEST(Grad, LinearWithAdapter) {
  constexpr float kScale = 0.5f;
  const int64_t tokens = 11, k = 10, n = 7, rank = 3;
  Array x = random({tokens, k}, 1), dy = random({tokens, n}, 2), xa = zeros({tokens, rank}), dxa = xa;
  Array w = random({n, k}, 3), bias = random({n}, 4), a = random({rank, k}, 5), b = random({n, rank}, 6);
  Array dx = zeros({tokens, k}), dw = zeros({n, k}), dbias = zeros({n}), da = zeros({rank, k}), db = zeros({n, rank});
  Array y = zeros({tokens, n});
  const AdaptedParts parts{{0}, {n}};
  run(Gemm{.transpose_b = true, .alpha = kScale}, {&x, &a, &xa});
  run(AdaptedGemm{true, parts, false, true}, {&x, &w, &xa, &b, &bias, &y});
  run(AdapterBackward{kScale, parts}, {&dy, &b, &xa, &dxa, &db});
  run(AdaptedGemm{}, {&dy, &w, &dxa, &a, &dx});
  run(Gemm{.transpose_a = true}, {&dy, &x, &dw});
  run(ColumnSum{}, {&dy, &dbias});
  run(Gemm{.transpose_a = true}, {&dxa, &x, &da});

  auto cx = matrix(x), cbias = matrix(bias);
  ref::Linear<Complex> adapted{matrix(w), cbias.data, ref::LowRank<Complex>{matrix(a), matrix(b), kScale}};
  const ref::Matrix<Complex> expected = ref::linear(adapted, cx);
  std::vector<double> values;
  for (const Complex& value : expected.data) values.push_back(value.real());
  expect_near(y, values, "y");
  const auto loss = [&] { return contract(ref::linear(adapted, cx).data, dy); };
  expect_near(dx, ref::complex_step(cx.data, loss), "dx");
  expect_near(dw, ref::complex_step(adapted.weight.data, loss), "dw");
  expect_near(dbias, ref::complex_step(adapted.bias, loss), "dbias");
  expect_near(da, ref::complex_step(adapted.adapter->a.data, loss), "da");
  expect_near(db, ref::complex_step(adapted.adapter->b.data, loss), "db");
}

// h = swiglu(x W^T) and the way back through y = h w^T to W's result, both with adapters, as blocks emit them.
TEST(Grad, SwiGluBetweenLinearsWithAdapters) {
  constexpr float kScale = 0.5f;
  const int64_t tokens = 9, k = 7, f = 6, n = 5, rank = 2;
  Array x = random({tokens, k}, 1), gate_up_w = random({2 * f, k}, 2), a = random({2 * rank, k}, 3);
  Array b = random({2 * f, rank}, 4), xa = zeros({tokens, 2 * rank}), gate_up = zeros({tokens, 2 * f});
  Array h = zeros({tokens, f}), dgate_up = gate_up, dh = h;
  Array w = random({n, f}, 5), down_a = random({rank, f}, 6), down_b = random({n, rank}, 7),
        dy = random({tokens, n}, 8);
  Array ha = zeros({tokens, rank}), dha = ha, ddown_b = zeros({n, rank});
  run(Gemm{.transpose_b = true, .alpha = kScale}, {&x, &a, &xa});
  run(SwiGluGemm{{{0, f}, {f, 2 * f}}}, {&x, &gate_up_w, &xa, &b, &gate_up, &h});
  run(Gemm{.transpose_b = true, .alpha = kScale}, {&h, &down_a, &ha});
  run(AdapterBackward{kScale, {{0}, {n}}}, {&dy, &down_b, &ha, &dha, &ddown_b});
  run(SwiGluGemmBackward{true, true}, {&dy, &w, &dha, &down_a, &gate_up, &dgate_up, &dh});

  const auto rows = [](const ref::Matrix<Complex>& m, int64_t begin, int64_t end) {
    ref::Matrix<Complex> part(end - begin, m.cols);
    std::copy(m.data.begin() + begin * m.cols, m.data.begin() + end * m.cols, part.data.begin());
    return part;
  };
  const auto half = [&](int64_t i) {
    const ref::LowRank<Complex> adapter{rows(matrix(a), i * rank, (i + 1) * rank), rows(matrix(b), i * f, (i + 1) * f),
                                        kScale};
    const ref::Linear<Complex> linear{rows(matrix(gate_up_w), i * f, (i + 1) * f), {}, adapter};
    return ref::linear(linear, matrix(x));
  };
  ref::Matrix<Complex> made = ref::beside<Complex>({half(0), half(1)});
  const auto real = [](const ref::Matrix<Complex>& m) {
    std::vector<double> values;
    for (const Complex& value : m.data) values.push_back(value.real());
    return values;
  };
  expect_near(gate_up, real(made), "gate_up");
  expect_near(h, real(ref::swiglu(made)), "h");
  expect_near(dh, real(ref::swiglu(made)), "restored h");
  const ref::Linear<Complex> down{matrix(w), {}, ref::LowRank<Complex>{matrix(down_a), matrix(down_b), kScale}};
  const auto loss = [&] { return contract(ref::linear(down, ref::swiglu(made)).data, dy); };
  expect_near(dgate_up, ref::complex_step(made.data, loss), "dgate_up");
}

}  // namespace
}  // namespace snug
