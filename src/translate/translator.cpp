#include "translate/translator.h"

#include <algorithm>

#include "base/ascii.h"
#include "base/edit_distance.h"
#include "base/error.h"
#include "format/json_text.h"

namespace snug {
namespace {

// Returns the known name that an unknown one is nearest to; nothing if none is near.
std::string nearest_name(const Setting& setting) {
  std::string best;
  size_t least = std::max<size_t>(2, setting.name.size() / 4) + 1;
  for (const Dialect dialect : tables_of(setting.dialect))
    for (const Row& row : rows_of(dialect))
      for (size_t at = 0; at < row.names.size();) {
        const size_t end = std::min(row.names.find(' ', at), row.names.size());
        const std::string_view name = row.names.substr(at, end - at);
        at = end + 1;
        if (name.find('*') != std::string_view::npos || name.size() > setting.name.size() + least ||
            setting.name.size() > name.size() + least)
          continue;
        if (const size_t distance = edit_distance(name, setting.name); distance < least) best = name, least = distance;
      }
  return best;
}

bool plain(std::string_view value) {
  if (value.empty() || value == "~" || value == "null" || value == "Null" || value == "NULL" || value == "-" ||
      value == "---")
    return false;
  const std::string_view first = "-.+/_";
  const auto letter_or_digit = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  };
  if (!letter_or_digit(value[0]) && first.find(value[0]) == std::string_view::npos) return false;
  return std::ranges::all_of(value,
                             [&](char c) { return letter_or_digit(c) || first.find(c) != std::string_view::npos; });
}

}  // namespace

std::string yaml_text(std::string_view value) {
  if (plain(value)) return std::string(value);
  std::string text;
  append_json_string(text, value);
  return text;
}

std::string yaml_list(const std::vector<std::string>& items) {
  std::string text;
  for (const std::string& item : items) text += (text.empty() ? "" : ", ") + yaml_text(item);
  return "[" + text + "]";
}

std::string one_line(std::string_view text) {
  constexpr size_t kMost = 300;
  std::string line;
  for (const char c : text.substr(0, kMost)) {
    if (c == '\n')
      line += "\\n";
    else if (static_cast<unsigned char>(c) < ' ' || c == 0x7f)
      line += '?';
    else
      line += c;
  }
  while (!line.empty() && text.size() > kMost && (static_cast<unsigned char>(line.back()) & 0xC0) == 0x80)
    line.pop_back();  // of a character that was cut
  if (text.size() > kMost && !line.empty() && static_cast<unsigned char>(line.back()) >= 0xC0) line.pop_back();
  return text.size() > kMost ? line + "..." : line;
}

std::vector<std::string> items_of(std::string_view text) {
  std::vector<std::string> items;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    std::string_view item = text.substr(at, end - at);
    while (!item.empty() && item.front() == ' ') item.remove_prefix(1);
    while (!item.empty() && item.back() == ' ') item.remove_suffix(1);
    if (!item.empty()) items.emplace_back(item);
    at = end + 1;
  }
  return items;
}

std::string filled(std::string_view text, const Setting& setting) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const std::string_view rest = text.substr(at);
    if (rest.starts_with("{option}")) {
      result += setting.written, at += 8;
    } else if (rest.starts_with(" {value}") && (setting.value.empty() || setting.value == "true")) {
      at += 8;
    } else if (rest.starts_with("{value}")) {
      result += setting.value, at += 7;
    } else {
      result += text[at++];
    }
  }
  return one_line(result);
}

Translator::Translator(Dialect program, std::string command, std::string starts_by, std::vector<Setting> settings,
                       std::optional<int64_t> ranks)
    : program_(program),
      command_(std::move(command)),
      starts_by_(std::move(starts_by)),
      settings_(std::move(settings)),
      asked_ranks_(ranks) {
  task_ = find_task();
  add_defaults();
  verdicts_.resize(settings_.size());
}

std::string Translator::find_task() const {
  const bool by_command = program_ == Dialect::Trl || program_ == Dialect::OpenRlhf;
  const std::string_view key = program_ == Dialect::LlamaFactory ? "stage" : program_ == Dialect::Axolotl ? "rl" : "";
  std::string task = by_command ? command_ : "";
  for (const Setting& setting : settings_)
    if (!key.empty() && setting.dialect == program_ && setting.name == key)
      task = lower_case(setting.value);
    else if (program_ == Dialect::Axolotl && setting.name == "reward_model" && is_on(setting.value))
      task = "reward";
  return is_off(task) || task == "train" ? "sft" : task;
}

bool Translator::learns_pairs() const { return scores() || has_word("dpo ipo orpo simpo cpo", task_); }

void Translator::add_defaults() {
  // Commands of other objectives have defaults of their own, and are not translated.
  const bool by_command = program_ == Dialect::Trl || program_ == Dialect::OpenRlhf;
  if (by_command && task_ != "sft" && !distills() && !learns_preferences()) return;
  const bool newer =
      program_ == Dialect::LlamaFactory && std::ranges::any_of(settings_, [](const Setting& one) {
        return one.name == "model" || one.name == "train_dataset" || one.name.starts_with("peft_config.");
      });
  if (newer)
    return remark("defaults of LLaMA-Factory's newer configuration are not known: what is given is translated");
  std::set<const Row*> given;
  for (const Setting& setting : settings_)
    if (const Row* row = find_row(setting)) given.insert(row);
  std::vector<Setting> all;
  for (const Default& one : defaults_of(program_)) {
    if (!one.tasks.empty() && !has_word(one.tasks, task_)) continue;
    Setting setting;
    setting.dialect = program_;
    setting.name = setting.written = one.name;
    setting.value = one.value;
    setting.origin = one.always ? "their default, written" : "their default";
    setting.is_default = true;
    const Row* row = find_row(setting);
    check(row != nullptr, "translate: no row for the default '{}'", one.name);
    if (!given.contains(row)) all.push_back(std::move(setting));
  }
  all.insert(all.end(), std::make_move_iterator(settings_.begin()), std::make_move_iterator(settings_.end()));
  settings_ = std::move(all);
}

void Translator::judge_overridden() {
  std::map<std::tuple<Dialect, std::string, int64_t>, const Setting*> last;
  for (const Setting& setting : settings_) last[{setting.dialect, setting.name, setting.item}] = &setting;
  for (const Setting& setting : settings_) {
    const Setting* counts = last[{setting.dialect, setting.name, setting.item}];
    if (counts != &setting)
      judge(setting, Mark::Decided, fmt::format("given again, and {} counts", one_line(counts->value)));
  }
}

void Translator::translate() {
  judge_overridden();
  for (const Setting& setting : settings_)
    if (!verdicts_[index(setting)]) apply(setting);
  for (const auto finish :
       {finish_ranks_and_batch, finish_length, finish_schedule, finish_optimizer, finish_numerics, finish_method,
        finish_sequence, finish_data, finish_objective, finish_validation, finish_saving, finish_remarks})
    finish(*this);
  // What waited for other options that are not there.
  for (const Setting& setting : settings_)
    if (!verdicts_[index(setting)]) judge(setting, Mark::Refused, "it belongs to options that are not given");
}

void Translator::apply(const Setting& setting) {
  const Row* row = find_row(setting);
  if (std::ranges::any_of(setting.value,
                          [](char c) { return (c >= 0 && c < ' ' && c != '\n' && c != '\t') || c == 0x7f; })) {
    judge(setting, Mark::Refused, "found a control character");
    return;
  }
  if (setting.is_missing) {
    judge(setting, Mark::Refused, "found no such file, whose options would count");
    return;
  }
  if (program_ == Dialect::DeepSpeed && setting.value == "auto" && row && row->mark != Mark::Decided) {
    judge(setting, Mark::Refused, "auto is the trainer's own number, and there is no trainer here");
    return;
  }
  const bool value_counts = !row || (row->mark != Mark::Decided && row->mark != Mark::Left);
  if (!setting.unknown.empty() && value_counts) {
    judge(setting, Mark::Refused,
          fmt::format("only a shell knows {}: write out what it is", one_line(setting.unknown)));
    return;
  }
  if (!row) {
    const std::string nearest = nearest_name(setting);
    judge(setting,
          setting.dialect == Dialect::Environment || setting.dialect == Dialect::Launcher ? Mark::Left : Mark::Refused,
          fmt::format("unknown option of {}{}", name(setting.dialect), nearest.empty() ? "" : "; nearest: " + nearest));
    return;
  }
  if (row->rule) {
    row->rule(*this, setting, *row);
  } else if (row->ours.starts_with('@')) {
    hold(std::string(row->ours.substr(1)), setting);
  } else if (setting.value.empty() && row->mark != Mark::Decided) {
    judge(setting, Mark::Same, "nothing stands there");
  } else if (row->mark == Mark::Same || row->mark == Mark::Changed) {
    if (row->ours.empty())
      judge(setting, row->mark, filled(row->say, setting));
    else
      put(row->ours, setting.value, setting, row->mark, filled(row->say, setting));
  } else if (row->mark == Mark::Decided) {
    if (const size_t colon = row->ours.find(": "); colon != std::string_view::npos && !is_off(setting.value))
      pin(row->ours.substr(0, colon), std::string(row->ours.substr(colon + 2)), setting);
    judge(setting, Mark::Decided, filled(row->say, setting));
  } else if (is_off(setting.value)) {
    judge(setting, Mark::Same, "off, as here");
  } else {
    judge(setting, row->mark, filled(row->say, setting));
  }
}

void Translator::judge(const Setting& setting, Mark mark, std::string text) {
  verdicts_[index(setting)] = Verdict{mark, std::move(text)};
}

void Translator::judge_all(const std::string& held_name, Mark mark, const std::string& text) {
  for (const Setting* setting : all_held(held_name)) judge(*setting, mark, text);
}

bool Translator::put(std::string_view key, const std::string& value, const Setting& from, Mark mark, std::string text) {
  const OurKey& ours = our_key(key);
  const std::optional<std::string> read = our_value(ours, value);
  if (!read) {
    judge(from, Mark::Refused,
          fmt::format("snug's {} takes {}, and it comes to '{}'", key, expected(ours), one_line(value)));
    return false;
  }
  const bool written = !from.is_default || from.origin.ends_with("written") || !same_value(ours, *read, ours.fallback);
  if (written) {
    const std::string origin = from.is_default ? from.written + ", their default" : from.written;
    if (ours.kind == OurKey::Kind::List)
      set_list(key, items_of(*read), origin);
    else
      set(key, yaml_text(*read), origin);
  }
  const std::string shown = fmt::format("{}: {}", key, one_line(*read));
  judge(from, mark, text.empty() ? shown : shown + "; " + text);
  return true;
}

void Translator::set(std::string_view key, const std::string& value, const std::string& origin) {
  our_key(key);
  keys_[std::string(key)] = {value, one_line(origin), false};
}

void Translator::set_list(std::string_view key, const std::vector<std::string>& items, const std::string& origin) {
  set(key, items.size() == 1 && items[0].find(',') == std::string::npos ? yaml_text(items[0]) : yaml_list(items),
      origin);
}

void Translator::set_map(std::string_view key, const std::map<std::string, std::string>& items,
                         const std::string& origin) {
  std::string text;
  for (const auto& [name, value] : items)
    text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", yaml_text(name), yaml_text(value));
  set(key, "{" + text + "}", origin);
}

void Translator::drop(std::string_view key, const std::string& reason) {
  keys_.erase(std::string(key));
  for (std::optional<Verdict>& verdict : verdicts_)
    if (verdict && verdict->text.starts_with(std::string(key) + ": ")) verdict = Verdict{Mark::Decided, reason};
}

void Translator::pin(std::string_view key, const std::string& value, const Setting& from) {
  const std::optional<std::string> read = our_value(our_key(key), value);
  if (!read || (has(key) && !keys_[std::string(key)].commented)) return;
  keys_[std::string(key)] = {yaml_text(*read), one_line(from.written), true};
}

void Translator::hold(const std::string& name, const Setting& setting) { held_[name].push_back(&setting); }

void Translator::remark(std::string text) {
  if (std::ranges::find(remarks_, text) == remarks_.end()) remarks_.push_back(std::move(text));
}

const Setting* Translator::held(const std::string& name) const {
  const std::vector<const Setting*>& all = all_held(name);
  return all.empty() ? nullptr : all.back();
}

const std::vector<const Setting*>& Translator::all_held(const std::string& name) const {
  static const std::vector<const Setting*> kNone;
  const auto found = held_.find(name);
  return found == held_.end() ? kNone : found->second;
}

std::string Translator::value(const std::string& name) const {
  const Setting* setting = held(name);
  return setting ? setting->value : "";
}

bool Translator::on(const std::string& name) const { return !is_off(value(name)); }

std::optional<double> Translator::number(const std::string& name) const { return read_number(value(name)); }

bool Translator::changes() const {
  return std::ranges::any_of(verdicts_, [](const auto& verdict) { return verdict && verdict->mark == Mark::Refused; });
}

}  // namespace snug
