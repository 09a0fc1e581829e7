#include "format/gguf_pretokenizers.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/error.h"
#include "format/word_scanner.h"

namespace snug {
namespace {

// These are expressions as the models' tokenizer.json files have them.
constexpr std::string_view kO200k =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen35 = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N})"
                                     R"(| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kThreeDigits = R"(\p{N}{1,3})", kHanAndKana = "[一-龥\u3040-ゟ゠-ヿ]+";
constexpr std::string_view kDeepSeek3Words =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLineEnds = "[\r\n]", kHanAndHangul = "[一-龥ࠀ-一가-퟿]+";
constexpr std::string_view kLetters = R"(\s?\p{L}+)", kPunctuation = R"(\s?\p{P}+)";

enum class Digits { Joined, First, Last };  // cut one by one or not, and before other cuts or behind them

struct Known {
  std::string_view name = {};
  std::vector<std::string_view> splits;
  Digits digits = Digits::Joined;
  bool gpt2 = false;  // ByteLevel cuts by GPT-2's pattern
  bool whole_words = false, nfc = false, bos = false;
};

// Are the cuts of llama.cpp for files that name none ("default") and for Falcon.
constexpr std::string_view kMarks = R"([\p{P}\$\+<=>\^~\|]+)", kFalconMarks = R"([\p{P}\$\+<=>\^~\|`]+)";
constexpr std::string_view kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S))";
constexpr std::string_view kNumbers = R"(\p{N}+)", kThreeAscii = "[0-9][0-9][0-9]";

// Lists known names; of several that cut alike, the one that other programs should read stands first. A name of several
// models normalises as those of them that are known to.
const std::vector<Known>& all_known() {
  static const std::vector<Known> known{
      {.name = "smollm", .splits = {}, .digits = Digits::First, .gpt2 = true},
      {.name = "command-r", .splits = {}, .digits = Digits::First, .gpt2 = true, .nfc = true},
      {.name = "refact", .splits = {}, .digits = Digits::First, .gpt2 = true},
      {.name = "starcoder", .splits = {}, .digits = Digits::First, .gpt2 = true},
      {.name = "codeshell", .splits = {}, .digits = Digits::First, .gpt2 = true},
      {.name = "exaone", .splits = {}, .digits = Digits::First, .gpt2 = true},
      {.name = "minerva-7b", .splits = {}, .digits = Digits::First, .gpt2 = true},
      {.name = "mellum2", .splits = {}, .digits = Digits::First, .gpt2 = true},
      {.name = "gpt-2", .splits = {}, .gpt2 = true},
      {.name = "olmo", .splits = {}, .gpt2 = true, .nfc = true},  // and mpt's is GPT-NeoX's tokenizer
      {.name = "mpt", .splits = {}, .gpt2 = true, .nfc = true},
      {.name = "phi-2", .splits = {}, .gpt2 = true},
      {.name = "jais", .splits = {}, .gpt2 = true},
      {.name = "trillion", .splits = {}, .gpt2 = true},
      {.name = "granite-docling", .splits = {}, .gpt2 = true},
      {.name = "gigachat", .splits = {}, .gpt2 = true},
      {.name = "a.x-4.0", .splits = {}, .gpt2 = true},
      {.name = "mellum", .splits = {}, .gpt2 = true},
      {.name = "exaone4", .splits = {}, .gpt2 = true},
      {.name = "llama-bpe", .splits = {regex_of(WordPattern::Llama3)}, .whole_words = true, .bos = true},
      {.name = "llama3", .splits = {regex_of(WordPattern::Llama3)}, .whole_words = true, .bos = true},
      {.name = "llama-v3", .splits = {regex_of(WordPattern::Llama3)}, .whole_words = true, .bos = true},
      {.name = "falcon3", .splits = {regex_of(WordPattern::Llama3)}, .whole_words = true, .bos = true},
      {.name = "falcon-h1", .splits = {regex_of(WordPattern::Llama3)}, .whole_words = true, .bos = true},
      {.name = "pixtral", .splits = {regex_of(WordPattern::Llama3)}, .whole_words = true, .bos = true},
      {.name = "midm-2.0", .splits = {regex_of(WordPattern::Llama3)}, .whole_words = true, .bos = true},
      {.name = "lfm2", .splits = {regex_of(WordPattern::Llama3)}, .whole_words = true, .bos = true},
      {.name = "glm4", .splits = {regex_of(WordPattern::Llama3)}, .whole_words = true},
      {.name = "glm5", .splits = {regex_of(WordPattern::Llama3)}, .whole_words = true},
      {.name = "smaug-bpe", .splits = {regex_of(WordPattern::Llama3)}},
      {.name = "dbrx", .splits = {regex_of(WordPattern::Llama3)}},
      {.name = "chatglm-bpe", .splits = {regex_of(WordPattern::Llama3)}},
      {.name = "qwen2", .splits = {regex_of(WordPattern::Qwen2)}, .nfc = true},
      {.name = "deepseek-r1-qwen", .splits = {regex_of(WordPattern::Qwen2)}},
      {.name = "hunyuan", .splits = {regex_of(WordPattern::Qwen2)}},
      {.name = "kormo", .splits = {regex_of(WordPattern::Qwen2)}},
      {.name = "megrez", .splits = {regex_of(WordPattern::Qwen2)}},
      {.name = "stablelm2", .splits = {regex_of(WordPattern::Qwen2)}},
      {.name = "solar-open", .splits = {regex_of(WordPattern::Qwen2)}},
      {.name = "grok-2", .splits = {regex_of(WordPattern::Qwen2)}},
      {.name = "f2llmv2", .splits = {regex_of(WordPattern::Qwen2)}},
      {.name = "qwen35", .splits = {kQwen35}, .nfc = true},
      {.name = "gpt-4o", .splits = {kO200k}},
      {.name = "llama4", .splits = {kO200k}},
      {.name = "kanana2", .splits = {kO200k}},
      {.name = "talkie", .splits = {kO200k}},
      {.name = "minimax-m2", .splits = {kO200k}},
      {.name = "tekken", .splits = {kTekken}, .whole_words = true, .bos = true},
      {.name = "deepseek-v3", .splits = {kThreeDigits, kHanAndKana, kDeepSeek3Words}},
      {.name = "hunyuan-dense", .splits = {kThreeDigits, kHanAndKana, kDeepSeek3Words}},
      {.name = "joyai-llm", .splits = {kThreeDigits, kHanAndKana, kDeepSeek3Words}},
      {.name = "hy_v4", .splits = {kThreeDigits, kHanAndKana, kDeepSeek3Words}},
      {.name = "deepseek-coder", .splits = {kLineEnds, kLetters, kPunctuation, kHanAndHangul}, .digits = Digits::Last},
      {.name = "default", .splits = {kMarks, kGpt2, kNumbers, kThreeAscii}},
      {.name = "falcon", .splits = {kFalconMarks, kGpt2, kThreeAscii}},
  };
  return known;
}

Json pre_tokenizer_of(const Known& known) {
  const Json digits{{"type", "Digits"}, {"individual_digits", true}};
  const Json byte_level{
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", known.gpt2}};
  Json parts = Json::array();
  if (known.digits == Digits::First) parts.push_back(digits);
  for (const std::string_view regex : known.splits)
    parts.push_back({{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}, {"invert", false}});
  if (known.digits == Digits::Last) parts.push_back(digits);
  parts.push_back(byte_level);
  return parts.size() == 1 ? parts[0] : Json{{"type", "Sequence"}, {"pretokenizers", std::move(parts)}};
}

// Returns what cuts, without what does not change it.
Json cuts_of(const Json& pre_tokenizer) {
  Json parts = Json::array();
  const bool sequence = pre_tokenizer.is_object() && pre_tokenizer.value("type", "") == "Sequence";
  const Json& list = sequence ? pre_tokenizer["pretokenizers"] : Json::array({pre_tokenizer});
  for (Json part : list) {
    if (part.is_object()) part.erase("trim_offsets");
    parts.push_back(std::move(part));
  }
  return parts;
}

}  // namespace

std::optional<GgufPreTokenizer> find_gguf_pre_tokenizer(std::string_view name) {
  for (const Known& known : all_known())
    if (known.name == name)
      return GgufPreTokenizer{known.name, known.whole_words, known.nfc, known.bos, pre_tokenizer_of(known)};
  return std::nullopt;
}

std::optional<std::string> gguf_pre_tokenizer_name(const Json& pre_tokenizer, bool whole_words, bool normalizes_nfc) {
  const Json wanted = cuts_of(pre_tokenizer);
  std::optional<std::string> found;
  for (const Known& known : all_known()) {
    if (known.whole_words != whole_words || cuts_of(pre_tokenizer_of(known)) != wanted) continue;
    if (known.nfc == normalizes_nfc) return std::string(known.name);
    if (!found) found = std::string(known.name);
  }
  return found;
}

std::string gguf_pre_tokenizer_names() {
  std::string names;
  for (const Known& known : all_known()) names += fmt::format("{}\"{}\"", names.empty() ? "" : ", ", known.name);
  return names;
}

}  // namespace snug
