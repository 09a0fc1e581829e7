#include "report/run_files.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/option_name.h"
#include "format/json.h"
#include "report/html.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxJob = 1 << 20, kMaxPlan = 1 << 24, kMaxState = 1 << 20, kMaxSamples = 1 << 24;
constexpr uint64_t kMaxEnd = 1 << 16;
constexpr uint64_t kMaxMetrics = 1 << 29, kMaxTrace = 1 << 28;
constexpr size_t kMostKeys = 64, kMostNames = 256, kMostSamples = 4096;
constexpr double kMostBytes = 1e18, kMostCount = 9e15, kMostValue = 1e100;
constexpr int64_t kPlanFormat = 1;
constexpr std::string_view kPhases[] = {"load", "step", "eval", "save"};  // in the order of a run
constexpr size_t kNameBytes = 60, kMessageBytes = 4096;

// Calls `use` with every line that is not empty, its number, and whether a newline ends it.
template <class F>
void for_lines(std::string_view text, const F& use) {
  for (int64_t number = 1; !text.empty(); number++) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == text.npos ? text.size() : end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.empty()) use(line, number, end != std::string_view::npos);
  }
}

void add_metrics(MetricsTable& table, const Json& json, const std::string& place) {
  const JsonObject line(json, place);
  const int64_t step = line.integer("step", 1, static_cast<int64_t>(kMostCount));
  if (!table.steps.empty() && static_cast<double>(step) <= table.steps.back())
    line.fail("step", fmt::format("more than {}, the step of the line before", table.steps.back()));
  table.steps.push_back(static_cast<double>(step));
  for (const auto& [key, value] : json.items()) {
    if (key == "step") continue;
    std::vector<double>& column = table.values[key];
    if (table.values.size() > kMostKeys)
      user_error("{}: key '{}' is one of more than {}, expected metrics of a run", place, cut_text(key, 60), kMostKeys);
    column.resize(table.steps.size() - 1, kMissing);
    column.push_back(value.is_null() ? kMissing : line.number(key, -kMostValue, kMostValue));
  }
}

std::vector<NamedBytes> named_bytes(const JsonObject& plan, std::string_view key) {
  std::vector<NamedBytes> list;
  if (!plan.has(key)) return list;
  const JsonObject object = plan.object(key);
  if (object.value().size() > kMostNames) plan.fail(key, fmt::format("at most {} names", kMostNames));
  for (const auto& [name, bytes] : object.value().items()) list.push_back({name, object.number(name, 0, kMostBytes)});
  return list;
}

// A file that may not be there.
std::optional<std::string> optional_text(const fs::path& path, uint64_t most) {
  if (!is_file(path)) return std::nullopt;
  return read_text(path, most);
}

// The newest checkpoint is never removed while a run goes on. Returns its step, too.
std::optional<std::pair<fs::path, int64_t>> last_state(const fs::path& run) {
  std::optional<std::pair<fs::path, int64_t>> found;
  int64_t last = -1;
  const fs::path checkpoints = run / "checkpoints";
  if (!fs::is_directory(checkpoints)) return found;
  for (const auto& entry : fs::directory_iterator(checkpoints)) {
    const std::string name = entry.path().filename().string();
    int64_t step = 0;
    if (!name.starts_with("step-")) continue;
    const auto [end, error] = std::from_chars(name.data() + 5, name.data() + name.size(), step);
    if (error != std::errc() || end != name.data() + name.size() || step <= last) continue;
    if (is_file(entry.path() / "state.json")) last = step, found = {entry.path() / "state.json", step};
  }
  return found;
}

TextByKey fingerprint_of(std::string_view text, const std::string& source) {
  const Json json = parse_json(text, source);
  const JsonObject state(json, source);
  TextByKey fields;
  const JsonObject groups = state.object("fields");
  for (const auto& [group, members] : groups.value().items()) {
    const JsonObject object = groups.object(group);
    for (const auto& [name, value] : members.items()) fields.emplace_back(group + ": " + name, object.string(name));
  }
  return fields;
}

}  // namespace

const std::vector<double>& MetricsTable::of(const std::string& key) const {
  static const std::vector<double> none;
  const auto found = values.find(key);
  return found == values.end() ? none : found->second;
}

size_t least_of(const std::vector<double>& values) {
  size_t least = values.size();
  for (size_t i = 0; i < values.size(); i++)
    if (std::isfinite(values[i]) && (least == values.size() || values[i] < values[least])) least = i;
  return least;
}

MetricsTable parse_metrics(std::string_view text, const std::string& source) {
  MetricsTable table;
  for_lines(text, [&](std::string_view line, int64_t number, bool whole) {
    const std::string place = fmt::format("{}, line {}", source, number);
    Json json;
    try {
      json = parse_json(line, place);
    } catch (const UserError&) {
      if (whole) throw;
      table.torn = true;
      return;
    }
    add_metrics(table, json, place);
  });
  for (auto& [key, column] : table.values) column.resize(table.steps.size(), kMissing);
  return table;
}

PlanFacts parse_plan(std::string_view json, const std::string& source) {
  const Json value = parse_json(json, source);
  const JsonObject plan(value, source);
  if (plan.integer("format", 1, INT64_MAX, 1) > kPlanFormat)
    plan.fail("format", fmt::format("{} at most: a newer snug made it", kPlanFormat));
  PlanFacts facts;
  facts.hash = plan.string("hash");
  facts.arrangement = plan.object("arrangement").string("words");
  facts.peak = plan.string("peak", "");
  facts.device_bytes = plan.number("device_bytes", 0, kMostBytes);
  facts.host_bytes = plan.number("host_bytes", 0, kMostBytes);
  if (plan.has("ranks") && plan.at("ranks").is_array() && !plan.at("ranks").empty()) {
    const JsonObject rank(plan.at("ranks")[0], source, "ranks[0]");  // whose metrics are written
    facts.device_bytes = rank.number("device_bytes", 0, kMostBytes) + plan.number("driver_bytes", 0, kMostBytes, 0);
    facts.host_bytes = rank.number("host_bytes", 0, kMostBytes) + plan.number("driver_host_bytes", 0, kMostBytes, 0);
  }
  facts.classes = named_bytes(plan, "classes");
  std::ranges::stable_sort(facts.classes, std::greater(), &NamedBytes::bytes);
  facts.phases = named_bytes(plan, "phases");
  std::ranges::stable_sort(facts.phases, {}, [](const NamedBytes& phase) {
    return std::ranges::find(kPhases, phase.name) - std::begin(kPhases);  // others behind them
  });
  facts.parameters = plan.number("parameters", 0, kMostCount, 0);
  facts.trainable_parameters = plan.number("trainable_parameters", 0, kMostCount, 0);
  facts.tokens_per_step = plan.number("tokens_per_step", 0, kMostCount, 0);
  facts.device = cut_text(plan.string("device", ""), kNameBytes);
  facts.threads = plan.number("threads", 0, kMostCount, 0);
  if (plan.has("step_seconds")) facts.step_seconds = plan.number("step_seconds", 0, kMostBytes);
  if (plan.has("kernels")) {
    const Json& list = plan.at("kernels");
    if (!list.is_array() || list.size() > kMostNames)
      plan.fail("kernels", fmt::format("a list of {} at most", kMostNames));
    for (const Json& entry : list) {
      const JsonObject kernel(entry, source, "kernels");
      facts.kernels.push_back({kernel.string("op"), kernel.string("slow", ""), {}});
      if (kernel.has("seconds")) facts.kernels.back().seconds = kernel.number("seconds", 0, kMostBytes);
    }
  }
  return facts;
}

std::string write_end(const RunEnd& end) {
  const nlohmann::ordered_json json{{"how", end.how}, {"time", end.time}, {"message", end.message}};
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

RunEnd parse_end(std::string_view json, const std::string& source) {
  const Json value = parse_json(json, source);
  const JsonObject end(value, source);
  RunEnd result{end.string("how"), cut_text(end.string("time"), kNameBytes),
                cut_text(end.string("message", ""), kMessageBytes)};
  if (result.how != "ended" && result.how != "interrupted" && result.how != "failed")
    end.fail("how", "ended, interrupted or failed");
  return result;
}

void add_samples(std::string_view text, const std::string& source, bool after, std::vector<ReplyPair>& samples) {
  for_lines(text, [&](std::string_view line, int64_t number, bool) {
    const std::string place = fmt::format("{}, line {}", source, number);
    const Json json = parse_json(line, place);
    const JsonObject reply(json, place);
    const std::string prompt = reply.string("prompt");
    const bool ReplyPair::*has = after ? &ReplyPair::has_after : &ReplyPair::has_before;
    auto sample = std::ranges::find_if(samples, [&](const ReplyPair& s) { return s.prompt == prompt && !(s.*has); });
    if (sample == samples.end()) {
      if (samples.size() == kMostSamples) user_error("{}: found more than {} prompts", source, kMostSamples);
      sample = samples.insert(samples.end(), ReplyPair{prompt, "", ""});
    }
    (after ? sample->after : sample->before) = reply.string("text");
    (after ? sample->has_after : sample->has_before) = true;
  });
}

TextByKey parse_job_lines(std::string_view text) {
  TextByKey job;
  for_lines(text, [&](std::string_view line, int64_t, bool) {
    const size_t colon = line.find(": ");
    const std::string_view key = line.substr(0, colon);
    if (colon != line.npos && line.front() != ' ' && key != "format") job.emplace_back(key, line.substr(colon + 2));
  });
  return job;
}

bool is_before_its_first_step(const fs::path& directory) {
  const bool has_job = is_file(directory / "job.yaml");
  if (has_job && is_file(directory / "plan.json")) return false;
  std::error_code ignored;
  return has_job || fs::exists(directory / ".owner", ignored) || fs::is_directory(directory / "checkpoints", ignored);
}

RunFiles read_run(const fs::path& directory) {
  RunFiles run;
  const fs::path plain = directory.lexically_normal();
  run.name = cut_text((plain.has_filename() ? plain : plain.parent_path()).filename().string(), kNameBytes);
  const fs::path job = directory / "job.yaml", plan = directory / "plan.json";
  if (!is_file(job) || !is_file(plan))
    user_error("{}: found no run, expected a directory with job.yaml and plan.json, which 'snug train {}' makes",
               directory.string(), option_name("out"));
  run.job = parse_job_lines(read_text(job, kMaxJob));
  run.plan = parse_plan(read_text(plan, kMaxPlan), plan.string());
  const auto with = [&](const char* name, uint64_t most, const auto& use) {
    const fs::path path = directory / name;
    if (const auto text = optional_text(path, most)) use(*text, path.string());
  };
  with("metrics.jsonl", kMaxMetrics,
       [&](const auto& text, const auto& path) { run.metrics = parse_metrics(text, path); });
  with("trace.json", kMaxTrace, [&](const auto& text, const auto& path) { run.timeline = parse_trace(text, path); });
  with("samples-before.jsonl", kMaxSamples,
       [&](const auto& text, const auto& path) { add_samples(text, path, false, run.samples); });
  with("samples-after.jsonl", kMaxSamples,
       [&](const auto& text, const auto& path) { add_samples(text, path, true, run.samples); });
  with(kRunEnd, kMaxEnd, [&](const auto& text, const auto& path) { run.end = parse_end(text, path); });
  if (const auto state = last_state(directory)) {
    run.fingerprint = fingerprint_of(read_text(state->first, kMaxState), state->first);
    run.checkpoint = state->second;
  }
  return run;
}

}  // namespace snug
