// A model's tokenizer files and texts: anything but a UserError, or ids that decode to the text's bytes, is a fault.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "format/byte_letters.h"
#include "format/tokenizer.h"
#include "format/unicode.h"

namespace {

// A token for every byte and a few merges, cut by a pattern.
std::string small_tokenizer(snug::WordPattern pattern) {
  snug::Json vocabulary = snug::Json::object();
  for (unsigned byte = 0; byte < 256; ++byte) {
    std::string letter;
    snug::append_utf8(snug::byte_letter(static_cast<unsigned char>(byte)), letter);
    vocabulary[letter] = byte;
  }
  snug::Json merges = snug::Json::array();
  for (const char* merge : {"\u0120 \u0120", "\u0120\u0120 \u0120\u0120", "a a", "a b", "aa b", "a ab", "b aab"}) {
    const std::string_view text = merge;
    const size_t space = text.find(' ');
    const std::string joined = std::string(text.substr(0, space)) + std::string(text.substr(space + 1));
    if (!vocabulary.contains(joined)) vocabulary[joined] = vocabulary.size();
    merges.push_back(merge);
  }
  const snug::Json split{{"type", "Split"},
                         {"pattern", {{"Regex", snug::regex_of(pattern)}}},
                         {"behavior", "Isolated"},
                         {"invert", false}};
  const snug::Json bytes{{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  return snug::Json{{"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {split, bytes}}}},
                    {"decoder", {{"type", "ByteLevel"}}},
                    {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", merges}}}}
      .dump();
}

// A token for every byte and for a few characters, over the whole text as SentencePiece does it.
std::string small_sentencepiece() {
  snug::Json vocabulary = snug::Json::object(), merges = snug::Json::array();
  for (unsigned byte = 0; byte < 256; ++byte) vocabulary[snug::fallback_token(static_cast<unsigned char>(byte))] = byte;
  for (const char* token :
       {"\u2581", "a", "b", "\u2581a", "ab", "\u2581\u2581", "\u2581\u2581\u2581\u2581", "\u00e9", "a\u00e9"}) {
    vocabulary[token] = vocabulary.size();
  }
  for (const char* merge : {"a b", "\u2581 a", "\u2581 \u2581", "\u2581\u2581 \u2581\u2581", "a \u00e9"})
    merges.push_back(merge);
  const snug::Json mark{{"String", "\u2581"}}, space{{"String", " "}};
  return snug::Json{
      {"normalizer", {{"type", "Replace"}, {"pattern", space}, {"content", "\u2581"}}},
      {"decoder",
       {{"type", "Sequence"},
        {"decoders", {{{"type", "Replace"}, {"pattern", mark}, {"content", " "}}, {{"type", "ByteFallback"}}}}}},
      {"model", {{"type", "BPE"}, {"byte_fallback", true}, {"vocab", vocabulary}, {"merges", merges}}}}
      .dump();
}

// Takes the text before the next blank line away.
std::string next_file(std::string& text) {
  const size_t end = std::min(text.find("\n\n"), text.size());
  std::string file = text.substr(0, end);
  text.erase(0, end + 2);
  return file;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const snug::Tokenizer kSentencePiece = snug::Tokenizer::parse({.tokenizer = small_sentencepiece()});
  static const std::array<snug::Tokenizer, 2> kTokenizers{
      snug::Tokenizer::parse({.tokenizer = small_tokenizer(snug::WordPattern::Qwen2)}),
      snug::Tokenizer::parse({.tokenizer = small_tokenizer(snug::WordPattern::Llama3)})};
  std::string text(reinterpret_cast<const char*>(data), size);
  for (const snug::Tokenizer& tokenizer : kTokenizers) {
    try {
      if (tokenizer.decode(tokenizer.encode(text), false) != text) std::abort();
    } catch (const snug::UserError&) {
      if (!snug::find_invalid_utf8(text)) std::abort();
    }
  }
  if (!snug::find_invalid_utf8(text)) {
    snug::compose_nfc(text);
    const std::string spaced = snug::replaced(text, "\u2581", " ");
    if (kSentencePiece.decode(kSentencePiece.encode(text), false) != spaced) std::abort();
  }
  snug::Tokenizer::Files files;
  for (std::string* file : {&files.tokenizer, &files.config, &files.special_tokens_map}) *file = next_file(text);
  try {
    const snug::Tokenizer tokenizer = snug::Tokenizer::parse(files);
    tokenizer.decode(tokenizer.encode("a 1 'll \u00e9\r\n"), true);
  } catch (const snug::UserError&) {
  }
  return 0;
}
