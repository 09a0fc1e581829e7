// Reads the shapes of data sets: from one JSON object to what it says.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "data/images.h"
#include "format/chat_template.h"
#include "format/json.h"
#include "objective/objective.h"

namespace snug {

enum class DataFormat { Alpaca, ShareGpt, Messages, Text, Tokens, Preference, Labelled };

// Returns the format that `data_format` spells alpaca, sharegpt, messages, text, tokens, preference or labelled. Throws
// UserError that lists them for another name.
DataFormat data_format_from_name(std::string_view name);
std::string_view name(DataFormat format);

// Says what a sample is: a document, whose replies carry loss; two replies to one prompt, the better one first, with
// the margin by which it is better or without; or one reply, and whether it is desirable.
enum class Samples { Replies, Pairs, PairsWithMargins, Judged };

// Returns what an objective learns from.
Samples samples_of(ObjectiveKind kind);

// Says how a file's objects are read.
struct ShapeOptions {
  Samples samples = Samples::Replies;
  // Holds the file's name of a field, by the name for which snug looks: {"instruction": "question"}.
  std::map<std::string, std::string> columns;
  // Holds the prompt of an alpaca record, with {field} for a field's text: "User: {instruction}\nAssistant: ". {{ and
  // }} stand for braces. A field that a record lacks is empty text; one that is null is refused, except input and
  // system, which may be left out.
  std::optional<std::string> prompt;
  bool prompt_is_all = false;  // no chat template sets a system text apart from it
  // Holds the role in snug, by the file's name of it: {"bot": Assistant}.
  std::map<std::string, ChatRole> roles;
  std::optional<ImageMarkup> markup = {};  // of the model; nothing: it takes no images
};

// Returns the role system, user, assistant, tool or developer; throws UserError for another name.
ChatRole role_from_name(std::string_view name);

// Throws UserError for a column for which neither snug nor the prompt looks, and for a prompt with a lone brace.
void validate(const ShapeOptions& options);

// Holds a field of the file that an option names.
struct NamedField {
  std::string field;
  std::string_view option;  // columns or prompt
};

std::vector<NamedField> named_fields(const ShapeOptions& options);
// Returns whether the record, or an object in a list of it, has the key, whatever its value.
bool occurs(const NamedField& named, const Json& record);
// Returns whether a message in a list of the record has the role, by the file's name of it.
bool has_role(const std::string& role, const ShapeOptions& options, const Json& record);
// Returns whether a message in a list of the record has a value under the key.
bool has_in_messages(const std::string& key, const Json& record);

using Conversation = std::vector<Message>;
struct Document {
  std::string text;
};
// Holds token ids and labels. Labels stand under their own token, as in Hugging Face's libraries: the label at i is
// predicted from what comes before i; kNoLabel for no loss.
// Of a pair the chosen document comes first and the rejected one behind it.
struct TokenSample {
  std::vector<int32_t> ids, labels;
  uint32_t second = 0;                // of a pair: where its second document begins, not 0
  std::optional<float> value{};       // of a pair: its margin; of a reply that is judged: 1 if it is desirable, else 0
  std::vector<SampleImage> images{};  // in the order of their tokens
  std::vector<DatasetView> views{};
  std::vector<float> weights{};  // of each label's loss; empty: all 1
};
constexpr int32_t kNoLabel = -100;

// Returns the keys of a record for messages: "\"a\", \"b\"", at most eight.
std::string names_of_keys(const Json& record);

// Names what was settled by looking at a record of preferences, or passed over in it.
enum class Settled {
  Transcripts,     // a text of "Human:" and "Assistant:" became turns
  CommonTokens,    // texts without a prompt: the tokens that they begin with are taken for it
  CommonMessages,  // whole conversations: the messages that they begin with are the prompt
  PassedPrompt,    // a prompt beside whole conversations
  PartEarly,       // conversations that part before their last reply
  EqualScores,     // no reply is better than another: there is no sample
  EqualReplies,    // neither is a pair of equal replies, of which one would be good and one bad
  LossOfPrompt,    // messages of a prompt say that they carry loss
  MergedTokens     // a token holds the end of the prompt and the beginning of a reply
};
constexpr size_t kSettled = 9;

// Holds replies to a prompt, and which of them are better.
struct Answers {
  struct Texts {
    std::optional<std::string> prompt;  // nothing: what the texts begin with alike
    std::vector<std::string> replies;
  };
  // Makes a sample of a reply and the one that it is better than; without one, of the reply and what is thought of it.
  struct Choice {
    size_t reply = 0;
    std::optional<size_t> rejected = {};
    std::optional<float> value = {};  // TokenSample::value
  };
  // Conversations are whole; messages of a reply alone carry loss.
  std::variant<std::vector<Conversation>, Texts, std::vector<TokenSample>> replies;
  bool one_prompt = true;  // all conversations are alike up to the first message that carries loss
  std::vector<Choice> choices;
  std::vector<Settled> settled;
};

// Holds what a record says.
struct Example {
  std::variant<Conversation, Document, std::vector<TokenSample>, Answers> content;
  float weight = 1;                         // of its tokens' loss
  std::vector<std::string> ignored;         // keys that no table knows
  std::vector<jinja::Value> tools = {};     // of a conversation; they belong to the thread that read them
  std::vector<ImageReference> images = {};  // of a conversation, in whose messages kImageMark stands for each
};

// Replaces the texts that a record has under prompt and completion, and of preferences under the fields of replies, by
// lists, if they are lists of messages written as JSON, as in tables that know only text.
void read_written_messages(Json& record, const ShapeOptions& options);

// Returns the format by a record's keys: input_ids -> tokens; conversations -> sharegpt; messages, or prompt and
// completion if both are lists of messages -> messages; instruction, or output if there is a prompt pattern -> alpaca;
// text -> text. Where samples are not single replies: chosen and rejected, or completions and scores -> preference;
// label or kto_tag -> labelled. Throws UserError with `place` if it finds none of these, which says what would help.
DataFormat detect_format(const Json& record, const ShapeOptions& options, const std::string& place);

// Reads a record of a format. Throws UserError with `place`, key, what was found and what was expected.
//   alpaca    {instruction, input?, output, system?, history?: [[user, assistant], ...]}: the input follows the
//             instruction after a newline, in one user turn
//   sharegpt  {conversations: [{from, value}, ...], system?}
//   messages  {messages: [{role, content}, ...], system?}, or {prompt: [...], completion: [...], system?}: one
//             conversation, whose prompt carries no loss; read_written_messages() makes lists of their texts
//             Messages of either kind stand in either list. Roles: those of options.roles, system, user or human,
//             assistant or gpt, tool, function, observation or ipython, developer; content: text or [{type: "text",
//             text}, ...], or null beside tool_calls. Keys that say whether a message carries loss: train, trainable,
//             loss, loss_mask or mask (true, false), masked (the other way round), or weight (0: none). A reply may
//             have tool_calls and reasoning_content, thinking or reasoning; a tool's message tool_call_id and name
//   text      {text}
//   tokens    {input_ids, labels?, ...}, equally long (record_fields.h); every id below 2^31; without labels every
//             token counts
//   preference, labelled  data/preference_records.cpp
// A conversation may have images: 'images' or 'image' (a path, a list of paths, a map from markers to paths), for which
// <image> or the marker stands in messages, or parts {type: "image", image} or {type: "image_url", image_url: {url}}.
// A record of any shape may have a weight, 0 or 1, and one that becomes a conversation may have tools. check_keys()
// judges all other keys. `text` is the record as it is written, by which the keys of tools and calls keep their order.
Example read_example(const Json& record, DataFormat format, const ShapeOptions& options, const std::string& place,
                     std::string_view text = {});

}  // namespace snug
