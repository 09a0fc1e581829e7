// Holds options as other programs were given them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "translate/shell.h"
#include "translate/tree.h"

namespace snug {

// Says whose words an option is written in; each has a table.
enum class Dialect : uint8_t {
  Launcher,     // torchrun, deepspeed, accelerate launch
  Environment,  // variables in front of a command
  Trainer,      // transformers' TrainingArguments
  LlamaFactory,
  LlamaRecipes,
  OpenRlhf,
  MiniCpm,
  Axolotl,
  Trl,
  DeepSpeed,   // its JSON
  Accelerate,  // its YAML
  DatasetInfo,
};

std::string_view name(Dialect dialect);
// Returns the programs that --from names: "llamafactory", "axolotl", ...
const std::vector<std::pair<std::string_view, Dialect>>& program_names();

// Holds one option that was read.
struct Setting {
  Dialect dialect = Dialect::Trainer;
  std::string name;          // as the tables have it: underscores, names of maps before it with dots, no numbers
  std::string written;       // as it stands where it was read
  std::string value;         // items of a list with commas between them; "" where nothing stands
  std::string origin;        // "train.yaml:12", "command line"
  std::string unknown = {};  // what of the value only a shell knows
  int64_t item = -1;         // of a list of maps: which one
  bool is_list = false, is_default = false;
  bool is_switch = false;   // it stands without a value
  bool is_missing = false;  // it names a file that is not there
};

// Returns whether a value says that something is off or absent: "", false, no, none, null, 0.
bool is_off(std::string_view value);
bool is_on(std::string_view value);  // true, yes, 1

// Adds every value of a map of options, with the keys of nested maps before its own.
void add_settings(std::vector<Setting>& settings, const Tree& tree, Dialect dialect, const std::string& source);

// Holds a training command: who is started, by whom, and with which options.
struct Invocation {
  Dialect program = Dialect::Trainer;
  std::string command;    // "train", "sft", "dpo": what the program is asked to do
  std::string starts_by;  // "torchrun", "python", ...; empty where nothing starts it but a file of options
  std::vector<Setting> settings;
  std::vector<std::string> files;  // files of options that are named without an option
};

// Returns the training that a command starts; nothing if it starts none that is known. `program` is what --from says.
std::optional<Invocation> read_command(const ShellCommand& command, std::optional<Dialect> program,
                                       const std::string& origin);

}  // namespace snug
