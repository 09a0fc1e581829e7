// Converts the byte-level alphabet: tokenizer.json writes each byte of a token as one printable character (GPT-2's
// alphabet, all below U+0180).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace snug {

// Returns the character for a byte.
char32_t byte_letter(unsigned char byte);
// Returns the bytes for which a token's text stands; nothing if a character is not of the alphabet.
std::optional<std::string> bytes_of_letters(std::string_view text);

}  // namespace snug
