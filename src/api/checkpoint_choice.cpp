#include "api/checkpoint_choice.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <vector>

#include "api/image_job.h"
#include "api/inputs.h"
#include "api/job.h"
#include "api/job_file.h"
#include "api/launch.h"
#include "api/rules.h"
#include "api/run_directory.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/option_name.h"
#include "base/say.h"
#include "model/model_config.h"
#include "train/checkpoint.h"
#include "train/checkpoint_export.h"
#include "train/export.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

constexpr int kTries = 20;  // to find a checkpoint that the run does not remove before it is locked

// Describes a directory that --model or --adapter names, as part of a run.
struct Named {
  fs::path run;
  std::string checkpoint;  // if the directory is one itself
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
      user_error("checkpoint: found best, expected last or step-N: {} had no held-out samples ({})", run.string(),
                 option_name("validation"));
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

// Returns the folder of the files that go beside the weights, as the run wrote them at its start, or with its result.
// Empty for a run of an earlier version that has not ended.
fs::path side_files_of(const JobConfig& run) {
  const std::string result = run.method == "lora" ? "adapter" : "model";
  for (const std::string& name : {std::string(kRunFormat), result})
    if (fs::is_directory(fs::path(run.out) / name)) return fs::path(run.out) / name;
  return {};
}

std::vector<fs::path> files_but_weights(const fs::path& directory) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_regular_file() && !name.ends_with(".safetensors") && !name.ends_with(".safetensors.index.json"))
      files.push_back(entry.path());
  }
  std::ranges::sort(files);
  return files;
}

void make_adapter(const fs::path& checkpoint, const JobConfig& run, const fs::path& side_files, const fs::path& out) {
  const ParamRules rules = rules_of(run);
  ModelSpec model = model_config_of(run).spec;
  fit_to_rules(model, rules);
  const ParamTable table = trained_parameters(model, rules);
  PendingDirectory pending(out, Existing::Replace);
  const auto fp32 = [](ParamId) { return DType::F32; };
  const LoraInit init = rules.adapter->init;
  if (init == LoraInit::Default && std::ranges::none_of(table.params, &ParamSpec::saved)) {
    write_trained(checkpoint, table, fp32, pending.path() / kPeftWeightsFile);
  } else {
    const JobSpec spec = make_job(run, Purpose::Train);
    if (init != LoraInit::Default) make_initial_halves(spec, {});
    write_trained(checkpoint, spec.table, fp32, pending.path() / kPeftWeightsFile, &spec.sources);
  }
  if (!side_files.empty())
    for (const fs::path& file : files_but_weights(side_files)) fs::copy_file(file, pending.path() / file.filename());
  if (!is_file(pending.path() / kPeftConfigFile)) write_adapter_config(pending.path(), written_adapter(run), run.model);
  pending.publish();
}

// Makes a model with each tensor in the format of the base; of a base that was drawn, in that of products.
void make_model(const fs::path& checkpoint, const JobConfig& run, const fs::path& side_files, const fs::path& out) {
  const JobSpec spec = make_job(run, Purpose::Train);
  const auto dtype = [&](ParamId id) {
    return spec.sources.dtypes[static_cast<size_t>(id)].value_or(spec.numerics.compute);
  };
  PendingDirectory pending(out, Existing::Replace);
  write_trained(checkpoint, spec.table, dtype, pending.path() / "model.safetensors", &spec.sources);
  write_side_files(pending.path(), side_files.empty() ? fs::path(run.model) : side_files, spec);
  pending.publish();
}

// Returns a hash of all that the adapter or model is made of, by names, sizes and times where that is much.
uint64_t hash_of_parts(const fs::path& checkpoint, const JobConfig& run, const fs::path& side_files) {
  std::string text = SNUG_VERSION;
  const auto add = [&](const fs::path& file, bool reads) {
    text += fmt::format(
        "\n{} {} {}", file.string(), fs::file_size(file),
        reads ? file_checksum(file) : static_cast<uint64_t>(fs::last_write_time(file).time_since_epoch().count()));
  };
  add(fs::path(run.out) / "job.yaml", true);
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(checkpoint))
    if (entry.is_regular_file()) files.push_back(entry.path());
  std::ranges::sort(files);
  for (const fs::path& file : files) add(file, file.filename() == "state.json");
  if (!side_files.empty())
    for (const fs::path& file : files_but_weights(side_files)) add(file, true);
  return hash_of(text);
}

// Removes what was made of checkpoints that the run has removed since, unless a command uses it.
void remove_outdated(const fs::path& exports_of_run, const Checkpoints& checkpoints) {
  const std::vector<int64_t> steps = checkpoints.steps();
  std::error_code error;
  std::vector<fs::path> removed;
  for (const auto& entry : fs::directory_iterator(exports_of_run, error)) {
    const std::string name = entry.path().filename().string();
    const auto is_of = [&](int64_t step) { return name.starts_with(fmt::format("step-{}-", step)); };
    if (std::ranges::none_of(steps, is_of)) removed.push_back(entry.path());
  }
  for (const fs::path& path : removed)
    if (FileLock::unused(path).holds()) fs::remove_all(path, error);
}

struct CheckpointExport {
  fs::path directory;
  FileLock used;
};

// Makes it in the cache, once; never in the run, which may be another process's by now, or read-only.
CheckpointExport export_checkpoint(const fs::path& checkpoint, const JobConfig& run, const fs::path& cache) {
  const fs::path of_run = cache / fmt::format("run-{:016x}", hash_of(run.out));
  const fs::path side_files = side_files_of(run);
  const FileLock alone = FileLock::alone(of_run / "lock", other_cache());
  const fs::path exported =
      of_run / fmt::format("{}-{:016x}", checkpoint.filename().string(), hash_of_parts(checkpoint, run, side_files));
  if (!fs::is_directory(exported)) {
    remove_outdated(of_run, Checkpoints(run.out, -1));
    (run.method == "lora" ? make_adapter : make_model)(checkpoint, run, side_files, exported);
  }
  return {exported, FileLock::in_use(exported)};
}

}  // namespace

bool is_checkpoint(const std::string& path) {
  const std::optional<Named> named = run_of(path);
  return named && !named->checkpoint.empty();
}

FileLock choose_checkpoint(JobConfig& options) {
  std::string* place = &options.adapter;
  std::optional<Named> named = run_of(options.adapter);
  if (!named || (options.checkpoint.empty() && named->checkpoint.empty())) {
    place = &options.model;
    named = run_of(options.model);
  }
  if (options.checkpoint.empty() && (!named || named->checkpoint.empty())) return {};
  if (!named)
    user_error(
        "checkpoint: found no run in {}, expected {} RUN, or {} RUN of a run of all weights: a directory with job.yaml "
        "and checkpoints",
        options.adapter.empty() && options.model.empty()
            ? option_name("adapter") + " or " + option_name("model")
            : "'" + (options.adapter.empty() ? options.model : options.adapter) + "'",
        option_name("adapter"), option_name("model"));
  if (!named->checkpoint.empty() && !options.checkpoint.empty())
    user_error("checkpoint: found {} of the checkpoint '{}', expected nothing, or the run", options.checkpoint, *place);
  JobConfig run;
  read_job_file((named->run / "job.yaml").string(), run);
  run.out = named->run.string();
  run.adapter.clear();  // from which the run began; the run's own options describe what it trained
  run.found.given_adapter.clear();
  if (!options.cache_dir.empty()) run.cache_dir = options.cache_dir;
  find_inputs(run);
  if (!run.freeze_vision_tower || !run.freeze_projector)
    run.found.block_patches = 1;  // the checkpoint has their tensors
  const bool lora = run.method == "lora";
  const std::string word = options.checkpoint.empty() ? named->checkpoint : options.checkpoint;
  if (!lora && place == &options.adapter)
    user_error("{}: {} trained all weights (method full), expected {} {}", option_name("adapter"), *place,
               option_name("model"), *place);
  const fs::path cache = cache_directory(options, *place + ": is a run");
  fs::path checkpoint;
  const auto make = [&]() -> std::optional<CheckpointExport> {
    checkpoint = named->run / "checkpoints" / fmt::format("step-{}", step_of(word, {named->run, -1}, named->run));
    const FileLock read = FileLock::in_use(checkpoint);  // so that the run does not remove it meanwhile
    try {
      return export_checkpoint(checkpoint, run, cache);
    } catch (const std::exception&) {
      if (fs::is_directory(checkpoint)) throw;
      return std::nullopt;
    }
  };
  // A run that goes on removes old checkpoints, also one that was found just now; then there is a newer one.
  std::optional<CheckpointExport> exported = make();
  for (int tries = 1; !exported && word == "last" && tries < kTries; tries++) exported = make();
  if (!exported)
    device_error("{}: the run removed it while it was read, as {} says; {} last takes its newest", checkpoint.string(),
                 option_name("keep"), option_name("checkpoint"));
  if (is_first_process())
    say(fmt::format("{} of {}: {}\n", checkpoint.filename().string(), named->run.string(),
                    exported->directory.string()));
  if (lora && (place == &options.model || options.model.empty())) options.model = model_as_given(run);
  // A run of an earlier version that has not ended has written in no file how it asks.
  if (options.chat_template == "auto" && side_files_of(run).empty()) options.chat_template = run.chat_template;
  (lora ? options.adapter : options.model) = exported->directory.string();
  (lora ? options.found.given_adapter : options.found.given_model) = checkpoint.string();
  options.checkpoint.clear();
  return std::move(exported->used);
}

}  // namespace snug
