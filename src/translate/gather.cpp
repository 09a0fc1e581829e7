#include "translate/gather.h"

#include <algorithm>
#include <cctype>

#include "base/error.h"
#include "format/unicode.h"
#include "translate/data_sets.h"
#include "translate/table.h"
#include "translate/translator.h"

namespace snug {
namespace {

constexpr size_t kMaxSettings = 2000;

bool ends_with_any(std::string_view path, std::initializer_list<std::string_view> ends) {
  return std::ranges::any_of(ends, [&](std::string_view end) { return path.ends_with(end); });
}
bool is_yaml(std::string_view path) { return ends_with_any(path, {".yaml", ".yml"}); }
bool is_json(std::string_view path) { return path.ends_with(".json"); }
bool is_script(std::string_view path) { return ends_with_any(path, {".sh", ".bash", ".slurm", ".sbatch"}); }

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash + 1);
}

// Keys that one program alone has, by which a file is told.
constexpr std::pair<std::string_view, Dialect> kTelling[] = {
    {"compute_environment", Dialect::Accelerate},
    {"distributed_type", Dialect::Accelerate},
    {"zero_optimization", Dialect::DeepSpeed},
    {"train_micro_batch_size_per_gpu", Dialect::DeepSpeed},
    {"base_model", Dialect::Axolotl},
    {"finetuning_type", Dialect::LlamaFactory},
    {"stage", Dialect::LlamaFactory},
    {"cutoff_len", Dialect::LlamaFactory},
    {"peft_config", Dialect::LlamaFactory},
    {"train_dataset", Dialect::LlamaFactory},
    {"dataset_name", Dialect::Trl},
    {"use_peft", Dialect::Trl},
    {"max_length", Dialect::Trl},
    {"train_batch_size", Dialect::DeepSpeed},
    {"per_device_train_batch_size", Dialect::Trl},
};

class Gatherer {
 public:
  Gatherer(const TranslateRequest& request, const FileReader& read) : request_(request), read_(read) {}

  Gathered gather() {
    for (const std::string& word : request_.words)
      if (find_invalid_utf8(word)) user_error("command line: found a word that is not UTF-8");
    if (request_.words.empty())
      user_error("command line: found nothing, expected a file of options, a shell script, or a command behind '--'");
    const std::string& first = request_.words[0];
    if ((is_yaml(first) || is_json(first)) && request_.words[0].find(' ') == std::string::npos) {
      read_options_file(first);
    } else {
      read_words();
    }
    add_named_files();
    std::vector<Setting> all = std::move(files_);
    all.insert(all.end(), std::make_move_iterator(found_.settings.begin()),
               std::make_move_iterator(found_.settings.end()));
    all.insert(all.end(), std::make_move_iterator(last_.begin()), std::make_move_iterator(last_.end()));
    std::ranges::for_each(all, read_negation);
    if (all.size() > kMaxSettings) user_error("found {} options, expected at most {}", all.size(), kMaxSettings);
    found_.settings = std::move(all);
    return std::move(found_);
  }

 private:
  // A switch of transformers' parser that is on by itself is turned off by its name behind "no_".
  static void read_negation(Setting& setting) {
    if (!setting.is_switch || !setting.name.starts_with("no_") || find_row(setting)) return;
    Setting off = setting;
    off.name.erase(0, 3);
    off.value = "false";
    if (find_row(off)) setting = std::move(off);
  }

  // ---- Files --------------------------------------------------------------------------------------------------------

  // Returns a file's text: as it is named, or from the folder of the file that names it.
  std::optional<std::string> find(const std::string& path) const {
    if (const auto written = script_files_.find(path); written != script_files_.end()) return written->second;
    if (auto text = read_(path)) return text;
    return folder_.empty() || path.starts_with('/') ? std::nullopt : read_(folder_ + path);
  }

  std::string require(const std::string& path) const {
    if (auto text = find(path)) return std::move(*text);
    user_error("{}: found no such file, expected a file of options, a shell script, or a command behind '--'", path);
  }

  static Tree parse(const std::string& text, const std::string& path) {
    Tree tree = is_json(path) ? read_json(text, path) : read_yaml(text, path);
    if (tree.kind != Tree::Kind::Map) user_error("{}: expected keys and values at the top", path);
    return tree;
  }

  Dialect program_of(const Tree& tree, const std::string& path) const {
    if (request_.program) return *request_.program;
    for (const auto& [key, dialect] : kTelling)
      if (tree.find(key)) return dialect;
    std::string names;
    for (const auto& [known, dialect] : program_names()) names += fmt::format("{}{}", names.empty() ? "" : ", ", known);
    user_error("{}: found no key that says whose options these are: --from says one of {}", path, names);
  }

  // A map under 'deepspeed' is what its file would hold.
  void add_file(const Tree& tree, Dialect dialect, const std::string& path) {
    for (const auto& [key, value] : tree.entries) {
      Tree one;
      one.kind = Tree::Kind::Map;
      const bool inner = key == "deepspeed" && value.kind == Tree::Kind::Map;
      if (inner)
        one = value;
      else
        one.entries.push_back({key, value});
      add_settings(inner ? last_ : files_, one, inner ? Dialect::DeepSpeed : dialect, path);
    }
  }

  void read_options_file(const std::string& path) {
    folder_ = folder_of(path);
    const Tree tree = parse(require(path), path);
    found_.program = program_of(tree, path);
    found_.command = "train";
    add_file(tree, found_.program, path);
    for (size_t i = 1; i < request_.words.size(); i++) {
      std::string word = request_.words[i];
      word.erase(0, std::min(word.find_first_not_of('-'), word.size()));
      const size_t equals = word.find('=');
      if (equals == std::string::npos || equals == 0)
        user_error("command line: found '{}' behind {}, expected key=value", request_.words[i], path);
      Setting setting;
      setting.dialect = found_.program;
      setting.written = setting.name = word.substr(0, equals);
      std::ranges::replace(setting.name, '-', '_');
      setting.value = word.substr(equals + 1);
      setting.origin = "command line";
      found_.settings.push_back(std::move(setting));
    }
  }

  // ---- Commands -----------------------------------------------------------------------------------------------------

  void read_words() {
    std::vector<std::string> words = request_.words;
    ShellCommand command;
    const auto assigns = [](const std::string& word) {
      const size_t equals = word.find('=');
      return equals != std::string::npos && equals > 0 &&
             std::all_of(word.begin(), word.begin() + static_cast<ptrdiff_t>(equals),
                         [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; });
    };
    if (words.size() == 1 && words[0].find_first_of(" \n") != std::string::npos)
      return read_shell(words[0], "command line");
    size_t begin = 0;
    while (begin < words.size() && (assigns(words[begin]) || words[begin] == "env")) {
      const size_t equals = words[begin].find('=');
      if (equals != std::string::npos)
        command.environment[words[begin].substr(0, equals)] = {words[begin].substr(equals + 1), ""};
      begin++;
    }
    for (size_t i = begin; i < words.size(); i++) command.words.push_back({words[i], ""});
    for (const ShellWord& word : command.words)  // bash train.sh, sbatch train.slurm
      if (is_script(word.text)) {
        folder_ = folder_of(word.text);
        return read_shell(require(word.text), word.text);
      }
    std::optional<Invocation> found = read_command(command, request_.program, "command line");
    if (!found) refuse_unknown(request_.words[0]);
    take(std::move(*found));
  }

  [[noreturn]] static void refuse_unknown(const std::string& where) {
    user_error(
        "{}: found no command that starts a training of LLaMA-Factory, llama-recipes, OpenRLHF, MiniCPM-V, axolotl, "
        "TRL or "
        "transformers; --from says whose options a script's are",
        where);
  }

  void read_shell(const std::string& text, const std::string& source) {
    if (text.size() > kMaxTranslatedFile)
      user_error("{}: found {} bytes, expected at most {} of a script", source, text.size(), kMaxTranslatedFile);
    if (const auto at = find_invalid_utf8(text))
      user_error("{}: byte {} belongs to no character of UTF-8", source, *at);
    ShellScript script = read_script(text, source);
    script_files_ = std::move(script.files);
    std::vector<Invocation> all;
    std::string lines;
    for (const ShellCommand& command : script.commands)
      if (auto found = read_command(command, request_.program,
                                    source == "command line" ? source : fmt::format("{}:{}", source, command.line))) {
        all.push_back(std::move(*found));
        lines += fmt::format("{}{}", lines.empty() ? "" : ", ", command.line);
      }
    if (all.empty()) refuse_unknown(source);
    if (all.size() > 1)
      user_error("{}: found {} commands that train, in lines {}; expected one: leave one, or give it behind '--'",
                 source, all.size(), lines);
    take(std::move(all[0]));
  }

  void take(Invocation found) {
    found_.program = found.program;
    found_.command = found.command;
    found_.starts_by = found.starts_by;
    found_.settings = std::move(found.settings);
    const bool objective = (found.program == Dialect::Trl || found.program == Dialect::OpenRlhf) &&
                           found.command != "sft" && found.command != "train";
    if (found.program == Dialect::LlamaFactory || found.program == Dialect::Axolotl) refuse_other_commands();
    if (objective) {
      Setting setting;
      setting.dialect = found.program;
      setting.name = "command";
      setting.written = (found.program == Dialect::Trl ? "trl " : "train_") + found.command;
      setting.value = found.command;
      setting.is_switch = true;
      setting.origin = "command line";
      found_.settings.insert(found_.settings.begin(), std::move(setting));
    }
    for (const std::string& path : found.files) {
      if (is_yaml(path) || is_json(path)) {
        if (folder_.empty()) folder_ = folder_of(path);
        add_file(parse(require(path), path), found.program, path);
      } else {
        Setting setting;
        setting.dialect = found.program;
        setting.name = setting.written = path;
        setting.origin = "command line";
        found_.settings.push_back(std::move(setting));
      }
    }
  }

  void refuse_other_commands() const {
    static constexpr std::pair<std::string_view, std::string_view> kOthers[] = {
        {"export", "snug merge"}, {"merge-lora", "snug merge"}, {"chat", "snug chat"},     {"webchat", "snug chat"},
        {"eval", "snug eval"},    {"evaluate", "snug eval"},    {"inference", "snug chat"}};
    for (const auto& [theirs, ours] : kOthers)
      if (found_.command == theirs)
        user_error("command line: '{}' does not train; here it is '{}', whose --help lists its options", theirs, ours);
    if (found_.command != "train")
      user_error("command line: found '{}', expected a command that trains", found_.command);
  }

  // ---- Files that options name --------------------------------------------------------------------------------------

  void add_named_files() {
    expand_json();
    std::vector<std::pair<Dialect, std::string>> named;
    for (std::vector<Setting>* settings : {&files_, &found_.settings})
      for (Setting& setting : *settings)
        if (setting.unknown.empty() && !is_off(setting.value)) note_file(setting, named);
    // TRL's --config holds options of TRL, and may name files in its turn.
    for (size_t i = 0; i < named.size() && i < 16; i++) {
      const auto [dialect, path] = named[i];
      if (std::count(named.begin(), named.begin() + static_cast<ptrdiff_t>(i), named[i]) > 0) continue;
      if (files_.size() > kMaxSettings) break;  // which is said below
      const Tree tree = parse(require(path), path);
      std::vector<Setting>& into = dialect == Dialect::DeepSpeed ? last_ : files_;
      const size_t begin = into.size();
      if (dialect == Dialect::DeepSpeed)
        add_settings(into, tree, dialect, path);
      else
        add_file(tree, dialect, path);
      if (dialect == Dialect::DeepSpeed) continue;
      for (size_t k = begin; k < files_.size(); k++)
        if (!is_off(files_[k].value)) note_file(files_[k], named);
    }
    if (found_.program == Dialect::LlamaFactory) add_dataset_info();
  }

  // Replaces a map that is written as JSON on a command line by its values.
  void expand_json() {
    std::vector<Setting> all;
    for (Setting& setting : found_.settings) {
      if (!setting.value.starts_with('{') || !setting.value.ends_with('}') ||
          setting.value.find(':') == std::string::npos) {
        all.push_back(std::move(setting));
        continue;
      }
      try {
        const Tree tree = read_json(setting.value, setting.written);
        std::vector<Setting> inner;
        add_settings(inner, tree, setting.dialect, setting.origin);
        for (Setting& one : inner) {
          one.name = setting.name + "." + one.name;
          one.written = setting.written + "." + one.written;
          all.push_back(std::move(one));
        }
      } catch (const UserError&) {
        all.push_back(std::move(setting));  // a text with braces
      }
    }
    found_.settings = std::move(all);
  }

  // Notes a file that an option names; one that is not there is said by the option's verdict.
  void note_file(Setting& setting, std::vector<std::pair<Dialect, std::string>>& named) {
    const bool deepspeed = (setting.name == "deepspeed" || setting.name.ends_with("deepspeed_config_file")) &&
                           setting.dialect != Dialect::DeepSpeed;
    const bool accelerate = (setting.name == "config_file" && setting.dialect == Dialect::Launcher) ||
                            (setting.name == "accelerate_config" && setting.dialect == Dialect::Trl) ||
                            setting.name == "dist_config.config_file";
    const bool trl = setting.name == "config" && setting.dialect == Dialect::Trl;
    if (!deepspeed && !accelerate && !trl) return;
    if (setting.dialect == Dialect::OpenRlhf || is_on(setting.value)) return;
    if (accelerate && add_profile(setting.value)) return;
    if (!find(setting.value)) {
      setting.is_missing = true;
      return;
    }
    named.emplace_back(deepspeed ? Dialect::DeepSpeed : accelerate ? Dialect::Accelerate : Dialect::Trl, setting.value);
  }

  // Adds what one of the profiles that TRL has by name holds.
  bool add_profile(const std::string& profile) {
    static constexpr std::pair<std::string_view, std::string_view> kProfiles[] = {
        {"fsdp1", "3"}, {"fsdp2", "3"},     {"zero1", "1"},     {"zero2", "2"},
        {"zero3", "3"}, {"multi_gpu", "0"}, {"single_gpu", "0"}};
    const auto* const found =
        std::ranges::find(kProfiles, profile, &std::pair<std::string_view, std::string_view>::first);
    if (found == std::end(kProfiles)) return false;
    Setting setting;
    setting.dialect = Dialect::Accelerate;
    setting.origin = profile;
    setting.name = setting.written = profile == "single_gpu" ? "num_processes" : "zero_stage";
    setting.value = profile == "single_gpu" ? "1" : std::string(found->second);
    last_.push_back(std::move(setting));
    return true;
  }

  // Adds what dataset_info.json says of the sets that are named.
  void add_dataset_info() {
    std::string directory = "data", sets, held_out;
    for (const std::vector<Setting>* settings : {&files_, &found_.settings})
      for (const Setting& setting : *settings) {
        if (setting.name == "dataset_dir" && !setting.value.empty()) directory = setting.value;
        if (setting.name == "dataset" || setting.name == "train_dataset") sets = setting.value;
        if (setting.name == "eval_dataset") held_out = setting.value;
      }
    const std::string path = directory + (directory.ends_with('/') ? "" : "/") + "dataset_info.json";
    const std::optional<std::string> text = find(path);
    if (!text) return;
    const Tree info = parse(*text, path);
    for (const auto& [names, first] : {std::pair(sets, int64_t{0}), {held_out, kHeldOut}}) {
      const std::vector<std::string> items = items_of(names);
      for (size_t i = 0; i < items.size() && i < 100; i++) {
        const Tree* entry = info.find(items[i]);
        if (!entry) continue;
        std::vector<Setting> found;
        add_settings(found, *entry, Dialect::DatasetInfo, path);
        for (Setting& setting : found) {
          setting.item = first + static_cast<int64_t>(i);
          setting.written = items[i] + "." + setting.written;
          last_.push_back(std::move(setting));
        }
      }
    }
  }

  const TranslateRequest& request_;
  const FileReader& read_;
  std::string folder_;
  std::map<std::string, std::string> script_files_;
  Gathered found_;
  std::vector<Setting> files_, last_;
};

}  // namespace

Gathered gather(const TranslateRequest& request, const FileReader& read) { return Gatherer(request, read).gather(); }

}  // namespace snug
