#include "format/gguf_vocabulary.h"

#include <algorithm>
#include <map>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "format/gguf_pretokenizers.h"
#include "format/json.h"
#include "format/sentencepiece.h"
#include "format/tokenizer.h"

namespace snug {
namespace fs = std::filesystem;
namespace {

// What helps where GGUF has no form for a tokenizer.
constexpr std::string_view kElse =
    "; 'snug export --format adapter' writes no tokenizer, and what 'snug merge' writes has the model's own";

using Type = SentencePieces::Type;

constexpr uint64_t kMaxFileBytes = uint64_t{256} << 20;
constexpr std::string_view kMark = "\u2581";  // SentencePiece's space

// Holds the tokens of a file, by id.
struct Vocabulary {
  std::vector<std::string> tokens;
  std::vector<int32_t> types;
  std::vector<float> scores;  // of SentencePiece models only
};

void add_token(Vocabulary& vocabulary, const JsonObject& source, int64_t id, const std::string& text, Type type) {
  const auto rows = static_cast<int64_t>(vocabulary.tokens.size());
  if (id < 0 || id >= rows)
    source.fail("id", fmt::format("one of the embedding's {} rows for token '{}', not {}", rows, text, id));
  vocabulary.tokens[static_cast<size_t>(id)] = text;
  vocabulary.types[static_cast<size_t>(id)] = static_cast<int32_t>(type);
}

Vocabulary padded(int64_t rows) {
  Vocabulary vocabulary;
  for (int64_t id = 0; id < rows; ++id) vocabulary.tokens.push_back(fmt::format("[PAD{}]", id));
  vocabulary.types.assign(static_cast<size_t>(rows), static_cast<int32_t>(Type::Unused));
  vocabulary.scores.assign(static_cast<size_t>(rows), 0.0f);
  return vocabulary;
}

// Turns a tokenizer.json into metadata.
class JsonTokenizer {
 public:
  JsonTokenizer(const Json& json, const std::string& source, int64_t rows)
      : json_(json, source), model_(json_.object("model")), vocabulary_(padded(rows)) {
    if (model_.string("type", "BPE") != "BPE") model_.fail("type", "\"BPE\"");
    const JsonObject tokens = model_.object("vocab");
    for (const auto& [text, id] : tokens.value().items()) {
      if (!id.is_number_integer()) tokens.fail(text, "an id");
      add_token(vocabulary_, tokens, id.get<int64_t>(), text, Type::Normal);
    }
    if (!json_.has("added_tokens")) return;
    for (const Json& added : json_.at("added_tokens")) {
      const JsonObject token(added, source, "added_tokens");
      add_token(vocabulary_, token, token.integer("id", 0, INT64_MAX), token.string("content"),
                token.boolean("special", false) ? Type::Control : Type::UserDefined);
    }
  }

  bool byte_level() const {
    const Json cutter = json_.has("pre_tokenizer") ? json_.at("pre_tokenizer") : Json();
    return cutter.dump().find("\"ByteLevel\"") != std::string::npos;
  }

  void write_byte_level(GgufWriter& writer, std::vector<std::string>& notes) const {
    const bool whole_words = model_.boolean("ignore_merges", false);
    const Json only = normalizer();
    const bool nfc = only.is_object() && only.value("type", "") == "NFC";
    if (!only.is_null() && !nfc)
      json_.fail("normalizer", fmt::format("none or NFC, before byte-level tokens{}", kElse));
    const auto pre = gguf_pre_tokenizer_name(json_.at("pre_tokenizer"), whole_words, nfc);
    if (!pre)
      json_.fail("pre_tokenizer", fmt::format("one that GGUF has a name for, {}words that are tokens taken whole: {}{}",
                                              whole_words ? "" : "without ", gguf_pre_tokenizer_names(), kElse));
    if (nfc && !find_gguf_pre_tokenizer(*pre)->normalizes_nfc)
      notes.push_back(fmt::format(
          "tokenizer: it normalises texts to NFC, which GGUF's \"{}\" does not: texts that are not in NFC are read "
          "otherwise",
          *pre));
    writer.add("tokenizer.ggml.model", "gpt2");
    writer.add("tokenizer.ggml.pre", *pre);
    writer.add("tokenizer.ggml.tokens", std::span<const std::string>(vocabulary_.tokens));
    writer.add("tokenizer.ggml.token_type", std::span<const int32_t>(vocabulary_.types));
    std::vector<std::string> merges;
    for (const auto& [left, right] : this->merges()) merges.push_back(left + " " + right);
    writer.add("tokenizer.ggml.merges", std::span<const std::string>(merges));
  }

  void write_pieces(GgufWriter& writer, std::vector<std::string>& notes) {
    const bool prefix = adds_prefix(notes);
    score_pieces();
    writer.add("tokenizer.ggml.model", "llama");
    writer.add("tokenizer.ggml.pre", "default");
    writer.add("tokenizer.ggml.tokens", std::span<const std::string>(vocabulary_.tokens));
    writer.add("tokenizer.ggml.scores", std::span<const float>(vocabulary_.scores));
    writer.add("tokenizer.ggml.token_type", std::span<const int32_t>(vocabulary_.types));
    writer.add_bool("tokenizer.ggml.add_space_prefix", prefix);
  }

  // Returns a line if added tokens are found otherwise in a text than as they stand.
  std::vector<std::string> notes_on_added() const {
    int64_t count = 0;
    if (json_.has("added_tokens"))
      for (const Json& token : json_.at("added_tokens"))
        for (const char* flag : {"lstrip", "rstrip", "single_word"})
          if (token.value(flag, false)) {
            ++count;
            break;
          }
    if (count == 0) return {};
    return {
        fmt::format("{} added tokens take white space beside them, or whole words alone (lstrip, rstrip, "
                    "single_word): GGUF has no place for that",
                    count)};
  }

  std::optional<std::string> unknown() const {
    return model_.has("unk_token") ? std::optional(model_.string("unk_token")) : std::nullopt;
  }

 private:
  // Returns how a text is normalised first, or null; a sequence of one is that one.
  Json normalizer() const {
    const Json found = json_.has("normalizer") ? json_.at("normalizer") : Json();
    if (!found.is_object() || found.value("type", "") != "Sequence") return found;
    const Json parts = found.value("normalizers", Json::array());
    if (!parts.is_array() || parts.size() > 1) return found;
    return parts.empty() ? Json() : parts[0];
  }

  std::vector<std::pair<std::string, std::string>> merges() const {
    std::vector<std::pair<std::string, std::string>> merges;
    for (const Json& merge : model_.at("merges")) {
      std::string left, right;
      if (merge.is_string()) {
        const auto text = merge.get<std::string>();
        const size_t space = text.find(' ', 1);
        if (space != text.npos) left = text.substr(0, space), right = text.substr(space + 1);
      } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
        left = merge[0], right = merge[1];
      }
      if (left.empty() || right.empty()) model_.fail("merges", "pairs of tokens, not " + shortened(merge));
      merges.emplace_back(std::move(left), std::move(right));
    }
    return merges;
  }

  // Returns whether a text begins with one more space. Throws UserError for what GGUF has no key.
  bool adds_prefix(std::vector<std::string>& notes) const {
    const Json normalizer = this->normalizer();
    const Json cutter = json_.has("pre_tokenizer") ? json_.at("pre_tokenizer") : Json();
    const auto is = [](const Json& part, std::string_view type) {
      return part.is_object() && part.value("type", "") == type;
    };
    const auto replaces = [&](const Json& part) {
      return is(part, "Replace") && part.value("pattern", Json()) == Json{{"String", " "}} &&
             part.value("content", "") == kMark;
    };
    if (cutter.is_null() && is(normalizer, "Sequence")) {
      const Json parts = normalizer.value("normalizers", Json::array());
      if (parts.size() == 2 && is(parts[0], "Prepend") && parts[0].value("prepend", "") == kMark && replaces(parts[1]))
        return true;
    }
    const bool at_spaces =
        is(cutter, "Split") && cutter.value("pattern", Json()) == Json{{"String", " "}};  // none are left
    if ((cutter.is_null() || at_spaces) && replaces(normalizer)) return false;
    const bool metaspace = is(cutter, "Metaspace");
    if (!metaspace || !normalizer.is_null() || cutter.value("split", true))
      json_.fail(normalizer.is_null() ? "pre_tokenizer" : "normalizer",
                 fmt::format("spaces written as '\u2581', with or without one before the text: GGUF has no form for "
                             "others{}",
                             kElse));
    const std::string scheme = cutter.value("prepend_scheme", "always");
    if (scheme == "first")
      notes.push_back(
          "llama.cpp puts a space before each stretch of text between special tokens, the tokenizer before "
          "the first alone");
    return scheme != "never";
  }

  // Scores pieces so that they are joined in the order of the merges.
  void score_pieces() {
    std::map<std::string, size_t, std::less<>> ids;
    for (size_t id = 0; id < vocabulary_.tokens.size(); ++id) ids.emplace(vocabulary_.tokens[id], id);
    const auto merges = this->merges();
    const auto last = -static_cast<float>(merges.size());
    for (size_t id = 0; id < vocabulary_.tokens.size(); ++id) {
      const std::string& text = vocabulary_.tokens[id];
      int32_t& type = vocabulary_.types[id];
      const bool byte = text.size() == 6 && text.starts_with("<0x") && text.ends_with(">");
      if (byte && type != static_cast<int32_t>(Type::Unused)) type = static_cast<int32_t>(Type::Byte);
      if (text == unknown()) type = static_cast<int32_t>(Type::Unknown);
      vocabulary_.scores[id] = type == static_cast<int32_t>(Type::Normal) ? last : 0;
    }
    std::vector<bool> scored(vocabulary_.tokens.size());
    for (size_t rank = 0; rank < merges.size(); ++rank) {
      const auto joined = ids.find(merges[rank].first + merges[rank].second);
      if (joined == ids.end()) model_.fail("merges", "pairs that join to a token");
      if (scored[joined->second]) continue;
      scored[joined->second] = true;
      vocabulary_.scores[joined->second] = -static_cast<float>(rank);
    }
    refuse_other_order(ids, merges);
  }

  // Requires that every way to join two pieces to a third is a merge, in the order of the joined pieces' scores, as
  // GGUF's readers assume.
  void refuse_other_order(const std::map<std::string, size_t, std::less<>>& ids,
                          const std::vector<std::pair<std::string, std::string>>& merges) const {
    SentencePieces pieces;
    for (size_t id = 0; id < vocabulary_.tokens.size(); ++id)
      pieces.pieces.push_back(
          {vocabulary_.tokens[id], vocabulary_.scores[id], static_cast<Type>(vocabulary_.types[id])});
    const std::vector<SentencePieces::Merge> possible = pieces.merges();
    bool same = possible.size() == merges.size();
    for (size_t i = 0; same && i < merges.size(); ++i) {
      const auto joined = ids.find(merges[i].first + merges[i].second);
      same = static_cast<size_t>(possible[i].joined) == joined->second;
    }
    if (!same)
      model_.fail("merges", fmt::format("all {} ways to join two tokens to one, as scores of tokens say them{}",
                                        possible.size(), kElse));
  }

  JsonObject json_, model_;
  Vocabulary vocabulary_;
};

// Writes a tokenizer.model without a tokenizer.json.
void write_model_pieces(GgufWriter& writer, const fs::path& directory, int64_t rows) {
  const std::string source = (directory / "tokenizer.model").string();
  const SentencePieces model = parse_sentencepiece(read_text(directory / "tokenizer.model", kMaxFileBytes), source);
  if (static_cast<int64_t>(model.pieces.size()) > rows)
    user_error("{}: found {} pieces, expected at most the embedding's {} rows", source, model.pieces.size(), rows);
  if (model.collapses_spaces)
    user_error("{}: found a model that removes extra spaces, expected one that keeps them{}", source, kElse);
  Vocabulary vocabulary = padded(rows);
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    vocabulary.tokens[id] = model.pieces[id].text;
    vocabulary.scores[id] = model.pieces[id].score;
    vocabulary.types[id] = static_cast<int32_t>(model.pieces[id].type);
  }
  if (is_file(directory / "added_tokens.json")) {
    const std::string added = (directory / "added_tokens.json").string();
    const Json json = parse_json(read_text(directory / "added_tokens.json", kMaxFileBytes), added);
    const JsonObject tokens(json, added);
    for (const auto& [text, id] : json.items())
      add_token(vocabulary, tokens, tokens.integer(text, 0, rows - 1), text, Type::UserDefined);
  }
  writer.add("tokenizer.ggml.model", "llama");
  writer.add("tokenizer.ggml.pre", "default");
  writer.add("tokenizer.ggml.tokens", std::span<const std::string>(vocabulary.tokens));
  writer.add("tokenizer.ggml.scores", std::span<const float>(vocabulary.scores));
  writer.add("tokenizer.ggml.token_type", std::span<const int32_t>(vocabulary.types));
  writer.add_bool("tokenizer.ggml.add_space_prefix", model.adds_prefix);
  if (model.unknown) writer.add_u32("tokenizer.ggml.unknown_token_id", static_cast<uint64_t>(*model.unknown));
}

// Returns the token that tokenizer_config.json names for padding.
std::optional<int32_t> padding_of(const fs::path& directory, const Tokenizer& tokenizer) {
  const fs::path path = directory / "tokenizer_config.json";
  if (!is_file(path)) return std::nullopt;
  const Json json = parse_json(read_text(path, kMaxFileBytes), path.string());
  const Json pad = json.value("pad_token", Json());
  if (pad.is_string()) return tokenizer.token_id(pad.get<std::string>());
  if (pad.is_object() && pad.value("content", Json()).is_string())
    return tokenizer.token_id(pad["content"].get<std::string>());
  return std::nullopt;
}

void write_special_tokens(GgufWriter& writer, const fs::path& directory, const Tokenizer& tokenizer,
                          const std::vector<int64_t>& end_tokens) {
  const auto add = [&](std::string_view role, std::optional<int64_t> id) {
    if (id) writer.add_u32(fmt::format("tokenizer.ggml.{}_token_id", role), static_cast<uint64_t>(*id));
  };
  if (tokenizer.prefix().size() > 1)
    user_error("{}: found a tokenizer that puts {} tokens before a text, expected one or none, as GGUF has a key for{}",
               directory.string(), tokenizer.prefix().size(), kElse);
  std::optional<int64_t> eos;
  if (tokenizer.eos_id())
    eos = *tokenizer.eos_id();
  else if (!end_tokens.empty())
    eos = end_tokens[0];
  const auto other = std::ranges::find_if(end_tokens, [&](int64_t id) { return id != eos; });
  add("bos", tokenizer.bos_id());
  add("eos", eos);
  if (other != end_tokens.end()) add("eot", *other);
  add("padding", padding_of(directory, tokenizer));
  writer.add_bool("tokenizer.ggml.add_bos_token", tokenizer.adds_bos());
  writer.add_bool("tokenizer.ggml.add_eos_token", false);
  if (!tokenizer.chat_template_text()) return;
  std::vector<std::string> names;
  for (const auto& [name, text] : tokenizer.named_templates()) {
    writer.add("tokenizer.chat_template." + name, text);
    names.push_back(name);
  }
  if (!names.empty()) writer.add("tokenizer.chat_templates", names);
  writer.add("tokenizer.chat_template", *tokenizer.chat_template_text());
}

}  // namespace

std::vector<std::string> add_gguf_tokenizer(GgufWriter& writer, const fs::path& directory, int64_t vocabulary,
                                            const std::vector<int64_t>& end_tokens) {
  std::vector<std::string> notes;
  const Tokenizer tokenizer = Tokenizer::load(directory);
  const fs::path path = directory / "tokenizer.json";
  if (is_file(path)) {
    const Json json = parse_json(read_text(path, kMaxFileBytes), path.string());
    JsonTokenizer written(json, path.string(), vocabulary);
    notes = written.notes_on_added();
    if (written.byte_level())
      written.write_byte_level(writer, notes);
    else
      written.write_pieces(writer, notes);
    const auto unknown = written.unknown() ? tokenizer.token_id(*written.unknown()) : std::nullopt;
    if (unknown) writer.add_u32("tokenizer.ggml.unknown_token_id", static_cast<uint64_t>(*unknown));
  } else {
    write_model_pieces(writer, directory, vocabulary);
  }
  write_special_tokens(writer, directory, tokenizer, end_tokens);
  return notes;
}

}  // namespace snug
