#include "data/dataset.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <exception>
#include <map>
#include <numeric>

#include "base/error.h"
#include "base/parallel.h"
#include "base/rng.h"
#include "data/data_files.h"
#include "data/record_keys.h"
#include "data/seen_keys.h"

namespace snug {
namespace {

// Records are read, then encoded, in lots of about this size.
constexpr size_t kLotRecords = 1024;
constexpr size_t kLotBytes = size_t{4} << 20;

// This stream of RandomPurpose::DataOrder draws held-out samples; the other streams draw epochs.
constexpr uint32_t kHoldOutStream = UINT32_MAX;

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

// Turns the records of one file into samples.
class SampleMaker {
 public:
  SampleMaker(const DataOptions& options, const TextEncoder* encoder)
      : options_(options), encoder_(encoder), shape_(options.shape), named_(named_fields(options.shape)) {
    const std::optional<ChatTemplate>& chat = options.prompt_format.chat;
    shape_.prompt_is_all = chat && chat->bos_by_habit();
    for (const auto& [role, ours] : options.shape.roles) roles_.push_back(role);
  }

  // Settles, by the first record of a file, what the others must be. The JSON of plain text is not examined.
  void look_at(const Record& first, bool json) {
    json_ = json;
    if (!json) {
      if (options_.format && *options_.format != DataFormat::Text) {
        user_error("{}: found a text file, data_format {} expects .json or .jsonl", first.place,
                   name(*options_.format));
      }
      format_ = DataFormat::Text;
    } else {
      Json record = parse_json(first.text, first.place, first.line);
      read_written_messages(record);
      format_ = options_.format ? *options_.format : detect_format(record, options_.shape, first.place);
      keys_ = names_of_keys(record);
    }
    if (json && options_.shape.prompt && format_ != DataFormat::Alpaca) {
      user_error("{}: found a record of the shape {}, expected alpaca: --prompt is for the fields of such", first.place,
                 name(format_));
    }
    if (format_ == DataFormat::Tokens) return;
    if (!encoder_)
      user_error("{}: found text, but the model directory has no tokenizer.json and no tokenizer.model", first.place);
    if (format_ != DataFormat::Text) template_ = &options_.prompt_format.for_conversations();
    (format_ == DataFormat::Text ? kinds_.texts : kinds_.conversations) = true;
  }

  Made make(const Record& record) const {
    Made made;
    Example example;
    if (json_) {
      Json json = parse_json(record.text, record.place, record.line);
      read_written_messages(json);
      example = read_example(json, format_, shape_, record.place, record.text);
      for (const NamedField& named : named_) made.occurs.push_back(occurs(named, json));
      for (const std::string& role : roles_) made.has_role.push_back(has_role(role, options_.shape, json));
      made.has_mask = std::holds_alternative<Conversation>(example.content) && has_in_messages("mask", json);
    } else {
      example.content = Document{record.text};
    }
    made.ignored = std::move(example.ignored);
    try {
      if (auto* tokens = std::get_if<std::vector<TokenSample>>(&example.content)) made.samples = std::move(*tokens);
      if (auto* document = std::get_if<Document>(&example.content))
        made.samples.push_back(encode(document->text, made));
      if (auto* conversation = std::get_if<Conversation>(&example.content)) {
        for (Conversation& one : with_thinking(std::move(*conversation), options_.thinking))
          made.samples.push_back(encode(one, example.tools, made));
      }
    } catch (const UserError& error) {
      user_error("{}: {}", record.place, error.what());
    }
    for (Sample& sample : made.samples) {
      finish(sample, record.place);
      if (!example.carries_loss) std::fill(sample.labels.begin(), sample.labels.end(), kNoLabel);
    }
    if (!example.carries_loss) made.empty_replies = 0;
    return made;
  }

  const RecordKinds& kinds() const { return kinds_; }
  const std::vector<NamedField>& named() const { return named_; }
  const std::vector<std::string>& roles() const { return roles_; }
  const std::string& keys() const { return keys_; }  // of the file's first record, for messages

 private:
  void finish(Sample& sample, const std::string& place) const {
    if (sample.ids.empty()) user_error("{}: found no token in it, expected at least one", place);
    for (const std::vector<int32_t>* ids : {&sample.ids, &sample.labels}) {
      const int32_t largest = *std::max_element(ids->begin(), ids->end());
      if (largest >= options_.vocabulary) {
        user_error("{}: found token id {}, expected less than {}, the model's vocabulary", place, largest,
                   options_.vocabulary);
      }
    }
    sample.labels[0] = kNoLabel;
  }

  void append(const std::vector<int32_t>& ids, bool loss, Sample& sample) const {
    sample.ids.insert(sample.ids.end(), ids.begin(), ids.end());
    if (loss) {
      sample.labels.insert(sample.labels.end(), ids.begin(), ids.end());
    } else {
      sample.labels.resize(sample.ids.size(), kNoLabel);
    }
  }

  void append_habitual_bos(std::string_view text, Sample& sample) const {
    if (!encoder_->prefix.empty() && !begins_with(text, encoder_->prefix_text)) append(encoder_->prefix, false, sample);
    if (!encoder_->adds_bos || !encoder_->bos_id || begins_with(text, encoder_->special.bos)) return;
    append({*encoder_->bos_id}, false, sample);
  }

  // Takes away every end that a text has, as one is added behind it.
  void take_ends(std::string& text, std::string_view end, Made& made) const {
    take_end(text, end);
    for (bool more = true; more;) {
      more = take_end(text, end) || take_end(text, encoder_->special.eos);
      made.ended_again = made.ended_again || more;
    }
  }

  Sample encode(std::string& text, Made& made) const {
    Sample sample;
    made.begun_again = take_beginnings(text, encoder_->special.bos);
    append_habitual_bos(text, sample);
    take_ends(text, encoder_->special.eos, made);
    append(encoder_->encode(text), true, sample);
    if (encoder_->eos_id) append({*encoder_->eos_id}, true, sample);
    return sample;
  }

  Sample encode(Conversation& conversation, std::span<const jinja::Value> tools, Made& made) const {
    const bool all = options_.train_on == TrainOn::All, none = template_->bos_by_habit();
    for (Message& message : conversation) {
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
    if (!pieces.empty()) made.begun_again = take_beginnings(pieces[0].text, encoder_->special.bos);
    if (none) append_habitual_bos(pieces.empty() ? "" : pieces[0].text, sample);
    Before before = Before::Nothing;
    for (const Piece& piece : pieces) {
      append(encoder_->encode_next ? encoder_->encode_next(piece.text, before) : encoder_->encode(piece.text),
             !piece.masked && (piece.loss || all), sample);
    }
    return sample;
  }

  const DataOptions& options_;
  const TextEncoder* encoder_;
  ShapeOptions shape_;
  std::vector<NamedField> named_;
  std::vector<std::string> roles_;  // those that options name
  std::string keys_;
  bool json_ = true;
  DataFormat format_ = DataFormat::Text;
  const ChatTemplate* template_ = nullptr;
  RecordKinds kinds_;
};

// These fields are lists or objects, which tables that know only text hold as JSON.
constexpr std::string_view kJsonFields[] = {
    "conversations",  "messages",        "history",   "input_ids",    "labels",          "tools",         "tool_calls",
    "attention_mask", "completion_mask", "loss_mask", "position_ids", "assistant_masks", "token_type_ids"};

RecordOptions record_options(const DataOptions& options) {
  RecordOptions out;
  out.text_split = options.text_split;
  out.heartbeat = options.heartbeat;
  for (const std::string_view field : kJsonFields) {
    const auto renamed = options.shape.columns.find(std::string(field));
    out.json_columns.emplace(renamed == options.shape.columns.end() ? field : std::string_view(renamed->second));
  }
  out.is_sample = [&options](const Json& object) {
    try {
      detect_format(object, options.shape, "");
      return true;
    } catch (const UserError&) {
      return false;
    }
  };
  return out;
}

struct Lot {
  std::vector<Record> records;
  std::exception_ptr error;  // what was wrong with the file behind the records
};

// Returns the next records of a file, at most `limit` of them; fewer than a lot only at the end.
Lot read_lot(RecordReader& reader, int64_t limit) {
  Lot lot;
  size_t bytes = 0;
  try {
    for (Record record; lot.records.size() < kLotRecords && bytes < kLotBytes &&
                        static_cast<int64_t>(lot.records.size()) < limit && reader.next(record);
         record = {}) {
      bytes += record.text.size();
      lot.records.push_back(std::move(record));
    }
  } catch (const UserError&) {
    lot.error = std::current_exception();
  }
  return lot;
}

// Says which of the names in options the records of all files have.
struct SeenNames {
  std::vector<bool> fields, roles;
  int64_t records = 0;
  std::string first_keys{};  // of the first record; empty for plain text
};

// Throws UserError for a field or a role that options name and that no record of any file has.
void require_names(const SampleMaker& maker, const SeenNames& seen, const DataOptions& options) {
  const std::string files = names_of_files(options.files);
  const auto unseen = [](const std::vector<bool>& all) {
    return static_cast<size_t>(std::find(all.begin(), all.end(), false) - all.begin());
  };
  if (const size_t i = unseen(seen.fields); i < seen.fields.size()) {
    user_error("{}: found no field '{}' in any record ({} read), expected it as --{} names it{}", files,
               maker.named()[i].field, seen.records, maker.named()[i].option,
               seen.first_keys.empty() ? "" : fmt::format("; the first has the keys {}", seen.first_keys));
  }
  if (const size_t i = unseen(seen.roles); i < seen.roles.size()) {
    user_error("{}: found no message of the role '{}', expected it as --roles names it", files, maker.roles()[i]);
  }
}

void visit_file(const std::filesystem::path& path, SampleMaker& maker, const DataOptions& options, SeenNames& names,
                const std::function<void(const Sample&, const std::string&)>& visit) {
  RecordReader reader(path, record_options(options));
  int64_t left = options.max_samples.value_or(INT64_MAX);
  SeenKeys seen(maker.named());
  for (bool first = true; left > 0; first = false) {
    const auto [lot, error] = read_lot(reader, left);
    if (lot.empty() && error) std::rethrow_exception(error);
    if (lot.empty() && first) user_error("{}: found no sample, expected at least one", path.string());
    if (lot.empty()) break;
    if (first && options.note && !reader.note().empty()) options.note(reader.note());
    if (first) maker.look_at(lot[0], reader.json());
    if (names.records == 0) names.first_keys = maker.keys();
    left -= static_cast<int64_t>(lot.size());
    std::vector<Made> made(lot.size());
    std::vector<std::exception_ptr> errors(lot.size());
    parallel_for(static_cast<int64_t>(lot.size()), [&, &lot = lot](int64_t index) {
      const auto i = static_cast<size_t>(index);
      try {
        made[i] = maker.make(lot[i]);
      } catch (...) {
        errors[i] = std::current_exception();
      }
    });
    call(options.heartbeat);
    for (size_t i = 0; i < lot.size(); ++i) {
      if (errors[i]) std::rethrow_exception(errors[i]);
      seen.add(made[i]);
      add_to(names.fields, made[i].occurs);
      add_to(names.roles, made[i].has_role);
      ++names.records;
      for (const Sample& sample : made[i].samples) visit(sample, lot[i].place);
    }
    if (error) std::rethrow_exception(error);
  }
  if (reader.json()) seen.say_of_keys(path.string(), options);
  seen.say_of_ends(path.string(), options);
}

}  // namespace

TextEncoder encoder_of(const Tokenizer& tokenizer) {
  TextEncoder encoder;
  encoder.encode = [&tokenizer](std::string_view text) { return tokenizer.encode(text); };
  encoder.encode_next = [&tokenizer](std::string_view text, Before& before) {
    return tokenizer.encode_next(text, before);
  };
  encoder.bos_id = tokenizer.bos_id();
  encoder.eos_id = tokenizer.eos_id();
  encoder.adds_bos = tokenizer.adds_bos();
  encoder.special = special_texts(&tokenizer);
  if (tokenizer.prefix().size() > 1) {
    encoder.prefix = tokenizer.prefix();
    for (const int32_t id : encoder.prefix) encoder.prefix_text += tokenizer.token(id).value_or("");
  }
  return encoder;
}

RecordKinds for_each_sample(const DataOptions& options, const TextEncoder* encoder,
                            const std::function<void(const Sample&, const std::string& place)>& visit) {
  validate(options.shape);
  SampleMaker maker(options, encoder);
  SeenNames names{std::vector<bool>(maker.named().size()), std::vector<bool>(maker.roles().size())};
  for (const std::filesystem::path& path : options.files) visit_file(path, maker, options, names, visit);
  if (!options.files.empty()) require_names(maker, names, options);
  return maker.kinds();
}

void Dataset::add(const Sample& sample, std::string_view place) {
  if (sample.ids.size() > UINT32_MAX) {
    user_error("{}: found a sample of {} tokens, expected less than 2^32", place, sample.ids.size());
  }
  for (size_t i = 0; i < sample.ids.size(); ++i) {
    const uint64_t at = ids_.size();
    if (at % 64 == 0) has_label_.push_back(0);
    ids_.push_back(sample.ids[i]);
    if (i == 0 || i == sample.second || sample.labels[i] == kNoLabel) continue;
    has_label_[at / 64] |= uint64_t{1} << (at % 64);
    if (sample.labels[i] != sample.ids[i]) other_labels_.emplace_back(at, sample.labels[i]);
  }
  starts_.push_back(ids_.size());
  if (sample.second > 0) seconds_.push_back(sample.second);
  if (sample.value) values_.push_back(*sample.value);
  const auto samples_now = static_cast<size_t>(samples());
  check(sample.second < sample.ids.size() && (seconds_.empty() || seconds_.size() == samples_now) &&
            (values_.empty() || values_.size() == samples_now),
        "{}: a sample beside others of another kind", place);
}

uint64_t Dataset::growth(const Sample& sample) const {
  const auto grown = [](const auto& values, uint64_t more) -> uint64_t {
    const uint64_t needed = values.size() + more, capacity = values.capacity();
    return needed <= capacity ? 0 : std::max(needed, 2 * capacity) * sizeof(values[0]);
  };
  const uint64_t tokens = sample.ids.size();
  return grown(ids_, tokens) + grown(has_label_, tokens / 64 + 1) + grown(starts_, 1) + grown(other_labels_, tokens) +
         grown(seconds_, 1) + grown(values_, 1);
}

std::span<const int32_t> Dataset::ids(int64_t sample) const {
  const auto s = static_cast<size_t>(sample);
  return std::span(ids_).subspan(starts_[s], starts_[s + 1] - starts_[s]);
}

void Dataset::labels(int64_t sample, int64_t begin, std::span<int32_t> out) const {
  const uint64_t start = starts_[static_cast<size_t>(sample)] + static_cast<uint64_t>(begin);
  for (size_t i = 0; i < out.size(); ++i) {
    const uint64_t at = start + i;
    out[i] = (has_label_[at / 64] >> (at % 64) & 1) != 0 ? ids_[at] : kNoLabel;
  }
  auto other = std::lower_bound(other_labels_.begin(), other_labels_.end(), std::pair(start, INT32_MIN));
  for (; other != other_labels_.end() && other->first < start + out.size(); ++other) {
    out[other->first - start] = other->second;
  }
}

int64_t Dataset::loss_tokens(int64_t sample, int64_t begin, int64_t end) const {
  const uint64_t start = starts_[static_cast<size_t>(sample)];
  const uint64_t from = start + static_cast<uint64_t>(begin), to = start + static_cast<uint64_t>(end);
  int64_t count = 0;
  for (uint64_t at = from; at < to; at = (at / 64 + 1) * 64) {
    const uint64_t bits = std::min(to - at, 64 - at % 64);
    const uint64_t mask = bits == 64 ? ~uint64_t{0} : ((uint64_t{1} << bits) - 1) << (at % 64);
    count += std::popcount(has_label_[at / 64] & mask);
  }
  return count;
}

Dataset load_dataset(const DataOptions& options, const TextEncoder* encoder) {
  Dataset dataset;
  dataset.set_kinds(for_each_sample(options, encoder, [&](const Sample& sample, const std::string& place) {
    if (const uint64_t bytes = dataset.growth(sample); bytes > 0 && options.take) options.take(bytes);
    dataset.add(sample, place);
  }));
  if (dataset.samples() == 0) user_error("data: found no file, expected at least one");
  return dataset;
}

HoldOut hold_out(int64_t samples, double fraction, uint64_t seed) {
  if (!(fraction > 0 && fraction < 1)) {
    user_error("validation: found {}, expected files, or a fraction between 0 and 1", fraction);
  }
  if (samples < 2) user_error("validation: found {} sample in data, expected two or more to hold one out", samples);
  const auto wanted = static_cast<int64_t>(std::llround(fraction * static_cast<double>(samples)));
  const auto count = static_cast<size_t>(std::clamp(wanted, int64_t{1}, samples - 1));
  std::vector<uint32_t> order = all_samples(samples);
  const Random random(seed, RandomPurpose::DataOrder, kHoldOutStream);
  for (size_t i = 0; i < count; ++i) std::swap(order[i], order[i + random.below(i, order.size() - i)]);
  HoldOut out;
  const auto split = order.begin() + static_cast<std::ptrdiff_t>(count);
  out.validation.assign(order.begin(), split);
  out.training.assign(split, order.end());
  std::sort(out.validation.begin(), out.validation.end());
  std::sort(out.training.begin(), out.training.end());
  return out;
}

std::vector<uint32_t> all_samples(int64_t samples) {
  if (samples > int64_t{UINT32_MAX}) user_error("data: found {} samples, expected less than 2^32", samples);
  std::vector<uint32_t> order(static_cast<size_t>(samples));
  std::iota(order.begin(), order.end(), 0u);
  return order;
}

}  // namespace snug
