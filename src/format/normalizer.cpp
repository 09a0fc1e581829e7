#include "format/normalizer.h"

#include <fmt/format.h>

#include "base/error.h"
#include "format/unicode.h"

namespace snug {
namespace {

constexpr size_t kMaxSteps = 64;
constexpr std::string_view kSpaceMark = "\u2581";

std::string_view stripped(std::string_view text, bool left, bool right) {
  while (left && !text.empty()) {
    const Character first = character_at(text, 0);
    if (!first.in(kSpace)) break;
    text.remove_prefix(first.bytes);
  }
  while (right && !text.empty()) {
    const size_t last = start_of_last(text, text.size());
    if (!character_at(text, last).in(kSpace)) break;
    text = text.substr(0, last);
  }
  return text;
}

std::string collapsed(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c != ' ' || (!out.empty() && out.back() != ' ')) out.push_back(c);
  }
  while (out.ends_with(' ') || out.ends_with(kSpaceMark)) out.resize(start_of_last(out, out.size()));
  return out;
}

}  // namespace

Normalizer Normalizer::parse(const JsonObject& file, const std::string& source) {
  Normalizer normalizer;
  if (file.has("normalizer")) normalizer.add(file.object("normalizer"), source, 0);
  return normalizer;
}

Normalizer Normalizer::of_sentencepiece(bool prefix, bool collapses) {
  Normalizer normalizer;
  if (collapses) normalizer.steps_.push_back({.kind = Kind::CollapseSpaces});
  if (prefix) normalizer.steps_.push_back({.kind = Kind::Prepend, .to = std::string(kSpaceMark)});
  normalizer.steps_.push_back({.kind = Kind::Replace, .from = " ", .to = std::string(kSpaceMark)});
  return normalizer;
}

void Normalizer::add(const JsonObject& json, const std::string& source, int depth) {
  const std::string type = json.string("type");
  if (steps_.size() >= kMaxSteps || depth > 8) json.fail("type", fmt::format("at most {} parts", kMaxSteps));
  if (type == "Sequence") {
    constexpr std::string_view kList = "normalizers";
    if (!json.at(kList).is_array()) json.fail(kList, "a list");
    for (const Json& part : json.at(kList)) add(JsonObject(part, source, "normalizer.normalizers"), source, depth + 1);
  } else if (type == "NFC") {
    steps_.push_back({.kind = Kind::ComposeNfc});
  } else if (type == "Prepend") {
    steps_.push_back({.kind = Kind::Prepend, .to = json.string("prepend")});
  } else if (type == "Replace") {
    const JsonObject pattern = json.object("pattern");
    const std::string from = pattern.string("String");
    if (!from.empty()) steps_.push_back({.kind = Kind::Replace, .from = from, .to = json.string("content")});
  } else if (type == "Strip") {
    steps_.push_back({.kind = Kind::Strip, .left = json.boolean("strip_left"), .right = json.boolean("strip_right")});
  } else {
    json.fail("type", "\"NFC\", \"Prepend\", \"Replace\", \"Strip\" or a \"Sequence\" of them");
  }
}

std::string Normalizer::apply(std::string_view text, Before before, bool* loses_start) const {
  std::string out(text);
  bool loses = false;
  for (const Step& step : steps_) {
    switch (step.kind) {
      case Kind::ComposeNfc:
        out = compose_nfc(out);
        break;
      case Kind::Prepend:
        if (!out.empty() && before != Before::Text) out.insert(0, step.to);
        break;
      case Kind::Replace:
        loses = loses || (step.to.empty() && out.starts_with(step.from));
        out = replaced(out, step.from, step.to);
        break;
      case Kind::CollapseSpaces:
        out = collapsed(out);
        break;
      case Kind::Strip:
        loses = loses || (step.left && !out.empty() && character_at(out, 0).in(kSpace));
        out = stripped(out, step.left, step.right);
        break;
    }
  }
  if (loses_start) *loses_start = loses;
  return out;
}

}  // namespace snug
