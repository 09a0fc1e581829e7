#include "translate/data_sets.h"

#include <algorithm>

#include "base/ascii.h"
#include "translate/translator.h"

namespace snug {

bool names_file(std::string_view text) {
  if (text.starts_with("http://") || text.starts_with("https://")) return false;
  if (text.starts_with('/') || text.starts_with('.') || text.starts_with('~')) return true;
  for (const char* end : {".json", ".jsonl", ".csv", ".parquet", ".txt", ".gz", ".zst"})
    if (text.ends_with(end)) return true;
  return false;
}

namespace {

constexpr std::string_view kHubData = "is no file here: download it, and give data its file";

// Gathers what data sets say of files, shapes and columns: snug has one of each for all files of a run.
struct DataSets {
  std::vector<std::string> files, held_out;
  std::map<std::string, std::string> columns, roles;
  std::string format;  // of all, if they agree
  bool formats_differ = false;
  std::string from;
  std::string set_template;  // of axolotl's types that have one

  void add_format(const std::string& one) {
    if (format.empty()) format = one;
    formats_differ = formats_differ || format != one;
  }
};

// Adds a name for a field or role; judges the setting.
void add_name(Translator& t, std::map<std::string, std::string>& names, const std::string& ours,
              const std::string& theirs, std::string_view usual, const Setting& setting, bool only_set) {
  if (theirs == usual || theirs.empty()) {
    t.judge(setting, Mark::Same, "found by looking");
  } else if (const auto found = names.find(ours); (found != names.end() && found->second != theirs) || !only_set) {
    t.judge(setting, Mark::Refused,
            filled("columns and roles hold for all files of a run: rename it in the file", setting));
  } else {
    names[ours] = theirs;
    t.judge(setting, Mark::Same, fmt::format("{} -> {}", one_line(theirs), ours));
  }
}

// Returns the text behind the last dot.
std::string last_name(const std::string& name) { return name.substr(name.rfind('.') + 1); }

// ---- LLaMA-Factory --------------------------------------------------------------------------------------------------

const Setting* of_item(const Translator& t, const char* name, int64_t item) {
  for (const Setting* setting : t.all_held(name))
    if (setting->item == item) return setting;
  return nullptr;
}

void add_entry_columns(Translator& t, DataSets& sets, bool sharegpt, bool text) {
  static constexpr std::pair<std::string_view, std::string_view> kColumns[] = {
      {"prompt", "instruction"}, {"query", "input"},   {"response", "output"},   {"history", "history"},
      {"system", "system"},      {"tools", "tools"},   {"messages", "messages"}, {"chosen", "chosen"},
      {"rejected", "rejected"},  {"kto_tag", "label"}, {"images", "images"},     {"videos", "videos"}};
  const bool one = sets.files.size() + sets.held_out.size() <= 1;
  for (const Setting* setting : t.all_held("column")) {
    if (setting->dialect != Dialect::DatasetInfo) continue;
    const std::string theirs = last_name(setting->name);
    const auto* const found =
        std::ranges::find(kColumns, theirs, &std::pair<std::string_view, std::string_view>::first);
    if (theirs == "audios")
      t.judge(*setting, Mark::Refused, filled("the set has them, and they are not supported yet", *setting));
    else if ((theirs == "chosen" || theirs == "rejected" || theirs == "kto_tag") && !t.learns_preferences())
      t.judge(*setting, Mark::Refused, "of preferences, and no objective on these is asked for");
    else if (theirs == "kto_tag" && setting->value == theirs)
      t.judge(*setting, Mark::Same, "found by looking");
    else if (found == std::end(kColumns))
      t.judge(*setting, Mark::Refused, filled("no column that snug looks for", *setting));
    else if (text && theirs == "prompt")
      add_name(t, sets.columns, "text", setting->value, "text", *setting, one);
    else if (theirs == "messages" && sharegpt && (setting->value == "conversations" || setting->value == "messages"))
      t.judge(*setting, Mark::Same, "found by looking");
    else
      add_name(t, sets.columns, std::string(found->second), setting->value, found->second, *setting, one);
  }
  for (const Setting* setting : t.all_held("tag")) {
    const std::string theirs = last_name(setting->name), value = lower_case(setting->value);
    static const std::map<std::string, std::pair<std::string, std::vector<std::string>>> kTags{
        {"role_tag", {"role", {"role", "from"}}},  {"content_tag", {"content", {"content", "value"}}},
        {"user_tag", {"user", {"user", "human"}}}, {"assistant_tag", {"assistant", {"assistant", "gpt"}}},
        {"system_tag", {"system", {"system"}}},    {"observation_tag", {"tool", {"observation", "tool"}}},
        {"function_tag", {"", {"function_call"}}}};
    const auto found = kTags.find(theirs);
    if (found == kTags.end() || (found->second.first.empty() && value != "function_call"))
      t.judge(*setting, Mark::Refused, filled("no role that snug knows", *setting));
    else if (std::ranges::find(found->second.second, value) != found->second.second.end())
      t.judge(*setting, Mark::Same, "found by looking");
    else if (theirs == "role_tag" || theirs == "content_tag")
      add_name(t, sets.columns, found->second.first, setting->value, "", *setting, one);
    else
      add_name(t, sets.roles, setting->value, found->second.first, "", *setting, one);
  }
}

std::string in_directory(const std::string& directory, const std::string& file) {
  if (file.starts_with('/') || directory.empty() || directory == ".") return file;
  return directory + (directory.ends_with('/') ? "" : "/") + file;
}

void add_llama_factory(Translator& t, DataSets& sets) {
  std::string directory = "data";
  for (const Setting& setting : t.settings())
    if (setting.name == "dataset_dir" && !setting.value.empty()) directory = setting.value;
  const bool text = t.task() == "pt";
  bool sharegpt = false;
  for (const auto& [name, first] : {std::pair("dataset", int64_t{0}), {"validation", kHeldOut}}) {
    const Setting* setting = t.held(name);
    t.judge_all(name, Mark::Decided, "another one counts");
    if (!setting) continue;
    std::vector<std::string> missing, hub;
    const std::vector<std::string> items = items_of(setting->value);
    for (size_t i = 0; i < items.size(); i++) {
      const int64_t item = first + static_cast<int64_t>(i);
      const Setting* file = of_item(t, "file_name", item);
      std::vector<std::string>& files = first == 0 ? sets.files : sets.held_out;
      const Setting* formatting = of_item(t, "formatting", item);
      const bool listed = std::ranges::any_of(
          t.settings(), [&](const Setting& one) { return one.dialect == Dialect::DatasetInfo && one.item == item; });
      if (file) {
        files.push_back(in_directory(directory, file->value));
        t.judge(*file, Mark::Same, "data: " + one_line(files.back()));
      } else if (names_file(items[i])) {
        files.push_back(items[i]);
      } else {
        (listed ? hub : missing).push_back(items[i]);
      }
      if (formatting) {
        t.judge(*formatting, Mark::Same, t.learns_preferences() ? "found by looking" : "data_format");
        sharegpt = sharegpt || formatting->value == "sharegpt";
      }
      if (file && !text) sets.add_format(formatting && formatting->value == "sharegpt" ? "sharegpt" : "alpaca");
    }
    if (!missing.empty())
      t.judge(*setting, Mark::Refused,
              fmt::format("found no entry for {} in {}/dataset_info.json, expected one with its file_name",
                          one_line(missing[0]), one_line(directory)));
    else if (!hub.empty())
      t.judge(*setting, Mark::Refused, fmt::format("{} {}", one_line(hub[0]), kHubData));
    else
      t.judge(*setting, Mark::Same, first == 0 ? "data" : "validation");
    sets.from = setting->written;
  }
  add_entry_columns(t, sets, sharegpt, text);
}

// ---- axolotl --------------------------------------------------------------------------------------------------------

// Judges the type of a set of preferences, "llama3.ultra": a template, and which fields the turns are in.
void add_preference_type(Translator& t, DataSets& sets, const Setting& setting, bool one) {
  const std::string word = lower_case(setting.value), kind = word.substr(0, word.find('.'));
  const std::string fields = kind.size() < word.size() ? word.substr(kind.size() + 1) : "";
  if (kind == "chat_template" || word == "bradley_terry.chat_template" || kind == "passthrough" ||
      kind == "user_defined") {
    t.judge(setting, Mark::Same,
            word.ends_with("chat_template") ? "rendered by the chat template, as there" : "as the data's shape says");
    return;
  }
  const bool other = !sets.set_template.empty() && sets.set_template != kind;
  if ((kind != "chatml" && kind != "llama3" && kind != "mistral") || fields == "nectar" || other) {
    t.judge(setting, Mark::Refused,
            filled("snug reads chat_template, chatml, llama3 and mistral, one for all sets", setting));
    return;
  }
  sets.set_template = kind;
  t.set("template", kind, setting.written);
  // A text under prompt is taken as it is unless it is said to be an instruction.
  const bool asked = fields == "prompt_pairs" || (fields == "ultra" && !t.learns_pairs());
  if (asked && !one) {
    t.judge(setting, Mark::Refused,
            filled("columns hold for all files of a run: name prompts instruction in the file", setting));
    return;
  }
  if (asked) sets.columns["instruction"] = "prompt";
  t.judge(setting, Mark::Changed,
          fmt::format("template: {}{}; ends of turns differ by version: snug tokenize --json shows a sample", kind,
                      asked ? ", columns: {instruction: prompt}" : ""));
}

// Judges a data set's type and adds its shape.
void add_axolotl_type(Translator& t, DataSets& sets, const Setting& setting) {
  std::string word = lower_case(setting.value);
  word = word.substr(0, word.find_first_of(".:"));
  if (word == "chat_template" || word == "sharegpt") {
    t.judge(setting, word == "sharegpt" ? Mark::Changed : Mark::Same,
            word == "sharegpt" ? "rendered by the chat template" : "rendered by the chat template, as there");
    sets.add_format("auto");
  } else if (lower_case(setting.value) == "alpaca") {
    t.judge(setting, Mark::Changed,
            "axolotl puts Alpaca's own words around an instruction, here a chat template does: prompt says a pattern");
    sets.add_format("alpaca");
  } else if (word == "completion" || word == "pretrain") {
    t.judge(setting, Mark::Same, "data_format: text");
    sets.add_format("text");
  } else {
    t.judge(setting, Mark::Refused, filled("snug reads alpaca, sharegpt, messages, text and tokens", setting));
  }
}

void add_axolotl_column(Translator& t, DataSets& sets, const Setting& setting, bool one) {
  static const std::map<std::string, std::pair<std::string, std::vector<std::string>>> kFields{
      {"field_messages", {"messages", {"messages", "conversations"}}},
      {"field_instruction", {"instruction", {"instruction"}}},
      {"field_input", {"input", {"input"}}},
      {"field_output", {"output", {"output"}}},
      {"field_system", {"system", {"system"}}},
      {"field_tools", {"tools", {"tools"}}},
      {"field", {"text", {"text"}}},
      {"text_column", {"text", {"text"}}},
      {"field_prompt", {"prompt", {"prompt"}}},
      {"field_chosen", {"chosen", {"chosen", "chosen_response"}}},
      {"field_rejected", {"rejected", {"rejected", "rejected_response"}}},
      {"field_completion", {"completion", {"completion"}}},
      {"field_label", {"label", {"label"}}},
      {"message_field_role", {"role", {"role", "from"}}},
      {"message_field_content", {"content", {"content", "value"}}},
      {"message_field_training", {"train", {"train", "training"}}},
      {"role", {"role", {"role", "from"}}},
      {"content", {"content", {"content", "value"}}}};
  const auto found = kFields.find(last_name(setting.name));
  if (found == kFields.end()) {
    t.judge(setting, Mark::Refused, filled("no field of a message that snug looks for", setting));
  } else if (std::ranges::find(found->second.second, setting.value) != found->second.second.end()) {
    t.judge(setting, Mark::Same, "found by looking");
  } else {
    add_name(t, sets.columns, found->second.first, setting.value, "", setting, one);
  }
}

void add_axolotl_roles(Translator& t, DataSets& sets, const Setting& setting) {
  const std::string ours = last_name(setting.name);
  if (ours != "user" && ours != "assistant" && ours != "system" && ours != "tool") {
    t.judge(setting, Mark::Refused, filled("roles are system, user, assistant and tool", setting));
    return;
  }
  for (const std::string& theirs : items_of(setting.value))
    if (theirs != ours && theirs != "human" && theirs != "gpt") sets.roles[theirs] = ours;
  t.judge(setting, Mark::Same, "roles");
}

void add_axolotl(Translator& t, DataSets& sets) {
  const size_t count = t.all_held("dataset").size();
  for (const Setting* setting : t.all_held("dataset_type")) {
    if (t.learns_preferences())
      add_preference_type(t, sets, *setting, count <= 1);
    else
      add_axolotl_type(t, sets, *setting);
  }
  for (const Setting* setting : t.all_held("column")) add_axolotl_column(t, sets, *setting, count <= 1);
  for (const Setting* setting : t.all_held("role")) add_axolotl_roles(t, sets, *setting);
  for (const Setting* setting : t.all_held("data_files")) {
    for (const std::string& file : items_of(setting->value)) sets.files.push_back(file);
    t.judge(*setting, Mark::Same, "data");
  }
  for (const Setting* setting : t.all_held("pretraining")) {
    if (is_off(setting->value)) {
      t.judge(*setting, Mark::Same, "none");
    } else if (names_file(setting->value)) {
      sets.files.push_back(setting->value);
      t.judge(*setting, Mark::Same, "data");
    } else {
      t.judge(*setting, Mark::Refused, fmt::format("{} {}", one_line(setting->value), kHubData));
    }
  }
}

// ---- All ------------------------------------------------------------------------------------------------------------

// Adds files by name; ids of data sets are refused.
void add_names(Translator& t, const char* name, std::vector<std::string>& files, bool always_files) {
  for (const Setting* setting : t.all_held(name)) {
    std::string hub;
    for (const std::string& item : items_of(setting->value)) {
      const bool dotted = item == "json" || item == "csv" || item == "parquet";  // axolotl: the kind of its data_files
      if (always_files || names_file(item))
        files.push_back(item);
      else if (hub.empty() && !(dotted && t.held("data_files")))
        hub = item;
    }
    if (hub.empty())
      t.judge(*setting, Mark::Same,
              setting->value.empty()           ? "nothing stands there"
              : name == std::string("dataset") ? "data"
                                               : "validation");
    else if (t.program() == Dialect::LlamaRecipes)
      t.judge(
          *setting, Mark::Refused,
          fmt::format("data set {} is Python code: write its samples into a file, such as messages a line, and give "
                      "data its name",
                      one_line(hub)));
    else
      t.judge(*setting, Mark::Refused, fmt::format("{} {}", one_line(hub), kHubData));
  }
}

void write(Translator& t, DataSets& sets) {
  if (!sets.files.empty()) t.set_list("data", sets.files, sets.from);
  if (!sets.held_out.empty()) t.set_list("validation", sets.held_out, "held-out data sets");
  // Which shape of preferences it is, is found by looking.
  if (!t.learns_preferences() && !sets.formats_differ && !sets.format.empty() && sets.format != "auto" &&
      !sets.files.empty())
    t.set("data_format", sets.format, "of all sets");
  if (sets.format == "text" && !sets.formats_differ) t.set("train_on", "all", "texts as they are");
  if (!sets.columns.empty()) t.set_map("columns", sets.columns, "fields by other names");
  if (!sets.roles.empty()) t.set_map("roles", sets.roles, "roles by other names");
}

// Puts the pixels that LLaMA-Factory leaves an image where nothing is said, if a data set has images.
void bound_images(Translator& t) {
  const auto names_images = [](const Setting* column) {
    return column->dialect == Dialect::DatasetInfo && last_name(column->name) == "images";
  };
  if (!t.has("image_max_pixels") && std::ranges::any_of(t.all_held("column"), names_images))
    t.set("image_max_pixels", "589824", "image_max_pixels, their default: 768 x 768");
}

}  // namespace

void finish_data_sets(Translator& t) {
  DataSets sets;
  sets.from = t.held("dataset") ? t.held("dataset")->written : "data";
  if (t.program() == Dialect::LlamaFactory) {
    add_llama_factory(t, sets);
    bound_images(t);
  } else {
    if (t.program() == Dialect::Axolotl) add_axolotl(t, sets);
    const bool files = t.program() == Dialect::MiniCpm;
    add_names(t, "dataset", sets.files, files);
    add_names(t, "validation", sets.held_out, files);
  }
  for (const Setting* setting : t.all_held("text_column")) {
    if (setting->value.empty() || setting->value == "text") {
      t.judge(*setting, Mark::Same, "found by looking");
    } else {
      sets.columns["text"] = setting->value;
      t.judge(*setting, Mark::Same, "columns");
    }
  }
  write(t, sets);
}

}  // namespace snug
