#include "api/import.h"

#include "api/cache.h"
#include "api/job.h"
#include "api/launch.h"
#include "api/rules.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/option_name.h"
#include "base/say.h"
#include "format/gguf_import.h"
#include "format/model_path.h"
#include "format/quantized_import.h"
#include "format/side_files.h"
#include "model/model_config.h"
#include "plan/spec/sources.h"
#include "train/checkpoint_export.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxNoteBytes = 1 << 16;

std::string other_form() {
  return option_name("model") + " also takes the directory in Hugging Face's layout from which such a file was made";
}

std::vector<fs::path> files_of(const fs::path& model) {
  if (is_file(model)) return gguf_files(model);
  std::vector<fs::path> files = SafetensorsIndex::open_model(model).files();
  for (const std::string& name : side_files(model)) files.push_back(model / name);
  return files;
}

// Of the bytes of all files.
uint64_t checksum_of(const std::vector<fs::path>& files) {
  std::vector<uint64_t> checksums;
  for (const fs::path& file : files) checksums.push_back(file_checksum(file));
  return checksums.size() == 1 ? checksums[0] : hash_of(std::span<const uint64_t>(checksums));
}

// Adds what helps to what is refused.
auto with_help(std::string_view help, const auto& f) {
  try {
    return f();
  } catch (const UserError& error) {
    user_error("{}; {}", error.what(), help);
  }
}

// What cannot be read is refused before anything is announced.
void refuse_unreadable(const fs::path& model) {
  if (is_file(model)) {
    with_help("fetch the file again, or have llama.cpp's tools make another one",
              [&] { read_gguf(gguf_files(model)); });
    with_help(other_form(), [&] { check_gguf(model); });
  } else {
    parse_model_config(plain_config(model), (model / "config.json").string());
    check_quantized(model);
  }
}

std::vector<std::string> import_readable(const fs::path& model, const fs::path& out, Existing existing) {
  if (!is_file(model)) return import_quantized(model, out, existing);
  return with_help(other_form(), [&] { return import_gguf(model, out, existing); });
}

}  // namespace

bool must_be_imported(const fs::path& directory) {
  return SafetensorsIndex::is_in(directory) && quantized_by(directory).has_value();
}

std::vector<std::string> import_model(const fs::path& model, const fs::path& out, Existing existing) {
  refuse_unreadable(model);
  return import_readable(model, out, existing);
}

std::string imported_form(const fs::path& model) {
  if (is_file(model)) return is_gguf_file(model) ? "GGUF" : "";
  return is_file(model / "config.json") && must_be_imported(model) ? quantized_form(model) : "";
}

fs::path import_to_cache(const JobConfig& options, const fs::path& model) {
  const std::string kind = is_file(model) ? "gguf" : std::string(name(*quantized_by(model)));
  const fs::path cache = cache_directory(options, fmt::format("{}: is stored as {}", model.string(), kind));
  const fs::path directory = cache / fmt::format("{}-{:016x}", kind, checksum_of(files_of(model)));
  const FileLock held = lock_in_cache(directory);
  fs::path rounding = directory;  // what is said of it every time
  rounding += ".txt";
  const auto say_note = [&](const std::string& note) {
    if (is_first_process()) say(fmt::format("note: {}: {}\n", model.string(), note));
  };
  if (is_file(directory / "config.json") && is_file(rounding)) {
    say_note(read_text(rounding, kMaxNoteBytes));
    return directory;
  }
  try {
    refuse_unreadable(model);
    if (is_first_process())
      say(fmt::format("{} {}: imports it to {}, once; {} names another place\n", option_name("model"), model.string(),
                      directory.string(), option_name("cache_dir")));
    const std::vector<std::string> notes = import_readable(model, directory, Existing::Replace);
    for (const std::string& note : notes) say_note(note);
    write_text(rounding, notes[0]);
  } catch (const UserError& refused) {
    user_error("{} {}: cannot import it: {}", option_name("model"), model.string(), refused.what());
  }
  return directory;
}

fs::path import_adapter_to_cache(const JobConfig& options, const fs::path& adapter) {
  JobConfig base = options;  // halves are the base's, whatever is done with the adapter
  base.adapter.clear();
  base.seed = JobConfig().seed;
  const ModelConfig config = whole_model_config_of(base);  // halves may be of a tower, too
  JobSpec spec;
  spec.model = config.spec;
  spec.numerics.seed = base.seed;
  const AdapterFiles files = open_adapter(adapter, spec.model.embedding, spec.model.head);
  spec.rules.adapter = files.config;
  SourceRequest request{options.model, options.init == "random", base.seed, std::nullopt, config.prediction_layers};
  fit_to_rules(spec.model, spec.rules);
  request.head_is_embedding = config.spec.tied && !spec.model.tied;
  spec.table = lora_parameters(spec.model, *spec.rules.adapter, false);
  if (!request.random) store_as_files_do(spec.table, options.model);
  spec.sources = find_sources(spec.table, request);
  const std::string what = fmt::format("{}: begins with halves of its base's weights (init_lora_weights '{}')",
                                       adapter.string(), name(spec.rules.adapter->init));
  if (spec.sources.assumed) user_error("{}, expected these in {}", what, options.model);
  place_initial_halves(spec, base);
  require_halves(files, spec.table);  // before they are computed, which takes long
  const std::vector<std::string> others = side_files(adapter);
  std::vector<fs::path> all = files.index.files();
  all.push_back(adapter / kPeftConfigFile);
  for (const std::string& name : others) all.push_back(adapter / name);
  const std::string key = spec.sources.files[*spec.sources.initial_file].string() + hex(checksum_of(all));
  const fs::path directory = cache_directory(options, what) / fmt::format("adapter-{:016x}", hash_of(key));
  const FileLock held = lock_in_cache(directory);
  if (is_file(directory / kPeftConfigFile)) return directory;
  if (is_first_process())
    say(fmt::format("{}: makes a plain one of it in {}, once; {} names another place\n", what, directory.string(),
                    option_name("cache_dir")));
  make_initial_halves(spec, {});
  PendingDirectory pending(directory, Existing::Replace);
  write_plain_adapter(files, spec.table, spec.sources, pending.path() / kPeftWeightsFile);
  for (const std::string& name : others) {
    fs::create_directories((pending.path() / name).parent_path());
    fs::copy_file(adapter / name, pending.path() / name);
  }
  const fs::path text = adapter / kPeftConfigFile;
  write_text(pending.path() / kPeftConfigFile, plain_peft_config(read_text(text, kMaxConfigBytes), text.string()));
  pending.publish();
  return directory;
}

}  // namespace snug
