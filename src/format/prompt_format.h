// Decides how a model is asked and where its replies end: once, from what the user names, what an adapter was trained
// with and what the model's files say. Every command uses the decision, and it is written with whatever is trained.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "format/chat_template.h"
#include "format/side_files.h"
#include "format/tokenizer.h"

namespace snug {

// Holds what a model itself says of its tokens.
struct ModelTokens {
  int64_t vocabulary = 0;             // rows of its embedding
  std::vector<int64_t> end_tokens{};  // any of them ends a reply
};

struct PromptFormat {
  // Renders conversations. It is absent if no template is named and the model's own cannot be used: then `refusal` says
  // why. A model without one is asked by bare text (`plain`).
  std::optional<ChatTemplate> chat = {};
  std::string refusal = {};
  bool plain = false;
  // Hold the Jinja program, even if it is not understood, and the one for conversations with tools; empty for none.
  std::string jinja = {}, jinja_for_tools = {};
  bool template_of_adapter = false, ends_of_adapter = false;  // they come from the adapter
  // Lists tokens of which any ends a reply: the template's end of turn, the configuration's ends, the tokenizer's EOS,
  // in this order. All lie below the vocabulary.
  std::vector<int32_t> end_tokens = {};
  // Lists what the user should know of the decision, a line each.
  std::vector<std::string> notes = {};

  // Returns the template; throws UserError(refusal) if there is none.
  const ChatTemplate& for_conversations() const;
  // Returns the template of a prompt that is a user's turn; null if prompts are asked as bare text. Throws UserError if
  // the model has a template that cannot be used.
  const ChatTemplate* for_prompts() const;
};

// Says how a model's images are sized; what is not given is as its files say.
struct ImageSizes {
  std::optional<int64_t> min_pixels = {}, max_pixels = {}, max_slices = {};
  bool operator==(const ImageSizes&) const = default;
};

// Holds what files beside an adapter say about how it was trained. Other tools write the first two as well.
struct AdapterFormat {
  std::string directory = {};
  // Hold chat_template.jinja and the one for tools, or those of tokenizer_config.json.
  std::string jinja = {}, jinja_for_tools = {};
  std::optional<std::vector<int64_t>> end_tokens = {};  // of generation_config.json
  // Hold what snug.json says: the template's name, empty if none was used; the pattern of --prompt, empty for none.
  bool by_snug = false;
  std::string template_name = {}, prompt_pattern = {};
  std::string base = {};                          // the hash of the base's weights, empty for none
  std::map<std::string, std::string> model = {};  // the base's fields that are not at their defaults
  ImageSizes images = {};                         // of those that it was trained on
  std::vector<std::string> notes = {};            // a line for each end token that is left out
};

inline constexpr const char* kSnugFile = "snug.json";

// Returns how images are sized beside an adapter, by its snug.json, if it has one.
ImageSizes read_image_sizes(const std::filesystem::path& adapter);
AdapterFormat read_adapter_format(const std::filesystem::path& directory, int64_t vocabulary);
// Reads the fields of `format` that snug.json holds; `source` is the file's name for messages. Throws UserError for a
// newer format.
void parse_snug_file(std::string_view json, std::string_view source, AdapterFormat& format);

// Returns how a tokenizer spells its special tokens; empty for those that it lacks, and without a tokenizer.
SpecialTexts special_texts(const Tokenizer* tokenizer);

// Decides. `name` is as ChatTemplate::choose() takes it; auto is the adapter's template if it has one, else the model's
// own. A template is refused if its markers are not single tokens of the tokenizer; without a tokenizer (null) this is
// not checked.
PromptFormat decide_prompt_format(const std::string& name, const ModelTokens& model, const Tokenizer* tokenizer,
                                  const AdapterFormat* adapter);

// Holds what is written of it with what was trained.
struct PromptFiles {
  std::string jinja = {};                // empty: no template is written
  std::string jinja_for_tools = {};      // written beside it
  std::vector<int32_t> end_tokens = {};  // empty: the base's are kept
  ImageSizes images = {};                // the base's are kept where nothing is given
};

// Holds what snug.json says of a run.
struct SnugFacts {
  std::string version = {}, template_name = {}, prompt_pattern = {}, train_on = {};
  std::optional<uint64_t> base = {};              // hash_of_files() of the base's weights
  std::map<std::string, std::string> model = {};  // its fields that are not at their defaults
  ImageSizes images = {};                         // of those that it was trained on
};

// Returns the files that stand beside an adapter, by name: chat_template.jinja, generation_config.json (the base's,
// with these ends) and snug.json. Reads the base.
std::map<std::string, std::string> adapter_format_files(const std::filesystem::path& base, const PromptFiles& files,
                                                        const SnugFacts& facts);
// Changes the files of a model directory, copies of its base's. If the template differs from its own, it writes
// chat_template.jinja and the copy within tokenizer_config.json; if an end is not among its own, eos_token_id in
// generation_config.json and config.json. Sizes of images stand under transformers' own keys, in the file of the image
// processor; videos, whose sizes may be read from that file, keep theirs in a file of their own.
void write_model_format(const std::filesystem::path& directory, const PromptFiles& files);

}  // namespace snug
