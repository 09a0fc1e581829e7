#include "cli/command_table.h"

#include <algorithm>

namespace snug {
namespace {

const std::vector<std::string> kModelKeys{"model",         "family",      "init",        "adapter", "checkpoint",
                                          "seed",          "compute",     "base_format", "threads", "device",
                                          "device_memory", "host_memory", "cache_dir"};
// These keys say where weights lie, for commands that several ranks run.
const std::vector<std::string> kRankKeys{"ranks", "zero", "offload_parameters", "disk_memory", "disk_dir"};
const std::vector<std::string> kDataKeys{"objective",
                                         "data",
                                         "data_format",
                                         "columns",
                                         "roles",
                                         "prompt",
                                         "max_samples",
                                         "empty_records",
                                         "template",
                                         "train_on",
                                         "thinking",
                                         "sequence_length",
                                         "long_samples",
                                         "packing",
                                         "text_split",
                                         "image_dir",
                                         "image_min_pixels",
                                         "image_max_pixels",
                                         "max_slices"};

// These keys say what is made of the images of prompts.
const std::vector<std::string> kImageKeys{"image_dir", "image_min_pixels", "image_max_pixels", "max_slices"};

// These keys say what is made of replies that are judged.
const std::vector<std::string> kPreferenceKeys{"preference_loss",
                                               "beta",
                                               "label_smoothing",
                                               "nll_weight",
                                               "simpo_gamma",
                                               "reference",
                                               "reference_cache",
                                               "desirable_weight",
                                               "undesirable_weight",
                                               "center_coefficient",
                                               "teacher",
                                               "teacher_top_k",
                                               "distill_beta",
                                               "distill_temperature",
                                               "distill_weight"};

std::vector<std::string> join(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace

bool Command::takes(const std::string& key) const {
  return !options || std::ranges::find(*options, key) != options->end();
}

const std::vector<Command>& commands() {
  static const std::vector<Command> all{
      {"plan", "what a job takes, to the byte, before it starts; exit 3 if nothing fits", {}, plan_command},
      {"train", "plan, then train", {}, train_command, true, true},
      {"init", "a commented job file for a model and data, after a look at both", {}, init_command},
      {"eval", "mean loss and perplexity of a model, or model + adapter, on data",
       join(join(kModelKeys, kRankKeys), join(join(kDataKeys, kPreferenceKeys), {"micro_batch_size"})), eval_command,
       true, true},
      {"generate", "complete prompts, as chat turns if the model has a chat template",
       join(join(kModelKeys, kRankKeys), join(kImageKeys, {"template", "empty_records"})), generate_command, true,
       true},
      {"chat", "a conversation: a line is a turn; without a chat template each line is completed by itself",
       join(join(kModelKeys, kRankKeys), join(kImageKeys, {"template", "sequence_length"})), chat_command, true, true},
      {"merge", "base + adapter -> a model directory", join(kModelKeys, {"template", "out", "overwrite"}),
       merge_command},
      {"export", "a model, or model + adapter -> a GGUF file for llama.cpp, and a Modelfile for Ollama",
       join(kModelKeys, {"template", "out", "overwrite"}), export_command},
      {"import", "a GGUF file, or a model in GPTQ, AWQ, compressed-tensors or fp8 -> a plain model directory",
       std::vector<std::string>{"out", "overwrite"}, import_command, false},
      {"doctor",
       "measure this machine: a table, and a profile for --machine; about half a minute, with GPUs two, "
       "best on a quiet one",
       std::vector<std::string>{"out", "threads"}, doctor_command, false},
      {"tokenize", "token ids and loss mask, as training sees them",
       join(kDataKeys, {"model", "family", "adapter", "add_tokens", "add_special_tokens", "cache_dir"}),
       tokenize_command},
      {"report",
       "runs -> one page of HTML that needs no network: curves, memory against the plan, timeline, samples, job",
       std::vector<std::string>{"out"}, report_command, false},
      {"explain", "why a run ended, and how its loss, speed and memory are beside its plan", std::vector<std::string>(),
       explain_command, false},
      {"translate",
       "options of LLaMA-Factory, llama-recipes, OpenRLHF, MiniCPM-V, axolotl, TRL, transformers, DeepSpeed or "
       "accelerate "
       "-> a job file, with what became of each; exit 2 if what is trained would change",
       std::vector<std::string>{"out", "overwrite", "ranks"}, translate_command, false},
      {"schema",
       "the options as a table: a JSON schema of job files for editors, a page, a manual page, or a completion for "
       "bash",
       std::vector<std::string>(),
       {},
       false},
  };
  return all;
}

}  // namespace snug
