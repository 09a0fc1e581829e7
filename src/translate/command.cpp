// Finds out which program a command starts, and cuts its words into options.
#include <algorithm>
#include <cctype>
#include <set>

#include "translate/settings.h"

namespace snug {
namespace {

// Holds a program by the last part of its path or by its module, and what it is asked to do.
struct Program {
  std::string_view file;  // without .py
  Dialect dialect;
  std::string_view command;  // empty: the word behind it says it
};

constexpr Program kPrograms[] = {
    {"llamafactory-cli", Dialect::LlamaFactory, ""},
    {"lmf", Dialect::LlamaFactory, ""},
    {"train_bash", Dialect::LlamaFactory, "train"},
    {"llamafactory.train", Dialect::LlamaFactory, "train"},
    {"llamafactory.launcher", Dialect::LlamaFactory, "train"},
    {"llamafactory.cli", Dialect::LlamaFactory, ""},
    {"train", Dialect::LlamaFactory, "train"},
    {"axolotl", Dialect::Axolotl, ""},
    {"axolotl.cli.train", Dialect::Axolotl, "train"},
    {"trl", Dialect::Trl, ""},
    {"sft", Dialect::Trl, "sft"},
    {"dpo", Dialect::Trl, "dpo"},
    {"kto", Dialect::Trl, "kto"},
    {"orpo", Dialect::Trl, "orpo"},
    {"cpo", Dialect::Trl, "cpo"},
    {"reward", Dialect::Trl, "reward"},
    {"reward_modeling", Dialect::Trl, "reward"},
    {"gkd", Dialect::Trl, "gkd"},
    {"grpo", Dialect::Trl, "grpo"},
    {"rloo", Dialect::Trl, "rloo"},
    {"finetuning", Dialect::LlamaRecipes, "train"},
    {"llama_finetuning", Dialect::LlamaRecipes, "train"},
    {"llama_recipes.finetuning", Dialect::LlamaRecipes, "train"},
    {"llama_cookbook.finetuning", Dialect::LlamaRecipes, "train"},
    {"train_sft", Dialect::OpenRlhf, "sft"},
    {"openrlhf.cli.train_sft", Dialect::OpenRlhf, "sft"},
    {"train_dpo", Dialect::OpenRlhf, "dpo"},
    {"openrlhf.cli.train_dpo", Dialect::OpenRlhf, "dpo"},
    {"train_rm", Dialect::OpenRlhf, "rm"},
    {"openrlhf.cli.train_rm", Dialect::OpenRlhf, "rm"},
    {"train_kto", Dialect::OpenRlhf, "kto"},
    {"openrlhf.cli.train_kto", Dialect::OpenRlhf, "kto"},
    {"train_kd", Dialect::OpenRlhf, "kd"},
    {"openrlhf.cli.train_kd", Dialect::OpenRlhf, "kd"},
    {"train_prm", Dialect::OpenRlhf, "prm"},
    {"openrlhf.cli.train_prm", Dialect::OpenRlhf, "prm"},
    {"train_ppo", Dialect::OpenRlhf, "ppo"},
    {"openrlhf.cli.train_ppo", Dialect::OpenRlhf, "ppo"},
    {"openrlhf.cli.train_ppo_ray", Dialect::OpenRlhf, "ppo"},
    {"finetune", Dialect::MiniCpm, "train"},
    {"run_clm", Dialect::Trainer, "train"},
    {"run_sft", Dialect::Trainer, "train"},
    {"run_dpo", Dialect::Trl, "dpo"},
    {"run_orpo", Dialect::Trl, "orpo"},
};

// Words that start a program and have options of their own.
const std::set<std::string, std::less<>> kLaunchers{"torchrun", "deepspeed", "accelerate",
                                                    "python",   "python3",   "accelerate-launch"};

// What those programs are asked to do that say it in a word of its own.
const std::set<std::string, std::less<>> kCommands{
    "train", "sft",  "dpo",   "kto", "orpo",       "cpo",      "reward",    "grpo",       "rloo",    "export",
    "chat",  "eval", "webui", "api", "merge-lora", "evaluate", "inference", "preprocess", "webchat", "version"};

std::string_view last_part(std::string_view path) {
  const size_t slash = path.find_last_of('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

// Returns the program that a word names; a bare name is one only behind -m.
const Program* find_program(std::string_view word, bool as_module = false) {
  std::string_view file = last_part(word);
  // 'train' alone is too common a word; 'train.py' is LLaMA-Factory's script.
  const bool script = file.ends_with(".py");
  if (script) file.remove_suffix(3);
  if (!script && file == "train") return nullptr;
  const auto* const found = std::ranges::find(kPrograms, file, &Program::file);
  if (found == std::end(kPrograms)) return nullptr;
  const bool module = file.find('.') != std::string_view::npos, cli = found->command.empty();
  return script || module || cli || as_module ? found : nullptr;
}

bool is_number(std::string_view word) {
  return word.size() > 1 && word[0] == '-' && (std::isdigit(static_cast<unsigned char>(word[1])) || word[1] == '.');
}

bool is_option(const ShellWord& word) {
  return word.text.size() > 1 && word.text[0] == '-' && !is_number(word.text) && word.text.find(' ') == word.text.npos;
}

std::string option_name(std::string_view word) {
  std::string name(word.substr(std::min(word.find_first_not_of('-'), word.size())));
  std::ranges::replace(name, '-', '_');
  return name;
}

// Cuts words into options and what stands between them. An option has all words up to the next one, or what stands
// behind its '='.
void add_options(std::vector<Setting>& settings, std::vector<ShellWord>& lone, const std::vector<ShellWord>& words,
                 Dialect dialect, const std::string& origin) {
  for (size_t i = 0; i < words.size(); i++) {
    if (!is_option(words[i])) {
      lone.push_back(words[i]);
      continue;
    }
    Setting setting;
    setting.dialect = dialect;
    setting.origin = origin;
    setting.unknown = words[i].unknown;
    const size_t equals = words[i].text.find('=');
    setting.written = words[i].text.substr(0, equals);
    setting.name = option_name(setting.written);
    if (equals != std::string::npos) {
      setting.value = words[i].text.substr(equals + 1);
    } else {
      size_t count = 0;
      for (; i + 1 < words.size() && !is_option(words[i + 1]); count++) {
        const ShellWord& word = words[++i];
        if (count > 0) setting.value += ',';
        setting.value += word.text;
        if (setting.unknown.empty()) setting.unknown = word.unknown;
      }
      setting.is_list = count > 1;
      if (count == 0) setting.value = "true", setting.is_switch = true;
    }
    settings.push_back(std::move(setting));
  }
}

// Returns where the program stands among the words: behind -m or --module, a known name, or a script.
std::optional<size_t> find_start(const std::vector<ShellWord>& words, bool any_script) {
  for (size_t i = 0; i < words.size(); i++) {
    const std::string& word = words[i].text;
    if ((word == "-m" || word == "--module") && i + 1 < words.size()) {
      if (find_program(words[i + 1].text, true) || (any_script && !words[i + 1].text.starts_with("torch.")))
        return i + 1;
      continue;
    }
    const bool value =
        i > 0 && is_option(words[i - 1]) && words[i - 1].text.find('=') == std::string::npos && !word.ends_with(".py");
    if (value && i > 1) continue;
    if (find_program(word) || (any_script && word.ends_with(".py"))) return i;
  }
  return std::nullopt;
}

void add_environment(Invocation& found, const ShellCommand& command, const std::string& origin) {
  for (const auto& [name, word] : command.environment) {
    Setting setting;
    setting.dialect = Dialect::Environment;
    setting.name = setting.written = name;
    setting.value = word.text;
    setting.unknown = word.unknown;
    setting.origin = origin;
    found.settings.push_back(std::move(setting));
  }
}

}  // namespace

std::optional<Invocation> read_command(const ShellCommand& command, std::optional<Dialect> program,
                                       const std::string& origin) {
  const std::vector<ShellWord>& words = command.words;
  const std::optional<size_t> start = find_start(words, program.has_value());
  if (!start) return std::nullopt;
  Invocation found;
  const Program* known = find_program(words[*start].text, true);
  found.program = program ? *program : known->dialect;
  found.command = known ? std::string(known->command) : "train";
  add_environment(found, command, origin);

  std::vector<ShellWord> before(words.begin(), words.begin() + static_cast<ptrdiff_t>(*start));
  if (!before.empty() && (before.back().text == "-m" || before.back().text == "--module")) before.pop_back();
  std::vector<ShellWord> lone;
  add_options(found.settings, lone, before, Dialect::Launcher, origin);
  for (const ShellWord& word : lone)
    if (kLaunchers.contains(last_part(word.text))) found.starts_by = last_part(word.text);
  // `python -m torch.distributed.run` is torchrun.
  for (Setting& setting : found.settings)
    if (setting.name == "m" && setting.value.starts_with("torch.distributed.")) found.starts_by = "torchrun";
  std::erase_if(found.settings, [](const Setting& one) {
    return one.dialect == Dialect::Launcher && (one.name == "m" || one.name == "module" || one.name == "u");
  });

  std::vector<ShellWord> behind(words.begin() + static_cast<ptrdiff_t>(*start) + 1, words.end());
  if (found.command.empty()) {  // llamafactory-cli train, axolotl train, trl sft
    found.starts_by = found.starts_by.empty() ? std::string(last_part(words[*start].text)) : found.starts_by;
    if (behind.empty() || !kCommands.contains(behind[0].text)) return std::nullopt;
    found.command = behind[0].text;
    behind.erase(behind.begin());
  }
  lone.clear();
  add_options(found.settings, lone, behind, found.program, origin);
  for (const ShellWord& word : lone) {
    const size_t equals = word.text.find('=');
    if (equals != std::string::npos && equals > 0) {  // key=value
      Setting setting;
      setting.dialect = found.program;
      setting.written = word.text.substr(0, equals);
      setting.name = option_name(setting.written);
      setting.value = word.text.substr(equals + 1);
      setting.origin = origin;
      setting.unknown = word.unknown;
      found.settings.push_back(std::move(setting));
    } else {
      found.files.push_back(word.text);
    }
  }
  return found;
}

}  // namespace snug
