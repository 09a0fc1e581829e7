// Token ids as fixtures hold them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace snug {

// Two base-64 digits each.
inline std::vector<int32_t> unpack_ids(const std::string& packed) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::vector<int32_t> ids;
  for (size_t i = 0; i + 1 < packed.size(); i += 2) {
    ids.push_back(static_cast<int32_t>(kDigits.find(packed[i]) * 64 + kDigits.find(packed[i + 1])));
  }
  return ids;
}

}  // namespace snug
