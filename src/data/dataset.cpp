#include "data/dataset.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <exception>
#include <numeric>

#include "base/error.h"
#include "base/parallel.h"
#include "base/rng.h"
#include "data/records.h"

namespace snug {
namespace {

// Records are read, then encoded, in lots of about this size.
constexpr size_t kLotRecords = 1024;
constexpr size_t kLotBytes = size_t{4} << 20;

// The stream of RandomPurpose::DataOrder that holds samples out; the others are epochs.
constexpr uint32_t kHoldOutStream = UINT32_MAX;

// Turns the records of one file into samples.
class SampleMaker {
 public:
  SampleMaker(const DataOptions& options, const TextEncoder* encoder) : options_(options), encoder_(encoder) {}

  // Settles, by the first record of a file, what the others must be. The JSON of plain text is not looked at.
  void look_at(const Record& first, bool json) {
    json_ = json;
    if (!json) {
      if (options_.format && *options_.format != DataFormat::Text) {
        user_error("{}: found a text file, data_format {} expects .json or .jsonl", first.place,
                   name(*options_.format));
      }
      format_ = DataFormat::Text;
    } else {
      format_ = options_.format
                    ? *options_.format
                    : detect_format(parse_json(first.text, first.place, first.line), options_.shape, first.place);
    }
    if (format_ == DataFormat::Tokens) return;
    if (!encoder_) user_error("{}: found text, but the model directory has no tokenizer.json", first.place);
    if (format_ != DataFormat::Text && !template_) {
      const bool whole_prompt = options_.shape.prompt && options_.chat_template == "auto";
      template_ = ChatTemplate::choose(whole_prompt ? "none" : options_.chat_template, encoder_->model_template,
                                       encoder_->special);
    }
  }

  Sample make(const Record& record) const {
    Example example =
        json_ ? read_example(parse_json(record.text, record.place, record.line), format_, options_.shape, record.place)
              : Example(Document{record.text});
    Sample sample;
    try {
      if (auto* tokens = std::get_if<TokenSample>(&example)) sample = std::move(*tokens);
      if (const auto* document = std::get_if<Document>(&example)) encode(*document, sample);
      if (auto* conversation = std::get_if<Conversation>(&example)) encode(*conversation, sample);
    } catch (const UserError& error) {
      user_error("{}: {}", record.place, error.what());
    }
    if (sample.ids.empty()) user_error("{}: found no token in it, expected at least one", record.place);
    for (const std::vector<int32_t>* ids : {&sample.ids, &sample.labels}) {
      const int32_t largest = *std::max_element(ids->begin(), ids->end());
      if (largest >= options_.vocabulary) {
        user_error("{}: found token id {}, expected less than {}, the model's vocabulary", record.place, largest,
                   options_.vocabulary);
      }
    }
    sample.labels[0] = kNoLabel;
    return sample;
  }

 private:
  void append(const std::vector<int32_t>& ids, bool loss, Sample& sample) const {
    sample.ids.insert(sample.ids.end(), ids.begin(), ids.end());
    if (loss) {
      sample.labels.insert(sample.labels.end(), ids.begin(), ids.end());
    } else {
      sample.labels.resize(sample.ids.size(), kNoLabel);
    }
  }

  void append_habitual_bos(Sample& sample) const {
    if (encoder_->adds_bos && encoder_->bos_id) append({*encoder_->bos_id}, false, sample);
  }

  void encode(const Document& document, Sample& sample) const {
    append_habitual_bos(sample);
    append(encoder_->encode(document.text), true, sample);
    if (encoder_->eos_id) append({*encoder_->eos_id}, true, sample);
  }

  void encode(Conversation& conversation, Sample& sample) const {
    const bool all = options_.train_on == TrainOn::All;
    for (Message& message : conversation) {
      // What carries no loss anyway is no piece, hence has no tokens, of its own.
      if (!all && message.role != ChatRole::Assistant && message.loss == false) message.loss.reset();
    }
    if (template_->bos_by_habit()) append_habitual_bos(sample);
    for (const Piece& piece : template_->render(conversation, /*for_generation=*/false)) {
      append(encoder_->encode(piece.text), !piece.masked && (piece.loss || all), sample);
    }
  }

  const DataOptions& options_;
  const TextEncoder* encoder_;
  bool json_ = true;
  DataFormat format_ = DataFormat::Text;
  std::optional<ChatTemplate> template_;
};

// The next records of a file, at most `limit` of them; fewer than a lot only at the end.
std::vector<Record> read_lot(RecordReader& reader, int64_t limit) {
  std::vector<Record> lot;
  size_t bytes = 0;
  Record record;
  while (lot.size() < kLotRecords && bytes < kLotBytes && static_cast<int64_t>(lot.size()) < limit &&
         reader.next(record)) {
    bytes += record.text.size();
    lot.push_back(std::move(record));
    record = {};
  }
  return lot;
}

void visit_file(const std::filesystem::path& path, SampleMaker& maker, const DataOptions& options,
                const std::function<void(const Sample&, const std::string&)>& visit) {
  RecordReader reader(path);
  int64_t left = options.max_samples.value_or(INT64_MAX);
  for (bool first = true; left > 0; first = false) {
    const std::vector<Record> lot = read_lot(reader, left);
    if (lot.empty() && first) user_error("{}: found no sample, expected at least one", path.string());
    if (lot.empty()) return;
    if (first) maker.look_at(lot[0], reader.json());
    left -= static_cast<int64_t>(lot.size());
    std::vector<Sample> samples(lot.size());
    std::vector<std::exception_ptr> errors(lot.size());
    parallel_for(static_cast<int64_t>(lot.size()), [&](int64_t index) {
      const auto i = static_cast<size_t>(index);
      try {
        samples[i] = maker.make(lot[i]);
      } catch (...) {
        errors[i] = std::current_exception();
      }
    });
    call(options.alive);
    for (size_t i = 0; i < lot.size(); ++i) {
      if (errors[i]) std::rethrow_exception(errors[i]);
      visit(samples[i], lot[i].place);
    }
  }
}

std::string spelling(const Tokenizer& tokenizer, std::optional<int32_t> id) {
  return id ? tokenizer.token(*id).value_or("") : "";
}

}  // namespace

TextEncoder encoder_of(const Tokenizer& tokenizer) {
  TextEncoder encoder;
  encoder.encode = [&tokenizer](std::string_view text) { return tokenizer.encode(text); };
  encoder.bos_id = tokenizer.bos_id();
  encoder.eos_id = tokenizer.eos_id();
  encoder.adds_bos = tokenizer.adds_bos();
  encoder.special = {spelling(tokenizer, encoder.bos_id), spelling(tokenizer, encoder.eos_id)};
  encoder.model_template = tokenizer.chat_template_text().value_or("");
  return encoder;
}

void for_each_sample(const DataOptions& options, const TextEncoder* encoder,
                     const std::function<void(const Sample&, const std::string& place)>& visit) {
  validate(options.shape);
  SampleMaker maker(options, encoder);
  for (const std::filesystem::path& path : options.files) visit_file(path, maker, options, visit);
}

void Dataset::add(const Sample& sample, std::string_view place) {
  if (sample.ids.size() > UINT32_MAX) {
    user_error("{}: found a sample of {} tokens, expected less than 2^32", place, sample.ids.size());
  }
  for (size_t i = 0; i < sample.ids.size(); ++i) {
    const uint64_t at = ids_.size();
    if (at % 64 == 0) has_label_.push_back(0);
    ids_.push_back(sample.ids[i]);
    if (i == 0 || sample.labels[i] == kNoLabel) continue;
    has_label_[at / 64] |= uint64_t{1} << (at % 64);
    if (sample.labels[i] != sample.ids[i]) other_labels_.emplace_back(at, sample.labels[i]);
  }
  starts_.push_back(ids_.size());
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
  for_each_sample(options, encoder,
                  [&](const Sample& sample, const std::string& place) { dataset.add(sample, place); });
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
