#include "translate/settings.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/ascii.h"

namespace snug {
namespace {

void add(std::vector<Setting>& settings, const Tree& tree, Setting at, const std::string& source) {
  switch (tree.kind) {
    case Tree::Kind::Map:
      if (tree.entries.empty()) settings.push_back(at);
      for (const auto& [key, value] : tree.entries) {
        Setting inner = at;
        std::string name = key;
        std::ranges::replace(name, '-', '_');
        inner.name += (inner.name.empty() ? "" : ".") + name;
        inner.written += (inner.written.empty() ? "" : ".") + key;
        if (value.line > 0) inner.origin = fmt::format("{}:{}", source, value.line);
        add(settings, value, std::move(inner), source);
      }
      return;
    case Tree::Kind::List: {
      const bool maps = std::ranges::any_of(tree.items, [](const Tree& item) { return item.kind == Tree::Kind::Map; });
      if (maps) {
        for (size_t i = 0; i < tree.items.size(); i++) {
          Setting inner = at;
          inner.item = static_cast<int64_t>(i);
          inner.written += fmt::format("[{}]", i);
          add(settings, tree.items[i], std::move(inner), source);
        }
        return;
      }
      at.is_list = true;
      const Setting base = at;
      for (size_t i = 0; i < tree.items.size(); i++) {
        if (i > 0) at.value += ',';
        const Tree& item = tree.items[i];
        if (item.kind == Tree::Kind::List) {
          Setting inner = base;
          inner.written += fmt::format("[{}]", i);
          add(settings, item, std::move(inner), source);
        }
        at.value += item.text;
      }
      settings.push_back(std::move(at));
      return;
    }
    case Tree::Kind::Text:
      at.value = tree.text;
      [[fallthrough]];
    case Tree::Kind::Null:
      settings.push_back(std::move(at));
  }
}

}  // namespace

std::string_view name(Dialect dialect) {
  switch (dialect) {
    case Dialect::Launcher:
      return "launcher";
    case Dialect::Environment:
      return "environment";
    case Dialect::Trainer:
      return "transformers' Trainer";
    case Dialect::LlamaFactory:
      return "LLaMA-Factory";
    case Dialect::LlamaRecipes:
      return "llama-recipes";
    case Dialect::OpenRlhf:
      return "OpenRLHF";
    case Dialect::MiniCpm:
      return "MiniCPM-V's finetune.py";
    case Dialect::Axolotl:
      return "axolotl";
    case Dialect::Trl:
      return "TRL";
    case Dialect::DeepSpeed:
      return "DeepSpeed";
    case Dialect::Accelerate:
      return "accelerate";
    case Dialect::DatasetInfo:
      break;
  }
  return "dataset_info.json";
}

const std::vector<std::pair<std::string_view, Dialect>>& program_names() {
  static const std::vector<std::pair<std::string_view, Dialect>> names{
      {"llamafactory", Dialect::LlamaFactory}, {"llama-recipes", Dialect::LlamaRecipes},
      {"openrlhf", Dialect::OpenRlhf},         {"minicpm", Dialect::MiniCpm},
      {"axolotl", Dialect::Axolotl},           {"trl", Dialect::Trl},
      {"trainer", Dialect::Trainer},           {"deepspeed", Dialect::DeepSpeed},
      {"accelerate", Dialect::Accelerate}};
  return names;
}

bool is_off(std::string_view value) {
  const std::string word = lower_case(value);
  for (const char* off : {"", "false", "no", "off", "none", "null", "0", "0.0", "[]", "{}"})
    if (word == off) return true;
  return false;
}

bool is_on(std::string_view value) {
  const std::string word = lower_case(value);
  return word == "true" || word == "yes" || word == "on" || word == "1";
}

void add_settings(std::vector<Setting>& settings, const Tree& tree, Dialect dialect, const std::string& source) {
  Setting at;
  at.dialect = dialect;
  at.origin = source;
  add(settings, tree, std::move(at), source);
}

}  // namespace snug
