#include "base/option_name.h"

#include <algorithm>

namespace snug {
namespace {

bool as_flags = false;

}  // namespace

std::string option_name(std::string_view field) {
  if (!as_flags) return std::string(field);
  std::string flag = "--" + std::string(field);
  std::ranges::replace(flag, '_', '-');
  return flag;
}

void name_options_as_flags() { as_flags = true; }

}  // namespace snug
