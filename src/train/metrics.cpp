#include "train/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/say.h"

namespace snug {

std::string to_json_line(const StepMetrics& m) {
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
  return line.dump();
}

MetricsFile::MetricsFile(const std::filesystem::path& path, int64_t keep_steps) : path_(path) {
  std::string kept;
  if (keep_steps > 0 && is_file(path)) {
    std::ifstream in(path);
    for (std::string line; std::getline(in, line);) {
      const auto object = nlohmann::json::parse(line, nullptr, false);
      if (object.is_object() && object.value("step", keep_steps + 1) <= keep_steps) kept += line + "\n";
    }
  }
  write_text(path, kept);
  file_ = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (file_ < 0) device_error("{}: cannot be written: {}", path.string(), std::strerror(errno));
}

MetricsFile::~MetricsFile() { ::close(file_); }

void MetricsFile::append(const StepMetrics& metrics) {
  const std::string line = to_json_line(metrics) + "\n";
  for (size_t done = 0; done < line.size();) {
    const ssize_t count = ::write(file_, line.data() + done, line.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) device_error("{}: writing a line failed: {}", path_.string(), std::strerror(errno));
    done += static_cast<size_t>(count);
  }
}

Progress::Progress(std::string what, int64_t before, int64_t total, bool shown)
    : what_(std::move(what)),
      before_(before),
      total_(total),
      terminal_(shown && isatty(STDERR_FILENO) == 1),
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
