#include "model/model_config.h"

#include "base/file.h"
#include "format/generation_config.h"
#include "format/side_files.h"
#include "model/families.h"

namespace snug {

ModelConfig parse_model_config(std::string_view json, std::string_view source) {
  const Json parsed = parse_json(json, source);
  const JsonObject object(parsed, std::string(source));
  const std::vector<Family> families = all_families();
  std::vector<HfFamily> known;
  for (const Family& family : families) known.push_back(family.config);
  const HfConfig config = parse_hf_config(object, known);
  return {.spec = families[config.family].spec(config, object),
          .end_tokens = config.eos,
          .dtype = config.dtype,
          .quantization = config.quantization,
          .prediction_layers = config.prediction_layers,
          .dropout = config.dropout,
          .notes = config.notes};
}

ModelConfig read_model_config(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "config.json", generation = directory / "generation_config.json";
  ModelConfig config = parse_model_config(read_text(path, kMaxConfigBytes), path.string());
  if (is_file(generation)) {
    const std::string text = read_text(generation, kMaxConfigBytes);
    if (auto eos = parse_generation_config(text, generation.string(), config.spec.vocabulary, config.notes))
      config.end_tokens = *std::move(eos);
  }
  return config;
}

}  // namespace snug
