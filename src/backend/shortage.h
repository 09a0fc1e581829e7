// Reports memory that a machine no longer has, though it was planned with.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "base/option_name.h"

namespace snug {

// Throws CapacityError: `what`, as in "reserving 12 bytes for the host space", found this many bytes free, if that is
// known. `option` is the field that caps a plan there.
[[noreturn]] inline void refuse_shortage(std::string_view what, std::optional<uint64_t> free, std::string_view option) {
  throw CapacityError(fmt::format(
      "{}: found {}, less than the plan expected: another program may hold the rest; a lower {} plans for less", what,
      free ? fmt::format("{} bytes free", *free) : "no memory left", option_name(option)));
}

}  // namespace snug
