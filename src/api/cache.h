// Places what is made once of a user's files, and kept for later commands.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "api/options.h"
#include "base/file_lock.h"

namespace snug {

// Returns the end of an error about a file of the cache, which says how to have it elsewhere.
std::string other_cache();

// Returns --cache-dir, or the directory of the user's caches. Throws UserError that begins with `why` if there is none.
std::filesystem::path cache_directory(const JobConfig& options, std::string_view why);

// Waits until no other process makes this file or directory of the cache, and keeps others from it.
FileLock lock_in_cache(std::filesystem::path path);

}  // namespace snug
