// Reads ids of special tokens in config.json and generation_config.json.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "format/json.h"

namespace snug {

// Reads special tokens of one file; ids that the vocabulary does not have are left out with a note.
class TokenIds {
 public:
  TokenIds(const JsonObject& config, std::string_view file, int64_t vocabulary, std::vector<std::string>& notes)
      : config_(config), file_(file), vocabulary_(vocabulary), notes_(notes) {}

  // Returns an id. Absent, null and negative mean none; `fallback` serves only if it is absent, as far as the
  // vocabulary has it.
  std::optional<int64_t> one(std::string_view key, std::optional<int64_t> fallback) const {
    if (!config_.value().contains(key)) return fallback && *fallback < vocabulary_ ? fallback : std::nullopt;
    if (!config_.has(key)) return std::nullopt;
    const int64_t id = config_.integer(key, -1, kMaxId);
    return id < 0 || !has(key, id) ? std::nullopt : std::optional(id);
  }

  // Returns the ids of a list, or one as above.
  std::vector<int64_t> several(std::string_view key, std::vector<int64_t> fallback) const {
    if (!config_.value().contains(key)) {
      std::erase_if(fallback, [&](int64_t id) { return id >= vocabulary_; });
      return fallback;
    }
    std::vector<int64_t> ids;
    if (!config_.has(key) || !config_.at(key).is_array()) {
      if (const auto id = one(key, {})) ids.push_back(*id);
      return ids;
    }
    for (const Json& id : config_.at(key)) {
      if (!id.is_number_unsigned() || id.get<uint64_t>() > static_cast<uint64_t>(kMaxId))
        config_.fail(key, fmt::format("ids from 0 to {}", vocabulary_ - 1));
      if (has(key, id.get<int64_t>())) ids.push_back(id.get<int64_t>());
    }
    return ids;
  }

 private:
  static constexpr int64_t kMaxId = INT32_MAX;

  bool has(std::string_view key, int64_t id) const {
    if (id < vocabulary_) return true;
    notes_.push_back(
        fmt::format("{}: {} {} is beyond the vocabulary of {} tokens and left out", file_, key, id, vocabulary_));
    return false;
  }

  const JsonObject& config_;
  std::string_view file_;
  int64_t vocabulary_;
  std::vector<std::string>& notes_;
};

}  // namespace snug
