#include "format/generation_config.h"

#include "format/token_ids.h"

namespace snug {

std::optional<std::vector<int64_t>> parse_generation_config(std::string_view json, std::string_view source,
                                                            int64_t vocabulary, std::vector<std::string>& notes) {
  const Json parsed = parse_json(json, source);
  const JsonObject config(parsed, std::string(source));
  if (!config.has("eos_token_id")) return std::nullopt;
  const size_t before = notes.size();
  std::vector<int64_t> eos = TokenIds(config, "generation_config.json", vocabulary, notes).several("eos_token_id", {});
  if (eos.empty() && notes.size() > before) return std::nullopt;
  return eos;
}

}  // namespace snug
