// Defines Tokenizer::load() and parse(), which read tokenizer.json and the files beside it.
#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "base/option_name.h"
#include "format/side_files.h"
#include "format/tokenizer.h"
#include "format/unicode.h"

namespace snug {
namespace {

constexpr uint64_t kMaxFileBytes = uint64_t{256} << 20;

// Returns the JSON objects of a list, or the one object that stands where a "Sequence" could.
std::vector<JsonObject> flattened(const JsonObject& json, std::string_view list, const std::string& source,
                                  const std::string& place) {
  if (json.string("type") != "Sequence") return {json};
  if (!json.at(list).is_array()) json.fail(list, "a list");
  std::vector<JsonObject> parts;
  for (const Json& part : json.at(list)) parts.emplace_back(part, source, fmt::format("{}.{}", place, list));
  return parts;
}

// Returns the ids of the special tokens that a TemplateProcessing puts before a text.
std::vector<int32_t> template_prefix(const JsonObject& processor, const std::string& source) {
  const Json& single = processor.at("single");
  if (!single.is_array()) processor.fail("single", "a list");
  std::vector<int32_t> prefix;
  for (const Json& entry : single) {
    const JsonObject part(entry, source, "post_processor.single");
    if (part.has("Sequence")) return prefix;
    const std::string name = part.object("SpecialToken").string("id");
    const JsonObject token = processor.object("special_tokens").object(name);
    const Json& ids = token.at("ids");
    if (!ids.is_array() || ids.size() != 1 || !ids[0].is_number_integer()) token.fail("ids", "a list of one id");
    const auto id = ids[0].get<int64_t>();
    if (id < 0 || id > kMaxTokenId) token.fail("ids", fmt::format("an id from 0 to {}", kMaxTokenId));
    prefix.push_back(static_cast<int32_t>(id));
  }
  processor.fail("single", "the text (\"Sequence\") in it");
}

std::vector<int32_t> parse_prefix(const JsonObject& file, const std::string& source) {
  std::vector<int32_t> prefix;
  if (!file.has("post_processor")) return prefix;
  for (const JsonObject& part : flattened(file.object("post_processor"), "processors", source, "post_processor")) {
    const std::string type = part.string("type");
    if (type == "TemplateProcessing") {
      prefix = template_prefix(part, source);
    } else if (type != "ByteLevel") {
      part.fail("type", "\"TemplateProcessing\" or \"ByteLevel\"");
    }
  }
  return prefix;
}

// Returns the text of a token that a config names as "bos_token": a string, or an object that holds it. Empty: no such
// token.
std::string named_token(const JsonObject& config, std::string_view role) {
  if (!config.has(role)) return "";
  return config.at(role).is_object() ? config.object(role).string("content") : config.string(role);
}

// Reads tokenizer_config.json's chat_template: one text, or a list of named ones.
ChatTemplateTexts template_texts(const JsonObject& config, const std::string& source) {
  constexpr std::string_view kKey = "chat_template";
  ChatTemplateTexts out;
  if (!config.has(kKey)) return out;
  if (!config.at(kKey).is_array()) {
    out.text = config.string(kKey);
    return out;
  }
  for (const Json& entry : config.at(kKey)) {
    const JsonObject one(entry, source, std::string(kKey));
    if (const std::string name = one.string("name"); name == "default")
      out.text = one.string("template");
    else
      out.named[name] = one.string("template");
  }
  if (!out.text) config.fail(kKey, "a text, or a list with a template named \"default\"");
  return out;
}

// Returns the texts of special tokens that the configs name besides BOS and EOS, as transformers tells them templates:
// the first config that has a name counts.
std::map<std::string, std::string> parse_named_tokens(const std::vector<JsonObject>& configs) {
  constexpr std::string_view kExtra = "extra_special_tokens", kEnd = "_token";
  std::map<std::string, std::string> out;
  const auto add = [&](const std::string& name, const Json& value) {
    const Json text = value.is_object() ? value.value("content", Json()) : value;
    if (text.is_string() && name != "bos_token" && name != "eos_token") out.emplace(name, text.get<std::string>());
  };
  for (const JsonObject& config : configs) {
    for (const auto& [name, value] : config.value().items())
      if (name.ends_with(kEnd)) add(name, value);
    if (!config.has(kExtra) || !config.at(kExtra).is_object()) continue;
    for (const auto& [name, value] : config.at(kExtra).items()) add(name, value);
  }
  return out;
}

AddedToken parse_added_token(const JsonObject& json) {
  return {.id = static_cast<int32_t>(json.integer("id", 0, kMaxTokenId)),
          .content = json.string("content"),
          .special = json.boolean("special"),
          .normalized = json.boolean("normalized"),
          .single_word = json.boolean("single_word"),
          .lstrip = json.boolean("lstrip"),
          .rstrip = json.boolean("rstrip")};
}

}  // namespace

ChatTemplateTexts parse_chat_template(std::string_view json, const std::string& source) {
  const Json parsed = parse_json(json, source);
  return template_texts(JsonObject(parsed, source), source);
}

std::map<std::string, std::string> read_named_templates(const std::filesystem::path& directory) {
  constexpr std::string_view kEnd = ".jinja";
  std::map<std::string, std::string> out;
  const std::filesystem::path folder = directory / kAdditionalTemplates;
  if (!std::filesystem::is_directory(folder)) return out;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (!entry.is_regular_file() || !name.ends_with(kEnd)) continue;
    out[name.substr(0, name.size() - kEnd.size())] = read_text(entry.path(), kMaxFileBytes);
  }
  return out;
}

void Tokenizer::add_token(const AddedToken& token, const std::string& pattern, const std::string& source) {
  if (pattern.empty()) {
    user_error("{}, key 'added_tokens': found token {}, which normalises to nothing, expected a text", source,
               token.id);
  }
  (token.normalized ? found_after_ : found_before_).insert(token, pattern, source);
  added_ids_[token.content] = token.id;
  entries_[token.id] = {pattern, decoder_.bytes(pattern, /*first=*/false), token.special && pattern == token.content};
}

void Tokenizer::parse_added_tokens(const Json& list, const std::string& source) {
  int64_t next_id = static_cast<int64_t>(model_.vocabulary().size());
  for (const Json& entry : list) {
    const JsonObject json(entry, source, "added_tokens");
    const AddedToken token = parse_added_token(json);
    if (token.content.empty()) continue;
    const auto known = token_id(token.content);
    const int64_t expected = known ? *known : next_id++;
    if (token.id != expected) json.fail("id", fmt::format("{}, the id that the vocabulary leaves to it", expected));
    add_token(token, token.normalized ? normalizer_.apply(token.content) : token.content, source);
  }
}

void Tokenizer::read_bos_and_eos(const std::vector<int32_t>& prefix, const std::vector<JsonObject>& configs,
                                 const std::string& source) {
  for (const int32_t id : prefix) {
    if (!entries_.contains(id)) {
      user_error("{}, key 'post_processor': found id {} before a text, expected the id of a token", source, id);
    }
  }
  const auto id_named = [&](std::string_view role) -> std::optional<int32_t> {
    const auto config =
        std::find_if(configs.begin(), configs.end(), [&](const JsonObject& c) { return c.value().contains(role); });
    if (config == configs.end()) return {};
    const std::string name = named_token(*config, role);
    if (name.empty()) return {};
    const auto id = token_id(name);
    if (!id) config->fail(role, "a token of tokenizer.json");
    return id;
  };
  bos_id_ = id_named("bos_token");
  eos_id_ = id_named("eos_token");

  const auto said = std::find_if(configs.begin(), configs.end(), [](const JsonObject& config) {
    return config.has("add_bos_token") || config.has("add_eos_token");
  });
  if (said != configs.end()) {
    if (said->boolean("add_bos_token", false) && bos_id_) prefix_ = {*bos_id_};
    if (prefix_ != prefix) {
      const auto words = [&](const std::vector<int32_t>& ids) {
        std::string text;
        for (const int32_t id : ids) text += token(id).value_or("");
        return ids.empty() ? "nothing" : fmt::format("'{}'", text);
      };
      notes_.push_back(fmt::format(
          "{}: its post_processor puts {} before a text, and add_bos_token of tokenizer_config.json is {}: {} is put",
          source, words(prefix),
          said->has("add_bos_token") ? said->boolean("add_bos_token") ? "true" : "false" : "not there (false)",
          words(prefix_)));
    }
    return;
  }
  prefix_ = prefix;
  if (prefix.size() != 1) return;
  if (!bos_id_) bos_id_ = prefix[0];
  if (bos_id_ != prefix[0]) {
    user_error("{}, key 'post_processor': found token {} before a text, expected the bos_token, {}", source, prefix[0],
               *bos_id_);
  }
}

Tokenizer Tokenizer::of_json(const Files& files, const std::vector<JsonObject>& configs, const std::string& place) {
  const std::string source = place + "tokenizer.json";
  const Json json = parse_json(files.tokenizer, source);
  const JsonObject file(json, source);
  if (file.string("version", "1.0") != "1.0") file.fail("version", "\"1.0\"");
  PreTokenizer pre_tokenizer =
      PreTokenizer::parse(file.has("pre_tokenizer") ? file.at("pre_tokenizer") : Json(), source);
  BytePairModel model = BytePairModel::parse(file.object("model"), pre_tokenizer.byte_level());
  Tokenizer tokenizer(std::move(model), Normalizer::parse(file, source), std::move(pre_tokenizer),
                      TokenDecoder::parse(file, source));
  if (file.has("added_tokens")) {
    if (!file.at("added_tokens").is_array()) file.fail("added_tokens", "a list");
    tokenizer.parse_added_tokens(file.at("added_tokens"), source);
  }
  if (file.has("truncation"))
    tokenizer.notes_.push_back(
        fmt::format("{}: it truncates texts{}, which is not applied, as by transformers: {} is the limit", source,
                    file.object("truncation").has("max_length")
                        ? fmt::format(" to {} tokens", file.object("truncation").integer("max_length", 0, INT64_MAX))
                        : "",
                    option_name("sequence_length")));
  tokenizer.read_bos_and_eos(parse_prefix(file, source), configs, source);
  return tokenizer;
}

Tokenizer Tokenizer::parse(const Files& files, const std::string& place) {
  std::vector<Json> values;
  std::vector<JsonObject> configs;
  values.reserve(2);  // the objects refer to their values
  const auto add_config = [&](const std::string& text, const char* name) {
    if (text.empty()) return;
    values.push_back(parse_json(text, place + name));
    configs.emplace_back(values.back(), place + name);
  };
  add_config(files.config, "tokenizer_config.json");
  ChatTemplateTexts templates =
      configs.empty() ? ChatTemplateTexts() : template_texts(configs.front(), place + "tokenizer_config.json");
  add_config(files.special_tokens_map, "special_tokens_map.json");
  const bool by_pieces = files.tokenizer.empty() && !files.sentencepiece.empty();
  Tokenizer tokenizer = by_pieces ? of_sentencepiece(files, configs, place) : of_json(files, configs, place);
  // Files of templates take the place of what the config has.
  if (!files.chat_template.empty() || !files.named_templates.empty()) templates.named = files.named_templates;
  if (!files.chat_template.empty()) templates.text = files.chat_template;
  tokenizer.note_templates(templates, place);
  tokenizer.templates_ = std::move(templates);
  tokenizer.named_tokens_ = parse_named_tokens(configs);
  return tokenizer;
}

void Tokenizer::note_templates(const ChatTemplateTexts& templates, const std::string& place) {
  if (templates.named.empty()) return;
  std::string others;
  for (const auto& [name, text] : templates.named)
    if (name != kToolTemplate) others += fmt::format("{}'{}'", others.empty() ? "" : ", ", name);
  std::string line = fmt::format("{}: it has several chat templates:", place.empty() ? "tokenizer_config.json" : place);
  if (templates.named.contains(kToolTemplate))
    line += fmt::format(" conversations with tools take '{}', others 'default'", kToolTemplate);
  else
    line += " 'default' is taken";
  if (!others.empty()) line += fmt::format("; {} {} left", others, templates.named.size() > 2 ? "are" : "is");
  templates_note_ = std::move(line);
}

bool has_tokenizer(const std::filesystem::path& model_directory) {
  return is_file(model_directory / "tokenizer.json") || is_file(model_directory / "tokenizer.model");
}

Tokenizer::Files Tokenizer::read(const std::filesystem::path& model_directory) {
  const auto read = [&](const char* name) {
    const std::filesystem::path path = model_directory / name;
    return is_file(path) ? read_text(path, kMaxFileBytes) : std::string();
  };
  if (!has_tokenizer(model_directory)) {
    user_error("{}: found neither tokenizer.json nor tokenizer.model, expected one of them", model_directory.string());
  }
  const bool by_pieces = !is_file(model_directory / "tokenizer.json");
  return {.tokenizer = read("tokenizer.json"),
          .config = read("tokenizer_config.json"),
          .special_tokens_map = read("special_tokens_map.json"),
          .chat_template = read("chat_template.jinja"),
          .sentencepiece = by_pieces ? read("tokenizer.model") : "",
          .added_tokens = by_pieces ? read("added_tokens.json") : "",
          .named_templates = read_named_templates(model_directory)};
}

Tokenizer Tokenizer::load(const std::filesystem::path& model_directory) {
  return parse(read(model_directory), (model_directory / "").string());
}

}  // namespace snug
