// Reports a run: one JSON object a step in metrics.jsonl, and progress for a person.
#pragma once

#include <chrono>
#include <deque>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "train/appended_file.h"
#include "train/event_file.h"

namespace snug {

// Numbers by their names in metrics.jsonl.
using NamedNumbers = std::vector<std::pair<std::string, double>>;

// Returns the number of a name; nothing if there is none.
std::optional<double> number_of(const NamedNumbers& numbers, std::string_view name);

struct StepMetrics {
  int64_t step = 0;
  double loss = 0, grad_norm = 0, learning_rate = 0;
  int64_t tokens = 0, loss_tokens = 0;
  double step_seconds = 0;
  uint64_t device_bytes = 0, host_bytes = 0;
  std::optional<double> eval_loss;
  NamedNumbers others{};  // of the objective
};

// Returns them as a line of metrics.jsonl has them.
nlohmann::ordered_json metrics_json(const StepMetrics& metrics);

// Says in which formats metrics are written beside metrics.jsonl.
struct MetricsFormats {
  bool csv = false, tensorboard = false;
};

// Writes metrics.jsonl of a run, and where they are asked for metrics.csv and a file in tensorboard/: a line, row or
// event a step. DeviceError where one cannot be written.
class MetricsFiles {
 public:
  // Keeps the lines of steps up to `keep_steps` of a run that is resumed; 0 starts afresh. Other formats have these
  // steps too; of events, where the directory has none yet. `others` names what StepMetrics::others may hold.
  MetricsFiles(const std::filesystem::path& out, int64_t keep_steps, MetricsFormats formats,
               const std::vector<std::string>& others = {});
  void append(const StepMetrics& metrics);

 private:
  std::vector<std::string> columns_;
  std::optional<AppendedFile> lines_, rows_;
  std::optional<EventFile> events_;
};

// Shows how far something is, at the bottom of a terminal (show_status() of base/say.h).
class Progress {
 public:
  // `what` names what is counted ("step"): `total` in all, 0 if that is unknown, of which `before` were done earlier.
  // Shows nothing unless `shown`.
  Progress(std::string what, int64_t before, int64_t total, bool shown = true);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  // `details` is what else the line says, the most important first: a narrow terminal cuts it.
  void update(int64_t done, const std::string& details);

 private:
  std::string what_;
  int64_t before_, total_;
  bool shown_;
  std::chrono::steady_clock::time_point start_;
};

// Says how the loss of the latest steps, ten at most, is beside that of as many before them.
class LossTrend {
 public:
  void add(double loss);
  // Returns the difference of their means; nothing before there are two of each.
  std::optional<double> change() const;

 private:
  std::deque<double> losses_;  // the last twenty
};

// Holds memory as others count it, who know nothing of a plan.
struct CountedMemory {
  std::optional<uint64_t> device{};  // taken of a card by all processes: its driver
  uint64_t process = 0;              // of this process with all its ranks, the program itself among it: the kernel
};

// Returns what the status line of a run says of a step: loss and its trend, rate, and memory beside the bytes that were
// planned, of the device and, where something is there, of the host; and what others count of it.
std::string status_text(const StepMetrics& metrics, const LossTrend& trend, uint64_t planned_device,
                        uint64_t planned_host, const CountedMemory& counted);

// Returns a duration such as "4 min 05 s".
std::string format_duration(double seconds);

}  // namespace snug
