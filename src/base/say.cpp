#include "base/say.h"

#include <cstdio>

namespace snug {

void say(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
  std::clearerr(stderr);
}

void say_lines(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) say(line + "\n");
}

}  // namespace snug
