// Reads a chat template as tokens: text between tags, and what stands within tags. White space is controlled as in
// transformers (trim_blocks, lstrip_blocks, no newline kept at the end).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace snug::jinja {

struct Token {
  enum class Type : uint8_t {
    Text,
    PrintBegin,
    PrintEnd,
    TagBegin,
    TagEnd,
    Name,
    String,
    Integer,
    Float,
    Operator,
    End
  };
  Type type = Type::End;
  uint32_t line = 1;
  std::string text = {};  // of a String: with its escapes undone
  int64_t integer = 0;
  double real = 0;
};

// Returns all tokens, the last of type End. `line` is set to where it reads, for messages of a Failure.
std::vector<Token> tokens_of(std::string_view source, uint32_t& line);

// Returns how messages call a token: "'%}'", "the end of the template".
std::string described(const Token& token);

}  // namespace snug::jinja
