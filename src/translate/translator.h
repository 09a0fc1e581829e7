// Gathers what a translation has found: a verdict for every option that was read, and the keys of a job file.
#pragma once

#include <fmt/format.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "translate/ours.h"
#include "translate/settings.h"
#include "translate/table.h"

namespace snug {

struct Verdict {
  Mark mark = Mark::Same;
  std::string text;
};

// Holds a key of the job file with where it comes from.
struct JobKey {
  std::string value;  // as YAML
  std::string origin;
  bool commented = false;  // snug decides, and it is there to be uncommented
};

class Translator {
 public:
  // `settings` in the order in which they count: later ones win.
  Translator(Dialect program, std::string command, std::string starts_by, std::vector<Setting> settings,
             std::optional<int64_t> ranks);

  // Gives every setting a verdict.
  void translate();

  // ---- For rules ----------------------------------------------------------------------------------------------------

  void judge(const Setting& setting, Mark mark, std::string text = "");
  void judge_all(const std::string& held_name, Mark mark, const std::string& text);
  // Puts a key into the job and judges the setting that it comes from as `mark`; a value that snug's key does not take
  // is refused. A default that is snug's own too is left out.
  bool put(std::string_view key, const std::string& value, const Setting& from, Mark mark = Mark::Same,
           std::string text = "");
  // Puts a key that several settings make, without a verdict.
  void set(std::string_view key, const std::string& value, const std::string& origin);
  void set_list(std::string_view key, const std::vector<std::string>& items, const std::string& origin);
  void set_map(std::string_view key, const std::map<std::string, std::string>& items, const std::string& origin);
  // Takes a key back, and judges what it came from anew.
  void drop(std::string_view key, const std::string& reason);
  // Notes a key that snug decides by itself, for those who want it pinned.
  void pin(std::string_view key, const std::string& value, const Setting& from);
  void hold(const std::string& name, const Setting& setting);
  // Says a change of meaning, once.
  void remark(std::string text);

  // ---- For what needs several settings ------------------------------------------------------------------------------

  // Returns the setting that was held by a name and counts; null if there is none.
  const Setting* held(const std::string& name) const;
  // Returns all that were held by it, such as one for each data set.
  const std::vector<const Setting*>& all_held(const std::string& name) const;
  std::string value(const std::string& name) const;  // "" if there is none
  bool on(const std::string& name) const;            // it is there, and not off
  std::optional<double> number(const std::string& name) const;
  bool has(std::string_view key) const { return keys_.contains(std::string(key)); }
  // Returns a key's value as it is written; the key must be there.
  const std::string& value_of(std::string_view key) const { return keys_.at(std::string(key)).value; }

  Dialect program() const { return program_; }
  const std::string& starts_by() const { return starts_by_; }
  // Returns what is to be learnt, in the program's own word: "sft", "pt", "dpo", "ipo", "kto", "rm", ...
  const std::string& task() const { return task_; }
  // Return whether it is an objective of snug's on pairs of replies, or on these or replies with labels.
  bool learns_pairs() const;
  // Return whether what is learnt gives a reply a score, and whether a teacher says it.
  bool scores() const { return task_ == "rm" || task_ == "reward"; }
  bool distills() const { return task_ == "gkd"; }
  bool learns_preferences() const { return learns_pairs() || task_ == "kto"; }
  std::optional<int64_t> asked_ranks() const { return asked_ranks_; }

  // ---- What came of it ----------------------------------------------------------------------------------------------

  const std::vector<Setting>& settings() const { return settings_; }
  const Verdict& verdict(size_t i) const { return *verdicts_[i]; }
  const std::map<std::string, JobKey>& keys() const { return keys_; }
  const std::vector<std::string>& remarks() const { return remarks_; }
  // Returns whether something that changes what is trained was not translated.
  bool changes() const;

 private:
  std::string find_task() const;
  void apply(const Setting& setting);
  void judge_overridden();
  void add_defaults();
  size_t index(const Setting& setting) const { return static_cast<size_t>(&setting - settings_.data()); }

  Dialect program_;
  std::string command_, starts_by_, task_;
  std::vector<Setting> settings_;
  std::optional<int64_t> asked_ranks_;
  std::vector<std::optional<Verdict>> verdicts_;
  std::map<std::string, std::vector<const Setting*>> held_;
  std::map<std::string, JobKey> keys_;
  std::vector<std::string> remarks_;
};

// Judge what is held and make keys of it, each for a part of a job (finish*.cpp).
void finish_ranks_and_batch(Translator& t);
void finish_length(Translator& t);
void finish_schedule(Translator& t);
void finish_optimizer(Translator& t);
void finish_numerics(Translator& t);
void finish_method(Translator& t);
void finish_sequence(Translator& t);
void finish_data(Translator& t);
void finish_objective(Translator& t);
void finish_distillation(Translator& t);  // of the objective that learns from a teacher
void judge_without_distillation(Translator& t);
void finish_validation(Translator& t);
void finish_saving(Translator& t);
// Says what is otherwise in every run of a program's.
void finish_remarks(Translator& t);

// Returns a value as YAML that is read back as the same text; lists and maps as one line.
std::string yaml_text(std::string_view value);
std::string yaml_list(const std::vector<std::string>& items);
// Returns a text without line breaks and control characters, for comments and reports.
std::string one_line(std::string_view text);
// Returns the items between commas, without white space around them.
std::vector<std::string> items_of(std::string_view text);
// Returns "{option} {value}" filled in.
std::string filled(std::string_view text, const Setting& setting);

}  // namespace snug
