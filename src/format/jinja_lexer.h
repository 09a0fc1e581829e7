// A chat template as tokens: text between tags, and what stands within them. White space is controlled as transformers
// has it (trim_blocks, lstrip_blocks, no newline kept at the end).
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
  std::string text = {};  // a String's with its escapes undone
  int64_t integer = 0;
  double real = 0;
};

// All tokens, the last of type End. `line` is set to where it reads, for messages of a Failure.
std::vector<Token> tokens_of(std::string_view source, uint32_t& line);

// How a token is called in messages: "'%}'", "the end of the template".
std::string described(const Token& token);

}  // namespace snug::jinja
