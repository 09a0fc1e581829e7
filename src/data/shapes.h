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
  // stand for braces. A field that is missing or null is empty text.
  std::optional<std::string> prompt;
};

// UserError for a column that neither snug nor the prompt looks for, and for a prompt with a lone brace.
void validate(const ShapeOptions& options);

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

using Example = std::variant<Conversation, Document, TokenSample>;

// Looks at a record's keys: input_ids -> tokens; conversations -> sharegpt; messages -> messages; instruction, or
// output where there is a prompt pattern -> alpaca; text -> text. UserError with `place` where none is there.
DataFormat detect_format(const Json& record, const ShapeOptions& options, const std::string& place);

// UserError with `place`, key, what was found and what was expected.
//   alpaca    {instruction, input?, output, system?, history?: [[user, assistant], ...]}: the input follows the
//             instruction after a newline, in one user turn
//   sharegpt  {conversations: [{from, value}, ...], system?}; from: human or user, gpt or assistant, system
//   messages  {messages: [{role, content}, ...]}; content: text or [{type: "text", text}, ...]
//   text      {text}
//   tokens    {input_ids, labels?}, equally long; every id below 2^31; without labels every token counts
Example read_example(const Json& record, DataFormat format, const ShapeOptions& options, const std::string& place);

}  // namespace snug
