#include "program/program.h"

#include <algorithm>
#include <bit>
#include <iterator>

#include "base/hash.h"

namespace snug {
namespace {

constexpr std::array<std::string_view, kSpaces.size()> kSpaceNames{"device", "host", "disk"};
constexpr std::array<std::string_view, kLanes> kLaneNames{"compute",  "gather",  "reduce",   "copy_in",
                                                          "copy_out", "disk_in", "disk_out", "host"};
constexpr std::array<std::string_view, 12> kRoleNames{"weights", "states",  "gradients", "activations",
                                                      "offload", "gathers", "logits",    "batch",
                                                      "scratch", "staging", "cache",     "metrics"};

// ---- Kinds and their fields: what dump() prints and hash() covers ---------------------------------------------------

template <size_t N>
struct Description {
  std::string_view kind;
  std::array<std::string_view, N> fields;  // in order of declaration
};

template <class... Names>
constexpr Description<sizeof...(Names)> describe_as(std::string_view kind, Names... fields) {
  return {kind, {fields...}};
}

constexpr auto describe(const Gemm&) {
  return describe_as("gemm", "transpose_a", "transpose_b", "alpha", "addend", "bias");
}
constexpr auto describe(const Fp8Gemm&) { return describe_as("fp8_gemm", "addend", "bias"); }
constexpr auto describe(const AdaptedGemm&) {
  return describe_as("adapted_gemm", "transpose_b", "parts", "addend", "bias");
}
constexpr auto describe(const AdapterBackward&) { return describe_as("adapter_backward", "scale", "parts"); }
constexpr auto describe(const RowNorms&) { return describe_as("row_norms"); }
constexpr auto describe(const AdaptedNorms&) { return describe_as("adapted_norms", "scale"); }
constexpr auto describe(const ScaleColumns&) { return describe_as("scale_columns", "parts", "addend", "bias"); }
constexpr auto describe(const ScaleColumnsBackward&) { return describe_as("scale_columns_backward", "parts"); }
constexpr auto describe(const SetRowNorms&) { return describe_as("set_row_norms"); }
constexpr auto describe(const ColumnSum&) { return describe_as("column_sum"); }
constexpr auto describe(const RopeTable&) {
  return describe_as("rope_table", "frequencies", "attention_factor", "growth", "growth_length");
}
constexpr auto describe(const Rope&) { return describe_as("rope", "dim", "backward", "interleaved", "pairs"); }
constexpr auto describe(const Attention&) {
  return describe_as("attention", "shape", "scale", "longest", "window", "cap", "chunk", "value_dim", "bidirectional",
                     "cross", "sinks", "documents");
}
constexpr auto describe(const AttentionBackward&) {
  return describe_as("attention_backward", "shape", "scale", "longest", "window", "cap", "chunk", "value_dim",
                     "bidirectional", "cross", "sinks", "documents");
}
constexpr auto describe(const CacheAppend&) { return describe_as("cache_append", "shape"); }
constexpr auto describe(const CachedAttention&) {
  return describe_as("cached_attention", "shape", "scale", "window", "cap");
}
constexpr auto describe(const RmsNorm&) { return describe_as("rms_norm", "epsilon", "plus_one"); }
constexpr auto describe(const RmsNormBackward&) {
  return describe_as("rms_norm_backward", "accumulate", "gain_gradient", "restore", "plus_one");
}
constexpr auto describe(const LayerNorm&) { return describe_as("layer_norm", "epsilon", "plus_one", "bias"); }
constexpr auto describe(const LayerNormBackward&) {
  return describe_as("layer_norm_backward", "accumulate", "gain_gradient", "bias_gradient", "restore", "plus_one",
                     "bias");
}
constexpr auto describe(const Activate&) { return describe_as("activate", "activation"); }
constexpr auto describe(const ActivateBackward&) { return describe_as("activate_backward", "restore", "activation"); }
constexpr auto describe(const SwiGlu&) { return describe_as("swiglu", "activation"); }
constexpr auto describe(const SwiGluBackward&) { return describe_as("swiglu_backward", "restore", "activation"); }
constexpr auto describe(const SwiGluGemm&) { return describe_as("swiglu_gemm", "parts", "result", "activation"); }
constexpr auto describe(const SwiGluGemmBackward&) {
  return describe_as("swiglu_gemm_backward", "adapted", "restore", "activation");
}
constexpr auto describe(const Accumulate&) { return describe_as("accumulate"); }
constexpr auto describe(const Rescale&) { return describe_as("rescale", "factor", "addend"); }
constexpr auto describe(const Cast&) { return describe_as("cast"); }
constexpr auto describe(const Transpose&) { return describe_as("transpose"); }
constexpr auto describe(const Copy&) { return describe_as("copy"); }
constexpr auto describe(const Fill&) { return describe_as("fill"); }
constexpr auto describe(const FitColumns&) { return describe_as("fit_columns"); }
constexpr auto describe(const SplitMaster&) { return describe_as("split_master"); }
constexpr auto describe(const JoinMaster&) { return describe_as("join_master"); }
constexpr auto describe(const RandomFill&) {
  return describe_as("random_fill", "distribution", "scale", "seed", "stream", "first", "every");
}
constexpr auto describe(const Dropout&) { return describe_as("dropout", "p", "seed", "stream"); }
constexpr auto describe(const Embedding&) { return describe_as("embedding"); }
constexpr auto describe(const EmbeddingBackward&) { return describe_as("embedding_backward", "accumulate", "patches"); }
constexpr auto describe(const EmbeddingNoise&) { return describe_as("embedding_noise", "alpha", "seed"); }
constexpr auto describe(const ResizeRows&) { return describe_as("resize_rows", "from", "to", "kept", "antialias"); }
constexpr auto describe(const ResizeRowsBackward&) {
  return describe_as("resize_rows_backward", "from", "to", "kept", "antialias");
}
constexpr auto describe(const GatherRows&) { return describe_as("gather_rows"); }
constexpr auto describe(const ScatterRows&) { return describe_as("scatter_rows", "how"); }
constexpr auto describe(const CrossEntropy&) {
  return describe_as("cross_entropy", "row_begin", "gradient", "cap", "smoothing", "z_loss");
}
constexpr auto describe(const TopTokens&) { return describe_as("top_tokens", "row_begin", "cap", "temperature"); }
constexpr auto describe(const Distillation&) {
  return describe_as("distillation", "row_begin", "gradient", "cap", "temperature", "beta", "share");
}
constexpr auto describe(const SoftCap&) { return describe_as("soft_cap", "cap"); }
constexpr auto describe(const LossSum&) { return describe_as("loss_sum", "accumulate"); }
constexpr auto describe(const Quantize&) {
  return describe_as("quantize", "format", "factors", "columns", "column_scales");
}
constexpr auto describe(const SwiGluQuantize&) { return describe_as("swiglu_quantize", "column_scales", "activation"); }
constexpr auto describe(const SwiGluBackwardQuantize&) {
  return describe_as("swiglu_backward_quantize", "restore", "column_scales", "activation");
}
constexpr auto describe(const QuantizeScales&) { return describe_as("quantize_scales"); }
constexpr auto describe(const Dequantize&) { return describe_as("dequantize", "format", "plain_scales"); }
constexpr auto describe(const AllGather&) { return describe_as("all_gather", "ranks"); }
constexpr auto describe(const Exchange&) { return describe_as("exchange"); }
constexpr auto describe(const SumRanks&) { return describe_as("sum_ranks", "accumulate"); }
constexpr auto describe(const TreeSum&) { return describe_as("tree_sum", "count", "block", "scale"); }
constexpr auto describe(const NormPartials&) { return describe_as("norm_partials"); }
constexpr auto describe(const ClipFactor&) { return describe_as("clip_factor", "max_norm"); }
constexpr auto describe(const Lion&) { return describe_as("lion", "beta1", "beta2", "weight_decay", "split", "rate"); }
constexpr auto describe(const AdamW&) {
  return describe_as("adamw", "beta1", "beta2", "epsilon", "weight_decay", "split", "format", "seed", "stream", "first",
                     "rate");
}
constexpr auto describe(const ScheduleFreeAdamW&) {
  return describe_as("schedule_free_adamw", "beta1", "beta2", "epsilon", "weight_decay", "split", "rate");
}
constexpr auto describe(const Momentum&) { return describe_as("momentum", "beta"); }
constexpr auto describe(const Normalize&) { return describe_as("normalize"); }
constexpr auto describe(const Descend&) { return describe_as("descend", "weight_decay", "split", "rate"); }
constexpr auto describe(const FactoredMeans&) { return describe_as("factored_means", "decay", "epsilon"); }
constexpr auto describe(const FactoredScales&) { return describe_as("factored_scales"); }
constexpr auto describe(const SquareLimit&) { return describe_as("square_limit", "threshold"); }
constexpr auto describe(const ScaledSquares&) { return describe_as("scaled_squares", "rows", "columns"); }
constexpr auto describe(const ScaleMatrix&) { return describe_as("scale_matrix", "rows", "columns"); }
constexpr auto describe(const ProjectedMoments&) {
  return describe_as("projected_moments", "beta1", "beta2", "epsilon");
}
constexpr auto describe(const ChannelScales&) { return describe_as("channel_scales"); }
constexpr auto describe(const GrowthLimit&) { return describe_as("growth_limit", "scale", "beta1", "beta2"); }
constexpr auto describe(const ScheduleFreeAverage&) { return describe_as("schedule_free_average", "beta1", "split"); }
constexpr auto describe(const HostTask&) { return describe_as("host_task", "job", "index"); }
constexpr auto describe(const ReadFile&) { return describe_as("read_file", "file", "offset"); }
constexpr auto describe(const WriteFile&) { return describe_as("write_file", "file", "offset"); }

// Calls f(name, value) for every field. A field without a name, or a name without a field, does not compile.
template <class Kind, class F>
void for_each_field(const Kind& op, F&& f) {
  constexpr auto names = describe(Kind{}).fields;
  if constexpr (names.size() == 0) {
    static_assert(std::is_empty_v<Kind>);
  } else if constexpr (names.size() == 1) {
    const auto& [a] = op;
    f(names[0], a);
  } else if constexpr (names.size() == 2) {
    const auto& [a, b] = op;
    f(names[0], a), f(names[1], b);
  } else if constexpr (names.size() == 3) {
    const auto& [a, b, c] = op;
    f(names[0], a), f(names[1], b), f(names[2], c);
  } else if constexpr (names.size() == 4) {
    const auto& [a, b, c, d] = op;
    f(names[0], a), f(names[1], b), f(names[2], c), f(names[3], d);
  } else if constexpr (names.size() == 5) {
    const auto& [a, b, c, d, e] = op;
    f(names[0], a), f(names[1], b), f(names[2], c), f(names[3], d), f(names[4], e);
  } else if constexpr (names.size() == 6) {
    const auto& [a, b, c, d, e, g] = op;
    f(names[0], a), f(names[1], b), f(names[2], c), f(names[3], d), f(names[4], e), f(names[5], g);
  } else if constexpr (names.size() == 10) {
    const auto& [a, b, c, d, e, g, h, i, j, k] = op;
    f(names[0], a), f(names[1], b), f(names[2], c), f(names[3], d), f(names[4], e);
    f(names[5], g), f(names[6], h), f(names[7], i), f(names[8], j), f(names[9], k);
  } else {
    static_assert(names.size() == 11, "a kind with another number of fields needs a branch here");
    const auto& [a, b, c, d, e, g, h, i, j, k, l] = op;
    f(names[0], a), f(names[1], b), f(names[2], c), f(names[3], d), f(names[4], e), f(names[5], g);
    f(names[6], h), f(names[7], i), f(names[8], j), f(names[9], k), f(names[10], l);
  }
}

// Returns whether a field is left out at its default: a program without it is described and hashed as it was before
// ops had the field.
template <class T>
bool left_out(std::string_view field, const T& value) {
  if constexpr (std::is_same_v<T, double>) return field == "rate" && value == 1;
  if constexpr (std::is_same_v<T, float>) return (field == "smoothing" || field == "z_loss") && value == 0;
  if constexpr (std::is_same_v<T, bool>) return field == "column_scales" && !value;
  if constexpr (std::is_same_v<T, RopeAxes> || std::is_same_v<T, Documents>) return value == T{};
  return false;
}

std::string_view name(Distribution distribution) {
  constexpr std::array<std::string_view, 3> kNames{"normal", "uniform", "constant"};
  return kNames[static_cast<size_t>(distribution)];
}

std::string_view name(Ranks ranks) {
  constexpr std::array<std::string_view, 4> kNames{"parts", "everyone", "replica", "peers"};
  return kNames[static_cast<size_t>(ranks)];
}

std::string_view name(StateFormat format) {
  constexpr std::array<std::string_view, 3> kNames{"fp32", "bf16", "8bit"};
  return kNames[static_cast<size_t>(format)];
}

std::string_view name(Activation activation) {
  constexpr std::array<std::string_view, 5> kNames{"silu", "gelu_tanh", "gelu", "gelu_quick", "relu_squared"};
  return kNames[static_cast<size_t>(activation)];
}

std::string_view name(Scatter how) {
  constexpr std::array<std::string_view, 3> kNames{"over_zeros", "replace", "add"};
  return kNames[static_cast<size_t>(how)];
}

std::string_view name(Documents documents) {
  constexpr std::array<std::string_view, 3> kNames{"tokens", "images", "image_windows"};
  return kNames[static_cast<size_t>(documents)];
}

std::string_view name(HostJob job) {
  constexpr std::array<std::string_view, 13> kNames{
      "fill_batch",  "fill_tokens", "take_metrics", "take_loss",    "take_logits",     "fill_header",    "weigh_rows",
      "take_scores", "fill_images", "fill_teacher", "keep_teacher", "fill_embeddings", "take_embeddings"};
  return kNames[static_cast<size_t>(job)];
}

// ---- Text -----------------------------------------------------------------------------------------------------------

template <class T>
std::string field_text(std::string_view field, const T& value) {
  if constexpr (std::is_same_v<T, bool>)
    return value ? fmt::format(" {}", field) : "";
  else if constexpr (std::is_same_v<T, HeadShape>)
    return fmt::format(" heads={}:{} dim={}", value.heads, value.kv_heads, value.dim);
  else if constexpr (std::is_same_v<T, AdaptedParts>)
    return fmt::format(" {}={}-{}", field, fmt::join(value.begin, ","), fmt::join(value.end, ","));
  else if constexpr (std::is_same_v<T, RopeAxes>)
    return fmt::format(" {}={}", field, fmt::join(value.pairs, ","));
  else if constexpr (std::is_same_v<T, Activation>)
    return value == Activation::Silu ? "" : fmt::format(" {}", name(value));
  else if constexpr (std::is_same_v<T, Scatter>)
    return value == Scatter::OverZeros ? "" : fmt::format(" {}", name(value));
  else if constexpr (std::is_same_v<T, std::vector<float>>)
    return fmt::format(" {}={:.6g}", field, fmt::join(value, ","));
  else if constexpr (std::is_enum_v<T>)
    return fmt::format(" {}", name(value));
  else
    return value == T{} && (field == "cap" || field == "chunk" || field == "value_dim" || field.starts_with("growth"))
               ? ""
               : fmt::format(" {}={}", field, value);
}

std::string attributes_text(const Attrs& attrs) {
  return std::visit(
      [](const auto& op) {
        std::string text;
        for_each_field(op, [&](std::string_view field, const auto& value) {
          if (!left_out(field, value)) text += field_text(field, value);
        });
        return text;
      },
      attrs);
}

std::string operand_text(const Operand& operand, const Buffer& buffer) {
  constexpr std::array<std::string_view, 3> kAccess{"r", "w", "rw"};
  std::string text = fmt::format("{} {} {} {}", kAccess[static_cast<size_t>(operand.access)], buffer.name,
                                 snug::name(operand.dtype), to_string(operand.shape));
  if (operand.offset) text += fmt::format(" at {}", operand.offset);
  if (operand.shape.rows() > 1 && operand.row_stride != operand.shape.cols())
    text += fmt::format(" stride {}", operand.row_stride);
  return text;
}

// ---- Hash -----------------------------------------------------------------------------------------------------------

// Serialises canonically: every number as eight bytes, every list after its length.
class Serialisation {
 public:
  template <class T>
  void add(const T& value) {
    if constexpr (std::is_same_v<T, HeadShape>)
      add(value.heads), add(value.kv_heads), add(value.dim);
    else if constexpr (std::is_same_v<T, AdaptedParts>)
      for (size_t i = 0; i < value.end.size(); i++) add(value.begin[i]), add(value.end[i]);
    else if constexpr (std::is_same_v<T, RopeAxes>)
      for (const int64_t pairs : value.pairs) add(pairs);
    else if constexpr (std::is_same_v<T, std::vector<float>>) {
      add(value.size());
      for (const float one : value) add(one);
    } else if constexpr (std::is_same_v<T, float>)
      words_.push_back(std::bit_cast<uint32_t>(value));
    else if constexpr (std::is_same_v<T, double>)
      words_.push_back(std::bit_cast<uint64_t>(value));
    else
      words_.push_back(static_cast<uint64_t>(value));
  }

  void add_operand(const Operand& operand) {
    add(operand.buffer), add(operand.access), add(operand.dtype), add(operand.shape.rank);
    for (size_t i = 0; i < std::max<size_t>(4, static_cast<size_t>(operand.shape.rank)); i++)
      add(operand.shape.dims[i]);
    add(operand.offset), add(operand.row_stride);
  }

  void add_op(const Op& op) {
    add(op.attrs.index());
    const auto add_field = [&](std::string_view field, const auto& value) {
      if (!left_out(field, value)) add(value);
    };
    std::visit([&](const auto& kind) { for_each_field(kind, add_field); }, op.attrs);
    add(op.lane), add(op.pass), add(op.min_loss_rows), add(op.retire), add(op.operands.size());
    for (const Operand& operand : op.operands) add_operand(operand);
  }

  uint64_t hash() const {
    static_assert(std::endian::native == std::endian::little, "the bytes of words_ would differ");
    return hash_of(std::span<const uint64_t>(words_));
  }

 private:
  std::vector<uint64_t> words_;
};

}  // namespace

std::string_view name(Space space) { return kSpaceNames[index(space)]; }
std::string_view name(Lane lane) { return kLaneNames[index(lane)]; }
std::string_view name(BaseFormat format) {
  constexpr std::array<std::string_view, 4> kNames{"plain", "int8", "fp8", "nf4"};
  return kNames[static_cast<size_t>(format)];
}

std::string_view name(Role role) { return kRoleNames[static_cast<size_t>(role)]; }

std::string_view kind(const Attrs& attrs) {
  return std::visit([](const auto& op) { return describe(op).kind; }, attrs);
}

uint64_t Operand::extent() const {
  const int64_t rows = shape.rows();
  if (rows == 0) return 0;
  return static_cast<uint64_t>((rows - 1) * row_stride + shape.cols()) * element_bytes(dtype);
}

size_t ProgramSet::op_count() const {
  size_t count = 0;
  for (const Program& program : programs) count += program.ops.size();
  return count;
}

std::vector<ProgramId> ProgramSet::predecessors(ProgramId program) const {
  std::vector<ProgramId> found;
  for (ProgramId p = 0; p < programs.size(); p++)
    if (std::ranges::count(programs[p].next, program)) found.push_back(p);
  return found;
}

uint64_t ProgramSet::hash() const {
  Serialisation all;
  all.add(buffers.size());
  for (const Buffer& buffer : buffers) all.add(buffer.bytes), all.add(buffer.space), all.add(buffer.life);
  all.add(programs.size());
  for (const Program& program : programs) {
    all.add(program.next.size());
    for (const ProgramId next : program.next) all.add(next);
    all.add(program.ops.size());
    for (const Op& op : program.ops) all.add_op(op);
  }
  return all.hash();
}

std::string ProgramSet::dump(ProgramId program) const {
  const Program& p = programs[program];
  std::string text = fmt::format("program {}", p.name);
  for (size_t i = 0; i < p.next.size(); i++) text += fmt::format("{}{}", i ? ", " : " -> ", programs[p.next[i]].name);
  text += "\n";
  auto out = std::back_inserter(text);
  for (OpId i = 0; i < p.ops.size(); i++) {
    const Op& op = p.ops[i];
    fmt::format_to(out, "{:5} {:<8} {}: {}{}", i, name(op.lane), op.site, kind(op.attrs), attributes_text(op.attrs));
    for (size_t k = 0; k < op.operands.size(); k++)
      fmt::format_to(out, "{} {}", k ? "," : " |", operand_text(op.operands[k], buffers[op.operands[k].buffer]));
    if (op.pass) fmt::format_to(out, " | pass {}", op.pass);
    if (op.min_loss_rows) fmt::format_to(out, " | from {} loss rows", op.min_loss_rows);
    if (op.retire > i) fmt::format_to(out, " | retire {}", op.retire);
    for (size_t k = 0; k < op.waits.size(); k++) {
      const Wait& wait = op.waits[k];
      const bool earlier_op = wait.program == program && wait.op < i;
      fmt::format_to(out, "{}{}{}", k ? ", " : " | wait ", earlier_op ? "" : programs[wait.program].name + ":",
                     wait.op);
    }
    text += "\n";
  }
  return text;
}

}  // namespace snug
