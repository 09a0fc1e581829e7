#include "train/checkpoint_state.h"

#include <charconv>
#include <limits>

#include "base/error.h"
#include "base/hash.h"
#include "format/json.h"

namespace snug {
namespace {

uint64_t hash_in(const JsonObject& fields, std::string_view key) {
  const std::string text = fields.string(key);
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (error != std::errc() || end != text.data() + text.size()) fields.fail(key, "a number in hexadecimal");
  return value;
}

nlohmann::ordered_json fields_of(const CheckpointState& state) {
  nlohmann::ordered_json json{{"step", state.step},
                              {"numerics_hash", hex(state.numerics_hash)},
                              {"data_order", hex(state.data_order)},
                              {"program_hash", hex(state.program_hash)},
                              {"best_step", state.best_step},
                              {"best_eval_loss", nullptr}};
  if (state.best_eval_loss) json["best_eval_loss"] = *state.best_eval_loss;
  return json;
}

}  // namespace

std::string write_state(const CheckpointState& state) {
  nlohmann::ordered_json json = fields_of(state);
  json["checksum"] = hex(hash_of(json.dump()));
  return json.dump(2) + "\n";
}

CheckpointState parse_state(std::string_view text, const std::string& source) {
  const std::string place = source + ": damaged";
  const Json json = parse_json(text, place);
  const JsonObject fields(json, place);
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  constexpr double kLargest = std::numeric_limits<double>::max();
  CheckpointState state;
  state.step = fields.integer("step", 0, kMost);
  state.numerics_hash = hash_in(fields, "numerics_hash");
  state.data_order = hash_in(fields, "data_order");
  state.program_hash = hash_in(fields, "program_hash");
  state.best_step = fields.integer("best_step", 0, kMost);
  if (fields.has("best_eval_loss")) state.best_eval_loss = fields.number("best_eval_loss", -kLargest, kLargest);
  if (write_state(state) != text) user_error("{}: its checksum is another", place);
  return state;
}

}  // namespace snug
