#include "train/metrics.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/file.h"
#include "base/say.h"

namespace snug {

using Object = nlohmann::ordered_json;

std::optional<double> number_of(const NamedNumbers& numbers, std::string_view name) {
  const auto found = std::ranges::find(numbers, name, &NamedNumbers::value_type::first);
  return found == numbers.end() ? std::nullopt : std::optional(found->second);
}

nlohmann::ordered_json metrics_json(const StepMetrics& m) {
  nlohmann::ordered_json line{
      {"step", m.step},
      {"loss", m.loss},
      {"grad_norm", m.grad_norm},
      {"learning_rate", m.learning_rate},
      {"tokens", m.tokens},
      {"loss_tokens", m.loss_tokens},
      {"step_seconds", m.step_seconds},
      {"tokens_per_second", m.step_seconds > 0 ? static_cast<double>(m.tokens) / m.step_seconds : 0},
      {"device_bytes", m.device_bytes},
      {"host_bytes", m.host_bytes}};
  if (m.eval_loss) line["eval_loss"] = *m.eval_loss;
  for (const auto& [name, value] : m.others) line[name] = std::isfinite(value) ? Object(value) : Object();
  return line;
}

namespace {

// Returns the columns of a table: the keys that any step may have.
std::vector<std::string> columns(const std::vector<std::string>& others) {
  StepMetrics every;
  every.eval_loss = 0;
  for (const std::string& name : others) every.others.emplace_back(name, 0);
  const Object object = metrics_json(every);
  std::vector<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.push_back(key);
  return keys;
}

// Numbers as metrics.jsonl has them; nothing where a step has none.
std::string csv_row(const Object& line, const std::vector<std::string>& columns) {
  std::vector<std::string> cells;
  for (const std::string& key : columns)
    cells.push_back(line.contains(key) && line[key].is_number() ? line[key].dump() : "");
  return fmt::format("{}\n", fmt::join(cells, ","));
}

std::vector<Object> kept_lines(const std::filesystem::path& path, int64_t keep_steps) {
  std::vector<Object> kept;
  if (keep_steps == 0 || !is_file(path)) return kept;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    Object object = Object::parse(line, nullptr, false);
    if (object.is_object() && object.value("step", keep_steps + 1) <= keep_steps) kept.push_back(std::move(object));
  }
  return kept;
}

}  // namespace

MetricsFiles::MetricsFiles(const std::filesystem::path& out, int64_t keep_steps, MetricsFormats formats,
                           const std::vector<std::string>& others)
    : columns_(columns(others)) {
  const std::vector<Object> kept = kept_lines(out / "metrics.jsonl", keep_steps);
  std::string lines, rows = fmt::format("{}\n", fmt::join(columns_, ","));
  for (const Object& object : kept) lines += object.dump() + "\n", rows += csv_row(object, columns_);
  lines_.emplace(out / "metrics.jsonl", lines);
  if (formats.csv) rows_.emplace(out / "metrics.csv", rows);
  if (!formats.tensorboard) return;
  events_.emplace(out / "tensorboard", keep_steps + 1);
  if (events_->is_first())
    for (const Object& object : kept) events_->append(object["step"].get<int64_t>(), object);
}

void MetricsFiles::append(const StepMetrics& metrics) {
  const Object object = metrics_json(metrics);
  lines_->append(object.dump() + "\n");
  if (rows_) rows_->append(csv_row(object, columns_));
  if (events_) events_->append(metrics.step, object);
}

Progress::Progress(std::string what, int64_t before, int64_t total, bool shown)
    : what_(std::move(what)),
      before_(before),
      total_(total),
      terminal_(shown && isatty(STDERR_FILENO) == 1 && log_format() == LogFormat::Text),
      start_(std::chrono::steady_clock::now()) {}

Progress::~Progress() { clear(); }

void Progress::update(int64_t done, const std::string& details) {
  if (!terminal_) return;
  shown_ = true;
  if (total_ == 0) {
    say(fmt::format("\r\033[K{} {}  {}", what_, done, details));
    return;
  }
  const double spent = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  const double left =
      done > before_ ? spent * static_cast<double>(total_ - done) / static_cast<double>(done - before_) : 0;
  say(fmt::format("\r\033[K{} {}/{}  {}  {} left", what_, done, total_, details, format_duration(left)));
}

void Progress::clear() {
  if (shown_) say("\r\033[K");
  shown_ = false;
}

std::string format_duration(double seconds) {
  const auto whole = static_cast<int64_t>(seconds + 0.5);
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole / 60 % 60);
}

}  // namespace snug
