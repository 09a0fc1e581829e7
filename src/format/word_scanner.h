// Finds the words of the three patterns that most models have, without a regular-expression engine, in one pass.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace snug {

// Names a pattern by the model that first used it.
enum class WordPattern {
  Gpt2,    // GPT-2 and SmolLM2: also what ByteLevel's `use_regex` stands for
  Llama3,  // up to three digits a word
  Qwen2,   // as Llama3, digits one by one
};

// Returns the pattern as tokenizer.json spells it.
std::string_view regex_of(WordPattern pattern);
// Returns the pattern with this spelling, if it is one of these.
std::optional<WordPattern> word_pattern_of(std::string_view regex);

// Returns where the word ends that begins at `begin`; words are all of a text. `text` is well-formed UTF-8 and longer
// than `begin`.
size_t word_end(WordPattern pattern, std::string_view text, size_t begin);

}  // namespace snug
