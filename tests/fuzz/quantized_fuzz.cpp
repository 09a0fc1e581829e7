// Models in GPTQ, AWQ, compressed-tensors or fp8: what config.json says alone, and files of weights read as each method
// has them. Anything but a UserError, or every value of every weight, is a fault.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>

#include "base/error.h"
#include "format/quantized_weights.h"

namespace {

using namespace snug;

void read_as(QuantizationConfig config, const SafetensorsIndex& index, QuantizationMethod method) {
  config.method = method;
  constexpr int64_t kMostValues = 1 << 22;  // a header says in a few bytes that a row has many
  try {
    const QuantizedTensors tensors = find_quantized(index, {config});
    for (const QuantizedWeight& weight : tensors.weights) {
      if (weight.rows * weight.cols > kMostValues) continue;
      QuantizedReader reader(index, weight);
      std::vector<BFloat16> values;
      for (int64_t first = 0; first < weight.rows; first += QuantizedReader::kRows) {
        values.resize(static_cast<size_t>(std::min(QuantizedReader::kRows, weight.rows - first) * weight.cols));
        reader.read(first, values);
      }
    }
  } catch (const UserError&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const Json json = parse_json({reinterpret_cast<const char*>(data), size}, "fuzz");
    if (const auto quantization = find_quantization(JsonObject(json, "fuzz"))) {
      const QuantizationScheme scheme = parse_quantization_config(*quantization);
      describe(scheme.config);
      for (const ModuleRule& rule : scheme.rules) rule.begins.matches("model.layers.0.mlp.down_proj");
    }
  } catch (const UserError&) {
  }
  static const int file = memfd_create("fuzz", 0);
  if (file < 0 || ftruncate(file, 0) != 0 || pwrite(file, data, size, 0) != static_cast<ssize_t>(size)) std::abort();
  try {
    const auto index = SafetensorsIndex::open_file(fmt::format("/proc/self/fd/{}", file));
    using enum QuantizationMethod;
    using enum ScaleStrategy;
    for (const bool zeros : {false, true}) {
      QuantizationConfig config{.group_size = 16, .block_rows = 16, .block_cols = 16, .zero_points = zeros};
      for (const auto strategy : {Tensor, Row, Group, Block}) {
        config.strategy = strategy;
        config.bits = 8;
        config.codes = CodeType::Fp8;
        for (const auto method : {CompressedTensors, Fp8}) read_as(config, index, method);
        config.codes = CodeType::Int8;
        read_as(config, index, CompressedTensors);
        config.codes = CodeType::Packed;
        config.bits = 4;
        config.zeros_less_one = zeros;
        read_as(config, index, CompressedTensors);
        if (strategy == Tensor || strategy == Block) continue;
        for (const auto method : {Gptq, Awq}) read_as(config, index, method);
      }
    }
  } catch (const UserError&) {
  }
  return 0;
}
