#include "api/run_directory.h"

#include <algorithm>
#include <cstring>
#include <ctime>
#include <filesystem>

#include "api/text.h"
#include "base/disk.h"
#include "base/error.h"
#include "base/file.h"
#include "base/option_name.h"
#include "base/say.h"
#include "report/run_files.h"
#include "train/references.h"
#include "train/teacher.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

constexpr const char* kJob = "job.yaml";
constexpr const char* kPlan = "plan.json";
constexpr const char* kResults[] = {"metrics.jsonl", "metrics.csv", "tensorboard", "adapter",
                                    "model",         "checkpoints", "reference",   kRunFormat};

// What people and --trace may put beside these, and what is said there of a run that is replaced.
constexpr const char* kOfRun[] = {"trace.json", "samples-after.jsonl", kRunEnd};

fs::path plain(const fs::path& path) { return fs::weakly_canonical(fs::absolute(path)); }

bool lies_in(const fs::path& path, const fs::path& directory) {
  const fs::path inside = plain(path).lexically_relative(plain(directory));
  return !inside.empty() && *inside.begin() != "..";
}

// Returns whether a directory holds something; files of a start that ended before its first step do not count.
bool holds_something(const fs::path& path) {
  if (!fs::is_directory(path)) return fs::exists(fs::symlink_status(path));
  return std::ranges::any_of(fs::directory_iterator(path), [](const fs::directory_entry& entry) {
    const fs::path name = entry.path().filename();
    return !name.string().starts_with("rehearsal-") && name.extension() != kReferencesExtension &&
           name.extension() != kTeacherExtension;
  });
}

// Refuses files with a run's names that belong to no run, as they may be the user's.
void refuse_what_is_no_runs(const fs::path& out) {
  if (is_file(out / kJob) && is_file(out / kPlan)) return;
  auto refuse = [&](const char* name) {
    if (holds_something(out / name))
      user_error("{}: holds '{}', but no run ({} and {}), so that is left alone; {} names another", out.string(), name,
                 kJob, kPlan, option_name("out"));
  };
  refuse(kPlan);
  for (const char* name : kResults) refuse(name);
}

void require_writable(const fs::path& directory, const std::string& what, std::string_view option) {
  std::string probe = directory / ".snug-XXXXXX";
  if (!mkdtemp(probe.data()))
    user_error("{}: nothing can be made in '{}' ({}), expected a directory to write to; {} names another", what,
               directory.string(), std::strerror(errno), option);
  fs::remove(probe);
}

// Refuses a run directory that is an input's, as results would lie among the files from which they are made.
void refuse_inputs_own(const JobConfig& options) {
  const auto refuse = [&](const std::string& input, std::string_view option) {
    if (!input.empty() && fs::exists(input) && plain(input) == plain(options.out))
      user_error("{}: found '{}', which is the directory of {}, expected one for the run alone", option_name("out"),
                 options.out, option);
  };
  for (const std::string& model : {options.model, options.found.given_model}) refuse(model, option_name("model"));
  for (const std::string& adapter : {options.adapter, options.found.given_adapter})
    refuse(adapter, option_name("adapter"));
  for (const std::string& data : options.data) refuse(data, option_name("data"));
  for (const std::string& data : options.validation) refuse(data, option_name("validation"));
}

// References are written before the run begins, or replaces another one.
void refuse_reference_cache(const JobConfig& options) {
  const fs::path cache = options.reference_cache;
  if (cache.empty()) return;
  if (fs::exists(cache) && !fs::is_directory(cache))
    user_error("reference_cache: found the file '{}', expected a directory or nothing", cache.string());
  require_writable(existing_part(fs::absolute(cache)), cache.string(), option_name("reference_cache"));
}

void refuse_trace(const JobConfig& options) {
  if (options.trace.empty()) return;
  const fs::path directory = fs::absolute(options.trace).parent_path();
  const bool with_the_run = plain(directory) == plain(options.out);  // the run makes that one
  for (const char* name : kResults)
    if (lies_in(directory, fs::path(options.out) / name))
      user_error("{}: found '{}', expected a file outside of '{}', which the run writes and removes",
                 option_name("trace"), options.trace, name);
  if (!with_the_run || fs::is_directory(options.trace)) require_writable_file(options.trace, option_name("trace"));
}

}  // namespace

void require_writable_file(const fs::path& file, std::string_view option) {
  if (fs::is_directory(file))
    user_error("{}: found the directory '{}', expected the name of a file", option, file.string());
  const fs::path directory = fs::absolute(place_of_file(file)).parent_path();
  if (!fs::is_directory(directory))
    user_error("{}: found '{}', expected a file in a directory that is there", option, file.string());
  require_writable(directory, file.string(), option);
}

std::string default_out(const JobConfig& options) {
  const std::time_t now = std::time(nullptr);
  char date[32];
  std::strftime(date, sizeof date, "%Y-%m-%d-%H%M%S", std::localtime(&now));
  return fmt::format("runs/{}-{}", date, last_name(fs::absolute(model_as_given(options))));
}

std::unique_ptr<DirectoryOwner> own_out(const JobConfig& options) {
  const fs::path out = options.out;
  if (fs::exists(out) && !fs::is_directory(out))
    user_error("{}: found a file, expected a directory or nothing; {} names the run's", options.out,
               option_name("out"));
  require_writable(existing_part(out), options.out, option_name("out"));
  const auto took_over = [&](const std::string& holder) {
    say(fmt::format("{}: {}, is gone without having ended its run\n", options.out, holder));
  };
  return std::make_unique<DirectoryOwner>(
      out, DirectoryOwner::Terms{.locks_hold = kernel_locks_hold(out), .took_over = took_over});
}

void refuse_runs_own(const fs::path& out) {
  fs::path path = plain(out);
  for (fs::path parent = path.parent_path(); parent != path; path = parent, parent = path.parent_path())
    if (is_file(parent / kJob) && std::ranges::find(kResults, path.filename().string()) != std::end(kResults))
      user_error("{}: found '{}', which is the run's in {}: it writes and removes '{}'; expected another directory",
                 option_name("out"), out.string(), parent.string(), path.filename().string());
}

void refuse_to_replace(const JobConfig& options, const std::function<bool(const fs::directory_entry&)>& is_part,
                       std::string_view otherwise) {
  const fs::path out = options.out;
  refuse_runs_own(out);
  if (!options.overwrite || !fs::is_directory(out)) return;
  for (const auto& entry : fs::directory_iterator(out))
    if (!is_part(entry))
      user_error("{}: holds '{}', {}; {} replaces nothing else", options.out, entry.path().filename().string(),
                 otherwise, option_name("overwrite"));
}

void refuse_out(const JobConfig& options) {
  const fs::path out = options.out;
  refuse_runs_own(out);
  if (options.resume && options.overwrite)
    user_error("found {} and {}, expected one of them: the run in {} goes on, or it is replaced", option_name("resume"),
               option_name("overwrite"), option_name("out"));
  if (is_file(out / kJob) && !options.resume && !options.overwrite)
    user_error("{}: holds a run already; {} continues it, {} replaces it", options.out, option_name("resume"),
               option_name("overwrite"));
  refuse_what_is_no_runs(out);
  if (!is_file(out / kJob)) refuse_inputs_own(options);
  if (options.overwrite)
    for (const std::string& input :
         {options.model, options.adapter, options.found.given_model, options.found.given_adapter}) {
      if (fs::exists(input) && lies_in(input, out))
        user_error("{}: lies in the run that {} would remove; {} names another", input, option_name("overwrite"),
                   option_name("out"));
    }
  refuse_reference_cache(options);
  refuse_trace(options);
}

void clear_run(const std::string& out, const fs::path& spared, const Heartbeat& heartbeat) {
  for (const char* name : kResults) {
    const fs::path result = fs::path(out) / name;
    if (spared.empty() || !lies_in(spared, result)) {
      remove_tree(result, heartbeat);
      continue;
    }
    const std::vector<fs::directory_entry> entries(fs::directory_iterator{result}, fs::directory_iterator{});
    for (const fs::directory_entry& entry : entries)
      if (entry.path().filename() != spared.filename()) remove_tree(entry.path(), heartbeat);
  }
  for (const char* name : kOfRun) fs::remove(fs::path(out) / name);
  for (const char* name : {kPlan, kJob}) remove_tree(fs::path(out) / name, heartbeat);
}

}  // namespace snug
