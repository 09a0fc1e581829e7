// Turns text into token ids and back by BPE over bytes or characters, as the `tokenizers` library does for a Hugging
// Face tokenizer.json, and as SentencePiece does for a tokenizer.model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "format/normalizer.h"
#include "format/pretokenizer.h"
#include "format/token_decoder.h"
#include "format/tokenizer_added.h"
#include "format/tokenizer_bpe.h"

namespace snug {

// Names the template that transformers takes for conversations with tools.
inline constexpr const char* kToolTemplate = "tool_use";

// Holds a model's chat templates.
struct ChatTemplateTexts {
  std::optional<std::string> text = {};  // the only one, or the one named "default"
  std::map<std::string, std::string> named = {};

  std::string for_tools() const { return named.contains(kToolTemplate) ? named.at(kToolTemplate) : ""; }
};

// Holds a tokenizer. It is immutable, so that threads may share it.
class Tokenizer {
 public:
  // Holds the texts of a model directory's files. An absent file is empty text.
  struct Files {
    std::string tokenizer{};           // tokenizer.json
    std::string config{};              // tokenizer_config.json
    std::string special_tokens_map{};  // special_tokens_map.json; read for what tokenizer_config.json leaves out
    std::string chat_template{};       // chat_template.jinja; preferred to the one in tokenizer_config.json
    std::string sentencepiece{};       // tokenizer.model; read if there is no tokenizer.json
    std::string added_tokens{};        // added_tokens.json; read with tokenizer.model
    std::map<std::string, std::string> named_templates{};  // additional_chat_templates/NAME.jinja
  };

  // Loads a tokenizer. Throws UserError if both tokenizer.json and tokenizer.model are missing, or if any of the files
  // is broken or asks for what is not supported; it names the file, the key, what was found and what was expected.
  // Truncation and padding are the caller's: those in tokenizer.json are not read.
  static Tokenizer load(const std::filesystem::path& model_directory);
  // Are the two halves of load(); `place` precedes the files' names in messages ("" or "path/").
  static Files read(const std::filesystem::path& model_directory);
  static Tokenizer parse(const Files& files, const std::string& place = "");

  // Encodes a text; it adds no BOS or EOS. Special tokens written in the text become their ids, or with parse_special =
  // false are plain text (added tokens that are not special are found either way). Throws UserError with the byte
  // offset if `text` is not well-formed UTF-8, and for texts of 2 GiB and more.
  std::vector<int32_t> encode(std::string_view text, bool parse_special = true) const;
  // Encodes a text that continues another one: what stands before it decides on the prefix of its first stretch. Sets
  // `before` to what then stands before the next text.
  std::vector<int32_t> encode_next(std::string_view text, Before& before, bool parse_special = true) const;

  // Returns the bytes for which the tokens stand; they end within a character if the tokens do. Ids without a token are
  // left out. A prefix that the tokenizer puts before texts is not shown.
  std::string decode(std::span<const int32_t> ids, bool skip_special) const;

  // Look up by the text in tokenizer.json, where ordinary tokens are written in the byte-level alphabet.
  std::optional<int32_t> token_id(std::string_view token) const;
  std::optional<std::string> token(int32_t id) const;
  // Returns the first id behind all tokens.
  int32_t next_id() const;

  std::optional<int32_t> bos_id() const { return bos_id_; }
  std::optional<int32_t> eos_id() const { return eos_id_; }
  // Returns whether the model's habit is to begin every text with bos_id(): tokenizer_config.json's add_bos_token if it
  // or add_eos_token is given, else what tokenizer.json's post_processor does. bos_id() exists if so.
  bool adds_bos() const { return prefix_.size() == 1; }
  // Returns all that this habit puts before a text: bos_id(), or several tokens (GLM's "[gMASK]<sop>"), or nothing.
  const std::vector<int32_t>& prefix() const { return prefix_; }
  // Returns what the user should know of the files, a line each: where they contradict each other.
  const std::vector<std::string>& notes() const { return notes_; }
  // Returns a line on which of several chat templates are taken; empty if there is one at most.
  const std::string& templates_note() const { return templates_note_; }
  // Returns the model's own chat template (Jinja), if it has one; of several named ones, the one named "default". The
  // others follow by name.
  const std::optional<std::string>& chat_template_text() const { return templates_.text; }
  const std::map<std::string, std::string>& named_templates() const { return templates_.named; }
  // Returns the texts of special tokens that the files name besides bos_token and eos_token, by name ("pad_token", and
  // those of the model's own), as templates are told them.
  const std::map<std::string, std::string>& named_tokens() const { return named_tokens_; }

 private:
  friend class TokenStream;
  struct Entry {
    std::string text;   // as in tokenizer.json
    std::string bytes;  // what it decodes to behind another token
    bool special = false;
  };
  // Holds scratch memory of encode(), which threads take and give back, so that its cache of words outlives a text.
  class ScratchPool {
   public:
    std::unique_ptr<BytePairModel::Scratch> take();
    void give(std::unique_ptr<BytePairModel::Scratch> scratch);

   private:
    std::mutex mutex_;
    std::vector<std::unique_ptr<BytePairModel::Scratch>> free_;
  };

  Tokenizer(BytePairModel model, Normalizer normalizer, PreTokenizer pre_tokenizer, TokenDecoder decoder);
  void note_templates(const ChatTemplateTexts& templates, const std::string& place);
  void parse_added_tokens(const Json& list, const std::string& source);
  static Tokenizer of_json(const Files& files, const std::vector<JsonObject>& configs, const std::string& place);
  static Tokenizer of_sentencepiece(const Files& files, const std::vector<JsonObject>& configs,
                                    const std::string& place);
  // `pattern` is what to look for in normalised text, or in any text if the token is not normalized.
  void add_token(const AddedToken& token, const std::string& pattern, const std::string& source);
  // `prefix` holds the tokens that tokenizer.json's post_processor puts before a text; `source` is that file's name.
  void read_bos_and_eos(const std::vector<int32_t>& prefix, const std::vector<JsonObject>& configs,
                        const std::string& source);
  void encode_stretch(std::string_view text, Before before, bool parse_special, BytePairModel::Scratch& scratch,
                      std::vector<int32_t>& ids) const;

  BytePairModel model_;
  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  TokenDecoder decoder_;
  AddedTokenFinder found_before_, found_after_;  // tokens found before and after normalising
  std::unordered_map<std::string, int32_t> added_ids_;
  std::unordered_map<int32_t, Entry> entries_;
  std::optional<int32_t> bos_id_, eos_id_;
  std::vector<int32_t> prefix_;
  ChatTemplateTexts templates_;
  std::map<std::string, std::string> named_tokens_;
  std::vector<std::string> notes_;
  std::string templates_note_;
  std::shared_ptr<ScratchPool> pool_ = std::make_shared<ScratchPool>();
};

// Decodes tokens as they come: all results of next() together are decode() of all tokens. The tokenizer must outlive
// it.
class TokenStream {
 public:
  TokenStream(const Tokenizer& tokenizer, bool skip_special)
      : tokenizer_(&tokenizer), start_(tokenizer.decoder_), skip_special_(skip_special) {}
  // Returns the bytes that the token adds.
  std::string next(int32_t id);

 private:
  const Tokenizer* tokenizer_;
  TokenDecoder::Start start_;
  bool skip_special_;
};

// Returns whether a model directory has what Tokenizer::load() reads.
bool has_tokenizer(const std::filesystem::path& model_directory);

// Returns the chat templates of a tokenizer_config.json: a text, or a list of named ones. `source` is the file's name
// for messages. read_named_templates() adds those in a directory's additional_chat_templates.
ChatTemplateTexts parse_chat_template(std::string_view json, const std::string& source);
std::map<std::string, std::string> read_named_templates(const std::filesystem::path& directory);

}  // namespace snug
