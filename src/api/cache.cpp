#include "api/cache.h"

#include <cstdlib>

#include "base/error.h"
#include "base/option_name.h"

namespace snug {

namespace fs = std::filesystem;

fs::path cache_directory(const JobConfig& options, std::string_view why) {
  if (!options.cache_dir.empty()) return options.cache_dir;
  for (const auto& [name, folder] : {std::pair("XDG_CACHE_HOME", "snug"), std::pair("HOME", ".cache/snug")})
    if (const char* value = std::getenv(name); value && *value) return fs::path(value) / folder;
  user_error("{}, and there is no home directory to keep what is made of it in; {} names one", why,
             option_name("cache_dir"));
}

std::string other_cache() { return "; " + option_name("cache_dir") + " names another directory"; }

FileLock lock_in_cache(fs::path path) { return FileLock::alone(path += ".lock", other_cache()); }

}  // namespace snug
