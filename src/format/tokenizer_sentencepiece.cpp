// Defines Tokenizer::of_sentencepiece(), which reads tokenizer.model and the files beside it.
#include <charconv>
#include <map>

#include "base/error.h"
#include "format/sentencepiece.h"
#include "format/tokenizer.h"

namespace snug {
namespace {

// Reads the tokens that tokenizer_config.json and added_tokens.json add to a tokenizer.model, by id.
void read_added_tokens(const Tokenizer::Files& files, const std::vector<JsonObject>& configs, const std::string& place,
                       std::map<int32_t, AddedToken>& tokens) {
  constexpr std::string_view kDecoder = "added_tokens_decoder";
  if (!files.added_tokens.empty()) {
    const Json json = parse_json(files.added_tokens, place + "added_tokens.json");
    const JsonObject list(json, place + "added_tokens.json");
    for (const auto& [content, value] : json.items()) {
      const auto id = static_cast<int32_t>(list.integer(content, 0, kMaxTokenId));
      tokens[id] = {.id = id, .content = content};
    }
  }
  for (const JsonObject& config : configs) {
    if (!config.has(kDecoder)) continue;
    const JsonObject list = config.object(kDecoder);
    for (const auto& [key, value] : list.value().items()) {
      int32_t id = -1;
      const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
      if (error != std::errc() || end != key.data() + key.size() || id < 0 || id > kMaxTokenId) {
        config.fail(kDecoder, "ids as keys");
      }
      const JsonObject token = list.object(key);
      tokens[id] = {.id = id,
                    .content = token.string("content"),
                    .special = token.boolean("special", false),
                    .single_word = token.boolean("single_word", false),
                    .lstrip = token.boolean("lstrip", false),
                    .rstrip = token.boolean("rstrip", false)};
    }
  }
}

}  // namespace

// Reads a tokenizer. Texts get the ids that SentencePiece gives them. Control pieces and tokens that were added to the
// model, which it never finds in a text, are special tokens here.
Tokenizer Tokenizer::of_sentencepiece(const Files& files, const std::vector<JsonObject>& configs,
                                      const std::string& place) {
  const std::string source = place + "tokenizer.model";
  const SentencePieces pieces = parse_sentencepiece(files.sentencepiece, source);
  BytePairModel::Vocabulary vocabulary;
  std::map<int32_t, AddedToken> added;
  std::vector<int32_t> user_defined;
  for (size_t i = 0; i < pieces.pieces.size(); ++i) {
    const SentencePieces::Piece& piece = pieces.pieces[i];
    const auto id = static_cast<int32_t>(i);
    if (!vocabulary.emplace(piece.text, id).second) {
      user_error("{}, piece {}: found {}, which another piece has too", source, i, shortened(piece.text));
    }
    const bool special = piece.type == SentencePieces::Type::Control || piece.type == SentencePieces::Type::Unknown;
    if (special) added[id] = {.id = id, .content = piece.text, .special = true};
    if (piece.type == SentencePieces::Type::UserDefined) user_defined.push_back(id);
  }
  read_added_tokens(files, configs, place, added);

  const auto joins = pieces.merges();
  MergeTable merges(joins.size());
  std::vector<std::string> texts;
  for (const SentencePieces::Merge& merge : joins) {
    merges.insert(merge.left, merge.right, {merge.rank, merge.joined});
    texts.push_back(pieces.pieces[static_cast<size_t>(merge.joined)].text);
  }
  const BytePairModel::Options options{
      .byte_fallback = pieces.byte_fallback, .fuse_unknown = true, .unknown = pieces.unknown.value_or(-1)};
  Tokenizer tokenizer(BytePairModel(std::move(vocabulary), std::move(merges), options, texts),
                      Normalizer::of_sentencepiece(pieces.adds_prefix, pieces.collapses_spaces), PreTokenizer(),
                      TokenDecoder::of_sentencepiece(pieces.adds_prefix));
  for (const auto& [id, token] : added) {
    const auto known = tokenizer.token_id(token.content);
    if (token.content.empty() || known.value_or(id) != id || (!known && tokenizer.entries_.contains(id))) {
      user_error("{}: found added token {} of id {}, expected an id of its own", source, shortened(token.content), id);
    }
    tokenizer.add_token(token, token.content, source);
  }
  for (const int32_t id : user_defined) {
    if (added.contains(id)) continue;
    const std::string& text = pieces.pieces[static_cast<size_t>(id)].text;
    tokenizer.add_token({.id = id, .content = text, .normalized = true}, text, source);
  }
  std::vector<int32_t> prefix;
  if (pieces.bos) prefix.push_back(*pieces.bos);
  tokenizer.read_bos_and_eos(prefix, configs, source);
  if (!tokenizer.bos_id_) tokenizer.bos_id_ = pieces.bos;
  if (!tokenizer.eos_id_) tokenizer.eos_id_ = pieces.eos;
  return tokenizer;
}

}  // namespace snug
