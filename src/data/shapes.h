// The shapes of data sets: from one JSON object to what is said in it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "format/chat_template.h"
#include "format/json.h"

namespace snug {

enum class DataFormat { Alpaca, ShareGpt, Messages, Text, Tokens };

// As `data_format` spells them: alpaca, sharegpt, messages, text, tokens. UserError that lists them otherwise.
DataFormat data_format_from_name(std::string_view name);
std::string_view name(DataFormat format);

// How a file's objects are read.
struct ShapeOptions {
  // The file's name of a field by the name snug looks for: {"instruction": "question"}.
  std::map<std::string, std::string> columns;
  // The prompt of an alpaca record, with {field} for a field's text: "User: {instruction}\nAssistant: ". {{ and }}
  // stand for braces. A field that a record lacks is empty text; one that is null is refused, but for input and system,
  // which may be left out.
  std::optional<std::string> prompt;
  bool prompt_is_all = false;  // no chat template sets a system text apart from it
  // What snug calls a role by the file's name of it: {"bot": Assistant}.
  std::map<std::string, ChatRole> roles;
};

// system, user, assistant, tool, developer; UserError otherwise.
ChatRole role_from_name(std::string_view name);

// UserError for a column that neither snug nor the prompt looks for, and for a prompt with a lone brace.
void validate(const ShapeOptions& options);

// A field of the file that an option names.
struct NamedField {
  std::string field;
  std::string_view option;  // columns or prompt
};

std::vector<NamedField> named_fields(const ShapeOptions& options);
// Whether the record, or an object in a list of it, has the key, whatever its value.
bool occurs(const NamedField& named, const Json& record);
// Whether a message in a list of the record has the role, by the file's name of it.
bool has_role(const std::string& role, const ShapeOptions& options, const Json& record);
// Whether a message in a list of the record has a value under the key.
bool has_in_messages(const std::string& key, const Json& record);

using Conversation = std::vector<Message>;
struct Document {
  std::string text;
};
// Labels stand under their own token, as Hugging Face has them: the label at i is predicted from what comes before i;
// kNoLabel for no loss.
struct TokenSample {
  std::vector<int32_t> ids, labels;
};
constexpr int32_t kNoLabel = -100;

// The keys of a record for messages: "\"a\", \"b\"", at most eight.
std::string names_of_keys(const Json& record);

// What a record says.
struct Example {
  std::variant<Conversation, Document, std::vector<TokenSample>> content;
  bool carries_loss = true;              // false: its weight is 0
  std::vector<std::string> ignored;      // keys that no table knows
  std::vector<jinja::Value> tools = {};  // of a conversation; they belong to the thread that read them
};

// Puts the lists in place of the texts that a record has under prompt and completion, where these as a whole are lists
// of messages written as JSON, as tables that know text alone hold them.
void read_written_messages(Json& record);

// Looks at a record's keys: input_ids -> tokens; conversations -> sharegpt; messages, or prompt and completion where
// both are lists of messages -> messages; instruction, or output where there is a prompt pattern -> alpaca; text ->
// text. UserError with `place` where none is there, which says what would help.
DataFormat detect_format(const Json& record, const ShapeOptions& options, const std::string& place);

// UserError with `place`, key, what was found and what was expected.
//   alpaca    {instruction, input?, output, system?, history?: [[user, assistant], ...]}: the input follows the
//             instruction after a newline, in one user turn
//   sharegpt  {conversations: [{from, value}, ...], system?}
//   messages  {messages: [{role, content}, ...], system?}, or {prompt: [...], completion: [...], system?}: one
//             conversation, whose prompt carries no loss; read_written_messages() makes lists of their texts
//             Messages of either kind stand in either list. Roles: those of options.roles, system, user or human,
//             assistant or gpt, tool, function, observation or ipython, developer; content: text or [{type: "text",
//             text}, ...], or null beside tool_calls. Whether a message carries loss: train, trainable, loss, loss_mask
//             or mask (true, false), masked (the other way round), or weight (0: none). A reply may have tool_calls and
//             reasoning_content, thinking or reasoning, what a tool says tool_call_id and name
//   text      {text}
//   tokens    {input_ids, labels?, ...}, equally long (record_fields.h); every id below 2^31; without labels every
//             token counts
// A record of any shape may have a weight, 0 or 1, and one that becomes a conversation tools. check_keys() judges all
// other keys. `text`: the record as it is written, by which the keys of tools and calls keep their order.
Example read_example(const Json& record, DataFormat format, const ShapeOptions& options, const std::string& place,
                     std::string_view text = {});

}  // namespace snug
