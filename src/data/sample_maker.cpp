#include "data/sample_maker.h"

#include <algorithm>

#include "base/error.h"
#include "base/option_name.h"
#include "data/null_fields.h"
#include "data/preferences.h"
#include "data/record_images.h"

namespace snug {
namespace {

constexpr std::string_view kWhite = " \t\r\n\f\v";

bool begins_with(std::string_view text, std::string_view special) {
  text.remove_prefix(std::min(text.find_first_not_of(kWhite), text.size()));
  return !special.empty() && text.starts_with(special);
}

// Returns whether the text ends with a special token, and cuts that token and the white space behind it.
bool take_end(std::string& text, std::string_view special) {
  const std::string_view before = std::string_view(text).substr(0, text.find_last_not_of(kWhite) + 1);
  if (special.empty() || !before.ends_with(special)) return false;
  text.resize(before.size() - special.size());
  return true;
}

// Takes away all but the last of the special tokens that a text begins with, and the white space between them.
bool take_beginnings(std::string& text, std::string_view special) {
  bool taken = false;
  for (;;) {
    const size_t first = text.find_first_not_of(kWhite);
    if (first == std::string::npos || !begins_with(text, special) ||
        !begins_with(std::string_view(text).substr(first + special.size()), special))
      return taken;
    text.erase(0, text.find_first_not_of(kWhite, first + special.size()));
    taken = true;
  }
}

// Number the kinds of replies in Answers.
constexpr size_t kTextReplies = 1, kTokenReplies = 2;

constexpr std::string_view kNamesOfReplies[] = {"conversations", "texts", "token ids"};

}  // namespace

SampleMaker::SampleMaker(const DataOptions& options, const TextEncoder* encoder)
    : options_(options), encoder_(encoder), shape_(options.shape), named_(named_fields(options.shape)) {
  const std::optional<ChatTemplate>& chat = options.prompt_format.chat;
  shape_.prompt_is_all = chat && chat->bos_by_habit();
  if (options.images && options.shape.samples == Samples::Replies) shape_.markup = options.images->markup;
  for (const auto& [role, ours] : options.shape.roles) roles_.push_back(role);
}

// Throws UserError for a format that does not hold what the objective learns from.
void SampleMaker::require_format() const {
  if (!options_.format) return;
  const Samples samples = options_.shape.samples;
  const bool pairs = *options_.format == DataFormat::Preference, labelled = *options_.format == DataFormat::Labelled;
  if (samples == Samples::Replies && (pairs || labelled))
    user_error("data_format: found {}, expected another with {} sft or distill: {}", name(*options_.format),
               option_name("objective"),
               pairs ? "dpo, orpo, simpo, reward and kto learn from pairs" : "kto learns from replies with a label");
  if (samples != Samples::Replies && !pairs && !(labelled && samples == Samples::Judged))
    user_error("data_format: found {}, expected preference{}: the objective learns from {}", name(*options_.format),
               samples == Samples::Judged ? " or labelled" : "",
               samples == Samples::Judged ? "replies that are good or bad" : "pairs of replies");
}

void SampleMaker::look_at(const std::filesystem::path& file, const Record& first, bool json) {
  json_ = json;
  file_ = file;
  image_folder_ = options_.image_dir.empty() ? file.parent_path() : options_.image_dir;
  require_format();
  const bool replies = options_.shape.samples == Samples::Replies;
  if (!json) {
    if ((options_.format && *options_.format != DataFormat::Text) || !replies)
      user_error(
          "{}: found a text file, {} expects .json or .jsonl", first.place,
          options_.format ? fmt::format("data_format {}", name(*options_.format)) : "an objective on preferences");
    format_ = DataFormat::Text;
  } else {
    Json record = parse_json(first.text, first.place, first.line);
    read_written_messages(record, options_.shape);
    format_ = options_.format ? *options_.format : detect_format(record, options_.shape, first.place);
    keys_ = names_of_keys(record);
    if (!replies)
      answers_ = std::get<Answers>(read_example(record, format_, shape_, first.place).content).replies.index();
  }
  if (json && replies && options_.shape.prompt && format_ != DataFormat::Alpaca) {
    user_error("{}: found a record of the shape {}, expected alpaca: {} is for the fields of such", first.place,
               name(format_), option_name("prompt"));
  }
  const bool tokens = replies ? format_ == DataFormat::Tokens : answers_ == kTokenReplies;
  const bool texts = replies ? format_ == DataFormat::Text : answers_ == kTextReplies;
  if (tokens) return;
  if (!encoder_)
    user_error("{}: found text, but the model directory has no tokenizer.json and no tokenizer.model", first.place);
  if (!texts) template_ = &options_.prompt_format.for_conversations();
  if (!texts && options_.images && !images_) images_.emplace(*options_.images, *encoder_);
  (texts ? kinds_.texts : kinds_.conversations) = true;
}

SampleMaker::Nulls SampleMaker::nulls_of(const Record& record) const {
  if (!json_) return Nulls::None;
  try {
    Json json = parse_json(record.text, record.place, record.line);
    const bool all = is_all_null(json);
    try {
      read_written_messages(json, options_.shape);
      read_example(json, format_, shape_, record.place, record.text);
    } catch (const NullFieldError&) {
      return all ? Nulls::All : Nulls::Some;
    }
  } catch (const UserError&) {  // make() says it, once it comes to this record
  }
  return Nulls::None;
}

Made SampleMaker::make(const Record& record) const {
  Made made;
  Example example;
  if (json_) {
    Json json = parse_json(record.text, record.place, record.line);
    read_written_messages(json, options_.shape);
    try {
      example = read_example(json, format_, shape_, record.place, record.text);
    } catch (const NullFieldError&) {
      if (options_.empty_records == EmptyRecords::Error) throw;
      made.is_empty = true;
      return made;
    }
    for (const NamedField& named : named_) made.occurs.push_back(occurs(named, json));
    for (const std::string& role : roles_) made.has_role.push_back(has_role(role, options_.shape, json));
    made.has_mask = std::holds_alternative<Conversation>(example.content) && has_in_messages("mask", json);
  } else {
    example.content = Document{record.text};
  }
  made.ignored = std::move(example.ignored);
  std::vector<PlannedImage> images;
  if (images_) images = images_->plan(example.images, image_folder_, file_, record);
  try {
    if (auto* tokens = std::get_if<std::vector<TokenSample>>(&example.content)) made.samples = std::move(*tokens);
    if (auto* document = std::get_if<Document>(&example.content)) made.samples.push_back(encode(document->text, made));
    if (auto* conversation = std::get_if<Conversation>(&example.content)) {
      for (Conversation& one : with_thinking(std::move(*conversation), options_.thinking))
        made.samples.push_back(encode(one, example.tools, made, images));
    }
    for (Sample& sample : made.samples) finish(sample);
    if (auto* answers = std::get_if<Answers>(&example.content)) {
      if (answers->replies.index() != answers_)
        user_error("found {}, expected {}, as the file's first record has: one shape a file",
                   kNamesOfReplies[answers->replies.index()], kNamesOfReplies[answers_]);
      made.samples = encode(*answers, example.tools, made);
    }
  } catch (const UserError& error) {
    user_error("{}: {}", record.place, error.what());
  }
  for (Sample& sample : made.samples) {
    if (example.weight == 0) std::fill(sample.labels.begin(), sample.labels.end(), kNoLabel);
    if (example.weight == 0 || example.weight == 1) continue;
    sample.weights.resize(sample.labels.size(), 1.0f);
    for (float& weight : sample.weights) weight *= example.weight;
  }
  if (example.weight == 0) made.empty_replies = 0;
  return made;
}

void SampleMaker::finish(Sample& sample) const {
  if (sample.ids.empty()) user_error("found no token in it, expected at least one");
  for (const std::vector<int32_t>* ids : {&sample.ids, &sample.labels}) {
    const int32_t largest = *std::max_element(ids->begin(), ids->end());
    if (largest >= options_.vocabulary) {
      user_error("found token id {}, expected less than {}, the model's vocabulary", largest, options_.vocabulary);
    }
  }
  sample.labels[0] = kNoLabel;
  if (!options_.images) return;
  const auto is_pad = [&](int32_t id) { return options_.images->is_pad(id); };
  int64_t expected = 0;
  for (const DatasetView& view : sample.views) expected += view.tokens;
  if (const int64_t found = std::ranges::count_if(sample.ids, is_pad); found != expected)
    user_error("found {} token{} '{}' in it, expected {}: the model replaces each by a part of an image", found,
               found == 1 ? "" : "s", options_.images->markup.pad, expected);
}

// Refuses what stands for an image, or is of its text, with a model that takes images.
void SampleMaker::refuse_images(const Answers& answers) const {
  if (!options_.images) return;
  std::vector<std::string> all = tokens_of(options_.images->markup);
  all.emplace_back(kImageMarker);
  if (!options_.images->markup.video_pad.empty()) all.emplace_back(kVideoMarker);
  const auto refuse = [&](const std::string& text) {
    for (const std::string& one : all)
      if (text.find(one) != text.npos)
        user_error("found '{}' in a text, expected none: images in preferences are not supported yet", one);
  };
  if (const auto* texts = std::get_if<Answers::Texts>(&answers.replies)) {
    refuse(texts->prompt.value_or(""));
    std::ranges::for_each(texts->replies, refuse);
  }
  if (const auto* conversations = std::get_if<std::vector<Conversation>>(&answers.replies))
    for (const Conversation& conversation : *conversations)
      for (const Message& message : conversation) {
        refuse(message.content);
        refuse(message.thinking);
      }
}

std::vector<Sample> SampleMaker::encode(Answers& answers, std::span<const jinja::Value> tools, Made& made) const {
  refuse_images(answers);
  made.settled = answers.settled;
  std::vector<Sample> replies;
  if (auto* conversations = std::get_if<std::vector<Conversation>>(&answers.replies)) {
    for (Conversation& one : *conversations) {
      // Each is about its last question, so that all earlier turns are such as have lost their thinking.
      const Thinking thinking = options_.thinking == Thinking::Keep ? Thinking::Keep : Thinking::Drop;
      replies.push_back(encode(with_thinking(std::move(one), thinking).front(), tools, made));
    }
    if (answers.one_prompt) align_labels(replies);
  }
  if (auto* texts = std::get_if<Answers::Texts>(&answers.replies)) replies = encode(*texts, made);
  if (auto* tokens = std::get_if<std::vector<TokenSample>>(&answers.replies)) replies = std::move(*tokens);
  for (Sample& reply : replies) finish(reply);
  // Equal pairs are left out when they are packed, and counted there; what becomes two samples is left out here.
  if (options_.shape.samples == Samples::Judged && replies.size() == 2 && replies[0].ids == replies[1].ids) {
    made.settled.push_back(Settled::EqualReplies);
    return {};
  }
  return chosen_samples(replies, answers.choices);
}

// Encodes replies together with their prompt; labels begin where one of them parts from the prompt alone.
std::vector<Sample> SampleMaker::encode(Answers::Texts& texts, Made& made) const {
  const auto encode_behind_bos = [&](std::string& text) {
    Sample sample;
    made.begun_again |= take_beginnings(text, encoder_->special.bos);
    append_habitual_bos(text, sample);
    append(encoder_->encode(text), true, sample);
    return sample;
  };
  std::vector<Sample> replies;
  size_t begin = SIZE_MAX;
  std::vector<int32_t> prompt;
  if (texts.prompt) prompt = encode_behind_bos(*texts.prompt).ids;
  for (std::string& reply : texts.replies) {
    take_ends(reply, encoder_->special.eos, made);
    made.empty_replies += reply.empty();
    std::string whole = texts.prompt.value_or("") + reply;
    replies.push_back(encode_behind_bos(whole));
    if (texts.prompt) begin = std::min(begin, common_tokens(prompt, replies.back().ids));
    if (encoder_->eos_id) append({*encoder_->eos_id}, true, replies.back());
  }
  made.raw = texts.prompt.has_value();
  if (!texts.prompt) begin = common_tokens(replies);
  if (texts.prompt && begin < prompt.size()) made.settled.push_back(Settled::MergedTokens);
  for (Sample& reply : replies) label_from(begin, reply);
  return replies;
}

void SampleMaker::append(const std::vector<int32_t>& ids, bool loss, Sample& sample) const {
  sample.ids.insert(sample.ids.end(), ids.begin(), ids.end());
  if (loss) {
    sample.labels.insert(sample.labels.end(), ids.begin(), ids.end());
  } else {
    sample.labels.resize(sample.ids.size(), kNoLabel);
  }
}

void SampleMaker::append_habitual_bos(std::string_view text, Sample& sample) const {
  if (!encoder_->prefix.empty() && !begins_with(text, encoder_->prefix_text)) append(encoder_->prefix, false, sample);
  if (!encoder_->adds_bos || !encoder_->bos_id || begins_with(text, encoder_->special.bos)) return;
  append({*encoder_->bos_id}, false, sample);
}

// Takes away every end that a text has, as one is added behind it.
void SampleMaker::take_ends(std::string& text, std::string_view end, Made& made) const {
  take_end(text, end);
  for (bool more = true; more;) {
    more = take_end(text, end) || take_end(text, encoder_->special.eos);
    made.ended_again = made.ended_again || more;
  }
}

Sample SampleMaker::encode(std::string& text, Made& made) const {
  Sample sample;
  made.begun_again |= take_beginnings(text, encoder_->special.bos);
  append_habitual_bos(text, sample);
  take_ends(text, encoder_->special.eos, made);
  append(encoder_->encode(text), true, sample);
  if (encoder_->eos_id) append({*encoder_->eos_id}, true, sample);
  return sample;
}

Sample SampleMaker::encode(Conversation& conversation, std::span<const jinja::Value> tools, Made& made,
                           std::span<const PlannedImage> images) const {
  if (images_) images = images_->write(images, conversation);
  const bool all = options_.train_on == TrainOn::All, none = template_->bos_by_habit();
  for (Message& message : conversation) {
    if (!all && !message.carries_loss()) message.weight = 1;
    if (message.role == ChatRole::Assistant) {
      take_ends(message.content, template_->end_of_turn(), made);
      made.empty_replies +=
          message.content.empty() && message.thinking.empty() && message.calls.empty() && message.carries_loss();
    } else if (!all && message.loss == false) {
      message.loss.reset();  // a text without loss is not encoded as a piece of its own
    }
  }
  Sample sample;
  std::vector<Piece> pieces = template_->render(conversation, /*for_generation=*/false, tools, &made.left_out);
  if (!pieces.empty()) made.begun_again |= take_beginnings(pieces[0].text, encoder_->special.bos);
  if (none) append_habitual_bos(pieces.empty() ? "" : pieces[0].text, sample);
  Before before = Before::Nothing;
  for (const Piece& piece : pieces) {
    const size_t begin = sample.ids.size();
    append(encoder_->encode_next ? encoder_->encode_next(piece.text, before) : encoder_->encode(piece.text),
           !piece.masked && (piece.loss || all), sample);
    if (piece.weight == 1 && sample.weights.empty()) continue;
    sample.weights.resize(begin, 1.0f);
    sample.weights.resize(sample.ids.size(), piece.weight);
  }
  if (images_) images_->expand(images, sample);
  return sample;
}

}  // namespace snug
