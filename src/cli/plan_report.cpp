#include "cli/plan_report.h"

#include <algorithm>
#include <cmath>

namespace snug {
namespace {

uint64_t device_bytes(const Forecast& f) { return f.arena_bytes[index(Space::Device)]; }
uint64_t host_bytes(const Forecast& f) { return f.arena_bytes[index(Space::Host)]; }

// "134,515,008"
std::string grouped(int64_t number) {
  std::string digits = fmt::format("{}", number);
  for (size_t i = digits.size(); i > 3;) {
    i -= 3;
    digits.insert(i, ",");
  }
  return digits;
}

nlohmann::ordered_json arrangement_json(const Arrangement& a) {
  std::vector<std::string> recompute, offload;
  for (const Fates& fates : a.strategy.fates) {
    recompute.push_back(recompute_words(fates));
    offload.push_back(offload_words(fates));
  }
  return {{"micro_batch_size", a.cut.micro_batch},
          {"gradient_accumulation_steps", a.cut.passes},
          {"recompute", recompute},
          {"ranks", a.cut.ranks},
          {"replicas", a.strategy.replicas},
          {"offloaded", offload},
          {"words", a.words}};
}

// Those that take as many bytes as the chosen one, or that are slower and take more, teach nothing.
const Arrangement* neighbour(const Planned& planned, bool cheaper) {
  if (!planned.fit.chosen) return nullptr;
  const Arrangement& chosen = planned.fit.tried[*planned.fit.chosen];
  const Arrangement* best = nullptr;
  for (const Arrangement& other : planned.fit.tried) {
    const bool wanted =
        cheaper ? total_bytes(other) < total_bytes(chosen)
                : other.step_seconds < 0.98 * chosen.step_seconds && total_bytes(other) > total_bytes(chosen);
    if (wanted && (!best || other.step_seconds < best->step_seconds)) best = &other;
  }
  return best;
}

std::string neighbour_text(std::string_view what, const Arrangement* other, const Arrangement& chosen) {
  if (!other) return fmt::format("{:<13} none\n", what);
  return fmt::format("{:<13} {}: {}, {:.0f} % of the time, estimated\n", what, other->words,
                     format_size(total_bytes(*other)), 100 * other->step_seconds / chosen.step_seconds);
}

// "1 step", "2 steps"
std::string counted(int64_t number, std::string_view thing) {
  return fmt::format("{} {}{}", grouped(number), thing, number == 1 ? "" : "s");
}

std::string data_text(const DataSummary& data, int64_t tokens_per_step) {
  return fmt::format("{:<13} {}, {} tokens ({} with loss) in {}; {} an epoch of {} tokens each\n", "data",
                     counted(data.samples_per_epoch, "sample"), grouped(data.tokens_per_epoch),
                     grouped(data.loss_tokens_per_epoch), counted(data.blocks_per_epoch, "block"),
                     counted(data.steps_per_epoch, "step"), grouped(tokens_per_step));
}

std::string classes_text(const Forecast& f) {
  std::string text = fmt::format("{:<13} at {}\n", "fullest", f.peak_site);
  std::vector<Forecast::Class> classes = f.classes;
  std::ranges::sort(classes, std::greater(), &Forecast::Class::bytes);
  for (const Forecast::Class& c : classes)
    text += fmt::format("  {:<11} {:>12}  {:>5.1f} %\n", c.name, format_size(c.bytes),
                        100 * static_cast<double>(c.bytes) / static_cast<double>(device_bytes(f)));
  text += fmt::format("  {:<11} {:>12}  = {} bytes\n", "together", format_size(device_bytes(f)),
                      grouped(static_cast<int64_t>(device_bytes(f))));
  return text;
}

// Of blocks that are full: with shorter documents and tokens without loss a step is quicker.
std::string time_text(const Arrangement& a, const Pricing& pricing) {
  const auto rate = static_cast<double>(a.cut.step_tokens()) / a.step_seconds;
  return fmt::format("{:<13} a step about {:.{}f} s ({} tokens/s), estimated from {}\n", "time", a.step_seconds,
                     a.step_seconds < 0.1 ? 4 : 2, grouped(std::llround(rate)), pricing.file);
}

}  // namespace

nlohmann::ordered_json plan_json(const Planned& planned, const std::optional<DataSummary>& data) {
  const Arrangement& a = planned.shown();
  nlohmann::ordered_json json{
      {"fits", planned.fit.chosen.has_value()},   {"hash", fmt::format("{:016x}", planned.compiled.hash)},
      {"arrangement", arrangement_json(a)},       {"device_bytes", device_bytes(a.forecast)},
      {"host_bytes", host_bytes(a.forecast)},     {"disk_bytes", a.forecast.arena_bytes[index(Space::Disk)]},
      {"driver_bytes", planned.caps.driver_bytes}};
  for (const Forecast::Phase& phase : a.forecast.phases) json["phases"][phase.name] = phase.bytes[index(Space::Device)];
  for (const Forecast::Class& c : a.forecast.classes) json["classes"][c.name] = c.bytes;
  json["peak"] = a.forecast.peak_site;
  json["parameters"] = planned.spec.table.count(false);
  json["trainable_parameters"] = planned.spec.table.count(true);
  json["tokens_per_step"] = a.cut.step_tokens();
  json["samples_per_epoch"] = nullptr;
  json["steps_per_epoch"] = nullptr;
  if (data) {
    json["samples_per_epoch"] = data->samples_per_epoch;
    json["steps_per_epoch"] = data->steps_per_epoch;
  }
  json["step_seconds"] = nullptr;
  if (planned.pricing.measured()) json["step_seconds"] = a.step_seconds;
  json["alternatives"] = nlohmann::ordered_json::array();
  for (const Arrangement& other : planned.fit.tried)
    json["alternatives"].push_back({{"arrangement", other.words},
                                    {"fits", other.fits},
                                    {"device_bytes", device_bytes(other.forecast)},
                                    {"host_bytes", host_bytes(other.forecast)},
                                    {"relative_time", other.step_seconds / a.step_seconds}});
  return json;
}

std::string plan_text(const Planned& planned, const Options& options, const std::optional<DataSummary>& data) {
  const Arrangement& a = planned.shown();
  const ParamTable& table = planned.spec.table;
  const Need need = tightest(a, planned.caps);
  std::string text =
      fmt::format("{:<13} {}, {} parameters, {} trained ({})\n", "model", name(planned.spec.config.architecture),
                  grouped(table.count(false)), grouped(table.count(true)),
                  options.method == "lora" ? fmt::format("lora, rank {}", adapter_of(options).rank) : "full");
  const std::optional<Machine>& machine = planned.target.machine();
  text += fmt::format("{:<13} {} of {} tokens, products in {}, on {}\n", "step", counted(options.batch_size, "block"),
                      grouped(a.cut.sequence_length), name(planned.spec.numerics.compute),
                      planned.target.cuda() ? machine->cards->name
                                            : fmt::format("cpu with {}", counted(thread_count(options), "thread")));
  if (data) text += data_text(*data, a.cut.step_tokens());
  text += fmt::format("{:<13} {}\n", "arrangement", a.words);
  if (planned.pricing.measured()) text += time_text(a, planned.pricing);
  text += fmt::format("{:<13} {}: {} {} of {} {}\n", "memory", planned.fit.chosen ? "fits" : "DOES NOT FIT", need.what,
                      format_size(need.bytes), format_size(need.allowed), limit_word(options, need.allowed));
  text += classes_text(a.forecast);
  text += fmt::format("{:<13} {:>12}  {:>12}\n", "phase", "device", "host");
  for (const Forecast::Phase& phase : a.forecast.phases)
    text += fmt::format("  {:<11} {:>12}  {:>12}\n", phase.name, format_size(phase.bytes[index(Space::Device)]),
                        format_size(phase.bytes[index(Space::Host)]));
  if (planned.fit.chosen) {
    text += neighbour_text("cheaper", neighbour(planned, true), a);
    text += neighbour_text("faster", neighbour(planned, false), a);
  }
  return text;
}

}  // namespace snug
