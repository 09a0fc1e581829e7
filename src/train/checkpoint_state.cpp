#include "train/checkpoint_state.h"

#include <charconv>
#include <limits>

#include "base/error.h"
#include "base/hash.h"
#include "base/option_name.h"
#include "format/json.h"

namespace snug {
namespace {

constexpr int64_t kFormat = 2;

uint64_t hash_in(const JsonObject& fields, std::string_view key) {
  const std::string text = fields.string(key);
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (error != std::errc() || end != text.data() + text.size()) fields.fail(key, "a number in hexadecimal");
  return value;
}

nlohmann::ordered_json json_of(const CheckpointState& state) {
  nlohmann::ordered_json json{{"format", kFormat},
                              {"step", state.step},
                              {"best_step", state.best_step},
                              {"best_eval_loss", nullptr},
                              {"program_hash", hex(state.program_hash)},
                              {"fields", nlohmann::ordered_json::object()}};
  if (state.best_eval_loss) json["best_eval_loss"] = *state.best_eval_loss;
  if (state.best_metric != CheckpointState().best_metric) json["best_metric"] = state.best_metric;
  if (state.evaluations_since_best > 0) json["evaluations_since_best"] = state.evaluations_since_best;
  if (state.average.sum > 0)
    json["average"] = {{"largest_rate", state.average.largest_rate}, {"sum", state.average.sum}};
  for (const Field& field : state.fields)
    if (!field.is_default()) json["fields"][field.group][field.name] = field.value;
  return json;
}

// Returns the parsed text; throws UserError unless it is to the byte what some version of write_state() made.
nlohmann::ordered_json checked(std::string_view text, const std::string& place) {
  parse_json(text, place);  // refuses what is no JSON
  auto json = nlohmann::ordered_json::parse(text);
  const std::string as_written = json.dump(2) + "\n";
  const nlohmann::ordered_json checksum = json.is_object() && json.contains("checksum") ? json["checksum"] : nullptr;
  if (json.is_object()) json.erase("checksum");
  if (as_written != text || checksum != hex(hash_of(json.dump()))) user_error("{}: its checksum is another", place);
  return json;
}

// Requires a state of this version, or of one that writes the same format.
void require_format(const JsonObject& fields, const std::string& source) {
  const int64_t format = fields.has("format") ? fields.integer("format", 1, std::numeric_limits<int64_t>::max()) : 0;
  if (format < kFormat)
    user_error(
        "{}: found {}, expected format {}: an earlier snug made it, which keeps arrays otherwise; that version goes on "
        "with it, {} begins anew",
        source, format > 0 ? fmt::format("format {}", format) : "no 'format'", kFormat, option_name("overwrite"));
  if (format > kFormat)
    user_error("{}: found format {}, expected {} at most: a newer snug made it", source, format, kFormat);
}

Fields read_fields(const nlohmann::ordered_json& groups, const JsonObject& place) {
  Fields fields;
  if (!groups.is_object()) place.fail("fields", "groups of fields");
  for (const auto& [group, named] : groups.items()) {
    if (!named.is_object()) place.fail("fields", "groups of fields");
    for (const auto& [name, value] : named.items()) {
      if (!value.is_string()) place.fail("fields", "texts");
      fields.push_back({group, name, value.get<std::string>()});
    }
  }
  return fields;
}

}  // namespace

std::string write_state(const CheckpointState& state) {
  nlohmann::ordered_json json = json_of(state);
  json["checksum"] = hex(hash_of(json.dump()));
  return json.dump(2) + "\n";
}

CheckpointState parse_state(std::string_view text, const std::string& source) {
  const std::string place = source + ": damaged";
  const nlohmann::ordered_json ordered = checked(text, place);
  const Json json = ordered;
  const JsonObject fields(json, source);
  require_format(fields, source);
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  constexpr double kLargest = std::numeric_limits<double>::max();
  CheckpointState state;
  state.step = fields.integer("step", 0, kMost);
  state.program_hash = hash_in(fields, "program_hash");
  state.best_step = fields.integer("best_step", 0, kMost);
  if (fields.has("best_eval_loss")) state.best_eval_loss = fields.number("best_eval_loss", -kLargest, kLargest);
  state.best_metric = fields.string("best_metric", state.best_metric);
  state.evaluations_since_best = fields.integer("evaluations_since_best", 0, kMost, 0);
  if (fields.has("average")) {
    const JsonObject average = fields.object("average");
    state.average = {average.number("largest_rate", 0, kLargest), average.number("sum", 0, kLargest)};
  }
  state.fields = read_fields(ordered.contains("fields") ? ordered["fields"] : nullptr, fields);
  return state;
}

}  // namespace snug
