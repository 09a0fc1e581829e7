#include "api/text.h"

#include <algorithm>

#include "api/job.h"
#include "api/launch.h"
#include "base/error.h"
#include "base/file.h"
#include "base/option_name.h"
#include "base/say.h"
#include "data/data_files.h"
#include "format/new_tokens.h"
#include "format/unicode.h"

namespace snug {

namespace fs = std::filesystem;

EmptyRecords empty_records(const JobConfig& options) {
  return options.empty_records == "skip" ? EmptyRecords::Skip : EmptyRecords::Error;
}

DataOptions data_options(const JobConfig& options, const std::vector<std::string>& files, int64_t vocabulary,
                         PromptFormat format, std::function<void(const std::string&)> note) {
  DataOptions data;
  DataFiles found = find_data_files(files);
  data.files = std::move(found.files);
  for (const std::string& line : found.notes) note(line);
  data.note = std::move(note);
  data.text_split = text_split_from_name(options.text_split);
  if (options.data_format != "auto") data.format = data_format_from_name(options.data_format);
  const ObjectiveKind objective = objective_from_name(options.objective);
  data.shape.samples = samples_of(objective);
  data.shape.columns = options.columns;
  for (const auto& [theirs, role] : options.roles) data.shape.roles[theirs] = role_from_name(role);
  if (!options.prompt_pattern.empty()) data.shape.prompt = options.prompt_pattern;
  data.prompt_format = std::move(format);
  data.train_on = options.train_on == "all" ? TrainOn::All : TrainOn::Assistant;
  if (data.train_on == TrainOn::All && !ObjectiveOptions{.kind = objective}.learns_replies())
    user_error("train_on: found all with {} {}, expected assistant: preferences are of replies",
               option_name("objective"), options.objective);
  data.thinking = thinking_from_name(options.thinking);
  if (data.thinking == Thinking::Last && data.train_on == TrainOn::All)
    user_error(
        "thinking: found last with {} all, expected it with assistant: each turn would be learnt again in the samples "
        "of those behind it",
        option_name("train_on"));
  data.max_samples = options.max_samples;
  data.empty_records = empty_records(options);
  data.vocabulary = vocabulary;
  return data;
}

namespace {

constexpr uint64_t kMaxTokenizerBytes = uint64_t{1} << 30;

// Returns the file that Tokenizer::load() reads in a directory; it may not exist.
fs::path tokenizer_file(const fs::path& directory) {
  const fs::path json = directory / "tokenizer.json";
  return is_file(json) ? json : directory / "tokenizer.model";
}

// Returns whether both directories have a tokenizer, in different files.
bool tokenizers_differ(const fs::path& a, const fs::path& b) {
  const fs::path one = tokenizer_file(a), other = tokenizer_file(b);
  if (!is_file(one) || !is_file(other)) return false;
  return one.filename() != other.filename() || fs::file_size(one) != fs::file_size(other) ||
         read_text(one, kMaxTokenizerBytes) != read_text(other, kMaxTokenizerBytes);
}

}  // namespace

fs::path tokenizer_directory(const JobConfig& options) {
  const fs::path adapter = options.adapter;
  return !adapter.empty() && has_tokenizer(adapter) ? adapter : fs::path(options.model);
}

Tokenizer load_tokenizer(const JobConfig& options) {
  const fs::path directory = tokenizer_directory(options);
  if (options.found.new_tokens.empty()) return Tokenizer::load(directory);
  const std::string place = (directory / "").string();
  return Tokenizer::parse(with_new_tokens(Tokenizer::read(directory), options.found.new_tokens, place), place);
}

PromptFormat prompt_format_of(const JobConfig& options, const ModelTokens& model, const Tokenizer* tokenizer) {
  std::optional<AdapterFormat> adapter;
  if (!options.adapter.empty()) adapter = read_adapter_format(options.adapter, model.vocabulary);
  const bool whole_prompt = !options.prompt_pattern.empty() && options.chat_template == "auto";
  PromptFormat format = decide_prompt_format(whole_prompt ? "none" : options.chat_template, model, tokenizer,
                                             adapter ? &*adapter : nullptr);
  if (adapter && tokenizers_differ(options.adapter, options.model))
    format.notes.push_back(
        fmt::format("the tokenizer is the one in {}, which is not the one in {}", options.adapter, options.model));
  return format;
}

PromptEncoder::PromptEncoder(const JobConfig& options, const std::string& system)
    : model_(model_tokens(options)),
      system_(system),
      tokenizer_(load_tokenizer(options)),
      format_(prompt_format_of(options, model_, &tokenizer_)) {
  const ChatTemplate* const chat = format_.for_prompts();
  if (system.empty() || (chat && chat->name() != "none")) return;
  user_error("system: found a text, expected none: {} is asked without a chat template, which {} names", options.model,
             option_name("template"));
}

std::vector<int32_t> PromptEncoder::encode(const std::string& prompt, const std::string& place) const {
  const Message turn{ChatRole::User, prompt};
  return encode(std::span(&turn, 1), place);
}

std::vector<int32_t> PromptEncoder::encode(std::span<const Message> turns, const std::string& place) const {
  const std::string& prompt = turns.back().content;
  if (const auto offset = find_invalid_utf8(prompt))
    user_error("{}: found byte 0x{:02x} at offset {}, which is not UTF-8", place,
               static_cast<unsigned char>(prompt[*offset]), *offset);
  std::vector<int32_t> ids = at_place(place, [&] { return tokens_of(turns); });
  const auto bos = tokenizer_.bos_id();
  const auto begins_twice = [&] { return bos && ids.size() > 1 && ids[0] == *bos && ids[1] == *bos; };
  if (begins_twice() && is_first_process())
    say(fmt::format("{}: begins with BOS more than once: one is left\n", place));
  while (begins_twice()) ids.erase(ids.begin());
  if (ids.empty()) user_error("{}: found an empty text, expected at least one token", place);
  const int32_t largest = *std::ranges::max_element(ids);
  if (largest >= model_.vocabulary)
    user_error("{}: found token id {}, expected less than {}, the model's vocabulary", place, largest,
               model_.vocabulary);
  return ids;
}

std::vector<int32_t> PromptEncoder::tokens_of(std::span<const Message> turns) const {
  std::vector<int32_t> ids;
  Before before = Before::Nothing;
  auto add = [&](std::string_view text) {
    const std::vector<int32_t> more = tokenizer_.encode_next(text, before);
    ids.insert(ids.end(), more.begin(), more.end());
  };
  const ChatTemplate* const chat = format_.for_prompts();
  if (!chat) {
    add(turns.back().content);
  } else {
    std::vector<Message> all;
    if (!system_.empty()) all.push_back({ChatRole::System, system_});
    all.insert(all.end(), turns.begin(), turns.end());
    for (const Piece& piece : chat->render(all, true)) add(piece.text);
  }
  const std::vector<int32_t>& prefix = tokenizer_.prefix();
  const bool habit = (!chat || chat->bos_by_habit()) && !prefix.empty();
  // A prompt that begins with BOS in its text has its BOS.
  if (habit && (ids.empty() || ids.front() != prefix.front())) ids.insert(ids.begin(), prefix.begin(), prefix.end());
  return ids;
}

}  // namespace snug
