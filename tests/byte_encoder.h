// A tokenizer for tests: bytes are their own ids, and a few special tokens follow.
#pragma once

#include <algorithm>
#include <string_view>
#include <vector>

#include "data/dataset.h"

namespace snug {

constexpr int32_t kStart = 256, kEnd = 257, kBos = 258;  // <|im_start|>, <|im_end|>, <s>

inline std::vector<int32_t> encode_bytes(std::string_view text) {
  constexpr std::string_view special[] = {"<|im_start|>", "<|im_end|>", "<s>"};
  std::vector<int32_t> ids;
  while (!text.empty()) {
    const auto found =
        std::find_if(std::begin(special), std::end(special), [&](auto s) { return text.starts_with(s); });
    const bool known = found != std::end(special);
    ids.push_back(known ? kStart + static_cast<int32_t>(found - std::begin(special))
                        : static_cast<unsigned char>(text[0]));
    text.remove_prefix(known ? found->size() : 1);
  }
  return ids;
}

inline TextEncoder byte_encoder() {
  TextEncoder encoder;
  encoder.encode = encode_bytes;
  encoder.bos_id = kBos;
  encoder.eos_id = kEnd;
  encoder.adds_bos = true;
  encoder.special = {"<s>", "<|im_end|>"};
  return encoder;
}

}  // namespace snug
