#include "api/plan_report.h"

#include <algorithm>
#include <cmath>

#include "api/kernel_report.h"
#include "api/objective.h"
#include "api/plan_alternatives.h"
#include "api/plan_bytes.h"
#include "api/rules.h"
#include "api/saving.h"
#include "base/hash.h"
#include "base/option_name.h"
#include "base/rounding.h"
#include "base/size_text.h"
#include "plan/search/simplicity.h"

namespace snug {
namespace {

// Returns what fills a device, and when.
std::vector<Forecast::Class> classes_of(const Planned& planned) {
  std::vector<Forecast::Class> classes = planned.shown().forecast.classes;
  if (const uint64_t driver = driver_bytes(planned, Space::Device); driver > 0) classes.push_back({"driver", driver});
  std::ranges::sort(classes, std::greater(), &Forecast::Class::bytes);
  return classes;
}
uint64_t phase_bytes(const Planned& planned, const Forecast::Phase& phase, Space space) {
  return phase.bytes[index(space)] + driver_bytes(planned, space);
}

// Returns a number with its digits grouped: "134,515,008".
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
  for (const ActivationPolicy& policy : a.strategy.activations) {
    recompute.push_back(recompute_words(policy));
    offload.push_back(offload_words(policy));
  }
  return {{"micro_batch_size", a.cut.micro_batch},
          {"gradient_accumulation_steps", a.cut.passes},
          {"recompute", recompute},
          {"ranks", a.cut.ranks},
          {"replicas", a.strategy.replicas},
          {"order", a.strategy.layer_major ? "layer" : "pass"},
          {"deferred_updates", a.strategy.defer_updates},
          {"speculative_updates", a.strategy.speculate},
          {"updates_in_backward", a.strategy.update_in_backward},
          {"offloaded", offload},
          {"zero", zero_stage(a.strategy)},
          {"sharded_groups", std::ranges::count(a.strategy.groups, true, &GroupPlacement::shard_weights)},
          {"words", a.words}};
}

// Returns "1 step" or "2 steps".
std::string counted(int64_t number, std::string_view thing) {
  return fmt::format("{} {}{}", grouped(number), thing, number == 1 ? "" : "s");
}

std::string data_text(const DataSummary& data, int64_t tokens_per_step) {
  return fmt::format("{:<13} {}, {} tokens ({} with loss) in {}; {} an epoch of {} tokens each\n", "data",
                     counted(data.samples_per_epoch, "sample"), grouped(data.tokens_per_epoch),
                     grouped(data.loss_tokens_per_epoch), counted(data.blocks_per_epoch, "block"),
                     counted(data.steps_per_epoch, "step"), grouped(tokens_per_step));
}

// Returns "of 1, 2, 4 or 8 eighths of their tokens, as documents need: 71 % of the blocks is padding".
std::string short_passes_text(const Cut& cut, const DataSummary& data) {
  if (cut.short_eighths.empty()) return "";
  return fmt::format(
      "{:<13} of {} or 8 eighths of their tokens, as documents need: {:.0f} % of the blocks is padding\n", "passes",
      fmt::join(cut.short_eighths, ", "), 100 * (1 - data.filled(cut.sequence_length)));
}

// Returns "images   up to 2,916 patches a block; passes of 2,916, 732 or no patches a block, as their images need".
std::string images_text(const Cut& cut, bool given) {
  if (cut.patches.empty()) return "";
  std::vector<std::string> shapes;
  for (const int64_t patches : cut.patches) shapes.push_back(patches > 0 ? grouped(patches) : "no");
  std::string last = std::move(shapes.back());
  shapes.pop_back();
  return fmt::format("{:<13} up to {} patches a block; passes of {}{}{} patches a block, as their images need{}\n",
                     "images", grouped(cut.patches[0]), fmt::join(shapes, ", "), shapes.empty() ? "" : " or ", last,
                     given ? "; their rows are given, and the tower's weights are not held" : "");
}

std::string classes_text(const Planned& planned) {
  const Arrangement& a = planned.shown();
  const uint64_t all = device_bytes(planned, a.forecast);
  std::string text = fmt::format("{:<13} {}at {}\n", "fullest", a.cut.ranks > 1 ? "on a rank, " : "",
                                 a.forecast.peak_sites[index(Space::Device)]);
  for (const Forecast::Class& c : classes_of(planned))
    text += fmt::format("  {:<11} {:>12}  {:>5.1f} %\n", c.name, format_size(c.bytes),
                        100 * static_cast<double>(c.bytes) / static_cast<double>(all));
  text +=
      fmt::format("  {:<11} {:>12}  = {} bytes\n", "together", format_size(all), grouped(static_cast<int64_t>(all)));
  return text;
}

// Returns bytes by phase; the disk's only if something is offloaded to it.
std::string phases_text(const Planned& planned) {
  const Forecast& f = planned.shown().forecast;
  const bool disk = f.arena_bytes[index(Space::Disk)] > 0;
  auto line = [&](std::string_view what, const auto& cell) {
    const std::string last = disk ? fmt::format("  {:>12}", cell(Space::Disk)) : "";
    return fmt::format("{:<13} {:>12}  {:>12}{}\n", what, cell(Space::Device), cell(Space::Host), last);
  };
  std::string text = line(planned.shown().cut.ranks > 1 ? "phase, a rank" : "phase",
                          [](Space space) { return std::string(name(space)); });
  for (const Forecast::Phase& phase : f.phases)
    text += line("  " + phase.name, [&](Space space) { return format_size(phase_bytes(planned, phase, space)); });
  return text;
}

// A lane's work below this share of a step is not worth a line.
constexpr double kNoticed = 0.001;

// Returns seconds with a suitable number of digits: "0.0123", "1.23".
std::string seconds_text(double seconds) { return fmt::format("{:.{}f}", seconds, seconds < 0.1 ? 4 : 2); }

// Returns the source of the rates. On a machine known only by name nothing was measured.
std::string source_text(const Planned& planned) {
  const std::string& file = planned.pricing.file;
  if (!builtin_machine(file)) return file;
  if (!planned.target.cuda()) return fmt::format("rough rates: the name {} stands for cards alone", file);
  return file + ": its maker's figures as far as an H200 reaches its own, an H200's driver";
}

// Returns the time of a step with full blocks; with shorter documents and tokens without loss it is shorter.
std::string time_text(const Planned& planned) {
  const Arrangement& a = planned.shown();
  const auto rate = static_cast<double>(a.cut.step_tokens()) / a.step_seconds;
  const std::string of_rank =
      a.cut.ranks > 1 ? fmt::format(", {} a rank", grouped(std::llround(rate / a.cut.ranks))) : "";
  std::string text =
      fmt::format("{:<13} a step about {} s ({} tokens/s{}), estimated from {}\n", "time", seconds_text(a.step_seconds),
                  grouped(std::llround(rate)), of_rank, source_text(planned));
  for (const Bound& bound : bounds_of_step(planned.compiled, planned.pricing))
    if (bound.busy > kNoticed * a.step_seconds)
      text += fmt::format("  {:<11} busy {} s, costs {} s a step\n", bound.what, seconds_text(bound.busy),
                          seconds_text(std::max(0.0, bound.adds)));
  if (planned.compiled.has(Task::Reapply))
    text += fmt::format("  {:<11} a step that is clipped takes {} s more\n", "reapply",
                        seconds_text(reapply_seconds(planned.compiled, planned.pricing)));
  return text;
}

// Rough rates rank arrangements, and say nothing of seconds.
std::string no_time_text() {
  return fmt::format("{:<13} not forecast, as no rates were measured: 'snug doctor' does, and {} takes its profile\n",
                     "time", option_name("machine"));
}

// A node is assumed to have this many ranks at most, as nodes with more cards are rare.
constexpr int kMostRanksOfANode = 16;

// Holds the bytes a second that a card takes from the others of its node, and from those of other nodes, if there are
// any.
struct Links {
  std::optional<double> own_node, other_nodes;
};

// Returns the links of a job of several cards.
std::optional<Links> links_of(const Planned& planned) {
  if (!planned.target.cuda() || planned.shown().cut.ranks == 1) return std::nullopt;
  const Cards& cards = *planned.pricing.machine.cards;
  Links links;
  if (node_ranks(planned) > 1) links.own_node = planned.pricing.nodes.link(cards).rate;
  if (nodes_of(planned) > 1) links.other_nodes = cards.node_link;
  return links;
}

// Returns where the ranks are, and what connects them.
std::string links_text(const Planned& planned, const Links& links) {
  const int ranks_per_node = node_ranks(planned), nodes = nodes_of(planned);
  std::string text =
      fmt::format("{:<13} {} x {}", "cards", planned.shown().cut.ranks, planned.target.machine()->cards->name);
  if (links.own_node) text += fmt::format(", {:.1f} GB/s to each from the others of its node", *links.own_node / 1e9);
  if (nodes == 1 && ranks_per_node > kMostRanksOfANode)
    text += fmt::format("; all on one node: {} says of how many they are", option_name("nodes"));
  if (links.other_nodes)
    text += fmt::format("; {} nodes of {}, {:.1f} GB/s to each from other nodes", nodes, ranks_per_node,
                        *links.other_nodes / 1e9);
  return text + "\n";
}

nlohmann::ordered_json links_json(const Links& links) {
  const auto rounded = [](const std::optional<double>& rate) -> nlohmann::ordered_json {
    return rate ? nlohmann::ordered_json(std::llround(*rate)) : nullptr;
  };
  return {{"from_own_host_bytes_per_second", rounded(links.own_node)},
          {"from_other_hosts_bytes_per_second", rounded(links.other_nodes)}};
}

// Returns "device 12.90 GiB each", "host 1.00 GiB (rank 3) to 1.02 GiB (rank 0)".
std::string range_text(const std::vector<RankBytes>& ranks, Space space) {
  const auto of = [space](const RankBytes& rank) { return rank.bytes[index(space)]; };
  const auto [least, most] = std::ranges::minmax_element(ranks, {}, of);
  if (format_size(of(*least)) == format_size(of(*most)))
    return fmt::format("{} {} each", name(space), format_size(of(*most)));
  return fmt::format("{} {} (rank {}) to {} (rank {})", name(space), format_size(of(*least)), least->rank,
                     format_size(of(*most)), most->rank);
}

// Returns "20.95 GiB free". A machine known only by name has the memory of its cards; its other memory is unknown, and
// a run has what is here.
std::string limit_text(const Planned& planned, const JobConfig& options, const Need& need) {
  std::string word = limit_word(options, need);
  const bool named = planned.mode == PlanMode::Look && builtin_machine(options.machine);
  if (named && need.option != "device_memory" && word == "free")
    word = fmt::format("assumed, {} says what there is", option_name(need.option));
  return fmt::format("{} {}", format_size(need.allowed), word);
}

// Returns "/dev/shm/run is on tmpfs, which is memory: 12 MiB that are saved there count to the host".
std::string tmpfs_text(const Planned& planned, const JobConfig& options) {
  const uint64_t saved = planned.caps.saved_host_bytes,
                 offloaded = node_bytes(planned, planned.shown().forecast, Space::Disk);
  std::string text;
  const auto line = [&](const std::filesystem::path& directory, uint64_t bytes, std::string_view what) {
    if (bytes > 0)
      text += fmt::format("  {:<11} {} is on tmpfs, which is memory: {} that are {} there count to the host\n", "tmpfs",
                          directory.string(), format_size(bytes), what);
  };
  line(out_directory(options), saved, "saved");
  if (planned.caps.disk_is_memory) line(disk_directory(options), offloaded, "offloaded");
  return text;
}

// Returns "fits: device and host together 1.20 GiB of 20.95 GiB free".
std::string memory_text(const Planned& planned, const JobConfig& options) {
  const Arrangement& a = planned.shown();
  std::vector<std::string> parts;
  for (const Need& need : needs(a.forecast, a.cut.ranks, planned.caps))
    parts.push_back(fmt::format("{} {} of {}", need.what, format_size(need.bytes), limit_text(planned, options, need)));
  return fmt::format("{:<13} {}: {}\n", "memory", planned.fit.chosen ? "fits" : "DOES NOT FIT",
                     fmt::join(parts, ", ")) +
         tmpfs_text(planned, options);
}

// Returns the spaces whose size is only assumed and that hold what is offloaded.
std::vector<Space> assumed_spaces(const Planned& planned) {
  std::vector<Space> spaces{Space::Host, Space::Disk};
  std::erase_if(spaces,
                [&](Space space) { return !rests_on_assumed_memory(planned.shown().strategy, planned.caps, space); });
  return spaces;
}

// Returns "it rests on 455.92 GiB of the host memory of 8xH100, which is only assumed: ...".
std::string assumed_text(const Planned& planned, const JobConfig& options) {
  std::string text;
  for (const Space space : assumed_spaces(planned))
    text += fmt::format(
        "{:<13} it rests on {} of {} of {}, which is only assumed: a profile that `snug doctor` writes there makes it "
        "known, or --{}-memory\n",
        "ASSUMED", format_size(node_bytes(planned, planned.shown().forecast, space)),
        space == Space::Host ? "the host memory" : "the disk", options.machine, name(space));
  return text;
}

SavingPlan saving_of(const Planned& planned, const JobConfig& options, const std::optional<DataSummary>& data) {
  return saving_plan(planned, options, data ? std::optional(data->steps) : std::nullopt);
}

// Returns "3 checkpoints of 89.75 GiB at a time and the model of 14.96 GiB: 284.20 GiB of disk".
std::string saved_text(const SavingPlan& saving, const JobConfig& options) {
  const std::string one = format_size(saving.checkpoint_bytes), exported = format_size(saving.export_bytes);
  const std::string_view what = options.method == "lora" ? "the adapter" : "the model";
  if (options.keep < 0)
    return fmt::format("{:<13} {} a checkpoint, of which all are kept, and {} of {} on the disk\n", "saved", one, what,
                       exported);
  const int64_t count = saving.most_checkpoints();
  return fmt::format("{:<13} {} of {}{} and {} of {}: {} of disk\n", "saved", counted(count, "checkpoint"), one,
                     count > 1 ? " at a time" : "", what, exported, format_size(saving.saved_bytes()));
}

// Returns the disk on which what a run saves has no room, of a plan that is only read; a run finds out by itself.
// Several hosts may share a disk or not.
std::optional<LackOfRoom> lack_of_room(const Planned& planned, const SavingPlan& saving, const JobConfig& options) {
  if (planned.mode != PlanMode::Look || !planned.fit.chosen || nodes_of(planned) > 1) return std::nullopt;
  if (options.machine.empty()) return lack_of_room(saving);
  return lack_of_room(saving, std::max(planned.target.machine()->disk.free_bytes, options.disk_memory.value_or(0)));
}

std::string lack_text(const Planned& planned, const SavingPlan& saving, const JobConfig& options) {
  const std::optional<LackOfRoom> lack = lack_of_room(planned, saving, options);
  if (!lack) return "";
  const bool assumed = builtin_machine(options.machine) && !options.disk_memory;
  return fmt::format(
      "{:<13} DOES NOT FIT, a run is refused: {}{}\n", "disk", lack->words,
      assumed ? fmt::format("; the size of the disk is assumed, {} says what there is", option_name("disk_memory"))
              : "");
}

// Returns what a job takes that goes before the run, in words for what it is and for what else it takes.
std::string before_text(std::string_view name, const std::string& what, const Planned& job, const JobConfig& options,
                        const std::string& more = "") {
  return fmt::format("{:<13} {} by itself, and is gone before the run takes its memory: {}\n", name, what,
                     job.shown().words) +
         more + memory_text(job, options) + phases_text(job);
}

std::string before_text(const JobsBefore& before, const JobConfig& options) {
  std::string text;
  if (const auto& model = before.reference) {
    const std::string kept = options.found.teacher_bytes == 0
                                 ? ""
                                 : fmt::format("{:<13} {} of disk for what it says of the data\n", "",
                                               format_size(options.found.teacher_bytes));
    text += before_text(model->spec.objective.has_teacher() ? "teacher" : "reference",
                        fmt::format("{}, {} parameters; it scores the data", model->spec.model.architecture,
                                    grouped(model->spec.table.count(false))),
                        *model, options, kept);
  }
  if (before.embedding)
    text += before_text("image rows", "the tower makes those that are missing", *before.embedding, options);
  return text;
}

nlohmann::ordered_json before_json(const Planned& job) {
  const Forecast& f = job.shown().forecast;
  nlohmann::ordered_json json{{"fits", job.fit.chosen.has_value()},
                              {"words", job.shown().words},
                              {"parameters", job.spec.table.count(false)},
                              {"device_bytes", device_bytes(job, f)},
                              {"host_bytes", node_bytes(job, f, Space::Host)},
                              {"disk_bytes", node_bytes(job, f, Space::Disk)},
                              {"ranks", ranks_json(job.fit.ranks)}};
  for (const Forecast::Phase& phase : f.phases) json["phases"][phase.name] = phase_bytes(job, phase, Space::Device);
  return json;
}

nlohmann::ordered_json time_json(const Planned& planned) {
  const std::vector<Bound> bounds = bounds_of_step(planned.compiled, planned.pricing);
  nlohmann::ordered_json json{{"bound_by", bounds.front().what}};
  for (const Bound& bound : bounds)
    json[std::string(bound.what)] = {{"busy_seconds", bound.busy}, {"adds_seconds", bound.adds}};
  return json;
}

}  // namespace

nlohmann::ordered_json ranks_json(const std::vector<RankBytes>& ranks) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const RankBytes& rank : ranks) {
    json.push_back({{"rank", rank.rank}});
    for (const Space space : kSpaces) json.back()[fmt::format("{}_bytes", name(space))] = rank.bytes[index(space)];
  }
  return json;
}

std::string ranks_text(const std::vector<RankBytes>& ranks, int of_all) {
  std::vector<std::string> spaces;
  for (const Space space : kSpaces)
    if (std::ranges::any_of(ranks, [&](const RankBytes& rank) { return rank.bytes[index(space)] > 0; }))
      spaces.push_back(range_text(ranks, space));
  const int count = static_cast<int>(ranks.size());
  return fmt::format(
      "{} need in arenas: {}",
      count == of_all ? fmt::format("all {}", count) : fmt::format("{} that were looked at, of {},", count, of_all),
      fmt::join(spaces, ", "));
}

nlohmann::ordered_json plan_json(const Plan& plan) {
  const JobConfig& options = plan.config;
  const Planned& planned = plan.planned;
  const std::optional<DataSummary>& data = plan.data;
  const JobsBefore& before = plan.before;
  const Arrangement& a = planned.shown();
  nlohmann::ordered_json json{{"format", 1},
                              {"fits", planned.fit.chosen.has_value()},
                              {"hash", hex(planned.compiled.hash)},
                              {"arrangement", arrangement_json(a)},
                              {"device_bytes", device_bytes(planned, a.forecast)},
                              {"host_bytes", node_bytes(planned, a.forecast, Space::Host)},
                              {"disk_bytes", node_bytes(planned, a.forecast, Space::Disk)},
                              {"driver_bytes", driver_bytes(planned, Space::Device)},
                              {"driver_host_bytes", driver_bytes(planned, Space::Host)}};
  json["assumed_memory"] = nlohmann::ordered_json::array();
  for (const Space space : assumed_spaces(planned)) json["assumed_memory"].push_back(name(space));
  json["ranks"] = ranks_json(planned.fit.ranks);
  json["device"] = planned.target.cuda() ? planned.target.machine()->cards->name : "cpu";
  json["threads"] = planned.pricing.threads;
  json["node"]["count"] = nodes_of(planned);
  json["node"]["ranks"] = node_ranks(planned);
  for (const Space space : kSpaces)
    json["node"][fmt::format("{}_bytes", name(space))] = node_bytes(planned, a.forecast, space);
  const std::optional<Links> links = links_of(planned);
  json["links"] = links ? links_json(*links) : nullptr;
  for (const Forecast::Phase& phase : a.forecast.phases)
    json["phases"][phase.name] = phase_bytes(planned, phase, Space::Device);
  for (const Forecast::Class& c : classes_of(planned)) json["classes"][c.name] = c.bytes;
  json["peak"] = a.forecast.peak_sites[index(Space::Device)];
  const SavingPlan saving = saving_of(planned, options, data);
  json["saved"] = {
      {"checkpoint_bytes", saving.checkpoint_bytes}, {"checkpoints", nullptr}, {"export_bytes", saving.export_bytes}};
  if (options.keep >= 0) json["saved"]["checkpoints"] = saving.most_checkpoints();
  const std::optional<LackOfRoom> lack = lack_of_room(planned, saving, options);
  json["saved"]["lacks_bytes"] = nullptr;
  if (lack) json["saved"]["lacks_bytes"] = lack->needed - lack->free;
  json["parameters"] = planned.spec.table.count(false);
  json["trainable_parameters"] = planned.spec.table.count(true);
  json["tokens_per_step"] = a.cut.step_tokens();
  json["samples_per_epoch"] = nullptr;
  json["steps_per_epoch"] = nullptr;
  if (data) {
    json["samples_per_epoch"] = data->samples_per_epoch;
    json["steps_per_epoch"] = data->steps_per_epoch;
  }
  json["step_seconds"] = json["estimated_from"] = json["reapply_seconds"] = json["step_time"] = nullptr;
  if (planned.pricing.measured()) {
    json["step_seconds"] = a.step_seconds;
    json["estimated_from"] = source_text(planned);
    if (planned.compiled.has(Task::Reapply))
      json["reapply_seconds"] = reapply_seconds(planned.compiled, planned.pricing);
    json["step_time"] = time_json(planned);
  }
  if (before.reference) {
    json["reference"] = before_json(*before.reference);
    if (options.found.teacher_bytes > 0) json["reference"]["teacher_bytes"] = options.found.teacher_bytes;
  }
  if (before.embedding) json["image_rows"] = before_json(*before.embedding);
  json["kernels"] = kernels_json(planned);
  json["alternatives"] = json["changes"] = nlohmann::ordered_json::array();
  json["more_memory"] = json["less_memory"] = nullptr;  // a run does not look for them
  for (size_t i = 0; i < planned.fit.tried.size(); i++)
    if (i != planned.fit.chosen) json["alternatives"].push_back(alternative_json(planned, planned.fit.tried[i]));
  if (planned.more) json["more_memory"] = nlohmann::ordered_json::array();
  for (const Alternative& more : planned.more.value_or(std::vector<Alternative>())) {
    json["more_memory"].push_back(alternative_json(planned, more.arrangement));
    json["more_memory"].back()["gigabytes"] = more.gigabytes;
  }
  if (planned.less) json["less_memory"] = alternative_json(planned, *planned.less);
  for (const Change& change : planned.changes) {
    json["changes"].push_back(alternative_json(planned, change.arrangement));
    json["changes"].back()["option"] = change.option;
  }
  return json;
}

std::string use_text(const Planned& planned, const JobConfig& options) {
  return fmt::format("{:<13} {}\n", "arrangement", planned.shown().words) + assumed_text(planned, options) +
         memory_text(planned, options);
}

std::string plan_text(const Plan& plan) {
  const JobConfig& options = plan.config;
  const Planned& planned = plan.planned;
  const std::optional<DataSummary>& data = plan.data;
  const JobsBefore& before = plan.before;
  const Arrangement& a = planned.shown();
  const ParamTable& table = planned.spec.table;
  std::string text =
      fmt::format("{:<13} {}, {} parameters, {} trained ({})\n", "model", planned.spec.model.architecture,
                  grouped(table.count(false)), grouped(table.count(true)), method_words(planned.spec));
  if (const ObjectiveOptions& objective = planned.spec.objective; objective != ObjectiveOptions())
    text += fmt::format("{:<13} {}\n", "objective", objective_words(objective));
  const std::optional<Machine>& machine = planned.target.machine();
  text += fmt::format("{:<13} {} of {} tokens, products in {}, on {}\n", "step", counted(options.batch_size, "block"),
                      grouped(a.cut.sequence_length), options.compute,
                      planned.target.cuda() ? machine->cards->name
                                            : fmt::format("cpu with {}{}", counted(planned.pricing.threads, "thread"),
                                                          a.cut.ranks > 1 ? " a rank" : ""));
  if (data) text += data_text(*data, a.cut.step_tokens()) + short_passes_text(a.cut, *data);
  text += images_text(a.cut, planned.spec.given_embeddings);
  if (options.found.decoding_bytes > 0 && !planned.spec.given_embeddings)
    text += fmt::format("{:<13} as images are read, up to {} of the host{}, which is among what memory takes below\n",
                        "", format_size(options.found.decoding_bytes), a.cut.ranks > 1 ? " a rank" : "");
  text += fmt::format("{:<13} {}\n", "arrangement", a.words) + choice_text(planned) + assumed_text(planned, options);
  if (const std::optional<Links> links = links_of(planned)) text += links_text(planned, *links);
  text += planned.pricing.measured() ? time_text(planned) + slow_kernels_text(planned) : no_time_text();
  const SavingPlan saving = saving_of(planned, options, data);
  text += memory_text(planned, options) + lack_text(planned, saving, options);
  if (a.cut.ranks > 1) text += fmt::format("{:<13} {}\n", "ranks", ranks_text(planned.fit.ranks, a.cut.ranks));
  text += classes_text(planned);
  text += phases_text(planned);
  text += before_text(before, options);
  if (planned.fit.chosen) text += saved_text(saving, options);
  text += planned.fit.chosen ? alternatives_text(planned) : changes_text(planned);
  return text;
}

}  // namespace snug
