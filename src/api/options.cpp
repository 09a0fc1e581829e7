#include "api/options.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "api/option_kinds.h"
#include "api/other_names.h"
#include "base/error.h"
#include "program/loss_ops.h"

namespace snug {
namespace {

// AdamW has these limits, as it divides by 1 - beta and by a root that only epsilon keeps off zero.
constexpr double kMostBeta = 1 - 1e-9, kLeastEpsilon = 1e-30;

// There may be this many threads at most, more than machines have cores; the system refuses a process tens of
// thousands.
constexpr int64_t kMaxThreads = 1024;

// ---- The table ------------------------------------------------------------------------------------------------------

// Returns the options of what is trained, and on what.
std::vector<OptionSpec> data_specs() {
  using O = JobConfig;
  return {
      {"model",
       "model directory in Hugging Face's layout, an id (org/name) in its local cache, or a GGUF file (required)",
       [](JobConfig& o, const std::string& t) { o.model = t, o.found.given_model.clear(); }, model_as_given},
      text_option("family", &O::family,
                  "model_type of the family as which a model is read whose own type no family has; not checked but by "
                  "tensors' names and shapes"),
      word_option("init", &O::init, {"pretrained", "random"}, "where weights come from; random: drawn from the seed"),
      {"adapter", "PEFT adapter directory (or id) to continue from, evaluate, generate with, merge or export",
       [](JobConfig& o, const std::string& t) { o.adapter = t, o.found.given_adapter.clear(); }, adapter_as_given},
      text_option("checkpoint", &O::checkpoint,
                  "best, last or step-N of the run that adapter names, or model where all weights were trained"),
      list_option(
          "data", &O::data,
          "files or directories to train on or evaluate: .json, .jsonl, .csv, .txt, each also .gz or .zst; .parquet"),
      word_option("objective", &O::objective, {"sft", "dpo", "orpo", "simpo", "kto", "reward", "distill"},
                  "what is learnt: replies (sft), which of two is better, whether one is good (kto), or what a teacher "
                  "expects of replies (distill)"),
      word_option("data_format", &O::data_format,
                  {"auto", "alpaca", "sharegpt", "messages", "text", "tokens", "preference", "labelled"},
                  "shape of the samples; auto looks"),
      map_option("columns", &O::columns, "NAME=FIELD",
                 "names of the fields that hold what snug looks for: instruction=question,output=response"),
      map_option("roles", &O::roles, "NAME=ROLE",
                 "what roles of the file are: human=user,bot=assistant; or system, tool, developer"),
      prompt_option(),
      open_integer_option("max_samples", &O::max_samples, "only the first N samples of each file"),
      word_option("empty_records", &O::empty_records, {"error", "skip"},
                  "records with a null, as an empty cell of a table is, in a field that they need; skip: left out, and "
                  "counted"),
      list_option(
          "validation", &O::validation,
          "held-out files or directories, each with metrics under its name, or a fraction of data such as 0.02"),
      word_option("text_split", &O::text_split, {"document", "paragraph", "line"},
                  "what is one sample of a .txt: the file, or what lies between blank lines, or a line"),
      word_option("template", &O::chat_template, {"auto", "chatml", "llama3", "llama2", "mistral", "qwen", "none"},
                  "chat template; auto: the adapter's, where it was trained with one, else the model's own"),
      word_option("train_on", &O::train_on, {"assistant", "all"}, "which tokens carry loss: the replies, or all"),
      word_option(
          "thinking", &O::thinking, {"keep", "drop", "last"},
          "what replies before the last question thought: as the template has it, dropped, or each turn the last "
          "one of a sample"),
      integer_option("sequence_length", &O::sequence_length, 2, "tokens in a block, or of a conversation (2048)"),
      word_option("long_samples", &O::long_samples, {"cut", "split", "drop"}, "samples longer than a block"),
      bool_option("packing", &O::packing, "several samples a block, none seeing another (true)"),
  };
}

// Returns the options of images.
std::vector<OptionSpec> image_specs() {
  using O = JobConfig;
  constexpr int64_t kMostPixels = 1 << 28, kMostSlices = 64;
  return {
      text_option("image_dir", &O::image_dir, "where relative paths of images begin (the folder of each file of data)"),
      open_integer_option(
          "image_min_pixels", &O::image_min_pixels,
          "Qwen2-VL, Qwen2.5-VL: smaller images are enlarged to this (the adapter's, or preprocessor_config.json's)",
          kMostPixels),
      open_integer_option(
          "image_max_pixels", &O::image_max_pixels,
          "Qwen2-VL, Qwen2.5-VL: larger images are reduced to this (the adapter's, or preprocessor_config.json's)",
          kMostPixels),
      word_option(
          "image_cache", &O::image_cache, {"auto", "on", "off"},
          "rows that a frozen tower makes of images are made once, and kept in cache_dir; auto: where a run looks at "
          "its images again, or finds the rows of all"),
      integer_option("image_tokens", &O::image_tokens, 0,
                     "plan without data: how many of a block's tokens stand for images (0)"),
      open_integer_option(
          "max_slices", &O::max_slices,
          "MiniCPM: into so many slices a large image is cut at most (the adapter's, or the model's, 9)", kMostSlices),
  };
}

// Returns the options of the learning rate.
std::vector<OptionSpec> rate_specs() {
  using O = JobConfig;
  return {
      open_number_option(
          "learning_rate", &O::learning_rate, 1e3,
          "by how much weights move in a step (lora 2e-4, full 1e-5; 5e-6 and 5e-7 for other objectives than sft)"),
      open_number_option("learning_rate_vision", &O::learning_rate_vision, 1e3,
                         "of the tower that images go through (learning_rate)"),
      open_number_option("learning_rate_projector", &O::learning_rate_projector, 1e3,
                         "of what fits its rows to the text model (learning_rate)"),
      word_option(
          "schedule", &O::schedule,
          {"constant", "linear", "cosine", "cosine_with_restarts", "polynomial", "inverse_sqrt", "warmup_stable_decay"},
          "how the learning rate falls"),
      integer_option("schedule_cycles", &O::schedule_cycles, 1, "cosine_with_restarts: how often it falls (1)"),
      number_option("schedule_power", &O::schedule_power, 1e-3, 1e3,
                    "polynomial: power of what is left of the run (1)"),
      number_option("decay_ratio", &O::decay_ratio, 0, 1,
                    "warmup_stable_decay: share of the steps, the last ones, in which the rate falls (0.1)"),
      open_integer_option("warmup_steps", &O::warmup_steps, "steps of rising learning rate; wins over warmup_ratio",
                          kMaxCount, 0),
      open_number_option(
          "warmup_ratio", &O::warmup_ratio, 1,
          "warm-up as a share of all steps, rounded up (the first 3 %, rounded down; none for constant)"),
      number_option("min_learning_rate_ratio", &O::min_learning_rate_ratio, 0, 1,
                    "where all schedules but constant and inverse_sqrt end (0)"),
  };
}

// Returns the options of what is learnt from replies that are judged.
std::vector<OptionSpec> preference_specs() {
  using O = JobConfig;
  return {
      word_option("preference_loss", &O::preference_loss,
                  {"sigmoid", "cdpo", "robust", "hinge", "ipo", "sigmoid_norm", "apo_zero", "apo_down"},
                  "the loss of dpo"),
      open_number_option("beta", &O::beta, 1e6, "scale of log-ratios; of orpo, weight of the odds (0.1; simpo 2)"),
      number_option("label_smoothing", &O::label_smoothing, 0, 0.9999,
                    "sft: share of a target's probability that all tokens of the vocabulary have alike; cdpo, robust: "
                    "share of pairs taken to be the wrong way round (0)"),
      number_option("z_loss", &O::z_loss, 0, 1e3,
                    "sft: weight of the square of the logarithm of a softmax's sum; 1e-4 is usual (0)"),
      open_number_option(
          "nll_weight", &O::nll_weight, 1e6,
          "dpo, orpo, simpo: weight of the chosen replies' cross-entropy beside the pairs' loss (0; orpo "
          "1)"),
      number_option("simpo_gamma", &O::simpo_gamma, 0, 1e6, "simpo: margin between the rewards of a pair (0.5)"),
      number_option("desirable_weight", &O::desirable_weight, 0, 1e6, "kto: weight of desirable replies (1)"),
      number_option("undesirable_weight", &O::undesirable_weight, 0, 1e6, "kto: weight of undesirable ones (1)"),
      number_option("center_coefficient", &O::center_coefficient, 0, 1e6,
                    "reward: weight of the square of a pair's sum of scores, which keeps scores around 0 (0)"),
      text_option("reference", &O::reference,
                  "dpo, kto: whose log-probabilities the model's are set against; auto: its own before the first step, "
                  "without an adapter; adapter: with the adapter that is continued"),
      text_option("reference_cache", &O::reference_cache,
                  "directory in which they are kept, and what a teacher says, for any run that needs the same (the "
                  "run's, reference)"),
      text_option("teacher", &O::teacher,
                  "distill: the model that is learnt from, of the same vocabulary; it is asked before the first step"),
      integer_option("teacher_top_k", &O::teacher_top_k, 1,
                     "distill: how many of the teacher's most likely tokens are kept of each place; all others count "
                     "as one (64)",
                     kMostTeacherTokens),
      number_option("distill_beta", &O::distill_beta, 0, 1,
                    "distill: 0 for KL(teacher | model), 1 for KL(model | teacher), between them the Jensen-Shannon "
                    "divergence with this share of the teacher (0)"),
      number_option("distill_temperature", &O::distill_temperature, 0.01, 100,
                    "distill: by what logits of both are divided before (1)"),
      number_option("distill_weight", &O::distill_weight, 0.0001, 1,
                    "distill: share of the divergence in the loss; the rest is of the cross-entropy (1)"),
  };
}

// Returns the options of what is trained: adapters, modules, rows.
std::vector<OptionSpec> trained_specs() {
  using O = JobConfig;
  return {
      word_option("method", &O::method, {"lora", "full"}, "what is trained: adapters, or all weights"),
      integer_option("lora_rank", &O::lora_rank, 1, "rank of the adapters (16)"),
      number_option("lora_alpha", &O::lora_alpha, 1e-6, 1e6, "their scale times rank (32)"),
      targets_option(),
      bool_option("lora_rslora", &O::lora_rslora, "scale by alpha / sqrt(rank) instead of alpha / rank (false)"),
      bool_option("lora_dora", &O::lora_dora,
                  "DoRA: train norms of the adapted weights' rows beside their directions (false)"),
      number_option("lora_dropout", &O::lora_dropout, 0, 0.99, "share of an adapter's input that is dropped (0)"),
      list_option("lora_rank_pattern", &O::lora_rank_pattern,
                  "ranks by linear, NAME=RANK: ends of names or expressions, the first that fits counts"),
      list_option("lora_alpha_pattern", &O::lora_alpha_pattern, "alphas by linear, NAME=ALPHA, likewise"),
      list_option("lora_layers", &O::lora_layers, "numbers of the layers that have adapters, such as 0,8-15 (all)"),
      word_option(
          "lora_init", &O::lora_init, {"default", "pissa", "olora"},
          "what adapters begin with: A drawn and B zero; or the base's largest singular values or its QR halves, "
          "which are taken off the base"),
      number_option("lora_plus_ratio", &O::lora_plus_ratio, 1e-3, 1e3,
                    "LoRA+: the rate of halves B, times that of all else; 16 is usual (1)"),
      list_option("modules_to_save", &O::modules_to_save,
                  "modules that lora trains whole beside the adapter, such as embed_tokens,lm_head (none)"),
      bool_option("ensure_weight_tying", &O::ensure_weight_tying,
                  "a head that is the embedding stays so where modules_to_save names it; else each becomes a matrix of "
                  "its own, as in PEFT (false)"),
      list_option("add_tokens", &O::add_tokens,
                  "texts that become tokens of the model, such as <think>,</think>; with lora, embedding and head are "
                  "trained whole then (none)"),
      list_option("add_special_tokens", &O::add_special_tokens,
                  "likewise, tokens that are no text of a reply, such as <|turn|> (none)"),
      list_option("train_modules", &O::train_modules,
                  "modules that full trains, all else frozen, such as layers.28-31,norm,lm_head (all)"),
      list_option("freeze", &O::freeze, "modules that full does not train, such as embed_tokens,layers.0-15 (none)"),
      bool_option(
          "freeze_vision_tower", &O::freeze_vision_tower,
          "what images go through is not trained; with false, full trains it and lora gives it adapters (true)"),
      bool_option("freeze_projector", &O::freeze_projector,
                  "what fits its rows to the text model is not trained; with false it is, whole (true)"),
      bool_option("freeze_language_model", &O::freeze_language_model,
                  "with method full: of a model of texts and images the text model is not trained (false)"),
  };
}

// Returns the options of how it is trained.
std::vector<OptionSpec> training_specs() {
  using O = JobConfig;
  return {
      base_format_option(),
      word_option("compute", &O::compute, {"bf16", "fp32", "fp8"},
                  "format of products and activations; fp8: of linears' products (H100, H200), the rest in bf16; "
                  "LoRA's base is fp8 then"),
      word_option("state_format", &O::state_format, {"fp32", "bf16", "8bit"},
                  "optimizer state; bf16 is rounded stochastically; with 8bit the weights are, in bf16 alone, and "
                  "moments are codes"),
      word_option("gradient_accumulator", &O::gradient_accumulator, {"fp32", "bf16"},
                  "format of gradients summed over passes"),

      word_option(
          "optimizer", &O::optimizer, {"adamw", "lion", "schedule_free_adamw", "muon", "adafactor", "apollo"},
          "what updates weights; lion has one moment, and wants a third to a tenth of AdamW's learning_rate; "
          "schedule_free_adamw trains weights that are beta1 of their average and else newer, and evaluates and "
          "saves that average, so that a constant schedule does; muon orthogonalises the momentum (of 0.95) of every "
          "matrix of layers' linears and adapters, scaled so that AdamW's learning_rate does, and is AdamW for the "
          "rest; adafactor keeps one number a row and a column of squared gradients, and no more; apollo keeps AdamW's "
          "moments of projections of those matrices, and is AdamW for the rest"),
      integer_option("apollo_rank", &O::apollo_rank, 1,
                     "apollo: numbers to which a row (or column) of gradients is projected at random (256)"),
      integer_option("apollo_update_interval", &O::apollo_update_interval, 1,
                     "apollo: steps after which there is another projection (200)"),
      number_option("apollo_scale", &O::apollo_scale, 1e-6, 1e6,
                    "apollo: by the root of which updates are scaled; 128 is usual with rank 1 (1)"),
      word_option("apollo_scale_type", &O::apollo_scale_type, {"channel", "tensor"},
                  "apollo: each row (or column) has a scale, or a matrix has one, which is usual with rank 1"),
      number_option("weight_decay", &O::weight_decay, 0, 1e3, "apart from the gradient, not on norms and biases (0)"),
      number_option("beta1", &O::beta1, 0, kMostBeta, "of the first moment; of lion, of what gives the sign (0.9)"),
      open_number_option("beta2", &O::beta2, kMostBeta, "of the second moment, or lion's one (0.999; lion 0.99)"),
      number_option("epsilon", &O::epsilon, kLeastEpsilon, 1, "AdamW's (1e-8)"),
      number_option(
          "max_grad_norm", &O::max_grad_norm, 0, 1e9,
          "global norm above which gradients are scaled; 0 = off: on one rank and at ZeRO 2 and 3 weights are then "
          "updated within the backward, and gradients of one pass need no room (1)"),
      {"batch_size",
       "blocks an optimizer step (micro_batch_size x gradient_accumulation_steps x ranks where both are given, else 16 "
       "or "
       "the next multiple of the ranks)",
       [](JobConfig& o, const std::string& t) { o.batch_size = parse_integer(t, "batch_size", 1, kMaxBatch); },
       [](const JobConfig& o) { return o.batch_size > 0 ? fmt::format("{}", o.batch_size) : std::string(); },
       integer_type(1, kMaxBatch)},
      number_option("neftune_noise_alpha", &O::neftune_noise_alpha, 0, 1e3,
                    "NEFTune: noise on the embeddings of what is trained on, uniform up to this / sqrt(tokens of the "
                    "document x hidden size); 5 is usual (0)"),
      open_integer_option("micro_batch_size", &O::micro_batch_size, "blocks a pass (the planner's choice)"),
      open_integer_option("gradient_accumulation_steps", &O::gradient_accumulation_steps,
                          "passes a step (the planner's choice)"),
      open_integer_option("max_steps", &O::max_steps, "steps; alone it repeats the data as often as it takes"),
      open_integer_option("epochs", &O::epochs, "times through the data (1)", 100'000),
      {"seed", "data order, fresh adapters, random weights (42)",
       [](JobConfig& o, const std::string& t) { o.seed = static_cast<uint64_t>(parse_integer(t, "seed", 0)); },
       [](const JobConfig& o) { return fmt::format("{}", o.seed); }, integer_type(0, INT64_MAX)},
      bool_option("shuffle", &O::shuffle, "draw samples in random order (true)"),
  };
}

// Returns the options of where it runs and what becomes of it.
std::vector<OptionSpec> machine_specs() {
  using O = JobConfig;
  return {
      word_option("device", &O::device, {"auto", "cpu", "cuda"}, "where to compute; auto: on a GPU if there is one"),
      text_option("machine", &O::machine,
                  "to plan for: a profile that 'snug doctor' wrote, or GPUs by name, such as H100 or 8xRTX4090 (this)"),
      integer_option("threads", &O::threads, 0, "CPU threads of each rank; 0 = its share of the machine's cores (0)",
                     kMaxThreads),
      integer_option(
          "ranks", &O::ranks, 0,
          "ranks of the job, each with a GPU if there are any; processes that mpirun starts have equal shares; 0 = as "
          "many as there are GPUs (for replies one, if it holds the model), or 1 a process (0)"),
      integer_option("nodes", &O::nodes, 1, "plan alone: machines that the ranks are spread over, evenly (1)"),
      size_option("network_rate", &O::network_rate,
                  "for forecasts: what comes to a machine from the job's others a second, such as 12.5GB for 100 Gbit "
                  "(what is usual beside such GPUs)"),
      word_option("zero", &O::zero, {"auto", "0", "1", "2", "3"},
                  "ZeRO stage: what ranks share of states, gradients, weights"),
      integer_option("replicas", &O::replicas, 1, "hybrid shard: so many groups of ranks hold a whole model each (1)"),
      size_option("device_memory", &O::device_memory,
                  "cap on the device of a rank, such as 24GiB; no plan exceeds it (what is free)"),
      size_option("host_memory", &O::host_memory, "cap on the memory of a node, over all its ranks (what is free)"),
      size_option("disk_memory", &O::disk_memory,
                  "cap on the disk of a node, over all its ranks, with token ids and rows of images that are kept "
                  "(what is free in disk_dir)"),
      text_option("disk_dir", &O::disk_dir, "directory for what is offloaded to disk (the run's, or this one)"),
      word_option("reduce_every", &O::reduce_every, {"pass", "step"},
                  "when gradients are summed over ranks; 'step' sums passes on each rank first and changes last bits"),
      word_option("order", &O::order, {"auto", "pass", "layer"},
                  "all layers of a pass first, or all passes of a layer; changes no bit"),
      text_option(
          "recompute", &O::recompute,
          "what layers compute again in backward: auto, none, mlp, attention, block (all of it) or a number of layers"),
      text_option("offload_states", &O::offload_states,
                  "optimizer state to offload: auto, none, host, disk, or a fraction, to the host (auto)"),
      text_option("offload_gradients", &O::offload_gradients,
                  "gradients to offload between passes and update: auto, none, host, disk, or a fraction"),
      text_option("offload_parameters", &O::offload_parameters,
                  "weights to offload, sharded: auto, none, host, disk, or a fraction, to the host (auto)"),
      bool_option(
          "speculative_updates", &O::speculative_updates,
          "update offloaded state within the backward as if nothing were clipped, and again where it was; "
          "no other bits, but twice its bytes there, and the weights' on the host; without clipping there is nothing "
          "to speculate on (false)"),
      text_option(
          "offload_activations", &O::offload_activations,
          "what layers keep for their backward to offload: auto, none, host, disk, or a fraction of the layers"),

      text_option(
          "out", &O::out,
          "what is made: the directory of the run, model or export, doctor's profile, the page of a report, or the "
          "translated job (runs/<date>-<model>; machine.json, report.html, standard output)"),
      text_option(
          "cache_dir", &O::cache_dir,
          "directory for what is made of GGUF files, quantised models, checkpoints and large data, whose token ids "
          "and rows of images are kept ($XDG_CACHE_HOME/snug, or ~/.cache/snug)"),
      bool_option("overwrite", &O::overwrite, "replace a run that is there, and token ids that are kept (false)"),
      bool_option("resume", &O::resume, "continue the run in out (false)"),
      cadence_option("log_every", &O::log_every, "steps between lines of progress (1)"),
      word_option("log_format", &O::log_format, {"text", "json"},
                  "what standard error is told: text for people, or JSON, an event a line"),
      cadence_option("eval_every", &O::eval_every, "steps, 'epoch' or a duration; 0 = at the end only (0)"),
      cadence_option("save_every", &O::save_every, "steps, 'epoch' or a duration; 0 = at the end only (30min)"),
      keep_option(),
      text_option("best_metric", &O::best_metric,
                  "which number of what is held out says which step is the best: eval_loss, an objective's, such as "
                  "eval_rewards/accuracies, or one file's, such as eval_math_loss (eval_loss)"),
      integer_option("early_stopping", &O::early_stopping, 0,
                     "end the run after so many evaluations without a better one; 0 = never (0)"),
      metrics_format_option(),
      text_option("on_event", &O::on_event,
                  "command (sh -c) that is told of the start, every step, checkpoint and the end: a JSON object a line "
                  "on its standard input"),
      text_option("trace", &O::trace,
                  "file for a Chrome trace of the first steps: lanes, ops, and what they waited for"),
  };
}

void note_as_given(OptionSpec& spec) {
  spec.set = [set = std::move(spec.set), key = spec.key](JobConfig& o, const std::string& text) {
    set(o, text);
    o.given.insert(key);
  };
}

// Makes a spec refuse an empty text: a job file leaves out what is empty, and would be read back with the default.
void refuse_empty(OptionSpec& spec) {
  const std::string default_value = spec.get(JobConfig());
  if (default_value.empty()) return;
  spec.set = [set = std::move(spec.set), get = spec.get, key = spec.key, default_value](JobConfig& o,
                                                                                        const std::string& text) {
    set(o, text);
    if (get(o).empty()) user_error("{}: found nothing, expected a value such as '{}'", key, default_value);
  };
}

}  // namespace

const std::vector<OptionSpec>& option_specs() {
  static const std::vector<OptionSpec> specs = [] {
    std::vector<OptionSpec> all;
    const auto add = [&](const char* group, std::vector<OptionSpec> specs) {
      for (OptionSpec& spec : specs) {
        spec.group = group;
        all.push_back(std::move(spec));
      }
    };
    add("Model and data", data_specs());
    add("Images", image_specs());
    add("Objectives", preference_specs());
    add("Learning rate", rate_specs());
    add("What is trained", trained_specs());
    add("Training", training_specs());
    add("Machine and run", machine_specs());
    std::ranges::for_each(all, refuse_empty);
    std::ranges::for_each(all, note_as_given);
    return all;
  }();
  return specs;
}

const std::string& model_as_given(const JobConfig& options) {
  return options.found.given_model.empty() ? options.model : options.found.given_model;
}

const std::string& adapter_as_given(const JobConfig& options) {
  return options.found.given_adapter.empty() ? options.adapter : options.found.given_adapter;
}

std::string join_list(const std::vector<std::string>& items) {
  std::string text;
  for (const std::string& item : items) {
    if (!text.empty()) text += ',';
    for (const char c : item) text += c == ',' || c == '\\' ? std::string{'\\', c} : std::string{c};
  }
  return text;
}

namespace {

// Returns where the parenthesis begins that ends a help, or its size.
size_t parenthesis(const std::string& help) {
  if (!help.ends_with(')')) return help.size();
  int open = 0;
  for (size_t i = help.size(); i-- > 0;) {
    open += help[i] == ')' ? 1 : help[i] == '(' ? -1 : 0;
    if (open == 0) return i;
  }
  return help.size();
}

}  // namespace

std::string OptionSpec::meaning() const {
  const size_t end = help.find_last_not_of(' ', parenthesis(help) - 1);
  return help.substr(0, end == help.npos ? 0 : end + 1);
}

std::string OptionSpec::default_text() const {
  const std::string holds = get(JobConfig());
  const size_t begin = parenthesis(help);
  if (begin == help.size() || (type.kind == ValueKind::Word && !holds.empty())) return holds;
  return help.substr(begin + 1, help.size() - begin - 2);
}

const OptionSpec& find_option(std::string_view key, std::string_view where, std::span<const std::string> taken) {
  std::string name(key);
  std::ranges::replace(name, '-', '_');
  const auto found = std::ranges::find(option_specs(), name, &OptionSpec::key);
  if (found != option_specs().end()) return *found;
  std::vector<std::string> known(taken.begin(), taken.end());
  if (known.empty())
    for (const OptionSpec& spec : option_specs()) known.push_back(spec.key);
  user_error("{}: unknown option '{}'{}", where, key, advice_on_name(name, known));
}

uint64_t parse_size(const std::string& text, const std::string& key) {
  const std::pair<std::string_view, double> units[] = {
      {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}, {"kB", 1e3},
      {"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12},    {"B", 1},        {"", 1}};
  constexpr double kMost = 1e15;
  const auto [digits, suffix] = split_unit(text);
  const auto unit = std::ranges::find(units, suffix, &std::pair<std::string_view, double>::first);
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (unit == std::end(units) || error != std::errc() || end != digits.data() + digits.size())
    user_error("{}: found '{}', expected a size such as 24GiB, 80GB or 512MiB, or bytes", key, text);
  if (value * unit->second > kMost) user_error("{}: found '{}', expected at most {} TB", key, text, kMost / 1e12);
  return static_cast<uint64_t>(value * unit->second);
}

std::string size_for_option(uint64_t bytes) {
  for (const auto& [unit, size] : {std::pair("GiB", 0x1p30), {"MiB", 0x1p20}, {"KiB", 0x1p10}})
    if (const double value = static_cast<double>(bytes) / size; value >= 1)
      return fmt::format("{:.2f}{}", std::ceil(100 * value) / 100, unit);
  return fmt::format("{}", bytes);
}

}  // namespace snug
