#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "format/gguf_import.h"
#include "format/gguf_pretokenizers.h"
#include "format/json.h"
#include "format/sentencepiece.h"
#include "format/tokenizer.h"
#include "format/unicode.h"

namespace snug {
namespace {

// These are values of tokenizer.ggml.token_type.
constexpr int64_t kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kMaxType = 6;
constexpr int64_t kMaxPosition = int64_t{1} << 32;

constexpr std::string_view kModel = "tokenizer.ggml.model";

// Returns whether the tokens are SentencePiece's, with scores in place of merges.
bool is_sentencepiece(const GgufHeader& header) {
  const std::string model = header.string(kModel);
  if (model != "gpt2" && model != "llama") {
    header.fail(kModel, "\"gpt2\", byte-level BPE, or \"llama\", SentencePiece's BPE");
  }
  return model == "llama";
}

GgufPreTokenizer find_pre_tokenizer(const GgufHeader& header) {
  constexpr std::string_view kPre = "tokenizer.ggml.pre";
  const auto found = find_gguf_pre_tokenizer(header.string(kPre));
  if (!found) header.fail(kPre, "one of " + gguf_pre_tokenizer_names());
  return *found;
}

Json byte_level(bool add_prefix_space, bool trim_offsets, bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", add_prefix_space},
          {"trim_offsets", trim_offsets},
          {"use_regex", use_regex}};
}

Json sequence(const char* key, Json first, Json second) {
  return {{"type", "Sequence"}, {key, Json::array({std::move(first), std::move(second)})}};
}

// Returns the text of the token that has a role, or null.
Json special_token(const GgufHeader& header, std::string_view role) {
  const std::vector<std::string>& tokens = header.strings("tokenizer.ggml.tokens");
  const auto id = gguf_token_id(header, role, static_cast<int64_t>(tokens.size()));
  return id ? Json(tokens[static_cast<size_t>(*id)]) : Json();
}

bool adds_bos(const GgufHeader& header) {
  constexpr std::string_view kAddEos = "tokenizer.ggml.add_eos_token";
  if (header.boolean(kAddEos, false)) header.fail(kAddEos, "false");
  const bool habit = is_sentencepiece(header) || find_pre_tokenizer(header).starts_with_bos;
  return header.boolean("tokenizer.ggml.add_bos_token", habit);
}

Json post_processor(const GgufHeader& header) {
  const bool bytes = !is_sentencepiece(header);
  if (!adds_bos(header)) return bytes ? byte_level(true, false, true) : Json();
  const Json bos = special_token(header, "bos");
  if (bos.is_null()) header.fail("tokenizer.ggml.bos_token_id", "a token, since add_bos_token is true");
  const auto part = [](const char* kind, const Json& id, int type_id) -> Json {
    return {{kind, {{"id", id}, {"type_id", type_id}}}};
  };
  Json bos_entry{
      {"id", bos}, {"ids", Json::array({*gguf_token_id(header, "bos", kMaxPosition)})}, {"tokens", Json::array({bos})}};
  Json process{{"type", "TemplateProcessing"},
               {"single", Json::array({part("SpecialToken", bos, 0), part("Sequence", "A", 0)})},
               {"pair", Json::array({part("SpecialToken", bos, 0), part("Sequence", "A", 0),
                                     part("SpecialToken", bos, 1), part("Sequence", "B", 1)})},
               {"special_tokens", Json::object()}};
  process["special_tokens"][bos.get<std::string>()] = std::move(bos_entry);
  if (!bytes) return process;
  return sequence("processors", byte_level(true, false, true), std::move(process));
}

const std::vector<int64_t>& token_types(const GgufHeader& header) {
  constexpr std::string_view kKey = "tokenizer.ggml.token_type";
  const std::vector<int64_t>& types = header.integers(kKey);
  const size_t tokens = header.strings("tokenizer.ggml.tokens").size();
  if (types.size() != tokens) header.fail(kKey, fmt::format("a list of {} values, one a token", tokens));
  return types;
}

// Returns tokens that stand for themselves in a text, before any cutting, or in the normalised text.
Json added_tokens(const GgufHeader& header, bool user_defined_normalized) {
  const std::vector<std::string>& tokens = header.strings("tokenizer.ggml.tokens");
  const std::vector<int64_t>& types = token_types(header);
  Json added = Json::array();
  for (size_t id = 0; id < tokens.size(); ++id) {
    const bool special = types[id] == kControl || (types[id] == kUnknown && is_sentencepiece(header));
    if (!special && types[id] != kUserDefined) continue;
    if (tokens[id].empty()) header.fail("tokenizer.ggml.tokens", fmt::format("a text for special token {}", id));
    added.push_back({{"id", id},
                     {"content", tokens[id]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", !special && user_defined_normalized},
                     {"special", special}});
  }
  return added;
}

Json bpe_model(const GgufHeader& header, const GgufPreTokenizer& pre) {
  const std::vector<std::string>& tokens = header.strings("tokenizer.ggml.tokens");
  const std::vector<std::string>& merges = header.strings("tokenizer.ggml.merges");
  const std::vector<int64_t>& types = token_types(header);
  Json vocabulary = Json::object();
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (types[id] == kUnused) continue;  // padding rows of the embedding
    if (!vocabulary.emplace(tokens[id], id).second) {
      header.fail("tokenizer.ggml.tokens", fmt::format("each token once, not '{}' again at {}", tokens[id], id));
    }
  }
  for (const std::string& merge : merges) {
    const size_t space = merge.find(' ');
    const std::string_view left = std::string_view(merge).substr(0, space);
    const std::string_view right = space == std::string::npos ? "" : std::string_view(merge).substr(space + 1);
    if (!vocabulary.contains(left) || !vocabulary.contains(right) ||
        !vocabulary.contains(std::string(left) + std::string(right))) {
      header.fail("tokenizer.ggml.merges", fmt::format("pairs of tokens that join to a token, not '{}'", merge));
    }
  }
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", special_token(header, "unknown")},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", header.has("tokenizer.ggml.unknown_token_id")},
          {"byte_fallback", false},
          {"ignore_merges", pre.whole_words},
          {"vocab", std::move(vocabulary)},
          {"merges", merges}};
}

SentencePieces pieces_of(const GgufHeader& header) {
  constexpr std::string_view kTokens = "tokenizer.ggml.tokens", kScores = "tokenizer.ggml.scores";
  const std::vector<std::string>& tokens = header.strings(kTokens);
  const std::vector<int64_t>& types = token_types(header);
  const std::vector<double>& scores = header.numbers(kScores);
  if (scores.size() != tokens.size()) header.fail(kScores, fmt::format("a list of {} scores", tokens.size()));
  SentencePieces pieces;
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (types[id] < 1 || types[id] > kMaxType) header.fail("tokenizer.ggml.token_type", "types from 1 to 6");
    if (tokens[id].size() > SentencePieces::kMaxPieceBytes || find_invalid_utf8(tokens[id]) || std::isnan(scores[id])) {
      header.fail(kTokens, fmt::format("UTF-8 of at most {} bytes and a score for token {}",
                                       SentencePieces::kMaxPieceBytes, id));
    }
    pieces.pieces.push_back({tokens[id], static_cast<float>(scores[id]), static_cast<SentencePieces::Type>(types[id])});
  }
  return pieces;
}

Json sentencepiece_model(const GgufHeader& header) {
  const SentencePieces pieces = pieces_of(header);
  Json vocabulary = Json::object(), merges = Json::array();
  bool has_bytes = false;
  for (size_t id = 0; id < pieces.pieces.size(); ++id) {
    const SentencePieces::Piece& piece = pieces.pieces[id];
    has_bytes = has_bytes || piece.type == SentencePieces::Type::Byte;
    if (piece.type == SentencePieces::Type::Unused) continue;
    if (!vocabulary.emplace(piece.text, id).second) {
      header.fail("tokenizer.ggml.tokens", fmt::format("each token once, not '{}' again at {}", piece.text, id));
    }
  }
  const auto text = [&](int32_t id) -> const std::string& { return pieces.pieces[static_cast<size_t>(id)].text; };
  for (const SentencePieces::Merge& merge : pieces.merges()) merges.push_back({text(merge.left), text(merge.right)});
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", special_token(header, "unknown")},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", true},
          {"byte_fallback", has_bytes},
          {"ignore_merges", false},
          {"vocab", std::move(vocabulary)},
          {"merges", std::move(merges)}};
}

Json sentencepiece_tokenizer(const GgufHeader& header) {
  constexpr std::string_view kCollapses = "tokenizer.ggml.remove_extra_whitespaces";
  constexpr std::string_view kMapping = "tokenizer.ggml.precompiled_charsmap";
  if (header.boolean(kCollapses, false)) header.fail(kCollapses, "false, as every model of this kind has it");
  if (header.has(kMapping)) header.fail(kMapping, "nothing: other characters in place of a text's are not supported");
  const bool prefix = header.boolean("tokenizer.ggml.add_space_prefix", true);
  const Json space{{"String", " "}}, mark{{"String", "\u2581"}};
  Json normalizer{{"type", "Replace"}, {"pattern", space}, {"content", "\u2581"}};
  Json decoders = Json::array(
      {{{"type", "Replace"}, {"pattern", mark}, {"content", " "}}, {{"type", "ByteFallback"}}, {{"type", "Fuse"}}});
  if (prefix) {
    normalizer = sequence("normalizers", {{"type", "Prepend"}, {"prepend", "\u2581"}}, std::move(normalizer));
    decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", added_tokens(header, /*user_defined_normalized=*/!prefix)},
          {"normalizer", std::move(normalizer)},
          {"pre_tokenizer", nullptr},
          {"post_processor", post_processor(header)},
          {"decoder", {{"type", "Sequence"}, {"decoders", std::move(decoders)}}},
          {"model", sentencepiece_model(header)}};
}

}  // namespace

std::optional<int64_t> gguf_token_id(const GgufHeader& header, std::string_view role, int64_t vocabulary) {
  const std::string key = fmt::format("tokenizer.ggml.{}_token_id", role);
  if (header.has(key)) return header.integer(key, 0, vocabulary - 1);
  // A SentencePiece model has these tokens if its file says nothing.
  constexpr std::pair<std::string_view, int64_t> kDefaults[]{{"unknown", 0}, {"bos", 1}, {"eos", 2}};
  const auto found = std::ranges::find(kDefaults, role, &std::pair<std::string_view, int64_t>::first);
  if (found == std::end(kDefaults) || header.string(kModel, "") != "llama" || found->second >= vocabulary) return {};
  return found->second;
}

std::string gguf_tokenizer(const GgufHeader& header) {
  if (is_sentencepiece(header)) return sentencepiece_tokenizer(header).dump(1) + "\n";
  const GgufPreTokenizer pre = find_pre_tokenizer(header);
  Json json{{"version", "1.0"},
            {"truncation", nullptr},
            {"padding", nullptr},
            {"added_tokens", added_tokens(header, false)},
            {"normalizer", pre.normalizes_nfc ? Json{{"type", "NFC"}} : Json()},
            {"pre_tokenizer", pre.pre_tokenizer},
            {"post_processor", post_processor(header)},
            {"decoder", byte_level(true, true, true)},
            {"model", bpe_model(header, pre)}};
  return json.dump(1) + "\n";
}

namespace {

// Returns the chat templates that have names: tokenizer.chat_templates lists them. A file without a default one has no
// template that conversations without tools could take, so there are none.
std::map<std::string, std::string> named_templates(const GgufHeader& header) {
  constexpr std::string_view kList = "tokenizer.chat_templates", kTemplate = "tokenizer.chat_template";
  std::map<std::string, std::string> out;
  if (!header.has(kTemplate)) return out;
  if (header.has(kList)) {
    for (const std::string& name : header.strings(kList))
      if (name != "default") out[name] = header.string(fmt::format("{}.{}", kTemplate, name));
  } else if (const std::string key = fmt::format("{}.{}", kTemplate, kToolTemplate); header.has(key)) {
    out[kToolTemplate] = header.string(key);
  }
  return out;
}

}  // namespace

std::string gguf_tokenizer_config(const GgufHeader& header) {
  constexpr std::string_view kTemplate = "tokenizer.chat_template";
  Json json;
  json["tokenizer_class"] = "PreTrainedTokenizerFast";
  json["model_max_length"] = header.integer(header.string("general.architecture") + ".context_length", 1, kMaxPosition);
  json["clean_up_tokenization_spaces"] = false;
  json["add_bos_token"] = adds_bos(header);
  json["bos_token"] = special_token(header, "bos");
  json["eos_token"] = special_token(header, "eos");
  json["pad_token"] = special_token(header, "padding");
  json["unk_token"] = special_token(header, "unknown");
  if (header.has(kTemplate)) json["chat_template"] = header.string(kTemplate);
  if (const std::map<std::string, std::string> named = named_templates(header); !named.empty()) {
    Json list = Json::array();
    if (header.has(kTemplate)) list.push_back({{"name", "default"}, {"template", header.string(kTemplate)}});
    for (const auto& [name, text] : named) list.push_back({{"name", name}, {"template", text}});
    json["chat_template"] = std::move(list);
  }
  return json.dump(2) + "\n";
}

}  // namespace snug
