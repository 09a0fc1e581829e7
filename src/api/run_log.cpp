#include "api/run_log.h"

#include <fmt/ranges.h>
#include <algorithm>

#include "api/plan_report.h"
#include "base/say.h"

namespace snug {

void log_line(const std::string& line) { say(fmt::format("{}\n", line)); }

void log_line_for_people(const std::string& line) {
  if (log_format() == LogFormat::Text) log_line(line);
}

Event plan_event(const Plan& plan) {
  const nlohmann::ordered_json whole = plan_json(plan);
  Event event{{"event", "plan"}, {"arrangement", whole.at("arrangement").at("words")}};
  for (const char* key : {"hash", "device_bytes", "host_bytes", "disk_bytes", "parameters", "trainable_parameters",
                          "tokens_per_step", "step_seconds"})
    event[key] = whole.at(key);
  event["steps"] = plan.data.value().steps;
  return event;
}

Event warning_event(int64_t step, const std::string& message, const std::vector<std::string>& samples) {
  return {{"event", "warning"}, {"step", step}, {"message", message}, {"samples", samples}};
}

void log_warning(const std::string& message, const std::vector<std::string>& samples) {
  constexpr size_t kMost = 20;
  std::string line = "warning: " + message;
  const size_t shown = std::min(samples.size(), kMost);
  if (shown > 0)
    line += fmt::format("; its samples: {}",
                        fmt::join(samples.begin(), samples.begin() + static_cast<std::ptrdiff_t>(shown), "; "));
  if (shown < samples.size()) line += fmt::format("; and {} more", samples.size() - shown);
  log_line_for_people(line);
}

void RunTeller::start(const std::string& command) {
  if (tells_ && !command.empty()) command_.emplace(command, EventCommand::Terms{.say = log_line});
}

void RunTeller::tell(const Event& event) {
  tell_unlogged(event);
  if (tells_) say_event(event);
}

void RunTeller::tell_unlogged(const Event& event) {
  if (tells_ && events_.event) events_.event(event);
  if (command_) command_->send(event);
}

void RunTeller::end() {
  if (command_) command_->end();
}

}  // namespace snug
