#include "api/option_kinds.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"

namespace snug {

int64_t parse_integer(const std::string& text, const std::string& key, int64_t least, int64_t most) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool too_large = error == std::errc::result_out_of_range && !text.starts_with('-');
  if ((error != std::errc() && !too_large) || end != text.data() + text.size() || (value < least && !too_large))
    user_error("{}: found '{}', expected a whole number of at least {}", key, text, least);
  if (value > most || too_large) user_error("{}: found '{}', expected a whole number of at most {}", key, text, most);
  return value;
}

double parse_number(const std::string& text, const std::string& key, double least, double most) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= least && value <= most))
    user_error("{}: found '{}', expected a number from {} to {}", key, text, least, most);
  return value;
}

// Reads a boolean, also in the words of YAML 1.1, which many files use.
bool parse_bool(const std::string& text, const std::string& key) {
  for (const char* yes : {"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"})
    if (text == yes) return true;
  for (const char* no : {"false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"})
    if (text == no) return false;
  user_error("{}: found '{}', expected true or false", key, text);
}

// Returns the items between commas; a comma or backslash within an item stands behind a backslash.
std::vector<std::string> split_list(const std::string& text) {
  std::vector<std::string> items{""};
  for (size_t i = 0; i < text.size(); i++) {
    const bool escaped = text[i] == '\\' && i + 1 < text.size() && (text[i + 1] == ',' || text[i + 1] == '\\');
    if (escaped)
      items.back() += text[++i];
    else if (text[i] == ',')
      items.emplace_back();
    else
      items.back() += text[i];
  }
  std::erase(items, "");
  return items;
}

// Splits a number from its unit: "30min" -> "30", "min".
std::pair<std::string, std::string> split_unit(const std::string& text) {
  const size_t end = std::min(text.find_first_not_of("0123456789."), text.size());
  return {text.substr(0, end), text.substr(end)};
}

Cadence parse_cadence(const std::string& text, const std::string& key) {
  if (text == "epoch") return {Cadence::Unit::Epochs, 1};
  const auto [digits, unit] = split_unit(text);
  if (!digits.empty() && unit.empty()) return {Cadence::Unit::Steps, parse_integer(digits, key, 0)};
  const std::pair<std::string_view, int64_t> units[] = {{"min", 60}, {"h", 3600}, {"s", 1}};
  for (const auto& [name, seconds] : units)
    if (!digits.empty() && unit == name)
      return {Cadence::Unit::Seconds, seconds * parse_integer(digits, key, 1, kMaxCount)};
  user_error("{}: found '{}', expected steps, 'epoch' or a duration such as 30min", key, text);
}

std::string write_cadence(const Cadence& cadence) {
  switch (cadence.unit) {
    case Cadence::Unit::Epochs:
      return "epoch";
    case Cadence::Unit::Seconds:
      return fmt::format("{}s", cadence.count);
    case Cadence::Unit::Steps:
      break;
  }
  return fmt::format("{}", cadence.count);
}

ValueType integer_type(int64_t least, int64_t most) {
  return {ValueKind::Integer, {}, static_cast<double>(least), static_cast<double>(most)};
}

std::string parse_word(const std::string& text, const std::string& key, const std::vector<std::string>& words) {
  if (std::ranges::find(words, text) == words.end())
    user_error("{}: found '{}', expected one of {}", key, text, fmt::join(words, ", "));
  return text;
}

OptionSpec text_option(std::string key, std::string JobConfig::*field, std::string help) {
  return {std::move(key), std::move(help), [field](JobConfig& o, const std::string& t) { o.*field = t; },
          [field](const JobConfig& o) { return o.*field; }};
}

OptionSpec word_option(const std::string& key, std::string JobConfig::*field, std::vector<std::string> words,
                       const std::string& help) {
  return {key,
          help,
          [=](JobConfig& o, const std::string& t) { o.*field = parse_word(t, key, words); },
          [field](const JobConfig& o) { return o.*field; },
          {ValueKind::Word, words}};
}

OptionSpec integer_option(const std::string& key, int64_t JobConfig::*field, int64_t least, std::string help,
                          int64_t most) {
  return {key, std::move(help),
          [=](JobConfig& o, const std::string& t) { o.*field = parse_integer(t, key, least, most); },
          [field](const JobConfig& o) { return fmt::format("{}", o.*field); }, integer_type(least, most)};
}

OptionSpec open_integer_option(const std::string& key, std::optional<int64_t> JobConfig::*field, std::string help,
                               int64_t most, int64_t least) {
  return {key, std::move(help),
          [=](JobConfig& o, const std::string& t) { o.*field = parse_integer(t, key, least, most); },
          [field](const JobConfig& o) { return o.*field ? fmt::format("{}", *(o.*field)) : std::string(); },
          integer_type(least, most)};
}

OptionSpec number_option(const std::string& key, double JobConfig::*field, double least, double most,
                         std::string help) {
  return {key,
          std::move(help),
          [=](JobConfig& o, const std::string& t) { o.*field = parse_number(t, key, least, most); },
          [field](const JobConfig& o) { return fmt::format("{}", o.*field); },
          {ValueKind::Number, {}, least, most}};
}

OptionSpec open_number_option(const std::string& key, std::optional<double> JobConfig::*field, double most,
                              std::string help) {
  return {key,
          std::move(help),
          [=](JobConfig& o, const std::string& t) { o.*field = parse_number(t, key, 0, most); },
          [field](const JobConfig& o) { return o.*field ? fmt::format("{}", *(o.*field)) : std::string(); },
          {ValueKind::Number, {}, 0, most}};
}

OptionSpec bool_option(const std::string& key, bool JobConfig::*field, std::string help) {
  return {key,
          std::move(help),
          [=](JobConfig& o, const std::string& t) { o.*field = parse_bool(t, key); },
          [field](const JobConfig& o) { return o.*field ? "true" : "false"; },
          {ValueKind::Bool}};
}

OptionSpec size_option(const std::string& key, std::optional<uint64_t> JobConfig::*field, std::string help) {
  return {key,
          std::move(help),
          [=](JobConfig& o, const std::string& t) { o.*field = parse_size(t, key); },
          [field](const JobConfig& o) { return o.*field ? fmt::format("{}", *(o.*field)) : std::string(); },
          {ValueKind::Size}};
}

OptionSpec list_option(std::string key, std::vector<std::string> JobConfig::*field, std::string help) {
  return {std::move(key),
          std::move(help),
          [field](JobConfig& o, const std::string& t) { o.*field = split_list(t); },
          [field](const JobConfig& o) { return join_list(o.*field); },
          {ValueKind::List}};
}

OptionSpec cadence_option(const std::string& key, Cadence JobConfig::*field, std::string help) {
  return {key,
          std::move(help),
          [=](JobConfig& o, const std::string& t) { o.*field = parse_cadence(t, key); },
          [field](const JobConfig& o) { return write_cadence(o.*field); },
          {ValueKind::Cadence}};
}

OptionSpec map_option(const std::string& key, std::map<std::string, std::string> JobConfig::*field, std::string item,
                      std::string help) {
  return {key,
          std::move(help),
          [=](JobConfig& o, const std::string& text) {
            (o.*field).clear();
            for (const std::string& found : split_list(text)) {
              const size_t equals = found.find('=');
              if (equals == std::string::npos) user_error("{}: found '{}', expected {}", key, found, item);
              const std::string name = found.substr(0, equals), value = found.substr(equals + 1);
              if (const auto [other, fresh] = (o.*field).try_emplace(name, value); !fresh)
                user_error("{}: found '{}' twice, as '{}' and '{}', expected it once", key, name, other->second, value);
            }
          },
          [field](const JobConfig& o) {
            std::vector<std::string> items;
            for (const auto& [name, value] : o.*field) items.push_back(name + "=" + value);
            return join_list(items);
          },
          {ValueKind::Map}};
}

OptionSpec targets_option() {
  OptionSpec spec = list_option("lora_targets", &JobConfig::lora_targets,
                                "'all' (every linear of every layer), or names such as q_proj,v_proj");
  spec.set = [](JobConfig& o, const std::string& text) {
    o.lora_targets = split_list(text);
    if (o.lora_targets.size() > 1 && std::ranges::find(o.lora_targets, "all") != o.lora_targets.end())
      user_error(
          "lora_targets: found '{}', expected 'all' alone, which means every linear of every layer (q_proj, k_proj, "
          "v_proj, o_proj, gate_proj, up_proj, down_proj), or names without it",
          text);
  };
  return spec;
}

OptionSpec metrics_format_option() {
  OptionSpec spec = list_option("metrics_format", &JobConfig::metrics_format,
                                "what metrics are written as beside metrics.jsonl: csv (metrics.csv), tensorboard "
                                "(event files in tensorboard/), or both");
  spec.set = [](JobConfig& o, const std::string& text) {
    o.metrics_format = split_list(text);
    for (const std::string& word : o.metrics_format) parse_word(word, "metrics_format", {"csv", "tensorboard"});
  };
  return spec;
}

OptionSpec keep_option() {
  return {"keep", "checkpoints kept besides the one with the best evaluation, or 'all' (2)",
          [](JobConfig& o, const std::string& t) { o.keep = t == "all" ? -1 : parse_integer(t, "keep", 1); },
          [](const JobConfig& o) { return o.keep < 0 ? std::string("all") : fmt::format("{}", o.keep); }};
}

OptionSpec base_format_option() {
  const std::vector<std::string> words{"bf16", "fp32", "int8", "nf4", "fp8"};
  return {"base_format",
          "how frozen linears are kept (as the model's files have it, else as compute)",
          [=](JobConfig& o, const std::string& t) { o.base_format = parse_word(t, "base_format", words); },
          [](const JobConfig& o) { return o.base_format.value_or(""); },
          {ValueKind::Word, words}};
}

// Takes a backslash and an n for a new line, as shells and YAML's plain text cannot spell it otherwise.
OptionSpec prompt_option() {
  return {"prompt", "pattern for the prompt: \"User: {instruction}\\nAssistant: \"",
          [](JobConfig& o, const std::string& text) {
            o.prompt_pattern.clear();
            for (size_t i = 0; i < text.size(); i++) {
              const char next = i + 1 < text.size() ? text[i + 1] : ' ';
              const bool escaped = text[i] == '\\' && (next == 'n' || next == '\\');
              o.prompt_pattern += !escaped ? text[i] : next == 'n' ? '\n' : '\\';
              i += escaped;
            }
          },
          [](const JobConfig& o) {
            std::string text;
            for (const char c : o.prompt_pattern) text += c == '\n' ? "\\n" : c == '\\' ? "\\\\" : std::string{c};
            return text;
          }};
}

}  // namespace snug
