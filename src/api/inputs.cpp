#include "api/inputs.h"

#include <filesystem>

#include "api/import.h"
#include "api/launch.h"
#include "api/new_tokens.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/option_name.h"
#include "base/say.h"
#include "format/model_path.h"
#include "format/peft.h"
#include "format/tokenizer.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

void find_input(std::string& path, std::string& given, const fs::path& directory, const std::string& option) {
  if (directory == path) return;
  given = std::exchange(path, directory.string());
  if (is_first_process()) say(fmt::format("{} {} lies in {}\n", option, given, path));
}

}  // namespace

void take_adapters_base(JobConfig& options) {
  if (!options.model.empty() || options.adapter.empty()) return;
  const fs::path directory = find_adapter_directory(options.adapter);
  const std::string base = read_peft_config(directory).base_model, file = (directory / kPeftConfigFile).string();
  if (base.empty())
    user_error("{} is required: {} names no base ('base_model_name_or_path')", option_name("model"), file);
  try {
    if (!is_gguf_file(base)) find_model_directory(base);
  } catch (const UserError& error) {
    user_error("{} is required, as the base that {} names is not here: {}", option_name("model"), file, error.what());
  }
  options.model = base;
  options.given.insert("model");
  if (is_first_process()) say(fmt::format("{} is {}, as {} says\n", option_name("model"), base, file));
}

void find_inputs(JobConfig& options, Needed needed) {
  const auto is_found = [&](const std::string& directory) {
    return directory.empty() || (needed == Needed::Tokenizer && has_tokenizer(directory));
  };
  if (!is_found(options.model)) {
    const fs::path found = is_gguf_file(options.model) ? fs::path(options.model) : find_model_directory(options.model);
    const bool imported =
        is_file(found) || (needed == Needed::Weights && options.init != "random" && must_be_imported(found));
    find_input(options.model, options.found.given_model, imported ? import_to_cache(options, found) : found,
               option_name("model"));
  }
  if (!is_found(options.adapter)) {
    const fs::path found = find_adapter_directory(options.adapter);
    const bool imported = needed != Needed::Tokenizer && read_peft_config(found).init != LoraInit::Default;
    find_input(options.adapter, options.found.given_adapter, imported ? import_adapter_to_cache(options, found) : found,
               option_name("adapter"));
  }
  find_new_tokens(options);
}

void agree_on_inputs(const JobConfig& options, Comm& launched) {
  std::string names;
  for (const std::string* given : {&options.found.given_model, &options.found.given_adapter})
    names += fs::path(*given).filename().string() + "\n";
  launched.agree("the checkpoint that is used (" + option_name("checkpoint") + " step-N names one)", hash_of(names));
}

std::vector<std::string> notes_of(const JobSpec& spec) {
  std::vector<std::string> lines;
  for (const std::string& note : spec.sources.notes) lines.push_back("note: " + note);
  return lines;
}

}  // namespace snug
