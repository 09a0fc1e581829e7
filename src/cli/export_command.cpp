// Implements snug export: models and adapters for llama.cpp and Ollama.
#include <nlohmann/json.hpp>

#include "api/corpus.h"
#include "api/job.h"
#include "api/prompting.h"
#include "api/run_directory.h"
#include "api/text.h"
#include "api/use.h"
#include "base/say.h"
#include "base/size_text.h"
#include "cli/commands.h"
#include "format/model_path.h"
#include "format/modelfile.h"
#include "format/pretokenizer.h"
#include "train/export.h"
#include "train/gguf_export.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kAdapterFormat = "adapter", kModelfile = "Modelfile";

// Returns the type of the whole model that is written; nothing if an adapter is.
std::optional<GgufFileType> asked_type(const JobConfig& options, const CommandFlags& flags) {
  if (flags.format == kAdapterFormat) {
    if (options.adapter.empty()) user_error("--adapter is required: the PEFT directory that --format adapter writes");
    return std::nullopt;
  }
  const auto type = gguf_file_type(flags.format);
  if (!type) user_error("--format: found '{}', expected f16, bf16, q8_0, q4_k_m or adapter", flags.format);
  return type;
}

// Returns whether model and adapter become one before they are written.
bool merges(const JobConfig& options, std::optional<GgufFileType> type) { return type && !options.adapter.empty(); }

// Refuses options of arithmetic where the export uses none.
void refuse_without_effect(const JobConfig& options, std::optional<GgufFileType> type) {
  if (merges(options, type)) return;
  for (const char* key : {"base_format", "compute", "init"})
    if (options.flags.contains(key))
      user_error("{}: found it beside {}, expected it where model and adapter are merged", key,
                 type ? "a model without an adapter" : "--format adapter");
}

// Copies what lies beside the weights of a model to `to`, as it should be asked: with --template, or as the adapter was
// trained.
void copy_side_files(const fs::path& model, const fs::path& to, const WriteExtraFiles& write_extra) {
  fs::create_directory(to);
  for (const std::string& name : side_files(model)) {
    fs::create_directories((to / name).parent_path());
    fs::copy_file(model / name, to / name);
  }
  write_extra(to);
}

// Returns how Ollama asks the model whose files lie in `files`.
Modelfile modelfile_of(const JobConfig& options, const fs::path& files, std::vector<std::string>& notes) {
  Modelfile modelfile{.from = ""};
  if (!has_tokenizer(files)) {
    notes.push_back("Modelfile: without a template and without what ends replies, as the model has no tokenizer");
    return modelfile;
  }
  const Tokenizer tokenizer = Tokenizer::load(files);
  const PromptFormat format = prompt_format_of(options, model_tokens(options), &tokenizer);
  for (const int32_t id : format.end_tokens)
    if (const auto text = tokenizer.token(id)) modelfile.stops.push_back(*text);
  if (!format.chat) {
    if (!format.plain) notes.push_back(fmt::format("Modelfile: without a template, as {}", format.refusal));
    return modelfile;
  }
  const auto bos = tokenizer.adds_bos() ? tokenizer.token(*tokenizer.bos_id()) : std::nullopt;
  const auto found = ollama_template(*format.chat, bos.value_or(""));
  if (!found) {
    notes.push_back("Modelfile: the chat template has no form in Ollama's language, which chooses one by itself");
    return modelfile;
  }
  modelfile.chat_template = found->text;
  if (found->system == OllamaTemplate::System::Refused)
    notes.push_back("Modelfile: its template takes no system text, as the chat template refuses one");
  if (found->system == OllamaTemplate::System::LeftOut)
    notes.push_back(
        "Modelfile: its template leaves out system texts, which the chat template writes elsewhere than before the "
        "first "
        "question");
  return modelfile;
}

// Returns the name of a model's directory, of its file, or of the last part of its id.
std::string title_of(const fs::path& model) {
  const fs::path name = last_name(model);
  return name.extension() == ".gguf" ? name.stem().string() : name.string();
}

void report(const JobConfig& options, const CommandFlags& flags, const fs::path& file,
            const std::vector<std::string>& notes) {
  const uint64_t bytes = fs::file_size(file);
  for (const std::string& note : notes) say(fmt::format("note: {}\n", note));
  if (flags.json)
    fmt::print("{}\n", to_line({{"out", options.out}, {"file", file.string()}, {"bytes", bytes}}));
  else
    fmt::print("{}: {}\n", file.string(), format_size(bytes));
}

// Returns what an adapter's Modelfile names as its base: what the user gave, not what an import made of it.
fs::path base_of_adapter(const JobConfig& options, std::vector<std::string>& notes) {
  const fs::path given = model_as_given(options);
  if (is_gguf_file(given)) return fs::absolute(given);
  const fs::path base = fs::absolute(find_model_directory(given.string()));
  if (!fs::equivalent(base, options.model))
    notes.push_back(fmt::format(
        "Modelfile: FROM names {}, whose weights are quantised; where Ollama does not read them, export the "
        "model without --adapter and name its file there",
        base.string()));
  return base;
}

// Writes all that is asked for to `directory`, and returns lines for the user about it.
std::vector<std::string> write_export(const JobConfig& options, std::optional<GgufFileType> type,
                                      const fs::path& directory, const fs::path& name) {
  const fs::path files = directory / "files", given = model_as_given(options);  // `files` is temporary
  const WriteExtraFiles write_extra = write_adapters_format(options);
  fs::path weights = options.model;
  if (merges(options, type)) {
    use_model(plan_use(make_job(options, Purpose::Merge), options, nullptr), options, nullptr,
              [&](Session& session) { export_model(session, files, options.model, Existing::Refuse, write_extra); });
    weights = files;
  } else {
    copy_side_files(options.model, files, write_extra);
  }
  std::vector<std::string> notes;
  try {
    const ModelConfig config = read_model_config(type ? files : fs::path(options.model), options.family);
    if (!merges(options, type)) notes = config.notes;  // else said with the job
    std::ranges::move(type ? export_gguf_model(config, weights, files, directory / name, *type, title_of(given))
                           : export_gguf_adapter(config, options.model, options.adapter, directory / name),
                      std::back_inserter(notes));
    Modelfile modelfile = modelfile_of(options, files, notes);
    modelfile.from = type ? "./" + name.string() : base_of_adapter(options, notes).string();
    if (!type) modelfile.adapter = "./" + name.string();
    write_text(directory / kModelfile, write_modelfile(modelfile));
  } catch (const UserError& error) {  // about a file that is a copy of the model's
    throw UserError(replaced(error.what(), files.string(), options.model));
  }
  fs::remove_all(files);
  return notes;
}

}  // namespace

int export_command(JobConfig options, const CommandFlags& flags) {
  options.ranks = 1;
  options.offload_parameters = "none";  // offloading has no place to go, as the directory to be made does not exist yet
  if (options.out.empty()) user_error("--out is required: the directory to be made");
  const auto type = asked_type(options, flags);
  refuse_without_effect(options, type);
  refuse_to_replace(
      options,
      [](const fs::directory_entry& entry) {
        const fs::path part = entry.path().filename();
        return entry.is_regular_file() && (part == kModelfile || part.extension() == ".gguf");
      },
      "which no export wrote");
  const fs::path name = type ? "model.gguf" : "adapter.gguf";
  PendingDirectory pending(options.out, options.overwrite ? Existing::Replace : Existing::Refuse);
  const std::vector<std::string> notes = write_export(options, type, pending.path(), name);
  pending.publish();
  report(options, flags, fs::path(options.out) / name, notes);
  return 0;
}

}  // namespace snug
