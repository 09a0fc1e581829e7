#include "data/record_keys.h"

#include <array>
#include <cctype>

#include "base/error.h"

namespace snug {
namespace {

constexpr unsigned bit(KeysOf of) { return 1u << static_cast<unsigned>(of); }
constexpr unsigned kChats = bit(KeysOf::Alpaca) | bit(KeysOf::NamedAlpaca) | bit(KeysOf::Conversation);
constexpr unsigned kRecords = kChats | bit(KeysOf::Text) | bit(KeysOf::Tokens);
constexpr unsigned kMessage = bit(KeysOf::Message);
constexpr unsigned kEverywhere = kRecords | kMessage | bit(KeysOf::Part);

// Keys, divided by blanks, that are refused in some objects, and what is said of them.
struct RefusedKeys {
  unsigned of;
  std::string_view keys, expected;
};

constexpr RefusedKeys kRefused[] = {
    {kRecords | kMessage,
     "chosen rejected label kto_tag margin chosen_response rejected_response response_chosen response_rejected "
     "score_chosen score_rejected chosen_score rejected_score chosen_rating rejected_rating preference preferred "
     "dispreferred winner loser ranking",
     "none: preference objectives are not there yet"},
    {kRecords | kMessage,
     "tools tool_calls tool_call tool_call_id tool_choice parallel_tool_calls functions function function_call "
     "available_tools tool_definitions tool_responses tool_results",
     "none: tools and their calls are not rendered yet"},
    {kRecords | kMessage,
     "reasoning_content reasoning reasoning_details thinking thinking_content thinking_blocks thought thoughts think "
     "chain_of_thought cot rationale scratchpad enable_thinking",
     "none: thinking is not rendered yet"},
    {kEverywhere,
     "image images image_path image_paths image_file image_files image_url image_urls img imgs pixel_values audio "
     "audios audio_path audio_paths input_audio speech video videos video_path video_paths media file_data",
     "none: images, sound and video are not there yet"},
    {kRecords | kMessage, "documents retrieved_documents",
     "none: documents that a template sets beside the messages are not rendered yet"},
    {bit(KeysOf::Alpaca), "context contexts passage passages",
     "none: name it with --columns input=FIELD, or in --prompt"},
    {bit(KeysOf::Conversation), "context contexts passage passages", "none: make it part of a message"},
    {kChats, "system_prompt system_message system_instruction sys_prompt", "none: name it with --columns system=FIELD"},
    {kRecords, "weights sample_weight sample_weights example_weight loss_weight loss_weights loss_scale token_weights",
     "'weight', 0 or 1; --columns weight=FIELD names it"},
    {kChats | bit(KeysOf::Text),
     "mask loss train trainable masked loss_mask message_loss_mask train_on_input train_on_inputs train_on_turn "
     "mask_history",
     "none: a record has 'weight', 0 or 1, and each message may have 'train' or 'loss', true or false"},
    {bit(KeysOf::Tokens), "mask loss train masked prompt_mask response_mask target_mask",
     "none: 'loss_mask' has 1 for tokens that carry loss"},
    {bit(KeysOf::Tokens),
     "seq_lengths seqlens cu_seqlens document_ids segment_ids sequence_ids prompt_length prompt_len",
     "none: 'position_ids' that begin again at 0 say where documents begin"},
    {bit(KeysOf::Tokens), "decoder_input_ids advantages logprobs log_probs old_logprobs",
     "none: what it would do is not there yet"},
    {kChats | bit(KeysOf::Text), "labels", "none: labels stand beside 'input_ids'"},
    {kMessage, "mask",
     "none: peers mean both by it; expected 'train' or 'loss', true where it carries loss, or 'masked', true where "
     "not"},
    {kMessage, "train_detail training_detail loss_scale loss_weight loss_weights weights sample_weight",
     "'weight', 0 or 1, or 'train' or 'loss', true or false, of the whole message"},
    {kMessage, "prefix recipient channel end_turn refusal", "none: what it changes in a template is not rendered yet"},
};

// Keys that say where a record comes from and what somebody thinks of it.
constexpr std::string_view kHarmless =
    "id idx index uid uuid guid key hash md5 sha256 checksum source sources src dataset dataset_name data_source "
    "datasource subset split config origin provenance url urls link links uri file filename file_name filepath "
    "file_path path repo repository repo_name language languages lang langs locale programming_language score scores "
    "rating ratings quality quality_score grade votes upvotes downvotes likes views category categories class_name "
    "task tasks task_type task_name topic topics tag tags domain domains subject difficulty level license licence "
    "author authors annotator annotators user_name username date datetime timestamp timestamps time created created_at "
    "updated_at created_time creation_date metadata meta meta_data meta_info info comment comments note notes version "
    "revision model models model_name engine generator generated_by generation_model teacher turn turns turn_idx "
    "turn_index turn_identifier round length len size tokens_count token_count word_count char_count perplexity ppl "
    "toxic toxicity redacted moderation openai_moderation detoxify_moderation pii flagged country state hashed_ip "
    "header headers dump snapshot snippet_count is_synthetic synthetic usage finish_reason logprob_stats name names "
    "cache_control markdown __index_level_0__ special_tokens_mask offset_mapping overflow_to_sample_mapping "
    "num_truncated_tokens";
constexpr std::array<std::string_view, 13> kHarmlessEndings = {"_id",    "_uid",   "_uuid",   "_hash",   "_url",
                                                               "_count", "_score", "_rating", "_source", "_date",
                                                               "_time",  "_index", "_name"};

int folded(char c) { return std::tolower(static_cast<unsigned char>(c)); }

bool is_among(std::string_view key, std::string_view keys) {
  while (!keys.empty()) {
    const std::string_view word = keys.substr(0, keys.find(' '));
    if (same_key(key, word)) return true;
    keys.remove_prefix(std::min(word.size() + 1, keys.size()));
  }
  return false;
}

// What is named or linked by a key with a harmless ending is content all the same: "video_url", "function_name".
constexpr std::string_view kContent =
    "image images img video videos audio audios media tool tools function functions call tool_call attachment";

bool is_harmless(std::string_view key) {
  for (const std::string_view ending : kHarmlessEndings) {
    if (key.ends_with(ending)) return !is_among(key.substr(0, key.size() - ending.size()), kContent);
  }
  return key.starts_with("num_") || key.starts_with("n_") || is_among(key, kHarmless);
}

// Tables have a column in every row; what a row has not is null, a text of nothing, or made of nothing else.
bool is_nothing(const Json& value) {
  if (value.is_null() || value.is_object() || value.is_array())
    return std::all_of(value.begin(), value.end(), [](const Json& part) { return is_nothing(part); });
  const auto* text = value.get_ptr<const std::string*>();
  return text && (text->empty() || *text == "[]" || *text == "{}" || *text == "null");
}

}  // namespace

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

void check_keys(const JsonObject& object, KeysOf of, const std::function<bool(std::string_view)>& is_read,
                std::vector<std::string>& ignored) {
  for (const auto& [key, value] : object.value().items()) {
    if (is_nothing(value) || is_read(key)) continue;
    if (of == KeysOf::Message && key == "prefix" && value == false) continue;  // a reply that is whole
    for (const RefusedKeys& refused : kRefused) {
      if ((refused.of & bit(of)) != 0 && is_among(key, refused.keys)) object.fail(key, refused.expected);
    }
    if (is_harmless(key)) continue;
    if (of == KeysOf::Message) {
      object.fail(key,
                  "none of that name: a message has a role, its content, and 'weight', 'train', 'loss' or "
                  "'masked'; ids, times and the like are passed over");
    }
    if (of == KeysOf::Part) object.fail(key, "'type' and 'text' alone");
    ignored.push_back(key);
  }
}

}  // namespace snug
