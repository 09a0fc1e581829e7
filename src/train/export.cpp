#include "train/export.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "format/peft.h"

namespace snug {
namespace {

// The original config.json with the dtype of what was written and the vocabulary and head that its adapter gave it, and
// no word of how the base was quantised.
std::string written_config(const std::filesystem::path& path, const JobSpec& spec) {
  auto json = nlohmann::ordered_json::parse(read_text(path, kMaxConfigBytes));
  const std::string word = spec.export_dtype == DType::F32 ? "float32" : "bfloat16";
  const bool old_spelling = json.contains("torch_dtype");
  json.erase("quantization_config");
  json["vocab_size"] = spec.config.vocabulary;
  if (!spec.config.tie_word_embeddings) json["tie_word_embeddings"] = false;
  json[old_spelling ? "torch_dtype" : "dtype"] = word;
  return json.dump(2) + "\n";
}

}  // namespace

void export_adapter(Session& session, const std::filesystem::path& directory, const PeftConfig& adapter,
                    const std::filesystem::path& base_model) {
  if (session.rank() != 0) return session.write(Task::Export, directory);
  PendingDirectory pending(directory, Existing::Replace);
  PeftConfig config = adapter;
  config.base_model = base_model.string();
  std::ranges::sort(config.target_modules);
  session.write(Task::Export, pending.path());
  write_text(pending.path() / kPeftConfigFile, write_peft_config(config));
  pending.publish();
}

void export_model(Session& session, const std::filesystem::path& directory, const std::filesystem::path& source,
                  Existing existing) {
  if (session.rank() != 0) return session.write(Task::Export, directory);
  PendingDirectory pending(directory, existing);
  session.write(Task::Export, pending.path());
  for (const std::string& name : side_files(source)) {
    if (name == "config.json")
      write_text(pending.path() / name, written_config(source / name, session.spec()));
    else
      std::filesystem::copy_file(source / name, pending.path() / name);
    call(session.alive());
  }
  pending.publish();
}

}  // namespace snug
