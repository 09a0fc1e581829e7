#include "train/metrics.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
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
    : what_(std::move(what)), before_(before), total_(total), shown_(shown), start_(std::chrono::steady_clock::now()) {}

Progress::~Progress() {
  if (shown_) show_status("");
}

void Progress::update(int64_t done, const std::string& details) {
  if (!shown_) return;
  if (total_ == 0) return show_status(fmt::format("{} {}  {}", what_, done, details));
  const double spent = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  const double left =
      done > before_ ? spent * static_cast<double>(total_ - done) / static_cast<double>(done - before_) : 0;
  show_status(fmt::format("{} {}/{}  {} left  {}", what_, done, total_, format_duration(left), details));
}

void LossTrend::add(double loss) {
  losses_.push_back(loss);
  if (losses_.size() > 20) losses_.pop_front();
}

std::optional<double> LossTrend::change() const {
  const auto count = static_cast<std::ptrdiff_t>(losses_.size() / 2);
  if (count < 2) return std::nullopt;
  const auto middle = losses_.end() - count;
  const double change = std::accumulate(middle, losses_.end(), 0.0) - std::accumulate(middle - count, middle, 0.0);
  return change / static_cast<double>(count);
}

std::string status_text(const StepMetrics& m, const LossTrend& trend, uint64_t planned_device, uint64_t planned_host,
                        const CountedMemory& counted) {
  const auto gib = [](uint64_t bytes) { return fmt::format("{:.2f}", static_cast<double>(bytes) / 0x1p30); };
  const std::optional<double> change = trend.change();
  std::string text =
      fmt::format("loss {:.4f}{}  {:.0f} tokens/s", m.loss, change ? fmt::format(" ({:+.4f})", *change) : "",
                  static_cast<double>(m.tokens) / m.step_seconds);
  text += fmt::format("  device {} of {} GiB", gib(m.device_bytes), gib(planned_device));
  if (counted.device) text += fmt::format(" (driver: {})", gib(*counted.device));
  if (m.host_bytes + planned_host > 0) text += fmt::format("  host {} of {} GiB", gib(m.host_bytes), gib(planned_host));
  if (counted.process > 0) text += fmt::format("  process {} GiB", gib(counted.process));
  return text;
}

std::string format_duration(double seconds) {
  const auto whole = static_cast<int64_t>(seconds + 0.5);
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole / 60 % 60);
}

}  // namespace snug
