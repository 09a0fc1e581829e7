// The rate of every kernel and product of a training step on a GPU, beside the best this card does in the same run.
//
//   cuda_ops [tokens [part of names]]        (4096, all)
//
// Sizes are Llama-3-8B's: hidden 4096, 32 heads over 8 of 128, feed-forward 14336, vocabulary 128256. Kernels are
// compared with a copy of 2 GiB, read and written, and with one of as many bytes as they move, which begins and ends as
// slowly; products with the best of an 8192-cubed one. Runs rotate among operands that together are far larger than the
// L2 cache.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <numeric>

#include "backend/cuda/backend.h"
#include "backend/cuda/facts.h"

namespace snug {
namespace {

constexpr uint64_t kMemory = uint64_t{40} << 30, kRotation = uint64_t{1} << 29;
constexpr DType kBF16 = DType::BF16, kF32 = DType::F32, kI32 = DType::I32;

// An operand: what it holds is random, of both signs or of one, or `integers`.
struct Arg {
  Access access;
  DType dtype;
  Shape shape;
  std::vector<int32_t> integers = {};
  bool positive = false;
};
Arg r(DType dtype, const Shape& shape) { return {Access::Read, dtype, shape}; }
Arg w(DType dtype, const Shape& shape) { return {Access::Write, dtype, shape}; }
Arg rw(DType dtype, const Shape& shape) { return {Access::ReadWrite, dtype, shape}; }
Arg positive(DType dtype, const Shape& shape) { return {Access::ReadWrite, dtype, shape, {}, true}; }
Arg list(std::vector<int32_t> integers) {
  const Shape shape{static_cast<int64_t>(integers.size())};
  return {Access::Read, kI32, shape, std::move(integers)};
}

class Bench {
 public:
  Bench() : start_(backend_.reserve(Space::Device, kMemory)) {}

  struct Result {
    double seconds, flops, bytes;
  };

  Result measure(const Attrs& attrs, const std::vector<Arg>& args, const RuntimeScalars& runtime = {}) {
    next_ = 0;
    Op op;
    op.attrs = attrs;
    op.site = "bench";
    uint64_t bytes = 0;
    for (const Arg& arg : args) {
      op.operands.push_back({0, arg.access, arg.dtype, arg.shape, 0, arg.shape.cols()});
      bytes += static_cast<uint64_t>(arg.shape.count()) * element_bytes(arg.dtype);
    }
    const Work done = work(op);
    const auto scratch = static_cast<int64_t>(facts_.scratch_bytes(op.attrs, op.operands));
    const uint64_t sets = std::clamp<uint64_t>(kRotation / bytes, 2, 16);
    std::vector<Launch> launches;
    for (uint64_t i = 0; i < sets; i++) {
      std::vector<TensorView> views;
      for (const Arg& arg : args) views.push_back(filled(arg));
      if (scratch > 0) views.push_back(take(DType::U8, {scratch}));
      launches.push_back(backend_.bind(op, views));
    }
    return {median(launches, runtime), done.flops, done.bytes};
  }

 private:
  TensorView take(DType dtype, const Shape& shape) {
    const uint64_t bytes = static_cast<uint64_t>(shape.count()) * element_bytes(dtype);
    check(next_ + bytes <= kMemory, "operands of more than {} bytes", kMemory);
    const TensorView view{start_ + next_, dtype, shape, shape.cols()};
    next_ = (next_ + bytes + 1023) / 1024 * 1024;
    return view;
  }

  TensorView filled(const Arg& arg) {
    const TensorView view = take(arg.dtype, arg.shape);
    if (!arg.integers.empty()) {
      cudaMemcpy(view.data, arg.integers.data(), arg.integers.size() * sizeof(int32_t), cudaMemcpyHostToDevice);
      return view;
    }
    TensorView random = view;  // bytes of other types as numbers of bf16
    if (view.dtype != kF32 && view.dtype != kBF16)
      random = {view.data, kBF16, {view.count() * static_cast<int64_t>(element_bytes(view.dtype)) / 2}, 0};
    random.shape = {random.count()};
    random.row_stride = random.count();
    Op op;
    op.attrs = RandomFill{Distribution::Uniform, 1.0f, 7, stream_++, 0};
    if (arg.positive) op.attrs = RandomFill{Distribution::Constant, 0.01f};
    op.site = "fill";
    if (random.count() > 0) backend_.bind(op, std::span(&random, 1))({});
    return view;
  }

  double median(const std::vector<Launch>& launches, const RuntimeScalars& runtime) {
    const auto timed = [&](int runs) {
      backend_.streams()->finish();
      const auto begin = std::chrono::steady_clock::now();
      for (int i = 0; i < runs; i++) launches[static_cast<size_t>(i) % launches.size()](runtime);
      backend_.streams()->finish();
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / runs;
    };
    const double guess = timed(static_cast<int>(2 * launches.size()));
    const int runs = std::clamp(static_cast<int>(0.02 / guess), 4, 400);
    std::vector<double> times;
    for (int i = 0; i < 7; i++) times.push_back(timed(runs));
    std::ranges::sort(times);
    return times[times.size() / 2];
  }

  CudaBackend backend_{0};
  CudaFacts facts_;
  std::byte* start_;
  uint64_t next_ = 0;
  uint32_t stream_ = 0;
};

class Report {
 public:
  Report(int64_t tokens, std::string_view only) : t_(tokens), only_(only) {}
  void run() {
    const Bench::Result copy = bench_.measure(Copy{}, {r(kBF16, {1 << 29}), w(kBF16, {1 << 29})});
    copy_ = copy.bytes / copy.seconds;
    constexpr int64_t kSquare = 8192;
    const Bench::Result square =
        bench_.measure(Gemm{.transpose_b = true},
                       {r(kBF16, {kSquare, kSquare}), r(kBF16, {kSquare, kSquare}), w(kBF16, {kSquare, kSquare})});
    square_ = square.flops / square.seconds;
    fmt::print("{} tokens; copy {:.0f} GB/s; {} cubed {:.0f} TFLOP/s\n", t_, copy_ / 1e9, kSquare, square_ / 1e12);
    products();
    fp8_products();
    attention();
    layers();
    head();
    update();
    base();
  }

 private:
  void kernel(std::string_view name, const Attrs& attrs, const std::vector<Arg>& args,
              const RuntimeScalars& runtime = {}) {
    if (name.find(only_) == name.npos) return;
    const Bench::Result x = bench_.measure(attrs, args, runtime);
    const Shape half{std::max<int64_t>(1, static_cast<int64_t>(x.bytes / 4))};  // numbers of bf16
    const Bench::Result alike = bench_.measure(Copy{}, {r(kBF16, half), w(kBF16, half)});
    fmt::print("{:<34} {:9.4f} ms {:8.0f} GB/s    {:5.1f} % of copy {:7.1f} % of one of as many bytes\n", name,
               x.seconds * 1e3, x.bytes / x.seconds / 1e9, 100 * x.bytes / x.seconds / copy_,
               100 * alike.seconds / x.seconds);
  }
  void product(std::string_view name, const Attrs& attrs, const std::vector<Arg>& args,
               const RuntimeScalars& runtime = {}) {
    if (name.find(only_) == name.npos) return;
    const Bench::Result x = bench_.measure(attrs, args, runtime);
    fmt::print("{:<34} {:9.4f} ms {:8.1f} TFLOP/s {:5.1f} % of square\n", name, x.seconds * 1e3,
               x.flops / x.seconds / 1e12, 100 * x.flops / x.seconds / square_);
  }

  void products() {
    const Gemm forward{.transpose_b = true}, residual{.transpose_b = true, .addend = true}, back{};
    const auto linear = [&](std::string_view name, int64_t out, int64_t in, bool added, const AdaptedParts& parts) {
      std::vector<Arg> args{r(kBF16, {t_, in}), r(kBF16, {out, in})};
      if (added) args.push_back(r(kBF16, {t_, out}));
      args.push_back(w(kBF16, {t_, out}));
      product(name, added ? residual : forward, args);
      product(fmt::format("{} dx", name), back, {r(kBF16, {t_, out}), r(kBF16, {out, in}), w(kBF16, {t_, in})});
      product(fmt::format("{} dw", name), Gemm{.transpose_a = true},
              {r(kBF16, {t_, out}), r(kBF16, {t_, in}), w(kBF16, {out, in})});
      for (const DType dtype : {kBF16, kF32})
        product(fmt::format("{} dw added to {}", name, snug::name(dtype)), Gemm{.transpose_a = true, .addend = true},
                {r(kBF16, {t_, out}), r(kBF16, {t_, in}), r(dtype, {out, in}), w(dtype, {out, in})});
      // With an adapter of rank 16 inside, and what comes back to that.
      const int64_t rank = 16, inner = parts.count() * rank;
      const std::vector<Arg> adapter{r(kBF16, {t_, inner}), r(kBF16, {out, rank})};
      args.insert(args.begin() + 2, adapter.begin(), adapter.end());
      product(fmt::format("{} with adapter", name), AdaptedGemm{true, parts, added}, args);
      product(
          fmt::format("{} with adapter dx", name), AdaptedGemm{},
          {r(kBF16, {t_, out}), r(kBF16, {out, in}), r(kBF16, {t_, inner}), r(kBF16, {inner, in}), w(kBF16, {t_, in})});
      kernel(fmt::format("{} adapter backward", name), AdapterBackward{1, parts},
             {r(kBF16, {t_, out}), r(kBF16, {out, rank}), r(kBF16, {t_, inner}), w(kBF16, {t_, inner}),
              w(kBF16, {out, rank})});
    };
    linear("qkv", 6144, kHidden, false, {{0, 4096, 5120}, {4096, 5120, 6144}});
    linear("o", kHidden, kHidden, true, {{0}, {kHidden}});
    linear("gate_up", 2 * kFfn, kHidden, false, {{0, kFfn}, {kFfn, 2 * kFfn}});
    linear("down", kHidden, kFfn, true, {{0}, {kHidden}});
    with_swiglu();
    const int64_t chunk = 1024;
    product("head", forward,
            {r(kBF16, {chunk, kHidden}), r(kBF16, {kVocabulary, kHidden}), w(kBF16, {chunk, kVocabulary})});
    product("head dx", back,
            {r(kBF16, {chunk, kVocabulary}), r(kBF16, {kVocabulary, kHidden}), w(kBF16, {chunk, kHidden})});
    product("lora_a r16", forward, {r(kBF16, {t_, kHidden}), r(kBF16, {16, kHidden}), w(kBF16, {t_, 16})});
  }

  // In one with SwiGLU, which has rows of its own beside the products'.
  void with_swiglu() {
    const Arg x = r(kBF16, {t_, kHidden}), up = r(kBF16, {2 * kFfn, kHidden}), down = r(kBF16, {kHidden, kFfn}),
              gate_up = r(kBF16, {t_, 2 * kFfn}), dgate_up = w(kBF16, {t_, 2 * kFfn}), h = w(kBF16, {t_, kFfn});
    product("gate_up, swiglu", SwiGluGemm{}, {x, up, w(kBF16, {t_, 2 * kFfn}), h});
    product("down dx, swiglu backward", SwiGluGemmBackward{false, true}, {x, down, gate_up, dgate_up, h});
    const int64_t rank = 16;
    product("gate_up, swiglu with adapter", SwiGluGemm{{{0, kFfn}, {kFfn, 2 * kFfn}}},
            {x, up, r(kBF16, {t_, 2 * rank}), r(kBF16, {2 * kFfn, rank}), w(kBF16, {t_, 2 * kFfn}), h});
    product("down dx, swiglu backward, adapter", SwiGluGemmBackward{true, true},
            {x, down, r(kBF16, {t_, rank}), r(kBF16, {rank, kFfn}), gate_up, dgate_up, h});
  }

  // With what makes codes of the left factor, and turns those of the weights for the way back.
  void fp8_products() {
    const auto linear = [&](std::string_view name, int64_t out, int64_t in) {
      for (const bool back : {false, true}) {
        const int64_t n = back ? in : out, k = back ? out : in;
        const std::string dx = back ? fmt::format("{} dx", name) : std::string(name);
        product(fmt::format("fp8 {}", dx), Fp8Gemm{.addend = true},
                {r(DType::U8, {t_, k}), r(kF32, {t_}), r(DType::U8, {n, k}), r(kF32, {n}), r(kBF16, {t_, n}),
                 w(kBF16, {t_, n})});
        std::vector<Arg> args{r(kBF16, {t_, k}), w(DType::U8, {t_, k}), w(kF32, {t_})};
        if (back) args.insert(args.begin() + 1, r(kF32, {k}));
        kernel(fmt::format("fp8 {} quantize", dx), Quantize{BaseFormat::Fp8, back}, args);
      }
      product(fmt::format("fp8 {}.dw", name), Fp8Gemm{},
              {r(DType::U8, {out, t_}), r(kF32, {out}), r(DType::U8, {in, t_}), r(kF32, {in}), w(kBF16, {out, in})});
      kernel(fmt::format("fp8 {}.dw quantize columns", name), Quantize{.format = BaseFormat::Fp8, .columns = true},
             {r(kBF16, {t_, in}), w(DType::U8, {in, t_}), w(kF32, {in})});
      kernel(fmt::format("fp8 {} transpose", name), Transpose{}, {r(DType::U8, {out, in}), w(DType::U8, {in, out})});
    };
    linear("qkv", 6144, kHidden);
    linear("o", kHidden, kHidden);
    linear("gate_up", 2 * kFfn, kHidden);
    linear("down", kHidden, kFfn);
    fp8_codes();
  }

  // What finds scales of columns on the way, and SwiGLU with codes.
  void fp8_codes() {
    const auto rows = [&](std::string_view name, int64_t n, bool factors) {
      std::vector<Arg> args{r(kBF16, {t_, n}), w(DType::U8, {t_, n}), w(kF32, {t_}), w(kF32, {n})};
      if (factors) args.insert(args.begin() + 1, r(kF32, {n}));
      kernel(fmt::format("fp8 {} quantize, scales of columns", name), Quantize{BaseFormat::Fp8, factors, false, true},
             args);
      kernel(fmt::format("fp8 {} quantize columns, scales known", name), Quantize{BaseFormat::Fp8, false, true, true},
             {r(kBF16, {t_, n}), w(DType::U8, {n, t_}), positive(kF32, {n})});
    };
    rows("qkv", kHidden, false);
    rows("qkv dx", 6144, true);
    rows("down", kFfn, false);
    const Arg gate_up = r(kBF16, {t_, 2 * kFfn});
    for (const bool columns : {false, true}) {
      const std::string what = columns ? "fp8 swiglu, codes, scales of columns" : "fp8 swiglu, codes";
      std::vector<Arg> forward{gate_up, w(kBF16, {t_, kFfn}), w(DType::U8, {t_, kFfn}), w(kF32, {t_})};
      if (columns) forward.push_back(w(kF32, {kFfn}));
      kernel(what, SwiGluQuantize{columns}, forward);
      std::vector<Arg> back{rw(kBF16, {t_, kFfn}),        gate_up,      r(kF32, {2 * kFfn}), w(kBF16, {t_, 2 * kFfn}),
                            w(DType::U8, {t_, 2 * kFfn}), w(kF32, {t_})};
      if (columns) back.push_back(w(kF32, {2 * kFfn}));
      kernel(what + ", backward, h restored", SwiGluBackwardQuantize{true, columns}, back);
    }
  }

  void attention() {
    const int64_t length = std::min<int64_t>(2048, t_);
    for (const int64_t tokens : {int64_t{512}, int64_t{2048}, t_}) equal_documents("attention", {kHeads}, tokens);
    std::vector<int32_t> bounds{0};  // halves, down to a token
    int64_t pairs = 0;
    for (int64_t left = t_; left > 1; left -= left / 2) {
      bounds.push_back(bounds.back() + static_cast<int32_t>(left / 2));
      pairs += left / 2 * (left / 2);
    }
    attention("attention unequal", {kHeads, kScale, pairs / t_}, bounds);
    // Heads of all sizes, about as many numbers a token, four over each of keys.
    for (const int64_t dim : {32, 48, 64, 72, 80, 96, 100, 112, 128, 160, 192, 256}) {
      const int64_t kv_heads = (kHeads.query_columns() + 2 * dim) / (4 * dim);
      equal_documents(fmt::format("heads of {}", dim), {{4 * kv_heads, kv_heads, dim}}, length);
    }
    for (const int64_t dim : {128, 256})  // Gemma 2's
      equal_documents(fmt::format("capped heads of {}", dim), {.shape = {4096 / dim, 2048 / dim, dim}, .cap = 50},
                      length);
    for (const int64_t dim : {64, 72, 80, 128})  // as towers have them
      equal_documents(fmt::format("bidirectional heads of {}", dim),
                      {.shape = {1152 / dim, 1152 / dim, dim}, .bidirectional = true}, length);
    equal_documents("heads of 192, values of 128", {.shape = {16, 16, 192}, .value_dim = 128}, length);
    equal_documents("heads of 64 with sinks", {.shape = {64, 8, 64}, .window = 128, .sinks = true}, length);
  }

  void equal_documents(std::string_view name, Attention op, int64_t length) {
    if (length > t_) return;
    std::vector<int32_t> bounds;
    for (int64_t start = 0; start <= t_; start += length) bounds.push_back(static_cast<int32_t>(start));
    op.scale = kScale;
    op.longest = length;
    attention(fmt::format("{} {} x {}", name, bounds.size() - 1, length), op, bounds);
  }

  // Counted as if all documents were as long as the longest.
  void attention(const std::string& name, const Attention& op, const std::vector<int32_t>& bounds) {
    const HeadShape& heads = op.shape;
    const RuntimeScalars runtime{.documents = static_cast<int64_t>(bounds.size()) - 1};
    const Shape queries{t_, heads.query_columns()}, keys{t_, heads.key_columns()}, values{t_, op.value_columns()},
        results{t_, op.result_columns()};
    std::vector<Arg> forward{r(kBF16, queries), r(kBF16, keys), r(kBF16, values), list(bounds)};
    std::vector<Arg> backward{r(kBF16, results), r(kBF16, queries),          r(kBF16, keys), r(kBF16, values),
                              r(kBF16, results), r(kF32, {heads.heads, t_}), list(bounds)};
    if (op.sinks) forward.push_back(r(kF32, {heads.heads}));
    if (op.sinks) backward.push_back(r(kF32, {heads.heads}));
    forward.insert(forward.end(), {w(kBF16, results), w(kF32, {heads.heads, t_})});
    backward.insert(backward.end(), {w(kBF16, queries), w(kBF16, keys), w(kBF16, values)});
    if (op.sinks) backward.push_back(w(kF32, {heads.heads}));
    product(name, op, forward, runtime);
    product(fmt::format("{} backward", name), AttentionBackward{op}, backward, runtime);
  }

  void layers() {
    const Shape x{t_, kHidden}, rows{t_}, cols{kHidden};
    std::vector<int32_t> positions(static_cast<size_t>(t_));
    std::iota(positions.begin(), positions.end(), 0);
    kernel("rms_norm", RmsNorm{1e-5f}, {r(kBF16, x), r(kBF16, cols), w(kBF16, x), w(kF32, rows)});
    const std::vector<Arg> back{r(kBF16, x), r(kBF16, x), r(kBF16, cols), r(kF32, rows), rw(kBF16, x)};
    kernel("rms_norm_backward accumulate", RmsNormBackward{true, false}, back);
    std::vector<Arg> gain = back;
    gain.push_back(w(kBF16, cols));
    kernel("rms_norm_backward accumulate gain", RmsNormBackward{true, true}, gain);
    const Shape moments{2, t_};
    kernel("layer_norm", LayerNorm{1e-5f, false, true},
           {r(kBF16, x), r(kBF16, cols), r(kBF16, cols), w(kBF16, x), w(kF32, moments)});
    std::vector<Arg> layer{r(kBF16, x), r(kBF16, x), r(kBF16, cols), r(kF32, moments), rw(kBF16, x)};
    kernel("layer_norm_backward accumulate", LayerNormBackward{true}, layer);
    layer.insert(layer.end(), {w(kBF16, cols), w(kBF16, cols)});
    kernel("layer_norm_backward accumulate gain bias", LayerNormBackward{true, true, true}, layer);
    kernel("rope", Rope{kHeads.dim},
           {rw(kBF16, {t_, kHeads.query_columns() + kHeads.key_columns()}), list(positions), r(kF32, {t_, 128})});
    kernel("swiglu", SwiGlu{}, {r(kBF16, {t_, 2 * kFfn}), w(kBF16, {t_, kFfn})});
    kernel("swiglu_backward", SwiGluBackward{},
           {r(kBF16, {t_, kFfn}), r(kBF16, {t_, 2 * kFfn}), w(kBF16, {t_, 2 * kFfn})});
    kernel("swiglu_backward, h restored", SwiGluBackward{true},
           {rw(kBF16, {t_, kFfn}), r(kBF16, {t_, 2 * kFfn}), w(kBF16, {t_, 2 * kFfn})});
    kernel("dropout", Dropout{0.1, 1, 1}, {r(kBF16, x), w(kBF16, x)}, {.step = 1});
    kernel("column_sum qkv", ColumnSum{}, {r(kBF16, {t_, 6144}), w(kBF16, {6144})});
    kernel("accumulate bf16 to fp32", Accumulate{}, {r(kBF16, {1 << 27}), rw(kF32, {1 << 27})});
  }

  void head() {
    std::vector<int32_t> ids(static_cast<size_t>(t_)), order(ids.size()), starts(ids.size() + 1), targets(1024);
    for (size_t i = 0; i < ids.size(); i++)  // all over the table
      ids[i] = static_cast<int32_t>(static_cast<int64_t>(i) * kVocabulary / t_);
    std::iota(order.begin(), order.end(), 0);
    std::iota(starts.begin(), starts.end(), 0);
    for (size_t i = 0; i < targets.size(); i++) targets[i] = static_cast<int32_t>(i * 125);
    const Shape x{t_, kHidden};
    kernel("embedding", Embedding{}, {list(ids), r(kBF16, {kVocabulary, kHidden}), w(kBF16, x)});
    kernel("embedding_backward", EmbeddingBackward{},
           {r(kBF16, x), list(order), list(starts), list(ids), w(kBF16, {kVocabulary, kHidden})}, {.segments = t_});
    kernel("gather_rows", GatherRows{}, {r(kBF16, x), list(order), w(kBF16, x)});
    kernel("scatter_rows", ScatterRows{}, {r(kBF16, x), list(order), w(kBF16, x)});
    kernel("cross_entropy gradient", CrossEntropy{0, true},
           {rw(kBF16, {1024, kVocabulary}), list(targets), r(kF32, {1024}), w(kF32, {1024})},
           {.loss_rows = 1024, .loss_scale = 1});
    kernel("loss_sum", LossSum{}, {r(kF32, {t_}), w(kF32, {1})}, {.loss_rows = t_});
  }

  void update() {
    const int64_t n = 1 << 27, blocks = n / kStateBlock;
    const RuntimeScalars runtime{.step = 3, .learning_rate = 1e-4};
    const Shape all{n};
    const auto clip = r(kF32, {3});
    kernel("norm_partials", NormPartials{}, {r(kBF16, all), w(kF32, {n / kUnit})});
    kernel("tree_sum of 32768", TreeSum{n / kUnit}, {r(kF32, {n / kUnit}), w(kF32, {1})});
    kernel("adamw fp32", AdamW{}, {r(kBF16, all), rw(kF32, all), rw(kF32, all), positive(kF32, all), clip}, runtime);
    kernel("adamw split", AdamW{.split = true},
           {r(kBF16, all), rw(kBF16, all), rw(DType::I16, all), rw(kF32, all), positive(kF32, all), clip}, runtime);
    kernel("adamw split bf16", AdamW{.split = true, .format = StateFormat::Bf16},
           {r(kBF16, all), rw(kBF16, all), rw(DType::I16, all), rw(kBF16, all), positive(kBF16, all), clip}, runtime);
    kernel("adamw 8bit", AdamW{.format = StateFormat::Bit8},
           {r(kBF16, all), rw(kBF16, all), rw(DType::U8, all), rw(DType::U8, all), rw(kF32, {blocks}),
            positive(kF32, {blocks}), clip},
           runtime);
    kernel("sum_ranks of 8", SumRanks{}, {r(kBF16, {8, n / 8}), w(kBF16, {n / 8})});
    kernel("split_master", SplitMaster{}, {r(kF32, all), w(kBF16, all), w(DType::I16, all)});
    kernel("cast fp32 to bf16", Cast{}, {r(kF32, all), w(kBF16, all)});
    kernel("fill", Fill{}, {w(kBF16, all)});
  }

  void base() {
    const Shape weight{2 * kFfn, kHidden};
    const int64_t n = weight.count(), blocks = n / kNf4Block;
    kernel("dequantize int8", Dequantize{BaseFormat::Int8},
           {r(DType::I8, weight), r(kF32, {weight[0]}), w(kBF16, weight)});
    kernel("dequantize fp8", Dequantize{BaseFormat::Fp8},
           {r(DType::U8, weight), r(kF32, {weight[0]}), w(kBF16, weight)});
    kernel("dequantize nf4", Dequantize{BaseFormat::Nf4},
           {r(DType::U8, {n / 2}), r(DType::U8, {blocks}), r(kF32, {(blocks + 255) / 256}), r(kF32, {1}),
            w(kBF16, weight)});
    kernel("quantize int8", Quantize{BaseFormat::Int8}, {r(kBF16, weight), w(DType::I8, weight), w(kF32, {weight[0]})});
    kernel("quantize nf4", Quantize{BaseFormat::Nf4}, {r(kBF16, weight), w(DType::U8, {n / 2}), w(kF32, {blocks})});
  }

  static constexpr int64_t kHidden = 4096, kFfn = 14336, kVocabulary = 128256;
  static constexpr HeadShape kHeads{32, 8, 128};
  static constexpr float kScale = 0.088f;
  Bench bench_;
  int64_t t_;
  std::string_view only_;  // rows whose names have it
  double copy_ = 0, square_ = 0;
};

}  // namespace
}  // namespace snug

int main(int count, char** arguments) {
  snug::Report(count > 1 ? std::atoll(arguments[1]) : 4096, count > 2 ? arguments[2] : "").run();
}
