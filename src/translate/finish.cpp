// Makes keys of what only several options say together: ranks and batch, the length of a run, the learning rate.
#include <algorithm>
#include <cmath>

#include "base/ascii.h"
#include "translate/translator.h"

namespace snug {
namespace {

// ---- Ranks and batch ------------------------------------------------------------------------------------------------

// Returns how many GPUs a list names: "0,1", or DeepSpeed's "host:0,1@other:0,1".
int64_t listed(std::string_view list) {
  int64_t count = 0;
  for (size_t at = 0; at <= list.size();) {
    const size_t end = std::min(list.find('@', at), list.size());
    std::string_view host = list.substr(at, end - at);
    if (const size_t colon = host.find(':'); colon != std::string_view::npos) host.remove_prefix(colon + 1);
    count += std::ssize(items_of(host));
    at = end + 1;
  }
  return count;
}

std::optional<int64_t> count_of(const Translator& t, const std::string& name) {
  const std::optional<double> number = t.number(name);
  if (!number || *number < 1 || *number > 1 << 20 || *number != std::floor(*number)) return std::nullopt;
  return static_cast<int64_t>(*number);
}

// Judges all settings but the one that counts.
void judge_others(Translator& t, const std::string& name, const Setting* counts) {
  for (const Setting* other : t.all_held(name))
    if (other != counts) t.judge(*other, Mark::Decided, "another one counts");
}

// Returns "1 rank", "8 ranks"; "1 pass", "8 passes".
std::string plural(double count, std::string_view word) {
  if (word == "passe" && count == 1) word = "pass";
  return fmt::format("{} {}{}", number_text(count), word, count == 1 ? "" : "s");
}

struct Ranks {
  std::optional<int64_t> all;
  const Setting* from = nullptr;
};

Ranks find_ranks(Translator& t, int64_t hosts) {
  if (t.asked_ranks()) return {t.asked_ranks(), nullptr};
  if (const auto count = count_of(t, "ranks")) {
    const Setting* from = t.held("ranks");
    return {from->name == "num_processes" ? *count : *count * hosts, from};  // accelerate counts those of all machines
  }
  for (const char* name : {"gpu_list", "visible"})
    if (const int64_t count = listed(t.value(name)); count > 0 && lower_case(t.value(name)) != "all")
      return {name[0] == 'g' ? count : count * hosts, t.held(name)};
  if (t.starts_by().starts_with("python")) {
    t.remark("started by python: taken as one rank; --ranks says otherwise");
    return {1, nullptr};
  }
  return {};
}

Ranks finish_ranks(Translator& t) {
  const int64_t hosts = count_of(t, "hosts").value_or(1);
  const Ranks ranks = find_ranks(t, hosts);
  for (const char* name : {"ranks", "gpu_list", "visible"}) t.judge_all(name, Mark::Decided, "all GPUs of the machine");
  if (ranks.all && *ranks.all > 0 && *ranks.all <= 1 << 20) {
    if (ranks.from)
      t.put("ranks", fmt::format("{}", *ranks.all), *ranks.from);
    else
      t.set("ranks", fmt::format("{}", *ranks.all), t.asked_ranks() ? "--ranks" : "python starts one");
    if (t.asked_ranks())
      for (const char* name : {"ranks", "gpu_list", "visible"}) t.judge_all(name, Mark::Decided, "--ranks counts");
  }
  if (const Setting* setting = t.held("hosts")) {
    t.judge_all("hosts", Mark::Same, "one machine");
    if (hosts > 1)
      t.judge(*setting, Mark::Changed,
              fmt::format("snug is started once a machine: mpirun -n {} --host A,B,... snug train", hosts));
    else if (!count_of(t, "hosts"))
      t.judge(*setting, Mark::Left, filled("say with --ranks how many GPUs all machines have", *setting));
  }
  return ranks;
}

// Judges DeepSpeed's own numbers, where "auto" is the trainer's, against the trainer's.
void agree(Translator& t, const std::string& theirs, const std::string& trainers) {
  const Setting* setting = t.held(theirs);
  if (!setting) return;
  const std::optional<double> number = read_number(setting->value), other = t.number(trainers);
  if (!number)
    t.judge(*setting, Mark::Decided, "the trainer's own number counts");
  else if (t.held(trainers) && !t.held(trainers)->is_default && other != number)
    t.judge(*setting, Mark::Refused,
            fmt::format("found {} {} too, expected the same number", t.held(trainers)->written,
                        one_line(t.value(trainers))));
  else
    t.judge(*setting, Mark::Same, "in batch_size");
}

std::optional<double> either(const Translator& t, const std::string& theirs, const std::string& trainers) {
  if (const auto number = t.number(theirs)) return number;
  return t.number(trainers);
}

void set_batch(Translator& t, double batch, const Setting& from, Mark mark, const std::string& how) {
  t.put("batch_size", number_text(batch), from, mark, how);
}

// Judges a batch that is given as a whole.
bool whole_batch(Translator& t) {
  const Setting* whole = t.held("global_batch");
  if (!whole || is_off(whole->value) || t.program() == Dialect::Axolotl) return false;
  t.put("batch_size", whole->value, *whole, Mark::Same, "of all ranks");
  t.judge_all("micro", Mark::Decided, "how a step is cut into passes is chosen so that it fits");
  t.judge_all("accumulation", Mark::Decided, "batch_size is of all passes");
  return true;
}

}  // namespace

void finish_ranks_and_batch(Translator& t) {
  const Ranks ranks = finish_ranks(t);
  agree(t, "ds_micro", "micro");
  agree(t, "ds_accumulation", "accumulation");
  if (const Setting* all = t.held("ds_batch"); all && !read_number(all->value))
    t.judge(*all, Mark::Decided, "the trainer's own number counts");
  if (whole_batch(t)) return;

  const std::optional<double> micro = either(t, "ds_micro", "micro"), all = t.number("ds_batch");
  const std::optional<double> given = either(t, "ds_accumulation", "accumulation");
  double passes = given.value_or(1);
  const Setting* per_rank = t.held("global_batch");  // axolotl's batch_size is a rank's
  if (per_rank && micro && *micro > 0 && t.number("global_batch"))
    passes = std::max(1.0, std::floor(*t.number("global_batch") / *micro));
  t.judge_all("global_batch", Mark::Same, "in batch_size");
  t.judge_all("accumulation", Mark::Same, "in batch_size");
  judge_others(t, "micro", t.held("micro"));
  const Setting* from = t.held("micro") ? t.held("micro") : t.held("ds_micro");
  if (all && !(micro && given && ranks.all)) {  // any two of DeepSpeed's numbers give the third
    set_batch(t, *all, *t.held("ds_batch"), Mark::Same, "of all ranks");
    if (t.held("micro")) t.judge(*t.held("micro"), Mark::Decided, "batch_size is of all ranks");
    return;
  }
  if (!from) return;
  if (!micro || *micro < 1 || *micro > 1 << 20 || passes < 1 || passes > 1 << 20) {
    t.judge(*from, Mark::Refused, filled("expected whole numbers of at least 1", *from));
    return;
  }
  t.pin("micro_batch_size", number_text(*micro), *from);
  if (!ranks.all) {
    t.judge(*from, Mark::Refused,
            fmt::format("a step has {} on each rank, and nothing says how many ranks there are: --ranks N",
                        plural(*micro * passes, "sample")));
    return;
  }
  const double batch = *micro * passes * static_cast<double>(*ranks.all);
  const std::string product = fmt::format("{} a rank x {} x {}", number_text(*micro), plural(passes, "passe"),
                                          plural(static_cast<double>(*ranks.all), "rank"));
  set_batch(t, batch, *from, Mark::Changed, product + "; a step stays so on any number of ranks");
  if (t.has("batch_size")) t.set("batch_size", number_text(batch), product);
  if (all) {
    const bool same = *all == batch;
    t.judge(*t.held("ds_batch"), same ? Mark::Same : Mark::Refused,
            same ? "in batch_size" : fmt::format("the other numbers make {}", number_text(batch)));
  }
}

// ---- Length ---------------------------------------------------------------------------------------------------------

void finish_length(Translator& t) {
  const Setting *epochs = t.held("epochs"), *steps = t.held("max_steps"), *passes = t.held("max_passes");
  judge_others(t, "epochs", epochs);
  judge_others(t, "max_steps", steps);
  bool by_steps = false;
  if (steps) {
    const std::optional<double> number = read_number(steps->value);
    if (is_off(steps->value) || (number && *number <= 0))
      t.judge(*steps, Mark::Same, "no limit");
    else
      by_steps = t.put("max_steps", steps->value, *steps, Mark::Same, "alone it repeats the data, as there");
  }
  if (passes) {
    const std::optional<double> number = read_number(passes->value);
    const double accumulation = std::max(1.0, t.number("accumulation").value_or(1));
    if (is_off(passes->value))
      t.judge(*passes, Mark::Same, "no limit");
    else
      t.put("max_steps", number ? number_text(std::max(1.0, std::floor(*number / accumulation))) : passes->value,
            *passes, Mark::Changed, fmt::format("it counts passes there, {} a step", number_text(accumulation)));
  }
  if (!epochs) return;
  if (by_steps)
    t.judge(*epochs, Mark::Decided, "max_steps wins, as there");
  else if (epochs->value.empty())
    t.judge(*epochs, Mark::Same, "nothing stands there");
  else
    t.put("epochs", epochs->value, *epochs);
}

// ---- Learning rate --------------------------------------------------------------------------------------------------

namespace {

// Returns snug's schedule for a name; empty if it has none.
std::string_view schedule_of(std::string_view theirs) {
  static constexpr std::pair<std::string_view, std::string_view> kSchedules[] = {
      {"linear", "linear"},
      {"cosine", "cosine"},
      {"constant", "constant"},
      {"constant_with_warmup", "constant"},
      {"cosine_with_min_lr", "cosine"},
      {"cosine_with_restarts", "cosine_with_restarts"},
      {"inverse_sqrt", "inverse_sqrt"},
      {"warmuplr", "constant"},
      {"warmupdecaylr", "linear"},
      {"warmupcosinelr", "cosine"},
  };
  const auto* const found =
      std::ranges::find(kSchedules, theirs, &std::pair<std::string_view, std::string_view>::first);
  return found == std::end(kSchedules) ? "" : found->second;
}

std::string schedule_word(const std::string& value) {
  std::string word = lower_case(value);
  if (const size_t dot = word.rfind('.'); dot != word.npos) word.erase(0, dot + 1);  // SchedulerType.COSINE
  return word;
}

// Writes how the rate rises: steps if there are any, else the share.
void finish_warmup(Translator& t, bool none) {
  const Setting *steps = t.held("warmup_steps"), *ratio = t.held("warmup_ratio");
  judge_others(t, "warmup_steps", steps);
  judge_others(t, "warmup_ratio", ratio);
  const std::optional<double> count = steps ? read_number(steps->value) : std::nullopt;
  if (none) {
    for (const Setting* setting : {steps, ratio})
      if (setting) t.judge(*setting, Mark::Decided, "this schedule has no warm-up there");
    t.set("warmup_ratio", "0", "no warm-up");
    return;
  }
  if (steps && count && *count >= 1) {
    t.put("warmup_steps", steps->value, *steps);
    if (ratio) t.judge(*ratio, Mark::Decided, "warmup_steps wins, as there");
    return;
  }
  if (steps && count && *count > 0) {
    t.put("warmup_ratio", steps->value, *steps, Mark::Same, "below 1 it is a share of the run");
    if (ratio) t.judge(*ratio, Mark::Decided, "warmup_steps wins, as there");
    return;
  }
  if (steps) t.judge(*steps, Mark::Same, "none");
  if (steps && !steps->value.empty() && !count) t.judge(*steps, Mark::Refused, filled("expected a number", *steps));
  if (!ratio) {
    if (steps) t.set("warmup_ratio", "0", "no warm-up");
    return;
  }
  if (ratio->value.empty())
    t.judge(*ratio, Mark::Same, "nothing stands there"), t.set("warmup_ratio", "0", "no warm-up");
  else
    t.put("warmup_ratio", ratio->value, *ratio);
}

void finish_floor(Translator& t, std::string_view theirs) {
  const bool has_floor = theirs == "cosine_with_min_lr" || (t.program() == Dialect::Axolotl && theirs == "cosine");
  const Setting *rate = t.held("min_lr_rate"), *least = t.held("min_lr");
  judge_others(t, "min_lr_rate", rate);
  judge_others(t, "min_lr", least);
  if (!has_floor) {
    for (const Setting* setting : {rate, least})
      if (setting) t.judge(*setting, Mark::Decided, "this schedule has no floor there");
    return;
  }
  if (least) {
    const std::optional<double> number = read_number(least->value);
    double peak = 0;
    for (const Setting& setting : t.settings())
      if ((setting.name == "learning_rate" || setting.name == "adam.lr") && read_number(setting.value))
        peak = *read_number(setting.value);
    if (number && peak > 0)
      t.put("min_learning_rate_ratio", number_text(*number / peak), *least, Mark::Same, "a share of the learning rate");
    else
      t.judge(*least, Mark::Refused, filled("expected a number beside a learning rate", *least));
  }
  if (rate && rate->value.empty())
    t.judge(*rate, Mark::Same, "nothing stands there");
  else if (rate)
    t.put("min_learning_rate_ratio", rate->value, *rate);
  else if (!least && t.program() == Dialect::OpenRlhf)
    t.set("min_learning_rate_ratio", "0.1", "of cosine_with_min_lr, fixed there");
  else if (!least && theirs == "cosine_with_min_lr")
    t.judge(*t.held("schedule"), Mark::Refused, "cosine_with_min_lr: found neither min_lr nor min_lr_rate");
}

// DeepSpeed's scheduler takes the place of the trainer's.
void finish_deepspeed_schedule(Translator& t) {
  const Setting* type = t.held("ds_scheduler");
  t.judge_all("ds_schedule_number", Mark::Decided, "the rate begins at 0 and ends where the schedule does");
  t.judge_all("ds_warmup_type", Mark::Changed, "the rate rises straight");
  if (const Setting* lr = t.held("ds_max_lr")) {
    if (read_number(lr->value))
      t.put("learning_rate", lr->value, *lr);
    else
      t.judge(*lr, Mark::Decided, "the trainer's own number counts");
  }
  const std::string_view ours = schedule_of(schedule_word(type->value));
  t.judge_all("schedule", Mark::Decided, "DeepSpeed's scheduler takes its place");
  if (ours.empty()) {
    for (const char* name : {"warmup_steps", "warmup_ratio", "ds_warmup"})
      t.judge_all(name, Mark::Decided, "of the scheduler, which is not translated");
    t.judge(*type, Mark::Refused, filled(say::kSchedule, *type));
    return;
  }
  t.put("schedule", std::string(ours), *type, Mark::Changed, "its warm-up rises by the logarithm there, straight here");
  if (const Setting* steps = t.held("ds_warmup")) {
    if (!read_number(steps->value)) {
      t.judge(*steps, Mark::Decided, "the trainer's own number counts");
      finish_warmup(t, false);
      return;
    }
    t.put("warmup_steps", steps->value, *steps);
  } else {
    t.set("warmup_steps", "1000", "DeepSpeed's default");
  }
  t.judge_all("warmup_steps", Mark::Decided, "DeepSpeed's scheduler takes its place");
  t.judge_all("warmup_ratio", Mark::Decided, "DeepSpeed's scheduler takes its place");
}

// llama-recipes lowers the rate between epochs alone.
void finish_gamma(Translator& t) {
  const Setting* gamma = t.held("gamma");
  const double epochs = t.number("epochs").value_or(1), factor = t.number("gamma").value_or(1);
  t.set("schedule", "constant", "gamma acts between epochs alone");
  t.set("warmup_ratio", "0", "no warm-up");
  if (epochs <= 1 || factor == 1)
    t.judge(*gamma, Mark::Same, "there is nothing between epochs that it would lower");
  else
    t.judge(
        *gamma, Mark::Refused,
        fmt::format("it would lower the rate after each of {} epochs; no schedule of snug does", number_text(epochs)));
}

}  // namespace

void finish_schedule(Translator& t) {
  t.judge_all("schedule_kwargs", Mark::Same, "nothing stands there");
  if (const Setting* kwargs = t.held("schedule_kwargs"); kwargs && !is_off(kwargs->value))
    t.judge(*kwargs, Mark::Refused, filled(say::kSchedule, *kwargs));
  if (t.held("gamma")) return finish_gamma(t);
  const Setting* schedule = t.held("schedule");
  judge_others(t, "schedule", schedule);
  const std::string word = schedule ? schedule_word(schedule->value) : "";
  if (t.held("ds_scheduler")) {
    finish_floor(t, "");
    return finish_deepspeed_schedule(t);
  }
  for (const char* name : {"ds_schedule_number", "ds_warmup", "ds_warmup_type", "ds_max_lr"})
    t.judge_all(name, Mark::Decided, "of no scheduler");
  if (schedule) {
    const std::string_view ours = schedule_of(word);
    if (schedule->value.empty())
      t.judge(*schedule, Mark::Same, "nothing stands there");
    else if (ours.empty())
      t.judge(*schedule, Mark::Refused, filled(say::kSchedule, *schedule));
    else
      t.put("schedule", std::string(ours), *schedule);
    finish_floor(t, word);
  } else {
    finish_floor(t, "");
  }
  finish_warmup(t, word == "constant");
}

}  // namespace snug
