#include "format/token_decoder.h"

#include <fmt/format.h>

#include <charconv>

#include "base/error.h"
#include "format/byte_letters.h"
#include "format/pretokenizer.h"
#include "format/unicode.h"

namespace snug {
namespace {

constexpr size_t kMaxSteps = 64, kMaxStrip = 1024;

std::string stripped(std::string_view token, std::string_view what, size_t left, size_t right) {
  for (; left > 0 && token.starts_with(what); --left) token.remove_prefix(what.size());
  for (; right > 0 && token.ends_with(what); --right) token.remove_suffix(what.size());
  return std::string(token);
}

bool is_one_character(std::string_view text) { return !text.empty() && decode_utf8(text, 0).bytes == text.size(); }

std::string one_character(const JsonObject& json, std::string_view key) {
  std::string text = json.string(key);
  if (!is_one_character(text)) json.fail(key, "one character");
  return text;
}

}  // namespace

std::optional<unsigned char> fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return {};
  unsigned value = 0;
  const char* const end = token.data() + 5;
  const auto [at, error] = std::from_chars(token.data() + 3, end, value, 16);
  if (error != std::errc() || at != end) return {};
  return static_cast<unsigned char>(value);
}

std::string fallback_token(unsigned char byte) { return fmt::format("<0x{:02X}>", byte); }

TokenDecoder TokenDecoder::parse(const JsonObject& file, const std::string& source) {
  TokenDecoder decoder;
  decoder.add(file.object("decoder"), source, 0);
  return decoder;
}

TokenDecoder TokenDecoder::of_sentencepiece(bool prefix) {
  TokenDecoder decoder;
  decoder.steps_.push_back({.kind = Kind::Replace, .from = "\u2581", .to = " "});
  decoder.steps_.push_back({.kind = Kind::ByteFallback});
  if (prefix) decoder.strip_ = " ";
  return decoder;
}

void TokenDecoder::add_strip(const JsonObject& json) {
  Step step{.kind = Kind::Strip, .from = one_character(json, "content")};
  step.left = static_cast<size_t>(json.integer("start", 0, kMaxStrip));
  step.right = static_cast<size_t>(json.integer("stop", 0, kMaxStrip));
  if (!fused_) return steps_.push_back(std::move(step));
  if (step.right > 0) json.fail("stop", "0 behind \"Fuse\"");
  if (step.from.size() > 1 || !strip_.empty()) json.fail("content", "one ASCII character, once, behind \"Fuse\"");
  strip_.assign(step.left, step.from[0]);
}

void TokenDecoder::add(const JsonObject& json, const std::string& source, int depth) {
  const std::string type = json.string("type");
  if (steps_.size() >= kMaxSteps || depth > 8) json.fail("type", fmt::format("at most {} parts", kMaxSteps));
  if (type == "Sequence") {
    constexpr std::string_view kList = "decoders";
    if (!json.at(kList).is_array()) json.fail(kList, "a list");
    for (const Json& part : json.at(kList)) add(JsonObject(part, source, "decoder.decoders"), source, depth + 1);
    return;
  }
  if (type == "Strip") return add_strip(json);
  if (type == "Fuse") {
    fused_ = true;
    return;
  }
  // If it replaces a single character behind "Fuse", the result is equal token by token, as no character lies on two
  // tokens except by its bytes.
  const bool replaces_one = type == "Replace" && is_one_character(json.object("pattern").string("String"));
  if (fused_ && type != "ByteLevel" && !replaces_one)
    json.fail("type", "\"Strip\", \"Replace\" of one character, or nothing behind \"Fuse\"");
  if (type == "ByteLevel") {
    steps_.push_back({.kind = Kind::ByteLevel});
  } else if (type == "ByteFallback") {
    steps_.push_back({.kind = Kind::ByteFallback});
  } else if (type == "Replace") {
    const std::string from = json.object("pattern").string("String");
    if (!from.empty()) steps_.push_back({.kind = Kind::Replace, .from = from, .to = json.string("content")});
  } else if (type == "Metaspace") {
    const std::string scheme =
        json.string("prepend_scheme", json.boolean("add_prefix_space", true) ? "always" : "never");
    steps_.push_back({.kind = Kind::Metaspace,
                      .from = one_character(json, "replacement"),
                      .to = " ",
                      .drops_first = scheme != "never"});
  } else {
    json.fail(
        "type",
        "\"ByteLevel\", \"Replace\", \"ByteFallback\", \"Fuse\", \"Strip\", \"Metaspace\" or a \"Sequence\" of them");
  }
}

std::string TokenDecoder::bytes(std::string_view token, bool first) const {
  std::string text(token);
  for (const Step& step : steps_) {
    switch (step.kind) {
      case Kind::ByteLevel:
        text = bytes_of_letters(text).value_or(text);
        break;
      case Kind::Replace:
        text = replaced(text, step.from, step.to);
        break;
      case Kind::ByteFallback:
        if (const auto byte = fallback_byte(text)) return std::string(1, static_cast<char>(*byte));
        break;
      case Kind::Strip:
        text = stripped(text, step.from, step.left, step.right);
        break;
      case Kind::Metaspace:
        text = replaced(text, step.from, step.drops_first && first ? "" : step.to);
        break;
    }
  }
  return text;
}

std::string_view TokenDecoder::Start::next(const TokenDecoder& decoder, std::string_view bytes) {
  at_first_token_ = false;
  while (left_ > 0 && !bytes.empty()) {
    left_ = bytes.front() == decoder.strip_.front() ? left_ - 1 : 0;
    if (bytes.front() == decoder.strip_.front()) bytes.remove_prefix(1);
  }
  return bytes;
}

}  // namespace snug
