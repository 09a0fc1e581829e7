#include "translate/rules.h"

#include <algorithm>

#include "base/ascii.h"

namespace snug::rules {

void resume(Translator& t, const Setting& setting, const Row& row) {
  if (is_off(setting.value)) {
    t.judge(setting, Mark::Same, "off, as here");
  } else if (is_on(setting.value) || lower_case(setting.value) == "latest") {
    t.put("resume", "true", setting, Mark::Changed,
          "of a run that snug made in out; without one it starts afresh, as with theirs");
  } else {
    t.judge(setting, Mark::Refused,
            fmt::format("{} is not snug's: adapter goes on with its adapter, and the optimizer starts anew",
                        one_line(setting.value)));
  }
  (void)row;
}

void trackers(Translator& t, const Setting& setting, const Row& row) {
  std::vector<std::string> written, others;
  for (const std::string& item : items_of(setting.value)) {
    const std::string word = lower_case(item);
    if (word == "tensorboard" || word == "all")
      written.emplace_back("tensorboard");
    else if (!is_off(word))
      others.push_back(item);
  }
  if (!written.empty()) t.set_list("metrics_format", written, setting.written);
  if (!others.empty())
    t.judge(setting, Mark::Left, filled(row.say.empty() ? say::kMetrics : row.say, setting));
  else
    t.judge(setting, Mark::Same, written.empty() ? "steps are in out/metrics.jsonl" : "metrics_format: tensorboard");
}

void inverted(Translator& t, const Setting& setting, const Row& row) {
  t.put(row.ours, is_on(setting.value) ? "false" : "true", setting, row.mark, filled(row.say, setting));
}

void logging(Translator& t, const Setting& setting, const Row& row) {
  const std::optional<double> steps = read_number(setting.value);
  if (steps && *steps > 0 && *steps < 1)
    t.judge(setting, Mark::Left, filled("it is a share of the run; give log_every in steps", setting));
  else
    t.put(row.ours, setting.value, setting);
}

void seed(Translator& t, const Setting& setting, const Row& row) {
  if (setting.value.empty())
    t.judge(setting, Mark::Same, "nothing stands there");
  else
    t.put("seed", setting.value, setting, Mark::Changed,
          "another order of data and other initial adapters come of it than there: losses compare, and are not equal");
  (void)row;
}

void recompute(Translator& t, const Setting& setting, const Row& row) {
  const bool inverse = row.ours == "none";
  const bool on = !is_off(setting.value) && lower_case(setting.value) != "false";
  t.pin("recompute", on != inverse ? "block" : "none", setting);
  t.judge(setting, Mark::Decided, "what is recomputed is chosen so that it fits");
}

void zero_stage(Translator& t, const Setting& setting, const Row& row) {
  static constexpr std::pair<std::string_view, std::string_view> kStages[] = {{"full_shard", "3"},
                                                                              {"hybrid_shard", "3"},
                                                                              {"shard_grad_op", "2"},
                                                                              {"no_shard", "0"},
                                                                              {"true", "3"},
                                                                              {"false", "2"},
                                                                              {"1", "1"},
                                                                              {"2", "2"},
                                                                              {"3", "3"},
                                                                              {"0", "0"}};
  const std::string word = lower_case(setting.value);
  // As "ShardingStrategy.FULL_SHARD", and as FSDP's numbers, of which 1 is the whole.
  for (const auto& [theirs, ours] : kStages)
    if (word == theirs || word.ends_with("." + std::string(theirs)))
      t.pin("zero",
            std::string(row.ours == "fsdp" && word == "1"   ? "3"
                        : row.ours == "fsdp" && word == "3" ? "0"
                                                            : ours),
            setting);
  t.judge(setting, Mark::Decided, std::string(say::kSharding));
}

void offload(Translator& t, const Setting& setting, const Row& row) {
  const std::string word = lower_case(setting.value);
  if (word == "cpu" || is_on(word)) t.pin(row.ours, "host", setting);
  if (word == "nvme") t.pin(row.ours, "disk", setting);
  t.judge(setting, Mark::Decided, "what is offloaded is chosen so that it fits");
}

void only(Translator& t, const Setting& setting, const Row& row) {
  const std::vector<std::string> taken = items_of(row.ours);
  if (is_off(setting.value) || std::ranges::find(taken, lower_case(setting.value)) != taken.end())
    t.judge(setting, Mark::Same, "as here");
  else
    t.judge(setting, row.mark, filled(row.say, setting));
}

void tail_weight(Translator& t, const Setting& setting, const Row& row) {
  const std::string word = lower_case(setting.value);
  const bool off = word.empty() || word == "none" || word == "null" || read_number(word) == 1.0;
  t.judge(setting, off ? Mark::Same : Mark::Refused, off ? "as here" : filled(row.say, setting));
}

void command(Translator& t, const Setting& setting, const Row& row) {
  const bool on = !is_off(setting.value);
  if (row.ours == "train" || !on)
    t.judge(setting, Mark::Same, on ? "snug train" : "off, as here");
  else if (row.ours == "eval")
    t.judge(setting, Mark::Same, "with validation snug train evaluates; snug eval does so alone");
  else
    t.judge(setting, Mark::Left, filled("snug generate --prompts FILE writes replies", setting));
}

void file_read(Translator& t, const Setting& setting, const Row& row) {
  t.judge(setting, is_off(setting.value) ? Mark::Same : Mark::Decided,
          is_off(setting.value) ? "off, as here" : filled(row.say, setting));
}

}  // namespace snug::rules
