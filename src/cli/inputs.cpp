#include "cli/inputs.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "base/say.h"
#include "cli/launch.h"
#include "format/gguf_import.h"
#include "format/model_path.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

// ---- GGUF files -----------------------------------------------------------------------------------------------------

fs::path cache_directory(const Options& options) {
  if (!options.cache_dir.empty()) return options.cache_dir;
  for (const auto& [name, folder] : {std::pair("XDG_CACHE_HOME", "snug"), std::pair("HOME", ".cache/snug")})
    if (const char* value = std::getenv(name); value && *value) return fs::path(value) / folder;
  user_error(
      "{}: is a GGUF file, and there is no home directory to keep the model in that is made of it; --cache-dir "
      "names one",
      options.model);
}

// Held by one process at a time; the kernel drops it with the process.
class FileLock {
 public:
  explicit FileLock(const fs::path& path) : descriptor_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
    int result = -1;
    while (descriptor_ >= 0 && (result = ::flock(descriptor_, LOCK_EX)) != 0 && errno == EINTR) {
    }
    if (result == 0) return;
    const int error = errno;
    if (descriptor_ >= 0) ::close(descriptor_);
    user_error("{}: cannot be locked ({}); --cache-dir names another directory", path.string(), std::strerror(error));
  }
  ~FileLock() { ::close(descriptor_); }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int descriptor_;
};

// The model directory of a GGUF file: made once, under the hash of the file's bytes.
fs::path import_to_cache(const fs::path& file, const fs::path& cache) {
  const fs::path directory = cache / fmt::format("gguf-{:016x}", file_checksum(file));
  fs::path lock = directory;
  lock += ".lock";
  std::error_code error;
  fs::create_directories(cache, error);
  if (error) user_error("{}: cannot be made ({}); --cache-dir names another", cache.string(), error.message());
  const FileLock held(lock);
  if (is_file(directory / "config.json")) return directory;
  try {
    read_gguf(file);  // what cannot be read is refused before anything is announced
    if (is_first_process())
      say(fmt::format("--model {}: imports it to {}, once; --cache-dir names another place\n", file.string(),
                      directory.string()));
    import_gguf(file, directory, Existing::Replace);
  } catch (const UserError& refused) {
    user_error("--model {}: cannot import it: {}", file.string(), refused.what());
  }
  return directory;
}

void find_input(std::string& path, std::string& given, const fs::path& directory, const char* option) {
  if (directory == path) return;
  given = std::exchange(path, directory.string());
  if (is_first_process()) say(fmt::format("{} {} lies in {}\n", option, given, path));
}

}  // namespace

void find_inputs(Options& options) {
  if (!options.model.empty())
    find_input(options.model, options.given_model,
               is_gguf_file(options.model) ? import_to_cache(options.model, cache_directory(options))
                                           : find_model_directory(options.model),
               "--model");
  if (!options.adapter.empty())
    find_input(options.adapter, options.given_adapter, find_adapter_directory(options.adapter), "--adapter");
}

void say_notes(const JobSpec& spec) {
  for (const auto* notes : {&spec.config.notes, &spec.sources.notes})
    for (const std::string& note : *notes) say(fmt::format("note: {}\n", note));
  if (spec.purpose == Purpose::Train && !spec.config.dropout.empty())
    say(fmt::format(
        "note: config.json asks for {}, which is not applied: the model trains without dropout of its own\n",
        fmt::join(spec.config.dropout, ", ")));
}

}  // namespace snug
