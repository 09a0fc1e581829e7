#include "cli/inputs.h"

#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/say.h"
#include "cli/cache.h"
#include "cli/launch.h"
#include "format/gguf_import.h"
#include "format/model_path.h"
#include "format/peft.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

// ---- GGUF files -----------------------------------------------------------------------------------------------------

// Returns a checksum of the bytes of all files of a model.
uint64_t checksum_of(const std::vector<fs::path>& files) {
  std::vector<uint64_t> checksums;
  for (const fs::path& file : files) checksums.push_back(file_checksum(file));
  return checksums.size() == 1 ? checksums[0] : hash_of(std::span<const uint64_t>(checksums));
}

// Returns the model directory of a GGUF file: it is made once, under the hash of the file's bytes.
fs::path import_to_cache(const fs::path& file, const fs::path& cache) {
  const std::vector<fs::path> files = gguf_files(file);
  const fs::path directory = cache / fmt::format("gguf-{:016x}", checksum_of(files));
  fs::path lock = directory;
  lock += ".lock";
  const FileLock held = FileLock::alone(lock, kOtherCache);
  if (is_file(directory / "config.json")) return directory;
  try {
    read_gguf(files);  // refuses what cannot be read before anything is announced
    if (is_first_process())
      say(fmt::format("--model {}: imports it to {}, once; --cache-dir names another place\n", file.string(),
                      directory.string()));
    const std::vector<std::string> notes = import_gguf(file, directory, Existing::Replace);
    if (is_first_process())
      for (const std::string& note : notes) say(fmt::format("note: {}: {}\n", file.string(), note));
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

void take_adapters_base(Options& options) {
  if (!options.model.empty() || options.adapter.empty()) return;
  const fs::path directory = find_adapter_directory(options.adapter);
  const std::string base = read_peft_config(directory).base_model, file = (directory / kPeftConfigFile).string();
  if (base.empty()) user_error("--model is required: {} names no base ('base_model_name_or_path')", file);
  try {
    if (!is_gguf_file(base)) find_model_directory(base);
  } catch (const UserError& error) {
    user_error("--model is required, as the base that {} names is not here: {}", file, error.what());
  }
  options.model = base;
  options.given.insert("model");
  if (is_first_process()) say(fmt::format("--model is {}, as {} says\n", base, file));
}

void find_inputs(Options& options) {
  if (!options.model.empty())
    find_input(options.model, options.given_model,
               is_gguf_file(options.model)
                   ? import_to_cache(options.model, cache_directory(options, options.model + ": is a GGUF file"))
                   : find_model_directory(options.model),
               "--model");
  if (!options.adapter.empty())
    find_input(options.adapter, options.given_adapter, find_adapter_directory(options.adapter), "--adapter");
}

void agree_on_inputs(const Options& options, Comm& launched) {
  std::string names;
  for (const std::string* given : {&options.given_model, &options.given_adapter})
    names += fs::path(*given).filename().string() + "\n";
  launched.agree("the checkpoint that is used (--checkpoint step-N names one)", hash_of(names));
}

void say_notes(const JobSpec& spec) {
  for (const std::string& note : spec.sources.notes) say(fmt::format("note: {}\n", note));
}

}  // namespace snug
