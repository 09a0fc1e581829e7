#include "train/export.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/option_name.h"
#include "format/peft.h"
#include "format/side_files.h"

namespace snug {
namespace {

// Makes a configuration one of transformers' class for sequence classification: it takes from id2label that there is
// one label, and pools a text's last token that is not the one that fills up.
void describe_scorer(nlohmann::ordered_json& json, const JobSpec& spec) {
  const std::string& own = spec.model.architecture;
  json["architectures"] = {own.substr(0, own.rfind("For")) + "ForSequenceClassification"};
  json["id2label"] = {{"0", "LABEL_0"}};
  json["label2id"] = {{"LABEL_0", 0}};
  json.erase("num_labels");
  if (spec.pad_token) json["pad_token_id"] = *spec.pad_token;
  json["tie_word_embeddings"] = false;
}

// Returns the original config.json adapted to what was written: with its dtype, unless each tensor has the base's, with
// the vocabulary and head that its adapter gave it, and without the base's quantisation.
std::string written_config(const std::filesystem::path& path, const JobSpec& spec) {
  auto json = nlohmann::ordered_json::parse(read_text(path, kMaxConfigBytes));
  json.erase("quantization_config");
  std::optional<DType> dtype = spec.export_dtype;
  for (size_t i = 0; i < spec.table.params.size(); i++)
    if (!dtype && !spec.table.params[i].adapter && !spec.sources.dtypes[i]) dtype = spec.numerics.compute;
  auto& text = json.contains("text_config") ? json["text_config"] : json;  // of a multimodal model
  for (auto* config : {&json, &text}) {
    const char* const key = config->contains("torch_dtype") ? "torch_dtype" : "dtype";
    if (dtype && (config == &json || config->contains(key)))
      (*config)[key] = *dtype == DType::F32 ? "float32" : "bfloat16";
    if (!spec.model.tied && config->value("tie_word_embeddings", false)) (*config)["tie_word_embeddings"] = false;
  }
  text["vocab_size"] = spec.model.vocabulary;
  if (spec.model.scores) describe_scorer(json, spec);
  return json.dump(2) + "\n";
}

// Refuses tensors with infinities: fp16 has no number beyond 65504.
void refuse_overflow(const std::filesystem::path& directory, const std::vector<std::string>& halves, Purpose purpose,
                     const Heartbeat& heartbeat) {
  if (halves.empty()) return;
  constexpr uint16_t kExponent = 0x7c00;  // the bits that infinities and NaN have
  constexpr uint64_t kChunk = 1 << 20;
  const auto index = SafetensorsIndex::open_model(directory);
  std::vector<Float16> values;
  for (const std::string& name : halves) {
    const SafetensorsEntry& entry = *index.find(name);
    const File file = File::open_read(index.files()[entry.file], IoMode::Buffered);
    for (uint64_t begin = 0; begin < entry.bytes; begin += kChunk) {
      call(heartbeat);
      values.resize(std::min(kChunk, entry.bytes - begin) / sizeof(Float16));
      file.read(entry.offset + begin, std::as_writable_bytes(std::span(values)));
      if (std::ranges::any_of(values, [](Float16 x) { return (x.bits & kExponent) == kExponent; }))
        user_error("tensor '{}': found a value beyond 65504, the largest of fp16, in which the model has it; {}", name,
                   purpose == Purpose::Merge ? option_name("base_format") + " bf16 or fp32 writes the model in that"
                                             : "the run's last checkpoint holds it as it is");
    }
  }
}

void copy_side_file(const std::filesystem::path& from, const std::filesystem::path& to) {
  std::filesystem::create_directories(to.parent_path());
  std::filesystem::copy_file(from, to);
}

}  // namespace

void export_adapter(Session& session, const std::filesystem::path& directory, const PeftConfig& adapter,
                    const std::filesystem::path& base_model, const WriteExtraFiles& write_extra) {
  if (session.rank() != 0) return session.write(Task::Export, directory);
  PendingDirectory pending(directory, Existing::Replace);
  session.write(Task::Export, pending.path());
  write_adapter_config(pending.path(), adapter, base_model);
  if (write_extra) write_extra(pending.path());
  pending.publish();
}

void write_adapter_config(const std::filesystem::path& directory, PeftConfig adapter,
                          const std::filesystem::path& base_model) {
  adapter.base_model = base_model.string();
  std::ranges::sort(adapter.target_modules);
  write_text(directory / kPeftConfigFile, write_peft_config(adapter));
}

void write_side_files(const std::filesystem::path& directory, const std::filesystem::path& source, const JobSpec& spec,
                      const Heartbeat& heartbeat) {
  for (const std::string& name : side_files(source)) {
    if (name == "config.json")
      write_text(directory / name, written_config(source / name, spec));
    else
      copy_side_file(source / name, directory / name);
    call(heartbeat);
  }
}

void export_model(Session& session, const std::filesystem::path& directory, const std::filesystem::path& source,
                  Existing existing, const WriteExtraFiles& write_extra) {
  if (session.rank() != 0) return session.write(Task::Export, directory);
  PendingDirectory pending(directory, existing);
  session.write(Task::Export, pending.path());
  refuse_overflow(pending.path(), session.compiled().exported.halves, session.spec().purpose, session.heartbeat());
  write_side_files(pending.path(), source, session.spec(), session.heartbeat());
  if (write_extra) write_extra(pending.path());
  pending.publish();
}

}  // namespace snug
