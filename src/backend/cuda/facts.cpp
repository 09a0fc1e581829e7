#include "backend/cuda/facts.h"

#include <charconv>
#include <cmath>

#include "base/rounding.h"
#include "program/adapter.h"
#include "program/swiglu_gemm.h"
#include "program/swiglu_quantize.h"

namespace snug {
namespace {

constexpr std::string_view kNotBf16 = "numbers are not bf16",
                           kOddRows = "rows do not begin and end at multiples of 16 bytes",
                           kFewRows = "there are fewer than 128 rows",
                           kOddRank = "8 does not divide the adapter's rank",
                           kOtherGate = "the gate is neither SiLU nor GELU by tanh or a sigmoid";

uint64_t start_of(const Operand& x) { return x.offset; }  // buffers are aligned
uint64_t start_of(const TensorView& x) { return reinterpret_cast<uintptr_t>(x.data); }

template <class View>
bool rows_begin_at_vectors(const View& x) {
  const uint64_t stride = static_cast<uint64_t>(x.row_stride) * element_bytes(x.dtype);
  return start_of(x) % 16 == 0 && (x.shape.rows() <= 1 || stride % 16 == 0);
}
// Returns whether rows are whole vectors of eight numbers at multiples of 16 bytes.
template <class View>
bool in_vectors(const View& x) {
  return x.shape.cols() % cuda::kVectorElements == 0 && rows_begin_at_vectors(x);
}

template <class View>
std::string_view unlike_vectors(std::span<const View> operands) {
  if (!std::ranges::all_of(operands, [](const View& x) { return x.dtype == DType::BF16; })) return kNotBf16;
  return std::ranges::all_of(operands, in_vectors<View>) ? "" : kOddRows;
}

// Returns why m rows and n columns of the result do not fit: a tile has columns of one part only.
std::string_view unlike_shape(const AdaptedGemm& op, int64_t m, int64_t n, int64_t adapter_columns) {
  if (m < cuda::kProductTileRows) return kFewRows;  // so few leave most of a card idle
  if (!op.transpose_b) return adapter_columns % cuda::kVectorElements == 0 ? "" : kOddRank;
  if (op.addend && op.bias) return "an addend and a bias come at once";
  int64_t end = 0;
  for (size_t i = 0; i < static_cast<size_t>(op.parts.count()); i++) {
    if (op.parts.begin[i] != end) return "some of the parts have no adapter";
    if (end % cuda::kProductTileColumns != 0) return "256 does not divide the columns of a part";
    end = op.parts.end[i];
  }
  if (end != n) return "some of the parts have no adapter";
  return adapter_columns % (op.parts.count() * cuda::kVectorElements) == 0 ? "" : kOddRank;
}

// Returns whether the activation is x sigmoid(z), all that the tiles' kernels compute.
bool is_by_sigmoid(Activation activation) {
  return activation != Activation::Gelu && activation != Activation::ReluSquared;
}

// Returns why n columns of h do not fit: a tile has as many columns of gate as of up.
std::string_view unlike_shape(const SwiGluGemm& op, int64_t m, int64_t n, int64_t adapter_columns) {
  if (!is_by_sigmoid(op.activation)) return kOtherGate;
  if (m < cuda::kProductTileRows) return kFewRows;
  if (n % (cuda::kProductTileColumns / 2) != 0) return "128 does not divide the columns of gate and up";
  if (op.parts.count() == 0) return "";
  const AdaptedParts both{{0, n}, {n, 2 * n}};
  if (op.parts.begin != both.begin || op.parts.end != both.end) return "gate or up has no adapter";
  return adapter_columns % (2 * cuda::kVectorElements) == 0 ? "" : kOddRank;
}

std::string_view unlike_shape(const SwiGluGemmBackward& op, int64_t m, int64_t, int64_t adapter_columns) {
  if (!is_by_sigmoid(op.activation)) return kOtherGate;
  if (m < cuda::kProductTileRows) return kFewRows;
  return adapter_columns % cuda::kVectorElements == 0 ? "" : kOddRank;
}

template <class View>
std::string_view unlike_shape(const AdaptedGemm& op, std::span<const View> operands) {
  const Shape& d = operands[operand_count(op) - 1].shape;
  return unlike_shape(op, d.rows(), d.cols(), operands[2].shape.cols());
}
template <class Kind, class View>
std::string_view unlike_shape(const Kind& op, std::span<const View> operands) {
  return unlike_shape(op, operands[0].shape.rows(), operands[factor_count(op)].shape.cols() / 2,
                      adapter_columns(op, operands));
}

// Returns scratch by kind; every kind that is not here needs none.
struct ScratchBytes {
  std::span<const Operand> operands;

  const Shape& first(std::string_view kind) const {
    check(!operands.empty(), "{}: no operands found", kind);
    return operands[0].shape;
  }
  uint64_t operator()(const Gemm&) const { return cuda::kGemmScratchBytes; }
  uint64_t operator()(const Fp8Gemm&) const { return cuda::kGemmScratchBytes; }
  uint64_t operator()(const AdaptedGemm&) const { return cuda::kGemmScratchBytes; }
  uint64_t operator()(const SwiGluGemm&) const { return cuda::kGemmScratchBytes; }
  uint64_t operator()(const SwiGluGemmBackward&) const { return cuda::kGemmScratchBytes; }
  uint64_t operator()(const AdapterBackward& op) const {
    const Shape& dy = first("adapter_backward");
    check(operands.size() > 1, "adapter_backward: one operand found");
    return std::max(cuda::kGemmScratchBytes,
                    cuda::adapter_backward_scratch_bytes(op, dy.rows(), operands[1].shape.cols()));
  }
  uint64_t operator()(const RmsNormBackward& op) const { return norm(op, cuda::rms_norm_backward_scratch_bytes); }
  uint64_t operator()(const LayerNormBackward& op) const { return norm(op, cuda::layer_norm_backward_scratch_bytes); }
  uint64_t operator()(const Attention&) const { return cuda::kTileCounterBytes; }
  uint64_t operator()(const AttentionBackward& op) const {
    return cuda::attention_backward_scratch_bytes(op, first("attention_backward").rows());
  }
  template <class Other>
  uint64_t operator()(const Other&) const {
    return 0;
  }

 private:
  // A row for each head.
  template <class Backward, class Bytes>
  uint64_t norm(const Backward& op, const Bytes& bytes) const {
    const int64_t count = first(kind(op)).count();
    check(operands.size() > 2, "{}: {} operands, expected 'dy', 'x' and 'gain' first", kind(op), operands.size());
    const int64_t n = std::max<int64_t>(1, operands[2].shape.count());
    return bytes(op, operands[0].dtype, count / n, n);
  }
};

// Returns the kernel by kind; every kind that is not here has one kernel for all operands.
struct KernelOf {
  int capability;
  std::span<const Operand> operands;

  Kernel operator()(const Gemm& gemm) const {
    if (cuda::odd_side(gemm, product_of(gemm, operands), operands) != cuda::OddSide::None)
      return {.name = "cuBLASLt, twice"};
    const bool odd = operands[0].dtype == DType::BF16 && !std::ranges::all_of(operands.first(2), in_vectors<Operand>);
    return {.name = "cuBLASLt", .slow = odd ? kOddRows : ""};
  }
  Kernel operator()(const Fp8Gemm&) const {
    return {.name = cuda::has_warpgroups(capability) ? "cuBLASLt, fp8" : "mma.sync tiles of 128 x 128, fp8"};
  }
  Kernel operator()(const AdaptedGemm& op) const { return in_tiles(op); }
  Kernel operator()(const SwiGluGemm& op) const { return in_tiles(op); }
  Kernel operator()(const SwiGluGemmBackward& op) const { return in_tiles(op); }
  Kernel operator()(const SwiGluQuantize& op) const { return by_clusters(op); }
  Kernel operator()(const SwiGluBackwardQuantize& op) const { return by_clusters(op); }
  Kernel operator()(const AdapterBackward& op) const {
    const std::string_view unlike = cuda::unlike_adapter_kernel(op, operands);
    if (unlike.empty()) return {.name = "one pass over dy"};
    // With larger ranks products are worth while.
    return {.name = "products", .composed = true, .slow = operands[1].shape.cols() > 16 ? "" : unlike};
  }
  Kernel operator()(const Attention& op) const { return attention(op); }
  Kernel operator()(const AttentionBackward& op) const {
    Kernel kernel = attention(op);
    if (cuda::attention_kernel(operands[0].dtype, op, capability) != cuda::AttentionKernel::ByWarpgroups) return kernel;
    kernel.stretch = cuda::few_tiles_stretch(op, operands[2].shape.rows());
    if (kernel.stretch > 1.25) kernel.slow = "its heads of keys make too few tiles of 128 keys";
    return kernel;
  }
  template <class Other>
  Kernel operator()(const Other&) const {
    return {};
  }

 private:
  template <class A>
  Kernel attention(const A& op) const {
    const DType dtype = operands[0].dtype;
    const int64_t dim = std::max(op.shape.dim, op.dim_of_values());
    const cuda::AttentionKernel kernel = cuda::attention_kernel(dtype, op, capability);
    const auto padded = [&](const auto& dims) {
      return op.cap > 0 ? *std::ranges::lower_bound(cuda::kCappedTileDims, dim) : *std::ranges::lower_bound(dims, dim);
    };
    switch (kernel) {
      case cuda::AttentionKernel::ByWarpgroups:
        return {.name = cuda::name(kernel), .columns = padded(cuda::kWarpgroupDims)};
      case cuda::AttentionKernel::ByTiles: {
        // On Hopper they reach 0.41 of the rate of its own kernel forward and 0.35 backward: heads of 100 on an H100,
        // whose rows are read 8 bytes at a time.
        constexpr double kTiledShare = std::is_same_v<A, AttentionBackward> ? 0.35 : 0.41;
        const bool hopper = cuda::has_warpgroups(capability);
        return {.name = cuda::name(kernel),
                .slow = hopper ? "8 does not divide the size of heads" : "",
                .columns = op.dim_of_values() == op.shape.dim ? padded(cuda::kTileDims) : padded(cuda::kValueTileDims),
                .stretch = hopper ? 1 / kTiledShare : 1};
      }
      case cuda::AttentionKernel::ByToken:
        break;
    }
    // No card has tiles for fp32.
    const std::string_view why = dtype != DType::BF16 ? kNotBf16
                                 : op.cap > 0 && op.dim_of_values() != op.shape.dim
                                     ? "scores have a soft cap, and values another size than keys"
                                 : dim <= 256 ? "4 does not divide the size of heads"
                                              : "heads have more than 256 elements";
    return {.name = cuda::name(kernel), .slow = why, .without_tensor_cores = true};
  }

  template <class Kind>
  Kernel by_clusters(const Kind& op) const {
    if (!cuda::has_warpgroups(capability)) return {.name = "its parts", .composed = true};
    const std::string_view unlike = cuda::unlike_clusters(op, operands);
    if (unlike.empty()) return {.name = "rows held by clusters"};
    return {.name = "its parts", .composed = true, .slow = unlike};
  }

  template <class Kind>
  Kernel in_tiles(const Kind& op) const {
    if (!cuda::has_warpgroups(capability)) return {.name = "its parts", .composed = true};
    const std::string_view unlike = cuda::unlike_tiles(op, operands);
    if (unlike.empty()) return {.name = "wgmma tiles of 128 x 256"};
    return {.name = "its parts", .composed = true, .slow = unlike};
  }
};

}  // namespace

namespace cuda {

bool has_code(std::string_view architectures, int capability) {
  while (!architectures.empty()) {
    const std::string_view one = architectures.substr(0, architectures.find(','));
    architectures.remove_prefix(std::min(architectures.size(), one.size() + 1));
    int number = 0;
    const char* const end = std::from_chars(one.data(), one.data() + one.size(), number).ptr;
    const std::string_view kind = one.substr(static_cast<size_t>(end - one.data()));
    if (kind.empty() && number / 10 == capability / 10 && number <= capability) return true;
    if (kind == "a" && number == capability) return true;
    if (kind == "-virtual" && number <= capability) return true;
  }
  return false;
}

template <class Kind, class View>
std::string_view unlike_tiles(const Kind& op, std::span<const View> operands) {
  const std::string_view unlike = unlike_vectors(operands.first(operand_count(op)));
  return unlike.empty() ? unlike_shape(op, operands) : unlike;
}

int64_t cluster_blocks(int64_t columns) {
  int64_t blocks = 1;
  while (blocks * kClusterColumns < columns) blocks *= 2;
  return blocks;
}

template <class Kind, class View>
std::string_view unlike_clusters(const Kind& op, std::span<const View> operands) {
  if (!is_by_sigmoid(op.activation)) return kOtherGate;
  const View &codes = operands[before_codes(op)], &first = operands[0];
  const std::string_view unlike = unlike_vectors(operands.first(2));
  if (!unlike.empty()) return unlike;
  const bool backward = std::is_same_v<Kind, SwiGluBackwardQuantize>;
  if (backward && (!in_vectors(operands[3]) || start_of(operands[2]) % 16 != 0)) return kOddRows;
  const int64_t columns = backward ? first.shape.cols() : first.shape.cols() / 2;
  if (columns % kVectorElements != 0 || start_of(codes) % 8 != 0 || codes.row_stride % 8 != 0) return kOddRows;
  return cluster_blocks(columns) <= kMostClusterBlocks ? "" : "there are more than 65,536 columns";
}

template <class View>
std::string_view unlike_adapter_kernel(const AdapterBackward& op, std::span<const View> operands) {
  const View &b = operands[1], &db = operands[4];
  const auto in_eighths = [](int64_t col) { return col % kVectorElements == 0; };
  if (!adapter_kernel_takes(b.shape.cols())) return "the adapter's rank is neither 8 nor 16";
  if (!std::ranges::all_of(op.parts.begin, in_eighths) || !std::ranges::all_of(op.parts.end, in_eighths))
    return "8 does not divide the columns of a part";
  const std::string_view unlike = unlike_vectors(operands.first(4));
  if (!unlike.empty()) return unlike;
  if (db.dtype != DType::BF16 && db.dtype != DType::F32) return kNotBf16;
  return in_vectors(db) ? "" : kOddRows;
}

template <class View>
OddSide odd_side(const Gemm& gemm, const Product& p, std::span<const View> operands) {
  const bool fits = p.a.dtype == DType::BF16 && p.flops() >= kLargeProduct && rows_begin_at_vectors(operands[0]) &&
                    rows_begin_at_vectors(operands[1]) && rows_begin_at_vectors(operands[p.operands - 1]);
  if (!fits) return OddSide::None;
  const auto odd = [](int64_t size) { return size % kVectorElements != 0; };
  if (odd(p.k) && (!gemm.transpose_a || gemm.transpose_b)) return OddSide::K;
  if (odd(p.n)) return OddSide::N;
  return odd(p.m) && gemm.transpose_a ? OddSide::M : OddSide::None;
}

#define SNUG_INSTANTIATE(View)                                                                     \
  template OddSide odd_side(const Gemm&, const Product&, std::span<const View>);                   \
  template std::string_view unlike_tiles(const AdaptedGemm&, std::span<const View>);               \
  template std::string_view unlike_tiles(const SwiGluGemm&, std::span<const View>);                \
  template std::string_view unlike_tiles(const SwiGluGemmBackward&, std::span<const View>);        \
  template std::string_view unlike_clusters(const SwiGluQuantize&, std::span<const View>);         \
  template std::string_view unlike_clusters(const SwiGluBackwardQuantize&, std::span<const View>); \
  template std::string_view unlike_adapter_kernel(const AdapterBackward&, std::span<const View>);
SNUG_INSTANTIATE(Operand)
SNUG_INSTANTIATE(TensorView)
#undef SNUG_INSTANTIATE

uint64_t rms_norm_backward_scratch_bytes(const RmsNormBackward& norm, DType dtype, int64_t rows, int64_t cols) {
  const int64_t block_rows = norm_block_rows(rows, cols, dtype), blocks = ceil_div(rows, block_rows);
  return norm.gain_gradient ? static_cast<uint64_t>(blocks * cols) * sizeof(float) : 0;
}

uint64_t layer_norm_backward_scratch_bytes(const LayerNormBackward& norm, DType dtype, int64_t rows, int64_t cols) {
  const int64_t blocks = ceil_div(rows, norm_block_rows(rows, cols, dtype));
  const int64_t sums = (norm.gain_gradient ? 1 : 0) + (norm.bias_gradient ? 1 : 0);
  return static_cast<uint64_t>(sums * blocks * cols) * sizeof(float);
}

std::string_view name(AttentionKernel kernel) {
  switch (kernel) {
    case AttentionKernel::ByWarpgroups:
      return "by warpgroups";
    case AttentionKernel::ByTiles:
      return "by tiles";
    case AttentionKernel::ByToken:
      return "by token";
  }
  return "";
}

AttentionKernel attention_kernel(DType dtype, int64_t dim, int capability) {
  if (dtype != DType::BF16 || capability < kLeastCapability || dim % 4 != 0 || dim > kTileDims.back())
    return AttentionKernel::ByToken;
  // The Tensor Memory Accelerator finds heads only at multiples of 16 bytes.
  return has_warpgroups(capability) && dim % 8 == 0 ? AttentionKernel::ByWarpgroups : AttentionKernel::ByTiles;
}

AttentionKernel attention_kernel(DType dtype, const Attention& attention, int capability) {
  const AttentionKernel kernel = std::max(attention_kernel(dtype, attention.shape.dim, capability),
                                          attention_kernel(dtype, attention.dim_of_values(), capability));
  const bool both = attention.cap > 0 && attention.dim_of_values() != attention.shape.dim;
  return both && kernel == AttentionKernel::ByTiles ? AttentionKernel::ByToken : kernel;
}

double few_tiles_stretch(const AttentionBackward& op, int64_t keys) {
  // This share of the work is that of the keys' kernel, by what an H200 takes: of seven products it has four, which it
  // makes faster on fewer multiprocessors. The first keys of a document are seen by all that come after them.
  constexpr double kShareOfKeys = 0.48, kMultiprocessors = 132, kKeysOfTile = 128;
  const bool bounded = op.bidirectional || (op.window > 0 && op.window < op.longest) || op.chunk > 0;
  const auto longest = static_cast<double>(op.longest);
  const double longest_by_mean = bounded ? 1 : 2 * longest / (longest + kKeysOfTile);
  const double tiles = static_cast<double>(op.shape.kv_heads) * std::ceil(static_cast<double>(keys) / kKeysOfTile);
  return std::max(1.0, kShareOfKeys * longest_by_mean / tiles * kMultiprocessors);
}

uint64_t attention_backward_scratch_bytes(const AttentionBackward& attention, int64_t tokens) {
  return kTileCounterBytes + static_cast<uint64_t>(tokens * attention.shape.heads) * sizeof(float);
}

int64_t adapter_column_blocks(const AdaptedParts& parts) {
  int64_t blocks = 0;
  for (size_t p = 0; p < parts.end.size(); p++) blocks += ceil_div(parts.end[p] - parts.begin[p], kAdapterCols);
  return blocks;
}

int64_t adapter_ranges(int64_t rows, int64_t column_blocks) {
  constexpr int64_t kMultiprocessors = 132;
  const int64_t most = std::max<int64_t>(1, ceil_div(rows, kAdapterRows));
  int64_t best = 1;
  double best_fill = 0;
  for (int64_t rounds = 1; rounds <= 4 && best_fill < 0.95; rounds++) {
    const int64_t ranges =
        std::clamp<int64_t>(rounds * kMultiprocessors / std::max<int64_t>(column_blocks, 1), 1, most);
    const int64_t blocks = ranges * column_blocks, slots = round_up(blocks, kMultiprocessors);
    const double fill = static_cast<double>(blocks) / static_cast<double>(std::max<int64_t>(slots, 1));
    if (fill > best_fill) {
      best = ranges;
      best_fill = fill;
    }
  }
  return best;
}

uint64_t adapter_backward_scratch_bytes(const AdapterBackward& backward, int64_t rows, int64_t rank) {
  if (!adapter_kernel_takes(rank)) return 0;
  const int64_t blocks = adapter_column_blocks(backward.parts), ranges = adapter_ranges(rows, blocks);
  return static_cast<uint64_t>((blocks * rows + ranges * backward.parts.columns()) * rank) * sizeof(float);
}

}  // namespace cuda

Kernel CudaFacts::kernel(const Attrs& attrs, std::span<const Operand> operands) const {
  return std::visit(KernelOf{capability_, operands}, attrs);
}

uint64_t CudaFacts::scratch_bytes(const Attrs& attrs, std::span<const Operand> operands) const {
  return std::visit(ScratchBytes{operands}, attrs);
}

}  // namespace snug
