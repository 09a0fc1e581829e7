#include "format/quantized_weights.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <optional>
#include <utility>

#include "base/error.h"
#include "format/load.h"

namespace snug {
namespace {

using Sizes = std::vector<int64_t>;

constexpr int64_t kWordBits = 32;
constexpr int64_t kMaxSize = (int64_t{1} << 31) - 1;  // of a weight's rows and columns: nonsense beyond

// What tensors are called that stand beside codes, behind "x.".
constexpr std::array<std::string_view, 3> kGptqParts{"qzeros", "scales", "g_idx"};
constexpr std::array<std::string_view, 5> kOtherParts{"weight_scale", "weight_scale_inv", "weight_zero_point",
                                                      "weight_shape", "weight_g_idx"};
// Those that have to do with activations or caches in fewer bits alone.
constexpr std::array<std::string_view, 12> kActivationParts{"input_scale",  "input_zero_point",  "input_global_scale",
                                                            "output_scale", "output_zero_point", "activation_scale",
                                                            "q_scale",      "k_scale",           "v_scale",
                                                            "k_zero_point", "v_zero_point",      "kv_scale"};

int64_t divide_up(int64_t a, int64_t b) { return a / b + (a % b != 0); }

class Finder {
 public:
  Finder(const SafetensorsIndex& index, const QuantizationScheme& scheme)
      : index_(index), scheme_(scheme), config_(scheme.config) {}

  QuantizedTensors find() {
    refuse_absent();
    for (const SafetensorsEntry& entry : index_.entries()) {
      const size_t dot = entry.name.rfind('.');
      module_ = dot == entry.name.npos ? "" : entry.name.substr(0, dot + 1);
      const std::string_view part = std::string_view(entry.name).substr(module_.size());
      if (is_codes(entry, part)) {
        found_.weights.push_back(find_weight(entry));
      } else if (is_among(part, parts())) {
        refuse_orphan(entry);
      } else if (is_among(part, kActivationParts)) {
        found_.not_used.push_back(&entry);
      } else {
        if (!entry.dtype || entry.bytes == 0 || entry.shape.size() > 4)
          fail(entry,
               fmt::format("up to four sizes above 0 of F32, BF16 or F16, or what {} stores", name(config_.method)));
        found_.plain.push_back(&entry);
      }
    }
    if (found_.weights.empty())
      user_error("{}: found no tensor '*.{}'{}, as {} stores them", index_.files()[0].string(), codes_name(),
                 config_.codes == CodeType::Packed ? "" : fmt::format(" of {}", codes_dtype()), name(config_.method));
    return std::move(found_);
  }

 private:
  bool is_gptq() const { return config_.method == QuantizationMethod::Gptq || is_awq(); }
  bool is_awq() const { return config_.method == QuantizationMethod::Awq; }

  static bool is_among(std::string_view part, std::span<const std::string_view> parts) {
    return std::ranges::find(parts, part) != parts.end();
  }
  std::span<const std::string_view> parts() const {
    if (is_gptq()) return kGptqParts;
    return kOtherParts;
  }

  std::string_view index_name() const { return is_gptq() ? "g_idx" : "weight_g_idx"; }
  // What codes are called, and their type.
  std::string_view codes_name() const {
    return is_gptq() ? "qweight" : config_.codes == CodeType::Packed ? "weight_packed" : "weight";
  }
  std::string_view codes_dtype() const {
    return config_.codes == CodeType::Packed ? "I32" : config_.codes == CodeType::Int8 ? "I8" : "F8_E4M3";
  }
  // A plain weight has the name of unpacked codes.
  bool is_codes(const SafetensorsEntry& entry, std::string_view part) const {
    return part == codes_name() && (config_.codes == CodeType::Packed || entry.dtype_name == codes_dtype());
  }

  // Shards are written whole, or not at all.
  void refuse_absent() const {
    if (index_.absent().empty()) return;
    const auto& [tensor, where] = *index_.absent().begin();
    user_error("tensor '{}' is missing: {}", tensor, where);
  }

  // What stands beside codes that are not there.
  void refuse_orphan(const SafetensorsEntry& entry) const {
    const SafetensorsEntry* codes = index_.find(module_ + std::string(codes_name()));
    if (!codes || (config_.codes != CodeType::Packed && codes->dtype_name != codes_dtype()))
      fail(entry, fmt::format("'{}{}' of {} beside it", module_, codes_name(), codes_dtype()));
  }

  [[noreturn]] void fail(const SafetensorsEntry& entry, std::string_view expected) const {
    user_error("{}, tensor '{}': found {} [{}], expected {}", index_.files()[entry.file].string(), entry.name,
               entry.dtype_name, fmt::join(entry.shape, ", "), expected);
  }

  const SafetensorsEntry* part(std::string_view name) const { return index_.find(module_ + std::string(name)); }
  const SafetensorsEntry& require(std::string_view name, const SafetensorsEntry& codes) const {
    const SafetensorsEntry* entry = part(name);
    if (!entry)
      user_error("{}, tensor '{}': found {}, but '{}{}' is missing", index_.files()[codes.file].string(), codes.name,
                 codes.dtype_name, module_, name);
    return *entry;
  }

  void check_form(const SafetensorsEntry& entry, std::initializer_list<std::string_view> dtypes,
                  std::initializer_list<Sizes> shapes) const {
    if (std::ranges::find(dtypes, entry.dtype_name) != dtypes.end() &&
        std::ranges::find(shapes, entry.shape) != shapes.end())
      return;
    std::string expected;
    for (const Sizes& shape : shapes)
      expected += fmt::format("{}[{}]", expected.empty() ? "" : " or ", fmt::join(shape, ", "));
    fail(entry, fmt::format("{} {}", fmt::join(dtypes, " or "), expected));
  }
  void check_scales(const SafetensorsEntry& entry, std::initializer_list<Sizes> shapes) const {
    check_form(entry, {"F32", "BF16", "F16"}, shapes);
  }

  QuantizedWeight find_weight(const SafetensorsEntry& codes) {
    if (codes.dtype_name != codes_dtype() || codes.shape.size() != 2 || codes.bytes == 0)
      fail(codes, fmt::format("{}, two sizes above 0", codes_dtype()));
    QuantizedWeight weight{.name = module_ + "weight", .codes = &codes, .config = config_of_module(codes)};
    if (codes.name != weight.name && index_.find(weight.name))
      fail(codes, fmt::format("either this or '{}'", weight.name));
    if (is_gptq())
      find_gptq(weight);
    else
      find_other(weight);
    if (!weight.group_index && weight.config.strategy == ScaleStrategy::Group && !weight.config.ordered_by.empty())
      user_error(
          "{}, tensor '{}': found groups of {} columns and no '{}', expected it to say the group of each column, as "
          "{} says that they do not follow each other",
          index_.files()[codes.file].string(), codes.name, weight.config.group_size,
          module_ + std::string(index_name()), weight.config.ordered_by);
    if (weight.rows > kMaxSize || weight.cols > kMaxSize)
      fail(codes, fmt::format("at most {} rows and columns, not [{}, {}]", kMaxSize, weight.rows, weight.cols));
    return weight;
  }

  // What the first rule says that a module's name matches. Keys of JSON have no order here, so that rules which differ
  // are refused; but codes are of no module that is plain.
  QuantizationConfig config_of_module(const SafetensorsEntry& codes) const {
    const std::string_view module = std::string_view(module_).substr(0, module_.empty() ? 0 : module_.size() - 1);
    const ModuleRule *found = nullptr, *plain = nullptr;
    for (const ModuleRule& rule : scheme_.rules) {
      if (!rule.begins.matches(module)) continue;
      if (found && !rule.plain && rule.config != found->config)
        fail(codes, fmt::format("one key of 'dynamic' for it: '{}' and '{}' of config.json say otherwise", found->key,
                                rule.key));
      (rule.plain ? plain : found) = &rule;
    }
    if (plain && !found)
      fail(codes, fmt::format("no codes: '{}' among the keys of 'dynamic' in config.json leaves the module plain",
                              plain->key));
    return found ? found->config : config_;
  }

  static int64_t words_of(int64_t codes, int64_t bits) { return divide_up(codes * bits, kWordBits); }
  static int64_t groups_of(const QuantizationConfig& config, int64_t cols) {
    return config.strategy == ScaleStrategy::Group ? divide_up(cols, config.group_size) : 1;
  }

  void find_gptq(QuantizedWeight& weight) const {
    const Sizes& shape = weight.codes->shape;
    const int64_t bits = weight.config.bits, in_word = kWordBits / bits;
    weight.group_index = is_awq() ? nullptr : part(index_name());
    weight.rows = is_awq() ? shape[1] * in_word : shape[1];
    weight.cols = is_awq() ? shape[0] : shape[0] * in_word;
    if (weight.group_index) {
      const Sizes& index = weight.group_index->shape;
      // The last word of a row may be filled up.
      if (index.size() == 1 && index[0] <= weight.cols && words_of(index[0], bits) == shape[0]) weight.cols = index[0];
      check_form(*weight.group_index, {"I32"}, {{weight.cols}});
    }
    const int64_t groups = groups_of(weight.config, weight.cols);
    weight.scales = &require("scales", *weight.codes);
    check_scales(*weight.scales, {{groups, weight.rows}});
    weight.zeros = &require("qzeros", *weight.codes);
    check_form(*weight.zeros, {"I32"}, {{groups, words_of(weight.rows, bits)}});
  }

  void find_other(QuantizedWeight& weight) const {
    const SafetensorsEntry& codes = *weight.codes;
    weight.rows = codes.shape[0];
    weight.cols = codes.shape[1];
    if (config_.codes == CodeType::Packed) weight.cols = packed_cols(codes);
    const bool inverse = config_.method == QuantizationMethod::Fp8 && !part("weight_scale");
    weight.scales = &require(inverse ? "weight_scale_inv" : "weight_scale", codes);
    const int64_t rows = weight.rows, groups = groups_of(weight.config, weight.cols);
    const bool by_rows = weight.scales->shape == Sizes{rows, 1} || weight.scales->shape == Sizes{rows};
    if (config_.method == QuantizationMethod::Fp8 && config_.strategy == ScaleStrategy::Tensor && by_rows)
      weight.config.strategy = ScaleStrategy::Row;
    switch (weight.config.strategy) {
      case ScaleStrategy::Tensor:
        check_scales(*weight.scales, {{}, {1}, {1, 1}});
        break;
      case ScaleStrategy::Row:
        check_scales(*weight.scales, {{rows, 1}, {rows}});
        break;
      case ScaleStrategy::Group:
        check_scales(*weight.scales, {{rows, groups}});
        break;
      case ScaleStrategy::Block:
        check_scales(*weight.scales,
                     {{divide_up(rows, config_.block_rows), divide_up(weight.cols, config_.block_cols)}});
        break;
    }
    weight.zeros = config_.zero_points ? &require("weight_zero_point", codes) : part("weight_zero_point");
    const bool by_rows_and_groups =
        weight.config.strategy == ScaleStrategy::Row || weight.config.strategy == ScaleStrategy::Group;
    if (weight.zeros && config_.codes == CodeType::Packed && by_rows_and_groups && weight.zeros->dtype_name != "I8")
      check_form(*weight.zeros, {"I32"}, {{words_of(rows, config_.bits), groups}});
    else if (weight.zeros)
      check_form(*weight.zeros, {"I8"}, {weight.scales->shape});
    weight.group_index = part(index_name());
    if (weight.group_index) check_form(*weight.group_index, {"I32"}, {{weight.cols}});
  }

  // The last word of a row may be filled up: how many columns there are stands apart.
  int64_t packed_cols(const SafetensorsEntry& codes) const {
    const SafetensorsEntry& entry = require("weight_shape", codes);
    check_form(entry, {"I64"}, {{2}});
    std::array<std::byte, 2 * sizeof(int64_t)> bytes;
    File::open_read(index_.files()[entry.file], IoMode::Buffered).read(entry.offset, bytes);
    const auto rows = load<int64_t>(bytes.data()), cols = load<int64_t>(bytes.data() + sizeof(int64_t));
    const int64_t most = codes.shape[1] * (kWordBits / config_.bits);
    if (rows != codes.shape[0] || cols < 1 || cols > most || words_of(cols, config_.bits) != codes.shape[1])
      user_error("{}, tensor '{}': found [{}, {}], expected [{}, {}], or less by what fills up the last word of a row",
                 index_.files()[entry.file].string(), entry.name, rows, cols, codes.shape[0], most);
    return cols;
  }

  const SafetensorsIndex& index_;
  const QuantizationScheme& scheme_;
  const QuantizationConfig& config_;  // of all that no rule names
  QuantizedTensors found_;
  std::string module_;  // of the tensor that is looked at: its name up to the last dot
};

}  // namespace

QuantizedTensors find_quantized(const SafetensorsIndex& index, const QuantizationScheme& scheme) {
  return Finder(index, scheme).find();
}

}  // namespace snug
