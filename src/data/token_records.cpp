// Reads token ids and the lists beside them.
#include <algorithm>
#include <utility>

#include "data/record_fields.h"

namespace snug {
namespace {

constexpr int32_t kAnyId = INT32_MAX;

bool is_no_label(const Json& value) {
  return value.is_number_integer() && !value.is_number_unsigned() && value.get<int64_t>() == kNoLabel;
}

// Returns integers from 0 to `highest`, and -100 in labels.
std::vector<int32_t> read_integers(const RecordFields& fields, const std::string& name, int32_t highest, bool labels,
                                   std::string_view expected) {
  const Json& list = fields.list(name);
  std::vector<int32_t> out;
  out.reserve(list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    const Json& value = list[i];
    const bool fits = value.is_boolean()
                          ? highest == 1
                          : value.is_number_unsigned() && value.get<uint64_t>() <= static_cast<uint64_t>(highest);
    if (!fits && !(labels && is_no_label(value))) {
      user_error("{}, key '{}[{}]': found {}, expected {}", fields.place(), fields.key(name), i, shortened(value),
                 expected);
    }
    out.push_back(value.is_boolean() ? int32_t{value.get<bool>()} : value.get<int32_t>());
  }
  return out;
}

// Returns such integers of a list that goes with the ids; empty if it does not exist.
std::vector<int32_t> read_beside(const RecordFields& fields, const std::string& name, size_t count, int32_t highest,
                                 bool labels, std::string_view expected, const std::string& ids = "input_ids") {
  if (!fields.has(name)) return {};
  std::vector<int32_t> out = read_integers(fields, name, highest, labels, expected);
  if (out.size() != count)
    fields.object().fail(fields.key(name), fmt::format("{} values, as '{}' has", count, fields.key(ids)));
  return out;
}

// Takes away what an attention mask hides, which is padding.
void cut_padding(const RecordFields& fields, TokenSample& sample, std::vector<int32_t>& positions,
                 const std::string& key, const std::string& ids) {
  const std::vector<int32_t> mask = read_beside(fields, key, sample.ids.size(), 1, false, "0 or 1", ids);
  if (mask.empty()) return;
  const auto begin = std::find(mask.begin(), mask.end(), 1);
  const auto end = std::find(mask.rbegin(), mask.rend(), 1).base();
  if (begin == mask.end()) fields.object().fail(fields.key(key), "at least one 1");
  if (std::find(begin, end, 0) != end) {
    fields.object().fail(fields.key(key),
                         "0 at its ends alone: tokens within that are not seen cannot be trained with");
  }
  for (std::vector<int32_t>* values : {&sample.ids, &sample.labels, &positions}) {
    if (values->empty()) continue;
    values->erase(values->begin() + (end - mask.begin()), values->end());
    values->erase(values->begin(), values->begin() + (begin - mask.begin()));
  }
}

std::vector<int32_t> slice(const std::vector<int32_t>& values, size_t begin, size_t end) {
  return {values.begin() + static_cast<std::ptrdiff_t>(begin), values.begin() + static_cast<std::ptrdiff_t>(end)};
}

std::vector<TokenSample> split(const RecordFields& fields, TokenSample sample, const std::vector<int32_t>& positions) {
  std::vector<size_t> starts{0};
  for (size_t i = 0; i < positions.size(); ++i) {
    if (positions[i] == 0 && i > 0) starts.push_back(i);
    if (static_cast<size_t>(positions[i]) != i - starts.back()) {
      user_error("{}, key '{}[{}]': found {}, expected {}: each document has 0, 1, 2 and so on", fields.place(),
                 fields.key("position_ids"), i, positions[i], i - starts.back());
    }
  }
  std::vector<TokenSample> out;
  if (starts.size() == 1) {
    out.push_back(std::move(sample));
    return out;
  }
  starts.push_back(positions.size());
  for (size_t d = 0; d + 1 < starts.size(); ++d) {
    out.push_back({slice(sample.ids, starts[d], starts[d + 1]), slice(sample.labels, starts[d], starts[d + 1])});
  }
  return out;
}

}  // namespace

std::vector<TokenSample> read_tokens(const RecordFields& fields) {
  TokenSample sample;
  sample.ids = read_integers(fields, "input_ids", kAnyId, /*labels=*/false, "a token id");
  const size_t count = sample.ids.size();
  if (count == 0) fields.object().fail(fields.key("input_ids"), "at least one token id");
  sample.labels = read_beside(fields, "labels", count, kAnyId, /*labels=*/true, "a token id or -100");
  if (sample.labels.empty()) sample.labels = sample.ids;
  for (const char* mask : {"loss_mask", "completion_mask", "assistant_masks"}) {
    const std::vector<int32_t> carries = read_beside(fields, mask, count, 1, /*labels=*/false, "0 or 1");
    for (size_t i = 0; i < carries.size(); ++i) {
      if (carries[i] == 0) sample.labels[i] = kNoLabel;
    }
  }
  read_beside(fields, "token_type_ids", count, 0, /*labels=*/false, "0 alone");
  std::vector<int32_t> positions = read_beside(fields, "position_ids", count, kAnyId, /*labels=*/false, "a position");
  cut_padding(fields, sample, positions, "attention_mask", "input_ids");
  return split(fields, std::move(sample), positions);
}

TokenSample read_tokens(const RecordFields& fields, const std::string& ids, const std::string& labels,
                        const std::string& mask) {
  TokenSample sample;
  sample.ids = read_integers(fields, ids, kAnyId, /*labels=*/false, "a token id");
  if (sample.ids.empty()) fields.object().fail(fields.key(ids), "at least one token id");
  sample.labels = read_beside(fields, labels, sample.ids.size(), kAnyId, /*labels=*/true, "a token id or -100", ids);
  std::vector<int32_t> positions;
  cut_padding(fields, sample, positions, mask, ids);
  return sample;
}

}  // namespace snug
