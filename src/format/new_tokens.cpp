#include "format/new_tokens.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "format/json.h"

namespace snug {
namespace {

using OrderedJson = nlohmann::ordered_json;

// Parses an object, which parse_json() has found to be sound; nothing is an empty one.
OrderedJson object_of(const std::string& text, const std::string& source) {
  if (text.empty()) return OrderedJson::object();
  const Json sound = parse_json(text, source);
  JsonObject(sound, source);  // throws if it is no object
  return OrderedJson::parse(text);
}

OrderedJson described(const AddedToken& token) {
  return {{"content", token.content}, {"single_word", false}, {"lstrip", false},
          {"rstrip", false},          {"normalized", false},  {"special", token.special}};
}

}  // namespace

std::vector<AddedToken> number_tokens(const Tokenizer& tokenizer, std::span<const AddedToken> wanted) {
  std::vector<AddedToken> added;
  int32_t next = tokenizer.next_id();
  for (const AddedToken& token : wanted) {
    const bool again = std::ranges::find(added, token.content, &AddedToken::content) != added.end();
    if (!again && !tokenizer.token_id(token.content))
      added.push_back({.id = next++, .content = token.content, .special = token.special});
  }
  return added;
}

Tokenizer::Files with_new_tokens(Tokenizer::Files files, std::span<const AddedToken> tokens, const std::string& place) {
  const bool by_pieces = files.tokenizer.empty();
  if (by_pieces) {
    OrderedJson ids = object_of(files.added_tokens, place + "added_tokens.json");
    for (const AddedToken& token : tokens) ids[token.content] = token.id;
    files.added_tokens = ids.dump(2);
  } else {
    OrderedJson json = object_of(files.tokenizer, place + "tokenizer.json");
    OrderedJson& list = json["added_tokens"];
    if (!list.is_null() && !list.is_array())
      user_error("{}tokenizer.json, key 'added_tokens': found no list, expected one", place);
    for (const AddedToken& token : tokens) {
      OrderedJson entry{{"id", token.id}};
      entry.update(described(token));
      list.push_back(std::move(entry));
    }
    files.tokenizer = json.dump();
  }
  // Without one transformers takes all it needs from tokenizer.json.
  if (files.config.empty() && !by_pieces) return files;
  OrderedJson config = object_of(files.config, place + "tokenizer_config.json");
  OrderedJson& decoder = config["added_tokens_decoder"];
  if (!decoder.is_null() && !decoder.is_object())
    user_error("{}tokenizer_config.json, key 'added_tokens_decoder': found no object, expected one", place);
  for (const AddedToken& token : tokens) decoder[std::to_string(token.id)] = described(token);
  files.config = config.dump(2);
  return files;
}

void write_new_tokens(const std::filesystem::path& directory, std::span<const AddedToken> tokens) {
  const Tokenizer::Files before = Tokenizer::read(directory),
                         after = with_new_tokens(before, tokens, (directory / "").string());
  const auto write = [&](const char* name, const std::string& was, const std::string& is) {
    if (is != was) write_text(directory / name, is);
  };
  write("tokenizer.json", before.tokenizer, after.tokenizer);
  write("added_tokens.json", before.added_tokens, after.added_tokens);
  write("tokenizer_config.json", before.config, after.config);
}

}  // namespace snug
