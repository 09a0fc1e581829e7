// A run's directory as far as a report shows it. All of it is read as foreign bytes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "report/timeline.h"

namespace snug {

inline constexpr double kMissing = std::numeric_limits<double>::quiet_NaN();

// metrics.jsonl: a number a key and step.
struct MetricsTable {
  std::vector<double> steps;                          // whole, and rising
  std::map<std::string, std::vector<double>> values;  // by key, as long as `steps`; kMissing where a line has none
  bool torn = false;                                  // the last line was being written

  // Of a key that no line has: empty.
  const std::vector<double>& of(const std::string& key) const;
};

// Returns the place of the least value that is not missing; without any the number of values.
size_t least_of(const std::vector<double>& values);

// The lines of metrics.jsonl; a last one that no newline ends and that is no JSON is left out. UserError with line for
// anything else that is no object of numbers with a step above that of the line before, and for more keys than 64.
MetricsTable parse_metrics(std::string_view text, const std::string& source);

struct NamedBytes {
  std::string name;
  double bytes = 0;
};

// A kind of op of a step, on one kernel.
struct PlanKernel {
  std::string op, slow;           // "gemm"; why it is not on its fast kernel, empty where it is
  std::optional<double> seconds;  // of a step, all of that kind together
};

// plan.json.
struct PlanFacts {
  std::string hash, arrangement, peak;
  double device_bytes = 0, host_bytes = 0;  // of rank 0, with what drivers take
  std::vector<NamedBytes> classes;          // of the device, where it is fullest; largest first
  std::vector<NamedBytes> phases;           // of the device
  double parameters = 0, trainable_parameters = 0, tokens_per_step = 0;
  std::optional<double> step_seconds;
  std::string device;  // "cpu", or the name of its cards; empty in a plan of an older snug
  double threads = 0;  // of each rank; 0 where it is not said
  std::vector<PlanKernel> kernels;
};

// end.json: how a run ended by itself.
struct RunEnd {
  std::string how;      // "ended", "interrupted" or "failed"
  std::string time;     // "2026-11-26 00:43:50"
  std::string message;  // of what failed
};

// Writes and reads that file's text. UserError with `source` and key for what is no such text.
std::string write_end(const RunEnd& end);
RunEnd parse_end(std::string_view json, const std::string& source);
inline constexpr const char* kRunEnd = "end.json";

// UserError with `source` and key if it is no plan of a format that this version reads.
PlanFacts parse_plan(std::string_view json, const std::string& source);

struct ReplyPair {
  std::string prompt, before, after;
  bool has_before = false, has_after = false;
};

// Replies to prompts, as `snug generate --json` writes them, joined by prompt. UserError with line.
void add_samples(std::string_view text, const std::string& source, bool after, std::vector<ReplyPair>& samples);

using TextByKey = std::vector<std::pair<std::string, std::string>>;

// The lines of a job file that a run wrote: a key and a value each.
TextByKey parse_job_lines(std::string_view text);

struct RunFiles {
  std::string name;  // what the page calls it
  TextByKey job;
  PlanFacts plan;
  MetricsTable metrics;
  TextByKey fingerprint;      // of the last checkpoint, "group: field"; empty where there is none yet
  int64_t checkpoint = 0;     //   which is of this step
  std::optional<RunEnd> end;  // nothing where it goes on, or was killed
  std::optional<Timeline> timeline;
  std::vector<ReplyPair> samples;
};

// UserError where the directory holds no run (job.yaml and plan.json) or a file of it is not as it should be. Metrics,
// a checkpoint, `trace.json`, `samples-before.jsonl` and `samples-after.jsonl` are shown where they are there.
RunFiles read_run(const std::filesystem::path& directory);

// Returns whether a directory is that of a run whose first step never began, or has not yet: it has traces of one, but
// not both files by which read_run() knows a run.
bool is_before_its_first_step(const std::filesystem::path& directory);

}  // namespace snug
