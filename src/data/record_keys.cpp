#include "data/record_keys.h"

#include <array>
#include <cctype>

#include "base/error.h"
#include "base/option_name.h"

namespace snug {
namespace {

constexpr unsigned bit(KeysOf of) { return 1u << static_cast<unsigned>(of); }
constexpr unsigned kChats = bit(KeysOf::Alpaca) | bit(KeysOf::NamedAlpaca) | bit(KeysOf::Conversation);
constexpr unsigned kAnswers = bit(KeysOf::Answers);
constexpr unsigned kReplies = kChats | bit(KeysOf::Text) | bit(KeysOf::Tokens);
constexpr unsigned kRecords = kReplies | kAnswers;
constexpr unsigned kMessage = bit(KeysOf::Message);
constexpr unsigned kEverywhere = kRecords | kMessage | bit(KeysOf::Part);

// Returns what is expected, with the names of options in the places of their fields.
std::string with_names(std::string_view expected) {
  const std::string columns = option_name("columns"), objective = option_name("objective");
  const std::string prompt = option_name("prompt"), chat_template = option_name("template");
  const std::string least = option_name("image_min_pixels"), most = option_name("image_max_pixels");
  return fmt::format(fmt::runtime(expected), fmt::arg("columns", columns), fmt::arg("objective", objective),
                     fmt::arg("prompt", prompt), fmt::arg("template", chat_template), fmt::arg("min_pixels", least),
                     fmt::arg("max_pixels", most));
}

// Says which values of a key are refused; the others change nothing, or are judged by the tables below.
enum class When { Always, IsList, IsNotTrue, IsNotFalse };

// Keys, separated by blanks, that are refused in some objects, and what to say of them: {columns} is the option's name.
struct RefusedKeys {
  unsigned of;
  std::string_view keys, expected;
  When when = When::Always;
};

constexpr std::string_view kNoTools =
    "none: what may be called is 'tools' of a conversation, calls are 'tool_calls' of an assistant's messages, and "
    "what came of one is a message of the role 'tool'";
constexpr std::string_view kWhereDocumentsBegin =
    "none: 'position_ids' that begin again at 0 say where documents begin";

constexpr RefusedKeys kRefused[] = {
    {kReplies,
     "chosen rejected margin chosen_response rejected_response chosen_messages rejected_messages response_chosen "
     "response_rejected score_chosen score_rejected chosen_score rejected_score chosen_rating rejected_rating "
     "preference preferred dispreferred winner loser ranking chosen_input_ids rejected_input_ids chosen_labels "
     "rejected_labels chosen_ids rejected_ids",
     "none with {objective} sft or distill: dpo, orpo, simpo and reward learn from pairs of replies, kto from pairs "
     "too"},
    {kReplies, "label kto_tag",
     "none with {objective} sft or distill: kto learns from replies with a label; classes of texts are not supported "
     "yet"},
    {kAnswers,
     "chosen rejected chosen_response rejected_response chosen_messages rejected_messages response_chosen "
     "response_rejected preference preferred dispreferred winner loser ranking label labels kto_tag",
     "none: 'chosen' and 'rejected' say which reply is better, or 'label' whether one is good; {columns} names them"},
    {kMessage,
     "chosen rejected label kto_tag margin chosen_response rejected_response preference preferred dispreferred winner "
     "loser ranking",
     "none: preferences stand in the record, with {objective} dpo, orpo, simpo, kto or reward"},
    {kRecords | kMessage,
     "tools tool_calls tool_call tool_call_id tool_choice functions function function_call available_tools "
     "tool_definitions tool_responses tool_results",
     kNoTools},
    {kRecords | kMessage, "parallel_tool_calls", kNoTools, When::IsNotFalse},
    {kRecords | kMessage,
     "reasoning_content reasoning reasoning_details thinking thinking_content thinking_blocks thought thoughts think "
     "chain_of_thought cot rationale scratchpad enable_thinking",
     "none: thinking is 'reasoning_content' or 'thinking' of an assistant's message, or <think>...</think> in it"},
    {kRecords | kMessage, "chat_template_kwargs", "none: what a template is told beside messages is not rendered yet"},
    {kRecords | kMessage, "chat_template", "none: {template} names one for all records"},
    {kEverywhere, "audio audios audio_path audio_paths input_audio speech media file_data pixel_values",
     "none: sound is not supported yet"},
    {kRecords, "video videos video_path video_paths",
     "none of that name: a record's videos are 'videos', lists of frames for markers <video> in its messages; "
     "{columns} videos=FIELD names them"},
    {kMessage, "video videos video_path video_paths",
     "none: videos are 'videos' of the record, or parts of the message's content"},
    {bit(KeysOf::Part), "video videos video_path video_paths",
     "none: a video is a part of its own, of the type \"video\""},
    {kRecords, "image images image_path image_paths image_file image_files image_url image_urls img imgs",
     "none of that name: a record's images are 'images' or 'image', paths for markers <image> in its messages; "
     "{columns} images=FIELD names them"},
    {kMessage, "image images image_path image_paths image_file image_files image_url image_urls img imgs",
     "none: images are 'images' of the record, or parts of the message's content"},
    {bit(KeysOf::Part), "image images image_path image_paths image_file image_files image_url image_urls img imgs",
     "none: an image is a part of its own, of the type \"image\" or \"image_url\""},
    {bit(KeysOf::Part), "min_pixels max_pixels resized_height resized_width",
     "none: {min_pixels} and {max_pixels} are for all images"},
    {kRecords | kMessage, "documents retrieved_documents",
     "none: documents that a template sets beside the messages are not rendered yet"},
    {bit(KeysOf::Alpaca), "context contexts passage passages",
     "none: name it with {columns} input=FIELD, or in {prompt}"},
    {bit(KeysOf::Conversation), "context contexts passage passages", "none: make it part of a message"},
    {kAnswers, "context contexts passage passages",
     "none: make it part of the prompt, or, beside 'instruction', name it with {columns} input=FIELD"},
    {kChats | kAnswers, "system_prompt system_message system_instruction sys_prompt",
     "none: name it with {columns} system=FIELD"},
    {kRecords, "weights sample_weight sample_weights example_weight loss_weight loss_weights loss_scale token_weights",
     "'weight', a number; {columns} weight=FIELD names it"},
    {kRecords, "is_train is_trained is_trainable is_training should_train use_for_training",
     "true, or none: 'weight', 0 or 1, says whether a record teaches", When::IsNotTrue},
    {kRecords, "do_not_train dont_train no_train not_trained skip_training exclude_from_training no_loss ignore_loss",
     "false, or none: 'weight', 0 or 1, says whether a record teaches", When::IsNotFalse},
    {kChats | kAnswers | bit(KeysOf::Text),
     "mask loss train trainable masked loss_mask message_loss_mask assistant_mask assistant_masks completion_mask "
     "completion_masks prompt_mask train_on_input train_on_inputs train_on_turn mask_history",
     "none: a record has 'weight', a number, and each message may have 'train' or 'loss', true or false"},
    {bit(KeysOf::Text),
     "source_len source_length num_source_tokens prompt_length prompt_len prompt_lengths prompt_tokens "
     "num_prompt_tokens n_prompt_tokens prompt_token_count prompt_num_tokens",
     "none: all of a text carries loss; {columns} instruction=FIELD,output=FIELD name a prompt and its reply"},
    {bit(KeysOf::Tokens),
     "mask loss train masked prompt_mask response_mask target_mask assistant_mask assistant_tokens_mask "
     "assistant_token_mask completion_masks loss_masks",
     "none: 'loss_mask' has 1 for tokens that carry loss"},
    {bit(KeysOf::Tokens),
     "source_len source_length source_lens num_source_tokens prompt_length prompt_len prompt_lengths prompt_lens "
     "prompt_tokens num_prompt_tokens n_prompt_tokens prompt_token_count prompt_num_tokens instruction_length "
     "instruction_len query_length query_len response_length response_len completion_length completion_len "
     "answer_length num_response_tokens num_completion_tokens response_start response_start_index response_start_idx "
     "answer_start answer_start_index completion_start completion_start_index target_start target_start_index",
     "none: labels of -100, or 'loss_mask' with 0, say which tokens carry no loss"},
    {bit(KeysOf::Tokens),
     "seq_lengths seq_lens seqlens sequence_lengths document_lengths doc_lens doc_lengths cu_seqlens cu_seq_lens "
     "cu_seqlens_q cu_seqlens_k cu_seq_lens_q cu_seq_lens_k document_ids doc_ids segment_ids seg_ids sequence_ids "
     "seq_ids",
     kWhereDocumentsBegin},
    {bit(KeysOf::Tokens),
     "sequence_id seq_id seq_idx sequence_idx sequence_index document_id doc_id doc_idx document_idx document_index "
     "segment_id seg_id segment_idx segment_index sample_id sample_ids sample_idx example_id",
     kWhereDocumentsBegin, When::IsList},
    {bit(KeysOf::Tokens), "decoder_input_ids advantages logprobs log_probs old_logprobs",
     "none: what it would do is not supported yet"},
    {kChats | bit(KeysOf::Text), "labels", "none: labels stand beside 'input_ids'"},
    {kMessage, "train_detail training_detail loss_scale loss_weights weights sample_weight",
     "'weight', a number, or 'train' or 'loss', true or false, of the whole message"},
    {kMessage, "prefix recipient channel end_turn refusal", "none: what it changes in a template is not rendered yet"},
};

// Keys that say where a record comes from and what people think of it, if they have one value.
constexpr std::string_view kHarmless =
    "id idx index uid uuid guid key hash md5 sha256 checksum src dataset_name data_source datasource subset config uri "
    "file filename file_name filepath file_path path repo repository repo_name lang locale programming_language score "
    "rating quality quality_score grade upvotes downvotes likes views class_name task task_name difficulty level "
    "license licence user_name username date datetime timestamp time created created_at updated_at created_time "
    "creation_date version revision model model_name engine generator generated_by generation_model teacher turn "
    "turns turn_idx turn_index turn_identifier round length len size tokens_count token_count word_count "
    "char_count perplexity ppl toxic toxicity redacted pii flagged country state hashed_ip dump snapshot snippet_count "
    "is_synthetic synthetic finish_reason score_chosen score_rejected name names markdown __index_level_0__ "
    "num_truncated_tokens";
// Keys of this kind whose values are often lists or objects.
constexpr std::string_view kDescriptions =
    "metadata meta meta_data meta_info info source sources dataset origin provenance url urls link links language "
    "languages langs scores ratings votes category categories topic topics tag tags domain domains subject tasks "
    "task_type author authors annotator annotators timestamps comment comments note notes models header headers usage "
    "moderation openai_moderation detoxify_moderation logprob_stats cache_control special_tokens_mask offset_mapping "
    "overflow_to_sample_mapping";
constexpr std::array<std::string_view, 12> kHarmlessEndings = {
    "_id", "_uid", "_uuid", "_hash", "_url", "_count", "_score", "_rating", "_source", "_date", "_time", "_name"};
// Things that are counted by keys such as "num_turns" and "n_turns".
constexpr std::string_view kCounted =
    "turns messages rounds tokens words chars characters sentences lines files comments likes votes upvotes downvotes "
    "views stars forks downloads edits citations";
// Things that have a number by keys such as "message_index".
constexpr std::string_view kNumbered =
    "message dialog dialogue conversation sample example row line sentence paragraph chunk page shard doc document "
    "question data source global original";
// A key with one of these words is about learning, whatever its ending.
constexpr std::string_view kOfLearning =
    "loss losses weight weights weighted train trains trained training trainable mask masks masked masking";
// Keys of messages that some templates render and most do not.
constexpr std::string_view kSaidInMessages = "name split";

int folded(char c) { return std::tolower(static_cast<unsigned char>(c)); }

// Things that are content even if a key with a harmless ending names or links them: "video_url", "function_name".
constexpr std::string_view kContent =
    "image images img video videos audio audios media tool tools function functions call tool_call attachment";

// Returns whether one of the words of a key ("lossWeight", "loss_weight") is among some.
bool has_word_among(std::string_view key, std::string_view words) {
  const auto is_letter = [](char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; };
  const auto is_capital = [](char c) { return std::isupper(static_cast<unsigned char>(c)) != 0; };
  for (size_t begin = 0; begin < key.size();) {
    size_t end = begin + 1;
    while (end < key.size() && is_letter(key[end]) && (!is_capital(key[end]) || is_capital(key[end - 1]))) ++end;
    if (is_letter(key[begin]) && is_among(key.substr(begin, end - begin), words)) return true;
    begin = end;
  }
  return false;
}

bool is_harmless(std::string_view key, const Json& value) {
  if (is_among(key, kDescriptions)) return true;
  if (value.is_structured() || has_word_among(key, kOfLearning)) return false;
  for (const std::string_view ending : kHarmlessEndings) {
    if (key.ends_with(ending)) return !is_among(key.substr(0, key.size() - ending.size()), kContent);
  }
  for (const std::string_view prefix : {"num_", "n_"}) {
    if (key.starts_with(prefix) && is_among(key.substr(prefix.size()), kCounted)) return true;
  }
  constexpr std::string_view kIndex = "_index";
  if (key.ends_with(kIndex) && is_among(key.substr(0, key.size() - kIndex.size()), kNumbered)) return true;
  return is_among(key, kHarmless);
}

// Returns whether a value says yes or no, in any of the spellings of read_flag().
bool says(const Json& value, bool yes) {
  if (value.is_boolean()) return value == yes;
  if (value.is_number()) return value == (yes ? 1 : 0);
  return value.is_string() && is_among(value.get<std::string>(), yes ? "1 1.0 true" : "0 0.0 false");
}

bool refuses(When when, const Json& value) {
  switch (when) {
    case When::IsList:
      return value.is_structured();
    case When::IsNotTrue:
      return !says(value, true);
    case When::IsNotFalse:
      return !says(value, false);
    case When::Always:
      break;
  }
  return true;
}

}  // namespace

bool is_nothing(const Json& value) {
  if (value.is_null() || value.is_object() || value.is_array())
    return std::all_of(value.begin(), value.end(), [](const Json& part) { return is_nothing(part); });
  const auto* text = value.get_ptr<const std::string*>();
  return text && (text->empty() || *text == "[]" || *text == "{}" || *text == "null");
}

bool same_key(std::string_view a, std::string_view b) {
  const auto skip = [](std::string_view& s) {
    while (!s.empty() && (s[0] == '_' || s[0] == '-')) s.remove_prefix(1);
  };
  for (skip(a), skip(b); !a.empty() && !b.empty(); skip(a), skip(b)) {
    if (folded(a[0]) != folded(b[0])) return false;
    a.remove_prefix(1);
    b.remove_prefix(1);
  }
  return a.empty() && b.empty();
}

bool is_among(std::string_view key, std::string_view names) {
  while (!names.empty()) {
    const std::string_view name = names.substr(0, names.find(' '));
    if (same_key(key, name)) return true;
    names.remove_prefix(std::min(name.size() + 1, names.size()));
  }
  return false;
}

std::string ignored_keys_text(std::string_view file, const std::map<std::string, int64_t>& keys) {
  constexpr size_t kShownKeys = 20;
  std::vector<std::string> words;
  for (const auto& [key, count] : keys) {
    if (words.size() < kShownKeys)
      words.push_back(fmt::format("{} ({} record{})", shortened(key), count, count == 1 ? "" : "s"));
  }
  if (keys.size() > words.size()) words.push_back(fmt::format("{} more", keys.size() - words.size()));
  return fmt::format("{}: keys ignored: {}", file, fmt::join(words, ", "));
}

void check_keys(const JsonObject& object, KeysOf of, const std::function<bool(std::string_view)>& is_read,
                std::vector<std::string>& ignored) {
  for (const auto& [key, value] : object.value().items()) {
    if (is_nothing(value) || is_read(key)) continue;
    if (of == KeysOf::Message && key == "prefix" && value == false) continue;  // a reply that is whole
    bool as_usual = false;  // the table knows the key, and its value asks for nothing
    for (const RefusedKeys& refused : kRefused) {
      if ((refused.of & bit(of)) == 0 || !is_among(key, refused.keys)) continue;
      if (refuses(refused.when, value)) object.fail(key, with_names(refused.expected));
      as_usual = as_usual || refused.when != When::IsList;
    }
    if (as_usual) continue;
    const bool said = of == KeysOf::Message && is_among(key, kSaidInMessages) && !value.is_structured();
    if (!said && is_harmless(key, value)) continue;
    if (of == KeysOf::Message && !said) {
      object.fail(key,
                  "none of that name: a message has a role, its content, and 'weight', 'train', 'loss', 'mask' or "
                  "'masked'; ids, times and the like are passed over");
    }
    if (of == KeysOf::Part) object.fail(key, "none of that name: a part has its 'type', and 'text' or 'image'");
    ignored.push_back(key);
  }
}

}  // namespace snug
