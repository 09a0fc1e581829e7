#include "plan/sources.h"

#include <cmath>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "format/bnb.h"

namespace snug {
namespace {

// Of transformers' `initializer_range` for these families.
constexpr float kInitialDeviation = 0.02f;

// Streams of random numbers from here on are adapters'.
constexpr uint32_t kAdapterStreams = 1u << 31;

// As the model's authors draw it: normal weights, gains one, biases zero.
RandomFill model_fill(const ParamSpec& param, uint64_t seed, uint32_t stream) {
  if (param.shape.rank == 2) return {Distribution::Normal, kInitialDeviation, seed, stream, 0};
  return {Distribution::Constant, param.name.ends_with(".bias") ? 0.0f : 1.0f, seed, stream, 0};
}

// As PEFT does: A uniform in +-1 / sqrt(in) (Kaiming with a = sqrt(5)), B zero.
RandomFill adapter_fill(const ParamSpec& param, uint64_t seed, uint32_t stream) {
  if (param.name.ends_with(".lora_A.weight"))
    return {Distribution::Uniform, 1.0f / std::sqrt(static_cast<float>(param.shape.cols())), seed, stream, 0};
  return {Distribution::Constant, 0.0f, seed, stream, 0};
}

class Finder {
 public:
  Finder(const ParamTable& table, const SourceRequest& request) : table_(table), request_(request) {}

  WeightSources find() {
    const bool has_files =
        is_file(request_.model / "model.safetensors") || is_file(request_.model / "model.safetensors.index.json");
    std::optional<SafetensorsIndex> model, adapter;
    if (!request_.random && has_files) model = SafetensorsIndex::open_model(request_.model);
    if (!request_.random && !has_files) assume_files();
    const int64_t model_base = add_files(model);
    if (request_.adapter) adapter = SafetensorsIndex::open_file(*request_.adapter / "adapter_model.safetensors");
    const int64_t adapter_base = add_files(adapter);
    uint32_t of_model = 0, of_adapter = kAdapterStreams;  // so that a base is the same whatever adapts it
    for (const ParamSpec& param : table_.params) {
      const uint32_t stream = param.adapter ? of_adapter++ : of_model++;
      if (param.adapter)
        sources_.params.push_back(adapter ? place(*adapter, adapter_base, param, "adapter_config.json, 'r'")
                                          : ParamSource(adapter_fill(param, request_.seed, stream)));
      else if (model)
        sources_.params.push_back(place(*model, model_base, param, "config.json"));
      else if (sources_.assumed)
        sources_.params.push_back(TensorPlace{0, assumed_.offset[assumed_next_++], DType::BF16});
      else
        sources_.params.push_back(model_fill(param, request_.seed, stream));
    }
    if (model) refuse_strangers(*model, "config.json");
    if (adapter) refuse_strangers(*adapter, "adapter_config.json");
    return std::move(sources_);
  }

 private:
  ParamSource place(const SafetensorsIndex& index, int64_t base, const ParamSpec& param, std::string_view reason) {
    const auto at = [&](const SafetensorsEntry& entry, DType dtype) {
      return TensorPlace{base + static_cast<int64_t>(entry.file), entry.offset, dtype};
    };
    if (!param.linear) {
      const SafetensorsEntry& entry = index.require(param.name, param.shape, reason);
      return at(entry, *entry.dtype);
    }
    const StoredWeight stored = find_stored_weight(index, param.name, param.shape, reason);
    note_form(index, stored);
    if (stored.storage == WeightStorage::Plain) {
      if (sources_.linears != DType::F32) sources_.linears = stored.weight->dtype;
      return at(*stored.weight, *stored.weight->dtype);
    }
    if (stored.storage == WeightStorage::Int8)
      return CodedPlace{at(*stored.weight, DType::I8), at(*stored.scales, DType::F32)};
    CodedPlace place{at(*stored.weight, DType::U8), at(*stored.scales, stored.block_scales ? DType::U8 : DType::F32)};
    if (stored.block_scales) place.block_scales = at(*stored.block_scales, DType::F32);
    place.offset = stored.offset;
    return place;
  }

  // All linears have the form of the first.
  void note_form(const SafetensorsIndex& index, const StoredWeight& stored) {
    const BaseFormat format = stored.storage == WeightStorage::Int8  ? BaseFormat::Int8
                              : stored.storage == WeightStorage::Nf4 ? BaseFormat::Nf4
                                                                     : BaseFormat::Plain;
    const bool plain_scales = format == BaseFormat::Nf4 && !stored.block_scales;
    if (first_linear_.empty()) {
      first_linear_ = stored.weight->name;
      sources_.format = format;
      sources_.plain_scales = plain_scales;
    }
    if (format != sources_.format || plain_scales != sources_.plain_scales)
      user_error(
          "{}: tensor '{}' is stored as {}{}, expected the form of '{}': all of a model's linears or none are "
          "quantised",
          index.files()[stored.weight->file].string(), stored.weight->name, stored.weight->dtype_name,
          plain_scales ? " with plain scales" : "", first_linear_);
    for (std::string& name : companions(stored.storage, stored.weight->name)) companions_.insert(std::move(name));
  }

  // More layers, other linears: nothing that a file holds is passed over. But old files keep the frequencies of rotary
  // embeddings, and some the head that is tied.
  void refuse_strangers(const SafetensorsIndex& index, std::string_view config) const {
    std::set<std::string_view> known(companions_.begin(), companions_.end());
    for (const ParamSpec& param : table_.params) known.insert(param.name);
    for (const SafetensorsEntry& entry : index.entries()) {
      const bool harmless = entry.name.ends_with(".rotary_emb.inv_freq") ||
                            (entry.name == "lm_head.weight" && table_.head == table_.embedding);
      if (!known.contains(entry.name) && !harmless)
        user_error("{}: found tensor '{}', which {} has no place for", index.files()[entry.file].string(), entry.name,
                   config);
    }
  }

  // Returns the index of the first file added.
  int64_t add_files(const std::optional<SafetensorsIndex>& index) {
    const auto base = static_cast<int64_t>(sources_.files.size());
    if (!index) return base;
    for (const auto& path : index->files()) {
      sources_.file_bytes.push_back(std::filesystem::file_size(path));
      sources_.files.push_back(path);
    }
    return base;
  }

  void assume_files() {
    std::vector<SafetensorsTensor> tensors;
    for (const ParamSpec& param : table_.params)
      if (!param.adapter) tensors.push_back({param.name, DType::BF16, param.shape});
    assumed_ = layout_safetensors(tensors);
    sources_.assumed = true;
    sources_.files.push_back(request_.model / "model.safetensors");
    sources_.file_bytes.push_back(assumed_.file_bytes);
  }

  const ParamTable& table_;
  const SourceRequest& request_;
  WeightSources sources_;
  std::string first_linear_;
  std::set<std::string> companions_;  // of quantised weights
  SafetensorsLayout assumed_;
  size_t assumed_next_ = 0;
};

}  // namespace

WeightSources find_sources(const ParamTable& table, const SourceRequest& request) {
  return Finder(table, request).find();
}

uint64_t hash_of_files(const WeightSources& sources, const Alive& alive) {
  constexpr uint64_t kSeen = 4096;
  std::vector<File> files;
  std::vector<std::byte> bytes(kSeen);
  uint64_t hash = 0;
  const auto look = [&](size_t file, uint64_t offset) {
    call(alive);
    const uint64_t seen = files[file].read_to_end(offset, bytes);
    hash = hash_of(std::span<const std::byte>(bytes).first(seen), hash);
  };
  for (const auto& path : sources.files) {
    files.push_back(File::open_read(path, IoMode::Buffered));
    const uint64_t size = files.back().size();
    hash = hash_of(std::span(&size, 1), hash);
    look(files.size() - 1, size - std::min(size, kSeen));
  }
  for (const ParamSource& param : sources.params)
    if (const auto* const place = std::get_if<TensorPlace>(&param)) {
      look(static_cast<size_t>(place->file), place->offset);
    } else if (const auto* const coded = std::get_if<CodedPlace>(&param)) {
      for (const std::optional<TensorPlace>& part :
           {std::optional(coded->codes), std::optional(coded->scales), coded->block_scales})
        if (part) look(static_cast<size_t>(part->file), part->offset);
    }
  return hash;
}

void require_weights(const WeightSources& sources) {
  if (sources.assumed)
    user_error(
        "{}: found no weights, expected model.safetensors or model.safetensors.index.json; --init random starts "
        "from the seed",
        sources.files[0].parent_path().string());
}

}  // namespace snug
