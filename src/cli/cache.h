// What is made once of a user's files, and kept for later commands.
#pragma once

#include <filesystem>
#include <string_view>

#include "base/file_lock.h"
#include "cli/options.h"

namespace snug {

// How an error about a file there ends.
inline constexpr std::string_view kOtherCache = "; --cache-dir names another directory";

// --cache-dir, or where the user's caches lie. UserError that begins with `why` where there is no such place.
std::filesystem::path cache_directory(const Options& options, std::string_view why);

}  // namespace snug
