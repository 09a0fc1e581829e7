#include "format/prompt_format.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "base/file.h"
#include "base/option_name.h"
#include "format/generation_config.h"
#include "format/json.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSnugFormat = 1;  // format of snug.json
constexpr uint64_t kMaxTextBytes = uint64_t{64} << 20;

std::string spelling(const Tokenizer& tokenizer, std::optional<int32_t> id) {
  return id ? tokenizer.token(*id).value_or("") : "";
}

// Returns why the tokenizer cannot ask by a template; empty if it can.
std::string what_is_lacking(const ChatTemplate& chat, const Tokenizer* tokenizer) {
  if (!tokenizer) return "";
  const std::vector<std::string> lacking = chat.lacking([&](std::string_view text) {
    const auto id = tokenizer->token_id(text);
    return id && tokenizer->encode(text) == std::vector<int32_t>{*id};
  });
  if (lacking.empty()) return "";
  return fmt::format(
      "template {}: the tokenizer lacks {}, expected single tokens, which mark where a reply begins and ends; {} takes "
      "another, or none",
      chat.name(), fmt::join(lacking, ", "), option_name("template"));
}

void add_end(PromptFormat& format, int64_t id, int64_t vocabulary, std::string_view what) {
  if (id >= vocabulary) {
    format.notes.push_back(
        fmt::format("{} is token {}, beyond the model's {} rows: it ends no reply", what, id, vocabulary));
  } else if (std::ranges::find(format.end_tokens, id) == format.end_tokens.end()) {
    format.end_tokens.push_back(static_cast<int32_t>(id));
  }
}

void collect_ends(PromptFormat& format, const ModelTokens& model, const Tokenizer* tokenizer,
                  const AdapterFormat* adapter) {
  const auto add_ends = [&](const ChatTemplate& chat) {
    const std::string end = chat.end_of_turn();
    if (const auto id = tokenizer->token_id(end))
      add_end(format, *id, model.vocabulary, fmt::format("'{}', the template's end of turn,", end));
    const std::string call = chat.end_of_call();
    if (const auto id = tokenizer->token_id(call); id && call != end)
      add_end(format, *id, model.vocabulary, fmt::format("'{}', the template's end of calls,", call));
  };
  if (format.chat && tokenizer) {
    add_ends(*format.chat);
    if (format.chat->for_tools()) add_ends(*format.chat->for_tools());
  }
  for (const int64_t id : adapter && adapter->end_tokens ? *adapter->end_tokens : model.end_tokens)
    add_end(format, id, model.vocabulary, "eos_token_id");
  if (tokenizer && tokenizer->eos_id())
    add_end(format, *tokenizer->eos_id(), model.vocabulary, "the tokenizer's eos_token");
  if (format.end_tokens.empty())
    format.notes.emplace_back("neither template nor model nor tokenizer names a token that ends a reply");
}

// Adds a note if what the user names differs from what an adapter was trained with.
void compare_with_adapter(PromptFormat& format, const AdapterFormat& adapter, const SpecialTexts& special) {
  std::string trained = adapter.template_name;
  bool same = format.chat && trained == format.chat->name();
  if (!adapter.jinja.empty()) try {
      const ChatTemplate chat =
          ChatTemplate::choose("auto", adapter.jinja, special, "the adapter", adapter.jinja_for_tools);
      trained = chat.name();
      same = format.chat && format.chat->renders_as(chat);
    } catch (const UserError&) {
      format.notes.push_back(
          fmt::format("{} was trained with a chat template that cannot be used here", adapter.directory));
      return;
    }
  if (same || trained.empty()) return;
  format.notes.push_back(
      fmt::format("{} was trained with template {}{}; without {} it is asked as trained", adapter.directory, trained,
                  format.chat && trained == format.chat->name() ? " of other texts" : "", option_name("template")));
}

}  // namespace

SpecialTexts special_texts(const Tokenizer* tokenizer) {
  if (!tokenizer) return {};
  return {spelling(*tokenizer, tokenizer->bos_id()), spelling(*tokenizer, tokenizer->eos_id()),
          tokenizer->named_tokens()};
}

const ChatTemplate& PromptFormat::for_conversations() const {
  if (!chat) user_error("{}", refusal);
  return *chat;
}

const ChatTemplate* PromptFormat::for_prompts() const {
  if (!chat && plain) return nullptr;
  return &for_conversations();
}

PromptFormat decide_prompt_format(const std::string& name, const ModelTokens& model, const Tokenizer* tokenizer,
                                  const AdapterFormat* adapter) {
  PromptFormat format;
  const SpecialTexts special = special_texts(tokenizer);
  const std::string own = tokenizer ? tokenizer->chat_template_text().value_or("") : "";
  const std::string own_for_tools = tokenizer && tokenizer->named_templates().contains(kToolTemplate)
                                        ? tokenizer->named_templates().at(kToolTemplate)
                                        : "";
  const bool automatic = name == "auto", trained = automatic && adapter && !adapter->jinja.empty();
  const bool bare = automatic && adapter && adapter->template_name == "none";
  format.jinja = trained ? adapter->jinja : own;
  format.jinja_for_tools = trained ? adapter->jinja_for_tools : own_for_tools;
  format.plain = automatic && format.jinja.empty();
  format.template_of_adapter = trained || bare;
  format.ends_of_adapter = adapter && adapter->end_tokens;
  if (adapter) format.notes = adapter->notes;
  if (tokenizer) std::ranges::copy(tokenizer->notes(), std::back_inserter(format.notes));
  if (tokenizer && automatic && !format.template_of_adapter && !tokenizer->templates_note().empty())
    format.notes.push_back(tokenizer->templates_note());
  try {
    format.chat = ChatTemplate::choose(bare ? "none" : name, format.jinja, special,
                                       trained ? "the adapter" : "the model", format.jinja_for_tools);
    format.refusal = what_is_lacking(*format.chat, tokenizer);
    if (!format.refusal.empty()) format.chat.reset();
    if (format.chat) {
      format.jinja = format.chat->jinja();
      if (!format.chat->for_tools() && format.jinja != (trained ? adapter->jinja : own)) format.jinja_for_tools.clear();
    }
  } catch (const UserError& error) {
    format.refusal = error.what();
  }
  collect_ends(format, model, tokenizer, adapter);
  if (!automatic && adapter) compare_with_adapter(format, *adapter, special);
  if (automatic && adapter && !adapter->prompt_pattern.empty())
    format.notes.push_back(fmt::format("{} was trained with {} \"{}\": prompts are asked as they stand",
                                       adapter->directory, option_name("prompt"), adapter->prompt_pattern));
  return format;
}

void parse_snug_file(std::string_view json, std::string_view source, AdapterFormat& format) {
  const Json parsed = parse_json(json, source);
  const JsonObject facts(parsed, std::string(source));
  if (facts.integer("format", 1, INT32_MAX) > kSnugFormat)
    facts.fail("format", fmt::format("{}: it was made by a newer snug", kSnugFormat));
  format.by_snug = true;
  format.template_name = facts.string("template", "");
  format.prompt_pattern = facts.string("prompt", "");
  format.base = facts.string("base", "");
  if (facts.has("images")) {
    const JsonObject images = facts.object("images");
    const auto read = [&](const char* key, std::optional<int64_t>& value) {
      if (images.has(key)) value = images.integer(key, 1, 1 << 28);
    };
    read("min_pixels", format.images.min_pixels);
    read("max_pixels", format.images.max_pixels);
    read("max_slices", format.images.max_slices);
  }
  if (!facts.has("model")) return;
  if (!facts.at("model").is_object()) facts.fail("model", "an object of texts");
  for (const auto& [name, value] : facts.at("model").items()) {
    if (!value.is_string()) facts.fail("model", "an object of texts");
    format.model[name] = value.get<std::string>();
  }
}

ImageSizes read_image_sizes(const fs::path& adapter) {
  const fs::path file = adapter / kSnugFile;
  AdapterFormat format;
  if (is_file(file)) parse_snug_file(read_text(file, kMaxTextBytes), file.string(), format);
  return format.images;
}

AdapterFormat read_adapter_format(const fs::path& directory, int64_t vocabulary) {
  AdapterFormat format;
  format.directory = directory.string();
  const auto text_of = [&](const char* name) {
    const fs::path path = directory / name;
    return is_file(path) ? read_text(path, kMaxTextBytes) : std::string();
  };
  const auto place_of = [&](const char* name) { return (directory / name).string(); };
  format.jinja = text_of("chat_template.jinja");
  ChatTemplateTexts templates;
  if (const std::string config = text_of("tokenizer_config.json"); format.jinja.empty() && !config.empty())
    templates = parse_chat_template(config, place_of("tokenizer_config.json"));
  if (format.jinja.empty()) format.jinja = templates.text.value_or("");
  for (auto& [name, text] : read_named_templates(directory)) templates.named[name] = text;
  if (!format.jinja.empty()) format.jinja_for_tools = templates.for_tools();
  if (const std::string config = text_of("generation_config.json"); !config.empty())
    format.end_tokens = parse_generation_config(config, place_of("generation_config.json"), vocabulary, format.notes);
  if (const std::string facts = text_of(kSnugFile); !facts.empty()) parse_snug_file(facts, place_of(kSnugFile), format);
  return format;
}

}  // namespace snug
