// Says when something happens, for people.
#pragma once

#include <array>
#include <ctime>
#include <string>

namespace snug {

// Returns a time of this host's zone, "2026-11-26 00:43:50".
inline std::string local_time(std::time_t when = std::time(nullptr)) {
  std::tm local{};
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S", localtime_r(&when, &local));
  return text.data();
}

}  // namespace snug
