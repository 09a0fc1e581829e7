// Holds the options of jobs as a table over JobConfig: the name of each field, its type and bounds, what it means, and
// how its text is read and written. Job files, the command line's flags, help pages and schemas come from it, and what
// a resumed run compares. Flags of one command alone stand in cli/commands.h.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "api/job_config.h"

namespace snug {

// Says what values an option has, for help pages, editors and shells.
enum class ValueKind : uint8_t { Text, Word, Integer, Number, Bool, Size, Cadence, List, Map };
struct ValueType {
  ValueKind kind = ValueKind::Text;
  std::vector<std::string> words{};       // of Word: all there are
  std::optional<double> least{}, most{};  // of Integer and Number
};

// Describes one option: how its text is read and written back.
struct OptionSpec {
  std::string key;   // "learning_rate"
  std::string help;  // one line, which ends with what holds where nothing is given, in parentheses: "... (0.9)"
  std::function<void(JobConfig&, const std::string& text)> set;
  std::function<std::string(const JobConfig&)> get;
  ValueType type{};
  std::string group{};  // of options that stand together on help pages: "Data"

  bool is_bool() const { return type.kind == ValueKind::Bool; }  // as a flag it needs no value
  // Returns whether it may be repeated as a flag, or be a list in the file.
  bool is_list() const { return type.kind == ValueKind::List || type.kind == ValueKind::Map; }
  // Return its help without what stands at its end in parentheses, and that; empty where there is none.
  std::string meaning() const;
  std::string default_text() const;
};

// Returns the options in the order of the help page.
const std::vector<OptionSpec>& option_specs();

// Returns the spec of a key (with - or _). Throws UserError that names `where` it stood and says what snug calls it, or
// which known keys are near, if any. `taken` lists the keys that may stand there, if not all may.
const OptionSpec& find_option(std::string_view key, std::string_view where, std::span<const std::string> taken = {});

// Joins items with commas, as options take lists; a comma or backslash within an item gets a backslash before it.
std::string join_list(const std::vector<std::string>& items);

// Reads "24GiB", "80GB", "512MiB" or bytes.
uint64_t parse_size(const std::string& text, const std::string& key);
// Returns a size for an option, of as many bytes or slightly more: 17179869185 -> "16.01GiB".
std::string size_for_option(uint64_t bytes);

}  // namespace snug
