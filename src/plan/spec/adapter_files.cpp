#include "plan/spec/adapter_files.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "format/peft_tensors.h"
#include "model/multimodal.h"

namespace snug {
bool same_bytes(const SafetensorsIndex& index, const SafetensorsEntry& a, const SafetensorsEntry& b) {
  if (a.dtype_name != b.dtype_name || a.shape != b.shape || a.bytes != b.bytes) return false;
  constexpr uint64_t kChunk = 1 << 20;
  std::vector<std::byte> left(kChunk), right(kChunk);
  const File of_a = File::open_read(index.files()[a.file], IoMode::Buffered),
             of_b = File::open_read(index.files()[b.file], IoMode::Buffered);
  for (uint64_t done = 0; done < a.bytes; done += kChunk) {
    const auto count = std::min(kChunk, a.bytes - done);
    const auto x = std::span(left).first(count), y = std::span(right).first(count);
    of_a.read(a.offset + done, x);
    of_b.read(b.offset + done, y);
    if (!std::ranges::equal(x, y)) return false;
  }
  return true;
}

namespace {

std::string module_of(const std::string& param) { return param.substr(0, param.rfind('.')); }

class Opener {
 public:
  Opener(const std::filesystem::path& directory, std::string embedding, std::string head)
      : files_{SafetensorsIndex::open_adapter(directory),
               {},
               {},
               read_peft_config(directory),
               std::move(embedding),
               std::move(head)} {}

  AdapterFiles open() {
    find_spelling();
    for (const SafetensorsEntry& entry : files_.index.entries())
      if (!entry.name.ends_with(".rotary_emb.inv_freq"))
        take(entry.name, parse_peft_tensor(entry.name, files_.spelling));
    for (const auto& [param, tensor] : bases_) files_.tensors.try_emplace(param, tensor);
    require_ids();
    require_what_config_names();
    return std::move(files_);
  }

 private:
  // Finds how tensors are spelt, and whether the configuration spells paths as they are: transformers saved adapters of
  // its own under the names of the base's files, and PEFT's configuration as it was.
  void find_spelling() {
    const auto& entries = files_.index.entries();
    for (const Spelling& spelling : spellings_of(files_.embedding)) {
      if (std::ranges::none_of(entries, [&](const SafetensorsEntry& entry) {
            return parse_peft_tensor(entry.name).param != parse_peft_tensor(entry.name, spelling).param;
          }))
        continue;
      files_.spelling = files_.config.spelling = spelling;
      const auto is_stranger = [&](const SafetensorsEntry& entry) {
        const PeftTensor tensor = parse_peft_tensor(entry.name, spelling);
        return tensor.kind == PeftTensorKind::LoraA && !target_of(files_.config, linear_of(tensor.param));
      };
      if (std::ranges::any_of(entries, is_stranger)) files_.config.spelling = {};
      return;
    }
  }

  // Returns the path of the linear that a half of an adapter is of.
  static std::string linear_of(const std::string& half) {
    return half.substr(kPeftPrefix.size(), half.rfind(".lora_") - kPeftPrefix.size());
  }

  void take(const std::string& name, PeftTensor tensor) {
    if (tensor.kind == PeftTensorKind::Other && !tensor.param.empty() && saves_whole(files_.config, tensor.param))
      tensor.kind = PeftTensorKind::Whole;
    if (tensor.kind == PeftTensorKind::Other)
      user_error("{}: found {}, which snug does not read", files_.where(name), meaning_of_other(name));
    if (!tensor.adapter.empty()) adapters_.insert(tensor.adapter);
    if (adapters_.size() > 1)
      user_error("{}: found the adapters '{}', expected one: PEFT's save_pretrained(selected_adapters=[...]) saves one",
                 files_.where(name), fmt::join(adapters_, "', '"));
    if (tensor.kind == PeftTensorKind::Tokens) return take_rows(name, tensor.param);
    auto& tensors = tensor.kind == PeftTensorKind::Base ? bases_ : files_.tensors;
    const auto [other, fresh] = tensors.try_emplace(tensor.param, name);
    if (!fresh && !are_equal(name, other->second))
      user_error("{}: found '{}' beside it, which means the same, with other values", files_.where(name),
                 other->second);
  }

  // Compares two tensors: where PEFT resized an embedding it saves the embedding twice, and a tied head's rows as the
  // embedding's.
  bool are_equal(const std::string& a, const std::string& b) const {
    return same_bytes(files_.index, *files_.index.find(a), *files_.index.find(b));
  }

  void take_rows(const std::string& name, const std::string& param) {
    for (const auto& [module, rows] : files_.config.trainable_token_indices)
      if (is_in(param, module)) {
        files_.tokens[param] = {name, rows};
        return;
      }
    rows_without_ids_.push_back(name);
  }

  // Checks that rows without token ids are rows of the head that repeat the embedding's, whose ids are given: PEFT
  // gives the ids once where the two are tied.
  void require_ids() const {
    const auto embedding = files_.tokens.find(files_.embedding);
    for (const std::string& name : rows_without_ids_)
      if (parse_peft_tensor(name, files_.spelling).param != files_.head || embedding == files_.tokens.end() ||
          !are_equal(name, embedding->second.tensor))
        user_error("{}: found rows of an embedding, but no token ids for them in {}, key 'trainable_token_indices'",
                   files_.where(name), kPeftConfigFile);
  }

  void require_what_config_names() const {
    for (const std::string& name : files_.config.modules_to_save)
      if (std::ranges::none_of(files_.tensors, [&](const auto& tensor) {
            return files_.config.spelling(tensor.first).find(name + ".") != std::string::npos;
          }))
        user_error("{}: found no tensor of '{}', which {}, key 'modules_to_save', names",
                   files_.index.files()[0].string(), name, kPeftConfigFile);
    for (const auto& [module, rows] : files_.config.trainable_token_indices)
      if (std::ranges::none_of(files_.tokens,
                               [&, &end = module](const auto& tokens) { return is_in(tokens.first, end); }))
        user_error("{}: found no rows of '{}', which {}, key 'trainable_token_indices', names",
                   files_.index.files()[0].string(), module, kPeftConfigFile);
  }

  // Returns whether trainable_token_indices means a parameter by a name.
  bool is_in(const std::string& param, const std::string& module) const {
    return files_.config.spelling(module_of(param)).ends_with(module);
  }

  AdapterFiles files_;
  std::map<std::string, std::string> bases_;  // counted only where nothing replaces them
  std::set<std::string> adapters_;
  std::vector<std::string> rows_without_ids_;
};

// Returns how many rows the model has of a matrix, if the adapter holds it.
std::optional<int64_t> rows_of(const AdapterFiles& files, const std::string& param) {
  const auto found = files.tensors.find(param);
  if (found == files.tensors.end()) return std::nullopt;
  const SafetensorsEntry& entry = *files.index.find(found->second);
  if (entry.shape.size() != 2 || entry.shape[0] < 1)
    user_error("{}: found {} dimensions, expected the rows and columns of a matrix", files.where(entry.name),
               entry.shape.size());
  return entry.shape[0];
}

// Returns whether PEFT parts a tied head from its embedding.
bool is_parted(const AdapterFiles& files) {
  const bool rows = !files.config.ensure_weight_tying && files.tokens.contains(files.head);
  return rows || parts_head(files.config, files.embedding, files.head);
}

}  // namespace

std::vector<std::string> AdapterFiles::replaced() const {
  std::vector<std::string> params;
  for (const auto& [param, tensor] : tensors)
    if (param.find(".lora_") == std::string::npos) params.push_back(param);
  for (const auto& [param, rows] : tokens) params.push_back(param);
  return params;
}

std::string AdapterFiles::where(const std::string& tensor) const {
  return fmt::format("{}, tensor '{}'", index.files()[0].string(), tensor);
}

AdapterFiles open_adapter(const std::filesystem::path& directory, std::string embedding, std::string head) {
  return Opener(directory, std::move(embedding), std::move(head)).open();
}

void fit_to_adapter(ModelSpec& model, const AdapterFiles& files) {
  const std::optional<int64_t> embedding = rows_of(files, files.embedding);
  std::optional<int64_t> head;
  if (!model.scores) head = rows_of(files, files.head);
  const int64_t base = model.vocabulary;
  if (model.tied && is_parted(files)) model.tied = false;
  const int64_t rows = embedding.value_or(model.tied ? head.value_or(base) : base);
  if (head.value_or(model.tied ? rows : base) != rows)
    user_error(
        "{}: was made for another vocabulary: found {} rows of the embedding and {} of the head, where the base "
        "has {}, expected as many of both",
        files.index.files()[0].string(), rows, head.value_or(base), base);
  model.vocabulary = rows;
}

}  // namespace snug
