// Defines BytePairModel::parse(), which reads the `model` of a tokenizer.json.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "format/byte_letters.h"
#include "format/token_decoder.h"
#include "format/tokenizer_bpe.h"
#include "format/unicode.h"

namespace snug {
namespace {

constexpr int32_t kNone = -1;

std::string shown(std::string_view token) { return shortened(Json(token)); }

BytePairModel::Vocabulary parse_vocabulary(const JsonObject& model) {
  const JsonObject json = model.object("vocab");
  BytePairModel::Vocabulary vocabulary;
  std::unordered_map<int32_t, std::string_view> owners;
  vocabulary.reserve(json.value().size());
  owners.reserve(json.value().size());
  for (const auto& [token, value] : json.value().items()) {
    const auto id = static_cast<int32_t>(json.integer(token, 0, kMaxTokenId));
    if (const auto [owner, fresh] = owners.emplace(id, token); !fresh) {
      json.fail(token, fmt::format("an id of its own; token {} has it too", shown(owner->second)));
    }
    vocabulary.emplace(token, id);
  }
  if (vocabulary.empty()) model.fail("vocab", "at least one token");
  return vocabulary;
}

// Returns the two sides of a merge, which older files write as "left right" and newer ones as ["left", "right"].
std::pair<std::string_view, std::string_view> merge_sides(const Json& entry, const JsonObject& model) {
  if (entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_string()) {
    return {entry[0].get_ref<const std::string&>(), entry[1].get_ref<const std::string&>()};
  }
  if (entry.is_string()) {
    const std::string_view text = entry.get_ref<const std::string&>();
    const size_t space = text.find(' ');
    if (space != std::string_view::npos && text.find(' ', space + 1) == std::string_view::npos) {
      return {text.substr(0, space), text.substr(space + 1)};
    }
  }
  model.fail("merges", fmt::format("\"left right\" or [\"left\", \"right\"] instead of {}", shortened(entry)));
}

MergeTable parse_merges(const JsonObject& model, const BytePairModel::Vocabulary& vocabulary,
                        std::vector<std::string>& texts) {
  const Json& list = model.at("merges");
  if (!list.is_array() || list.size() > std::numeric_limits<uint32_t>::max()) model.fail("merges", "a list of pairs");
  MergeTable merges(list.size());
  uint32_t rank = 0;
  for (const Json& entry : list) {
    // Skips a first line of merges.txt, which some converters carry along.
    if (entry.is_string() && entry.get_ref<const std::string&>().starts_with("#version")) continue;
    const auto id_of = [&](const std::string& token) {
      const auto found = vocabulary.find(token);
      if (found == vocabulary.end()) {
        model.fail("merges", fmt::format("tokens of the vocabulary; merge {} needs {}", rank, shown(token)));
      }
      return found->second;
    };
    const auto [left, right] = merge_sides(entry, model);
    const int32_t left_id = id_of(std::string(left)), right_id = id_of(std::string(right));
    texts.push_back(std::string(left) + std::string(right));
    merges.insert(left_id, right_id, {rank, id_of(texts.back())});
    ++rank;
  }
  return merges;
}

// Throws UserError for models that make words otherwise than by merging bytes or characters.
void refuse_other_models(const JsonObject& model) {
  if (model.string("type", "BPE") != "BPE") model.fail("type", "\"BPE\"");
  model.number("dropout", 0, 0, 0);
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!model.string(affix, "").empty()) model.fail(affix, "null");
  }
}

// Throws UserError for bytes for which byte_fallback would have to stand in: that is done for characters only.
void refuse_fallback(const JsonObject& json, const BytePairModel::Vocabulary& vocabulary) {
  for (unsigned byte = 0; byte < 256; ++byte) {
    std::string letter;
    append_utf8(byte_letter(static_cast<unsigned char>(byte)), letter);
    if (vocabulary.contains(letter)) continue;
    const auto has_fallback = [&](char c) {
      return vocabulary.contains(fallback_token(static_cast<unsigned char>(c)));
    };
    if (std::all_of(letter.begin(), letter.end(), has_fallback)) {
      json.fail("byte_fallback", fmt::format("false, or a token for each byte; {} is missing", shown(letter)));
    }
  }
}

}  // namespace

BytePairModel BytePairModel::parse(const JsonObject& json, bool byte_level) {
  refuse_other_models(json);
  Vocabulary vocabulary = parse_vocabulary(json);
  std::vector<std::string> texts;
  MergeTable merges = parse_merges(json, vocabulary, texts);
  Options options{.byte_level = byte_level,
                  .byte_fallback = json.boolean("byte_fallback", false),
                  .fuse_unknown = json.boolean("fuse_unk", false),
                  .whole_words = json.boolean("ignore_merges", false)};
  if (byte_level && options.byte_fallback) refuse_fallback(json, vocabulary);
  if (json.has("unk_token")) {
    const auto found = vocabulary.find(json.string("unk_token"));
    options.unknown = found == vocabulary.end() ? kNone : found->second;
    // A token for unknowns is missed only if there can be an unknown.
    bool needed = !byte_level;
    for (unsigned byte = 0; byte < 256 && !needed; ++byte) {
      std::string letter;
      append_utf8(byte_letter(static_cast<unsigned char>(byte)), letter);
      needed = !vocabulary.contains(letter);
    }
    if (needed && options.unknown == kNone) json.fail("unk_token", "a token of the vocabulary");
  }
  return BytePairModel(std::move(vocabulary), std::move(merges), options, texts);
}

}  // namespace snug
