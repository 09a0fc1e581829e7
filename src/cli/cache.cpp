#include "cli/cache.h"

#include <cstdlib>

#include "base/error.h"

namespace snug {

namespace fs = std::filesystem;

fs::path cache_directory(const Options& options, std::string_view why) {
  if (!options.cache_dir.empty()) return options.cache_dir;
  for (const auto& [name, folder] : {std::pair("XDG_CACHE_HOME", "snug"), std::pair("HOME", ".cache/snug")})
    if (const char* value = std::getenv(name); value && *value) return fs::path(value) / folder;
  user_error("{}, and there is no home directory to keep what is made of it in; --cache-dir names one", why);
}

FileLock lock_in_cache(fs::path path) { return FileLock::alone(path += ".lock", kOtherCache); }

}  // namespace snug
