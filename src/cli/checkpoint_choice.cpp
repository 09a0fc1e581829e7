#include "cli/checkpoint_choice.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "base/disk.h"
#include "base/error.h"
#include "base/file.h"
#include "base/say.h"
#include "cli/inputs.h"
#include "cli/job.h"
#include "cli/launch.h"
#include "train/checkpoint.h"
#include "train/checkpoint_export.h"
#include "train/export.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

constexpr double kFirstProcessSeconds = 600;  // seconds for the first process to make what is not there yet

// A directory that --model or --adapter names, as part of a run.
struct Named {
  fs::path run;
  std::string checkpoint;  // where it is one itself
};

std::optional<Named> run_of(const std::string& text) {
  if (text.empty()) return std::nullopt;
  fs::path path = fs::absolute(text).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  if (is_file(path / "job.yaml")) return Named{path, ""};
  const fs::path run = path.parent_path().parent_path();
  if (path.parent_path().filename() == "checkpoints" && is_file(run / "job.yaml"))
    return Named{run, path.filename().string()};
  return std::nullopt;
}

int64_t step_of(const std::string& word, const Checkpoints& checkpoints, const fs::path& run) {
  const std::vector<int64_t> steps = checkpoints.steps();
  if (steps.empty()) user_error("{}: found no checkpoint, expected some in checkpoints", run.string());
  if (word == "last") return steps.back();
  int64_t step = 0;
  if (word == "best") {
    step = checkpoints.last_state().best_step;
    if (step == 0)
      user_error("checkpoint: found best, expected last or step-N: {} had no held-out samples (--validation)",
                 run.string());
  } else {
    const std::string digits = word.starts_with("step-") ? word.substr(5) : "";
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
    if (digits.empty() || error != std::errc() || end != digits.data() + digits.size())
      user_error("checkpoint: found '{}', expected best, last or step-N", word);
  }
  if (std::ranges::find(steps, step) == steps.end())
    user_error("{}: found no checkpoint of step {}, expected one of the steps {}", run.string(), step,
               fmt::join(steps, ", "));
  return step;
}

// Copies what lies beside the weights in the adapter or model that the run itself wrote, if it has.
void copy_beside(const fs::path& from, const fs::path& to) {
  if (!fs::is_directory(from)) return;
  for (const auto& entry : fs::directory_iterator(from)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_regular_file() && !name.ends_with(".safetensors") && !name.ends_with(".safetensors.index.json"))
      fs::copy_file(entry.path(), to / name);
  }
}

void make_adapter(const fs::path& checkpoint, const Options& run, const fs::path& out) {
  PeftConfig adapter = adapter_of(run);
  const ParamTable table = lora_parameters(read_hf_config(run.model), adapter, true);
  PendingDirectory pending(out, Existing::Replace);
  write_trained(
      checkpoint, table, [](ParamId) { return DType::F32; }, pending.path() / kPeftWeightsFile);
  copy_beside(fs::path(run.out) / "adapter", pending.path());
  if (!is_file(pending.path() / kPeftConfigFile)) {
    adapter.base_model = run.model;
    std::ranges::sort(adapter.target_modules);
    write_text(pending.path() / kPeftConfigFile, write_peft_config(adapter));
  }
  pending.publish();
}

// Each tensor in the format that the base has it in; of a base that was drawn, in that of products.
void make_model(const fs::path& checkpoint, const Options& run, const fs::path& out) {
  const JobSpec spec = make_job(run, Purpose::Train);
  const auto dtype = [&](ParamId id) {
    return spec.sources.dtypes[static_cast<size_t>(id)].value_or(spec.numerics.compute);
  };
  PendingDirectory pending(out, Existing::Replace);
  write_trained(checkpoint, spec.table, dtype, pending.path() / "model.safetensors");
  const fs::path written = fs::path(run.out) / "model";
  write_side_files(pending.path(), fs::is_directory(written) ? written : fs::path(run.model), spec);
  pending.publish();
}

}  // namespace

void choose_checkpoint(Options& options) {
  std::string* place = &options.adapter;
  std::optional<Named> named = run_of(options.adapter);
  if (!named || (options.checkpoint.empty() && named->checkpoint.empty())) {
    place = &options.model;
    named = run_of(options.model);
  }
  if (options.checkpoint.empty() && (!named || named->checkpoint.empty())) return;
  if (!named)
    user_error(
        "checkpoint: found no run in {}, expected --adapter RUN, or --model RUN of a run of all weights: a "
        "directory with job.yaml and checkpoints",
        options.adapter.empty() && options.model.empty()
            ? "--adapter or --model"
            : "'" + (options.adapter.empty() ? options.model : options.adapter) + "'");
  if (!named->checkpoint.empty() && !options.checkpoint.empty())
    user_error("checkpoint: found {} of the checkpoint '{}', expected nothing, or the run", options.checkpoint, *place);
  Options run;
  read_job_file((named->run / "job.yaml").string(), run);
  run.out = named->run.string();
  run.adapter.clear();  // that it began from; what it trained is as its own options say
  run.given_adapter.clear();
  find_inputs(run);
  const bool lora = run.method == "lora";
  const std::string word = options.checkpoint.empty() ? named->checkpoint : options.checkpoint;
  const int64_t step = step_of(word, Checkpoints(named->run, -1), named->run);
  const fs::path checkpoint = named->run / "checkpoints" / fmt::format("step-{}", step);
  const fs::path made = checkpoint / (lora ? "adapter" : "model");
  if (!lora && place == &options.adapter)
    user_error("--adapter: {} trained all weights (method full), expected --model {}", *place, *place);
  if (is_first_process()) {
    say(fmt::format("step {} of {}: {}\n", step, named->run.string(), made.string()));
    if (!fs::is_directory(made)) lora ? make_adapter(checkpoint, run, made) : make_model(checkpoint, run, made);
  } else if (!is_directory_within(kFirstProcessSeconds, made, {})) {
    user_error("{}: found nothing within {} s, expected what the first process makes there", made.string(),
               kFirstProcessSeconds);
  }
  if (lora && (place == &options.model || options.model.empty())) options.model = model_as_given(run);
  // A run that has not ended has written nowhere how it asks.
  if (options.chat_template == "auto" && !fs::is_directory(named->run / (lora ? "adapter" : "model")))
    options.chat_template = run.chat_template;
  (lora ? options.adapter : options.model) = made.string();
  options.checkpoint.clear();
}

}  // namespace snug
