#include "format/byte_letters.h"

#include <array>

#include "format/unicode.h"

namespace snug {
namespace {

// Printable Latin-1 stands for itself; the other 68 bytes take U+0100 and what follows, in their order.
constexpr bool stands_for_itself(unsigned byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xff && byte != 0xad);
}

constexpr std::array<char32_t, 256> kLetters = [] {
  std::array<char32_t, 256> letters{};
  char32_t next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) letters[byte] = stands_for_itself(byte) ? byte : next++;
  return letters;
}();

constexpr size_t kAlphabetEnd = 0x144;
constexpr std::array<int16_t, kAlphabetEnd> kBytes = [] {
  std::array<int16_t, kAlphabetEnd> bytes{};
  bytes.fill(-1);
  for (unsigned byte = 0; byte < 256; ++byte) bytes[kLetters[byte]] = static_cast<int16_t>(byte);
  return bytes;
}();

}  // namespace

char32_t byte_letter(unsigned char byte) { return kLetters[byte]; }

std::optional<std::string> bytes_of_letters(std::string_view text) {
  std::string bytes;
  for (size_t at = 0; at < text.size();) {
    const CodePoint letter = decode_utf8(text, at);
    if (letter.value >= kAlphabetEnd || kBytes[letter.value] < 0) return {};
    bytes.push_back(static_cast<char>(kBytes[letter.value]));
    at += letter.bytes;
  }
  return bytes;
}

}  // namespace snug
