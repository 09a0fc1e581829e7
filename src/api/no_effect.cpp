#include "api/no_effect.h"

#include <algorithm>

#include "api/image_job.h"
#include "base/option_name.h"
#include "data/data_files.h"

namespace snug {
namespace {

using Reasons = std::vector<std::pair<std::string_view, std::string>>;  // by key

bool has_text_files(const JobConfig& options) {
  const auto is_text = [](const std::filesystem::path& file) {
    const auto type = find_data_file_type(file);
    return type && type->kind == FileKind::Text;
  };
  return std::ranges::any_of(find_data_files(options.data).files, is_text) ||
         std::ranges::any_of(find_data_files(options.validation).files, is_text);
}

void add_of_data(const JobConfig& options, const RecordKinds& kinds, Reasons& reasons) {
  if (options.text_split != "document" && !has_text_files(options))
    reasons.emplace_back("text_split", "no file is a .txt");
  reasons.emplace_back("image_tokens", "the data says what images it has");
  if (kinds.conversations) return;
  reasons.emplace_back("template", "no record is a conversation");
  const bool learns_replies = ObjectiveOptions{.kind = objective_from_name(options.objective)}.learns_replies();
  reasons.emplace_back("train_on", !learns_replies ? "of preferences replies carry loss"
                                   : kinds.texts   ? "every token of a text carries loss"
                                                   : "labels say which tokens carry loss");
  reasons.emplace_back("thinking", "no record is a conversation");
}

void add_of_training(const JobConfig& options, const Cut& cut, Reasons& reasons) {
  if (options.validation.empty())
    reasons.emplace_back("eval_every", "without " + option_name("validation") + " nothing is evaluated");
  if (options.schedule == "constant")
    reasons.emplace_back("min_learning_rate_ratio",
                         "the rate of " + option_name("schedule") + " constant does not fall");
  if (options.schedule == "inverse_sqrt")
    reasons.emplace_back("min_learning_rate_ratio",
                         "the rate of " + option_name("schedule") + " inverse_sqrt has no floor");
  if (options.schedule != "cosine_with_restarts")
    reasons.emplace_back("schedule_cycles", "it is of " + option_name("schedule") + " cosine_with_restarts");
  if (options.schedule != "polynomial")
    reasons.emplace_back("schedule_power", "it is of " + option_name("schedule") + " polynomial");
  if (options.schedule != "warmup_stable_decay")
    reasons.emplace_back("decay_ratio", "it is of " + option_name("schedule") + " warmup_stable_decay");
  if (options.optimizer == name(Optimizer::Adafactor) && options.compute == "fp32")
    reasons.emplace_back("offload_states", "adafactor's means stay on the device, and fp32 weights need no bits more");
  if (options.optimizer != name(Optimizer::Apollo))
    for (const char* key : {"apollo_rank", "apollo_update_interval", "apollo_scale", "apollo_scale_type"})
      reasons.emplace_back(key, "it is of " + option_name("optimizer") + " apollo");
  if (options.warmup_steps) reasons.emplace_back("warmup_ratio", option_name("warmup_steps") + " is given, and wins");
  if (updates_matrices(optimizer_from_name(options.optimizer)) && options.speculative_updates)
    reasons.emplace_back("speculative_updates", options.optimizer + " updates whole matrices, once the norm is known");
  else if (options.max_grad_norm == 0 && options.speculative_updates)
    reasons.emplace_back("speculative_updates", "with " + option_name("max_grad_norm") + " 0 nothing is clipped");
  if (cut.ranks == 1 && options.zero != "auto" && options.zero != "0")
    reasons.emplace_back("zero", "one rank has nothing to share");
  if (options.reduce_every == "step" && (cut.ranks == 1 || cut.passes == 1))
    reasons.emplace_back("reduce_every", cut.ranks == 1 ? "there is one rank" : "a step has one pass");
  if (cut.patches.empty())
    for (const char* key :
         {"freeze_vision_tower", "freeze_projector", "learning_rate_vision", "learning_rate_projector", "image_cache"})
      reasons.emplace_back(key, "no images go through a tower");
  else if (options.data.empty())
    reasons.emplace_back("image_cache", "without " + option_name("data") + " it is not known which images there are");
  if (options.order == "layer" && cut.passes == 1) reasons.emplace_back("order", "a step has one pass");
}

// Adds rates of parts of a model that are not trained, of a job whose images go through a tower.
void add_of_frozen_parts(const JobSpec& job, bool continued, Reasons& reasons) {
  bool tower = false, projector = false;
  for (const ParamSpec& param : job.table.params)
    if (param.tower && param.trainable) (is_of_projector(param.name, job.model) ? projector : tower) = true;
  const auto add = [&](const char* rate, std::string_view part, const char* freeze) {
    reasons.emplace_back(rate, continued
                                   ? fmt::format("{} does not train the {}", option_name("adapter"), part)
                                   : fmt::format("the {} is frozen; {} false trains it", part, option_name(freeze)));
  };
  if (!tower) add("learning_rate_vision", "tower", "freeze_vision_tower");
  if (!projector) add("learning_rate_projector", "projector", "freeze_projector");
}

// Adds a line for each target of adapters that names linears of a tower or projector alone, which have none.
void add_vain_targets(const JobConfig& options, const ParamTable& table, std::vector<std::string>& lines) {
  if (options.method != "lora" || !options.adapter.empty()) return;
  const OptionSpec& spec = find_option("lora_targets", "table");
  if (!is_asked_for(options, spec)) return;
  for (const std::string& target : options.lora_targets) {
    bool of_tower = false, adapted = false;
    const auto ends = [&](std::string_view path) { return ends_path(path.substr(0, path.rfind('.')), target); };
    for (const ParamSpec& param : table.params) {
      of_tower = of_tower || (param.tower && param.linear && ends(param.name));
      adapted =
          adapted || (param.adapter && ends(std::string_view(param.name).substr(0, param.name.find(".lora_") + 1)));
    }
    if (of_tower && !adapted)
      lines.push_back(fmt::format(
          "{} {} changes nothing: it names linears of the tower, which has adapters with {} false, or of the "
          "projector, which {} false trains whole",
          option_name(spec.key), target, option_name("freeze_vision_tower"), option_name("freeze_projector")));
  }
}

}  // namespace

bool is_asked_for(const JobConfig& options, const OptionSpec& spec) {
  if (options.flags.contains(spec.key)) return true;
  return options.given.contains(spec.key) && spec.get(options) != spec.get(JobConfig());
}

std::vector<std::string> options_without_effect(const JobConfig& options, const Circumstances& circumstances) {
  Reasons reasons;
  if (circumstances.kinds) add_of_data(options, *circumstances.kinds, reasons);
  if (circumstances.cut) add_of_training(options, *circumstances.cut, reasons);
  if (circumstances.job && !circumstances.job->cut.patches.empty())
    add_of_frozen_parts(*circumstances.job, !options.adapter.empty(), reasons);
  if (circumstances.shows_no_image)
    for (const char* key : {"image_min_pixels", "image_max_pixels", "max_slices"})
      reasons.emplace_back(key, "there is no " + option_name("image"));
  if (circumstances.reads_no_prompts) reasons.emplace_back("empty_records", "there is no file of prompts");
  if (circumstances.draws_nothing && options.init != "random") reasons.emplace_back("seed", "nothing is drawn");
  if (circumstances.evaluates && options.objective == "sft")
    reasons.emplace_back("label_smoothing", "the loss of eval is the cross-entropy alone");
  if (circumstances.shows_samples)
    for (const char* key : {"sequence_length", "long_samples", "packing"})
      reasons.emplace_back(key, "samples are shown whole");
  if (circumstances.shows_text)
    for (const char* key : {"objective", "data_format", "columns", "roles", "prompt", "max_samples", "empty_records",
                            "template", "train_on", "thinking", "sequence_length", "long_samples", "packing",
                            "text_split", "image_dir", "image_min_pixels", "image_max_pixels", "max_slices"})
      reasons.emplace_back(key, option_name("text") + " shows bare text");
  // A job file is written for training; other commands are not expected to use all of it.
  const bool for_others_too = !circumstances.cut && !circumstances.kinds;
  std::vector<std::string> lines;
  for (const auto& [key, why] : reasons) {
    const OptionSpec& spec = find_option(std::string(key), "table");
    if (!is_asked_for(options, spec)) continue;
    if (for_others_too && !options.flags.contains(spec.key)) continue;
    lines.push_back(fmt::format("{} {} changes nothing: {}", option_name(spec.key), spec.get(options), why));
  }
  if (circumstances.job) add_vain_targets(options, circumstances.job->table, lines);
  return lines;
}

}  // namespace snug
