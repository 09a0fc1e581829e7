// A tokenizer.model: anything but a UserError, or a tokenizer that encodes and decodes, is a fault.
#include <cstdint>
#include <string>

#include "base/error.h"
#include "format/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const snug::Tokenizer::Files files{.sentencepiece = std::string(reinterpret_cast<const char*>(data), size)};
    if (files.sentencepiece.empty()) return 0;
    const snug::Tokenizer tokenizer = snug::Tokenizer::parse(files);
    tokenizer.decode(tokenizer.encode("a  1 'll \u00e9\r\n<s> the the"), false);
  } catch (const snug::UserError&) {
  }
  return 0;
}
