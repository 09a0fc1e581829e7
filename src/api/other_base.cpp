#include "api/other_base.h"

#include "api/text.h"
#include "base/hash.h"
#include "base/option_name.h"
#include "format/peft.h"
#include "format/side_files.h"
#include "model/multimodal.h"
#include "model/spec_fields.h"
#include "plan/lowering/fingerprint.h"
#include "plan/spec/adapter_files.h"

namespace snug {
namespace {

// Returns the part of the options' model on which an adapter was trained, by its snug.json: with the tower, or its text
// model alone.
ModelSpec part_trained_on(const AdapterFormat& trained_on, const ModelSpec& model, const JobConfig& options) {
  const bool with_tower = trained_on.model.contains("tower.layers");
  if (with_tower == static_cast<bool>(model.tower)) return model;
  ModelSpec other = whole_model_config_of(options).spec;
  other.vocabulary = model.vocabulary;
  other.tied = model.tied;
  return with_tower || !other.tower ? other : without_tower(std::move(other));
}

// Returns the hash_of_base() of a part of the job's model; `vocabulary` is that of the model's files.
std::optional<uint64_t> hash_of_part(ModelSpec part, int64_t vocabulary, const JobSpec& spec, const PeftConfig& adapter,
                                     SourceRequest request) {
  if (static_cast<bool>(part.tower) == static_cast<bool>(spec.model.tower))
    return hash_of_base(spec.table, spec.sources, adapter);
  part.vocabulary = vocabulary;
  ParamTable table = full_parameters(part, false);
  if (!request.random) store_as_files_do(table, request.model);
  request.adapter.reset();
  return hash_of_base(table, find_sources(table, request), adapter);
}

}  // namespace

void note_other_base(JobSpec& spec, const JobConfig& options, const SourceRequest& request) {
  if (options.adapter.empty()) return;
  const AdapterFormat trained_on = read_adapter_format(options.adapter, spec.model.vocabulary);
  std::vector<std::string>& notes = spec.sources.notes;
  const ModelSpec part = part_trained_on(trained_on, spec.model, options);
  if (!trained_on.model.empty()) {
    Fields found, expected;
    add_fields(found, kModelFields, part);
    for (const auto& [name, value] : trained_on.model) expected.push_back({std::string(kModelFields), name, value});
    if (const auto words = differences(found, expected, {kModelFields}); !words.empty())
      notes.push_back(fmt::format("{} was trained on another model than {}, by its {}: {}", options.adapter,
                                  options.model, kSnugFile, fmt::join(words, "; ")));
  }
  if (!trained_on.by_snug) {
    const std::string base = read_peft_config(options.adapter).base_model;
    if (!base.empty() && last_name(base) != last_name(model_as_given(options)))
      notes.push_back(fmt::format("{} names the base {}, and {} is {}: whether they are the same is not looked at",
                                  options.adapter, base, option_name("model"), model_as_given(options)));
  }
  if (trained_on.base.empty()) return;
  const int64_t vocabulary = whole_model_config_of(options).spec.vocabulary;
  const std::optional<uint64_t> base = hash_of_part(part, vocabulary, spec, read_peft_config(options.adapter), request);
  if (!base || trained_on.base == hex(*base)) return;
  notes.push_back(fmt::format("{} was trained on other weights ({}, by its {}) than those of {} ({})", options.adapter,
                              trained_on.base, kSnugFile, options.model, hex(*base)));
}

}  // namespace snug
