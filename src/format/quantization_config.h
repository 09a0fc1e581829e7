// What config.json says of linears that GPTQ, AWQ, compressed-tensors or the method "fp8" quantised. What bitsandbytes
// quantised is bnb.h's.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "format/json.h"
#include "format/pattern.h"

namespace snug {

enum class QuantizationMethod : uint8_t { Gptq, Awq, CompressedTensors, Fp8 };

// Which weights have a scale (and a zero point) in common: all of a linear, a row, `group_size` columns of a row, or a
// block of rows and columns.
enum class ScaleStrategy : uint8_t { Tensor, Row, Group, Block };

// What a weight's codes are: unsigned numbers of few bits in words of 32, int8, or FP8 e4m3fn.
enum class CodeType : uint8_t { Packed, Int8, Fp8 };

struct QuantizationConfig {
  QuantizationMethod method = QuantizationMethod::Gptq;
  CodeType codes = CodeType::Packed;
  int64_t bits = 8;  // of a code
  ScaleStrategy strategy = ScaleStrategy::Row;
  int64_t group_size = 0;                  // of Group
  int64_t block_rows = 0, block_cols = 0;  // of Block
  bool zero_points = true;                 // they must be there; compressed-tensors leaves out those of symmetric codes
  bool zeros_less_one = false;             // GPTQ's first checkpoint format stores a zero point less 1
  std::string ordered_by{};                // the key by which columns lie in groups that only an index tells; or none
  bool operator==(const QuantizationConfig&) const = default;
};

// What GPTQ's "dynamic" says of the modules whose names begin as its expression says.
struct ModuleRule {
  std::string key;    // as it stands there, with "+:" or "-:"
  Pattern begins;     // matches all of such a name
  bool plain = true;  // these are not quantised
  QuantizationConfig config{};
};

// How the linears of a model are quantised. The first rule that a module's name matches holds for it.
struct QuantizationScheme {
  QuantizationConfig config{};
  std::vector<ModuleRule> rules{};
};

// Where config.json says how a model is quantised; the second is compressed-tensors' older name.
inline constexpr std::array<const char*, 2> kQuantizationKeys{"quantization_config", "compression_config"};
// What stands there, of any method; nothing where nothing does.
std::optional<JsonObject> find_quantization(const JsonObject& config);

// The method that it names, if it is one of QuantizationMethod.
std::optional<QuantizationMethod> quantization_method(const JsonObject& quantization);
// "gptq", as files spell it.
std::string_view name(QuantizationMethod method);

// UserError naming file, key, found and expected for another method, and for formats, layouts and numbers of bits that
// are not read.
QuantizationScheme parse_quantization_config(const JsonObject& quantization);

// "gptq, 4 bits, groups of 128".
std::string describe(const QuantizationConfig& config);

}  // namespace snug
