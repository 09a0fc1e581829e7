#include "format/pretokenizer.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "format/unicode.h"

namespace snug {
namespace {

constexpr size_t kMaxStages = 64;

}  // namespace

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  out.reserve(text.size() + text.size() / 4);
  while (true) {
    const size_t at = text.find(from);
    out += text.substr(0, at);
    if (at == std::string_view::npos) return out;
    out += to;
    text.remove_prefix(at + from.size());
  }
}

// Takes one text through the stages.
class WordCutter {
 public:
  WordCutter(const PreTokenizer& pre, const PreTokenizer::Visit& visit)
      : pre_(pre), visit_(visit), scratch_(pre.stages_.size()) {}

  void cut(size_t index, std::string_view piece, Before before) {
    if (piece.empty()) return;
    if (index == pre_.stages_.size()) return visit_(piece);
    const PreTokenizer::Stage& stage = pre_.stages_[index];
    switch (stage.kind) {
      case PreTokenizer::Kind::Words:
        if (stage.behavior == PreTokenizer::Behavior::Isolated) return cut_words(index, piece, before);
        break;
      case PreTokenizer::Kind::Metaspace:
        return write_spaces(index, piece, before);
      case PreTokenizer::Kind::AddSpace:
        if (before == Before::Text || piece.front() == ' ') return cut(index + 1, piece, before);
        return cut(index + 1, " " + std::string(piece), before);
      default:
        break;
    }
    cut_at_matches(index, piece, before);
  }

 private:
  using Match = std::optional<std::pair<size_t, size_t>>;

  void cut_words(size_t index, std::string_view piece, Before before) {
    const WordPattern pattern = pre_.stages_[index].words;
    for (size_t begin = 0; begin < piece.size();) {
      const size_t end = word_end(pattern, piece, begin);
      cut(index + 1, piece.substr(begin, end - begin), begin == 0 ? before : Before::Token);
      begin = end;
    }
  }

  Match find(size_t index, std::string_view piece, size_t from) {
    const PreTokenizer::Stage& stage = pre_.stages_[index];
    if (from >= piece.size()) return {};
    switch (stage.kind) {
      case PreTokenizer::Kind::Words:
        return std::pair{from, word_end(stage.words, piece, from)};
      case PreTokenizer::Kind::Regex:
        return stage.regex->find(piece, from, scratch_[index]);
      case PreTokenizer::Kind::Digits:
        for (size_t at = from; at < piece.size();) {
          const Character character = character_at(piece, at);
          if (character.properties & kNumeric) return std::pair{at, at + character.bytes};
          at += character.bytes;
        }
        return {};
      default:
        const size_t at = stage.literal.empty() ? std::string_view::npos : piece.find(stage.literal, from);
        if (at == std::string_view::npos) return {};
        return std::pair{at, at + stage.literal.size()};
    }
  }

  // Makes pieces of matches and of what lies between them. The last one waits in [open, end) until it is known whether
  // what follows is joined to it.
  void cut_at_matches(size_t index, std::string_view piece, Before before) {
    const PreTokenizer::Stage& stage = pre_.stages_[index];
    size_t open = 0, end = 0;
    bool last_matched = false, removed = false;
    const auto close = [&] {
      if (!removed) cut(index + 1, piece.substr(open, end - open), open == 0 ? before : Before::Token);
      open = end;
    };
    const auto take = [&](size_t next, bool is_match) {
      if (next == end) return;
      const bool matched = is_match != stage.invert;
      if (!joins(stage.behavior, last_matched, matched)) close();
      removed = matched && stage.behavior == PreTokenizer::Behavior::Removed;
      last_matched = matched;
      end = next;
    };
    for (size_t at = 0; at < piece.size();) {
      const Match match = find(index, piece, at);
      take(match ? match->first : piece.size(), false);
      if (match) take(match->second, true);
      at = match ? match->second : piece.size();
    }
    close();
  }

  static bool joins(PreTokenizer::Behavior behavior, bool last_matched, bool matched) {
    switch (behavior) {
      case PreTokenizer::Behavior::MergedWithPrevious:
        return matched && !last_matched;
      case PreTokenizer::Behavior::MergedWithNext:
        return last_matched && !matched;
      case PreTokenizer::Behavior::Contiguous:
        return matched == last_matched;
      default:
        return false;
    }
  }

  void write_spaces(size_t index, std::string_view piece, Before before) {
    const PreTokenizer::Stage& stage = pre_.stages_[index];
    std::string text = replaced(piece, " ", stage.literal);
    const bool wanted = stage.prepend == PreTokenizer::Prepend::Always
                            ? before != Before::Text
                            : stage.prepend == PreTokenizer::Prepend::First && before == Before::Nothing;
    if (wanted && !text.starts_with(stage.literal)) text.insert(0, stage.literal);
    const std::string_view whole = text;
    if (stage.behavior == PreTokenizer::Behavior::Isolated) return cut(index + 1, whole, before);
    for (size_t begin = 0; begin < whole.size();) {
      const size_t end = std::min(whole.find(stage.literal, begin + 1), whole.size());
      cut(index + 1, whole.substr(begin, end - begin), begin == 0 ? before : Before::Token);
      begin = end;
    }
  }

  const PreTokenizer& pre_;
  const PreTokenizer::Visit& visit_;
  std::vector<SplitRegex::Scratch> scratch_;
};

void PreTokenizer::each_word(std::string_view text, Before before, const Visit& visit) const {
  if (stages_.empty()) {
    if (!text.empty()) visit(text);
    return;
  }
  WordCutter(*this, visit).cut(0, text, before);
}

void PreTokenizer::add_split(const JsonObject& json) {
  Stage stage{.kind = Kind::Literal};
  stage.invert = json.boolean("invert");
  const std::string behavior = json.string("behavior");
  constexpr std::string_view kNames[] = {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
  const auto* const found = std::find(std::begin(kNames), std::end(kNames), behavior);
  if (found == std::end(kNames)) {
    json.fail("behavior", "\"Isolated\", \"Removed\", \"MergedWithPrevious\", \"MergedWithNext\" or \"Contiguous\"");
  }
  stage.behavior = static_cast<Behavior>(found - std::begin(kNames));

  const JsonObject pattern = json.object("pattern");
  if (pattern.has("String")) {
    stage.literal = pattern.string("String");
    if (find_invalid_utf8(stage.literal)) pattern.fail("String", "UTF-8");
  } else {
    const std::string expression = pattern.string("Regex");
    if (const auto known = word_pattern_of(expression)) {
      stage.kind = Kind::Words;
      stage.words = *known;
    } else {
      stage.kind = Kind::Regex;
      stage.regex = std::make_shared<SplitRegex>(expression,
                                                 [&](const std::string& expected) { pattern.fail("Regex", expected); });
    }
  }
  stages_.push_back(std::move(stage));
}

void PreTokenizer::add_metaspace(const JsonObject& json) {
  Stage stage{.kind = Kind::Metaspace, .literal = json.string("replacement")};
  const bool single = !stage.literal.empty() && decode_utf8(stage.literal, 0).bytes == stage.literal.size();
  if (!single) json.fail("replacement", "one character");
  // Older files say add_prefix_space, where false means never.
  const std::string scheme = json.string("prepend_scheme", json.boolean("add_prefix_space", true) ? "always" : "never");
  if (scheme == "always") {
    stage.prepend = Prepend::Always;
  } else if (scheme == "first") {
    stage.prepend = Prepend::First;
  } else if (scheme != "never") {
    json.fail("prepend_scheme", "\"always\", \"first\" or \"never\"");
  }
  stage.behavior = json.boolean("split", true) ? Behavior::MergedWithNext : Behavior::Isolated;
  stages_.push_back(std::move(stage));
}

void PreTokenizer::add(const JsonObject& json) {
  const std::string type = json.string("type");
  if (byte_level_) json.fail("type", "nothing after \"ByteLevel\"");
  if (stages_.size() >= kMaxStages) json.fail("type", fmt::format("at most {} parts", kMaxStages));
  if (type == "Digits") {
    const bool single = json.boolean("individual_digits");
    stages_.push_back({.kind = Kind::Digits, .behavior = single ? Behavior::Isolated : Behavior::Contiguous});
  } else if (type == "Split") {
    add_split(json);
  } else if (type == "Metaspace") {
    add_metaspace(json);
  } else if (type == "ByteLevel") {
    if (json.boolean("add_prefix_space")) stages_.push_back({.kind = Kind::AddSpace});
    if (json.boolean("use_regex", true)) stages_.push_back({.kind = Kind::Words, .words = WordPattern::Gpt2});
    byte_level_ = true;
  } else {
    json.fail("type", "\"Split\", \"Digits\", \"Metaspace\", \"ByteLevel\" or a \"Sequence\" of them");
  }
}

PreTokenizer PreTokenizer::parse(const Json& json, const std::string& source) {
  constexpr std::string_view kList = "pretokenizers";
  PreTokenizer pre;
  if (json.is_null()) return pre;
  const JsonObject outer(json, source, "pre_tokenizer");
  if (outer.string("type") != "Sequence") {
    pre.add(outer);
    return pre;
  }
  if (!outer.at(kList).is_array()) outer.fail(kList, "a list");
  for (const Json& part : outer.at(kList)) pre.add(JsonObject(part, source, "pre_tokenizer.pretokenizers"));
  return pre;
}

}  // namespace snug
