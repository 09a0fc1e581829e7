#include "data/dataset.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <exception>
#include <numeric>

#include "base/error.h"
#include "base/option_name.h"
#include "base/parallel.h"
#include "base/rng.h"
#include "data/data_files.h"
#include "data/null_fields.h"
#include "data/sample_maker.h"

namespace snug {
namespace {

// Records are read, then encoded, in lots of about this size.
constexpr size_t kLotRecords = 1024;
constexpr size_t kLotBytes = size_t{4} << 20;

// This stream of RandomPurpose::DataOrder draws held-out samples; the other streams draw epochs.
constexpr uint32_t kHoldOutStream = UINT32_MAX;

// These fields are lists or objects, which tables that know only text hold as JSON.
constexpr std::string_view kJsonFields[] = {"conversations",
                                            "messages",
                                            "history",
                                            "input_ids",
                                            "labels",
                                            "tools",
                                            "tool_calls",
                                            "attention_mask",
                                            "completion_mask",
                                            "loss_mask",
                                            "position_ids",
                                            "assistant_masks",
                                            "token_type_ids",
                                            "completions",
                                            "scores",
                                            "chosen_input_ids",
                                            "rejected_input_ids",
                                            "chosen_labels",
                                            "rejected_labels",
                                            "chosen_attention_mask",
                                            "rejected_attention_mask",
                                            "chosen_ids",
                                            "rejected_ids",
                                            "prompt_input_ids",
                                            "prompt_attention_mask",
                                            "prompt_ids",
                                            "completion_input_ids",
                                            "completion_ids",
                                            "completion_labels",
                                            "completion_attention_mask"};

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
    user_error("{}: found no field '{}' in any record ({} read), expected it as {} names it{}", files,
               maker.named()[i].field, seen.records, option_name(maker.named()[i].option),
               seen.first_keys.empty() ? "" : fmt::format("; the first has the keys {}", seen.first_keys));
  }
  if (const size_t i = unseen(seen.roles); i < seen.roles.size()) {
    user_error("{}: found no message of the role '{}', expected it as {} names it", files, maker.roles()[i],
               option_name("roles"));
  }
}

// Counts the records that have a null field where they need a value.
void count_nulls(const std::vector<Record>& records, const SampleMaker& maker, NullCounter& counter) {
  std::vector<SampleMaker::Nulls> nulls(records.size());
  parallel_for(std::ssize(records), [&](int64_t index) {
    const auto i = static_cast<size_t>(index);
    nulls[i] = maker.nulls_of(records[i]);
  });
  for (size_t i = 0; i < records.size(); i++)
    if (nulls[i] != SampleMaker::Nulls::None) counter.add(records[i].place, nulls[i] == SampleMaker::Nulls::All);
}

// Refuses a record for what made an error of it; one that has a null field with all others of the file that have one.
[[noreturn]] void refuse_record(const std::exception_ptr& error, const std::filesystem::path& path,
                                const SampleMaker& maker, std::vector<Record> records, RecordReader& reader,
                                int64_t left, const DataOptions& options) {
  try {
    std::rethrow_exception(error);
  } catch (const NullFieldError& first) {
    NullCounter counter(path);
    while (!records.empty()) {
      count_nulls(records, maker, counter);
      call(options.heartbeat);
      records = read_lot(reader, left).records;
      left -= static_cast<int64_t>(records.size());
    }
    counter.refuse(first.what());
  }
}

// Settles a file's shape by the first record of a lot that has no null field where it needs a value; returns false if
// all have one and are left out. Where they are refused it says what the others have to be, so that all are counted.
bool settle_shape(const std::filesystem::path& path, const std::vector<Record>& lot, SampleMaker& maker,
                  RecordReader& reader, int64_t left, const DataOptions& options) {
  const bool skips = options.empty_records == EmptyRecords::Skip;
  std::exception_ptr refused;
  const auto tells = [&](const Record& record) {
    try {
      maker.look_at(path, record, reader.json());
      return true;
    } catch (const NullFieldError&) {
      if (!refused) refused = std::current_exception();
    } catch (const UserError&) {
      if (!refused || skips) throw;
    }
    return false;
  };
  const bool settled = std::ranges::any_of(lot, tells);
  if (!refused || skips) return settled;
  if (!settled) std::rethrow_exception(refused);
  refuse_record(refused, path, maker, lot, reader, left, options);
}

void visit_file(const std::filesystem::path& path, SampleMaker& maker, const DataOptions& options, SeenNames& names,
                const std::function<void(const Sample&, const std::string&)>& visit) {
  RecordReader reader(path, record_options(options));
  int64_t left = options.max_samples.value_or(INT64_MAX);
  SeenKeys seen(maker.named());
  NullCounter empty(path);
  int64_t records = 0;
  for (bool first = true, settled = false; left > 0; first = false) {
    const auto [lot, error] = read_lot(reader, left);
    if (lot.empty() && error) std::rethrow_exception(error);
    if (lot.empty() && first) user_error("{}: found no sample, expected at least one", path.string());
    if (lot.empty()) break;
    if (first && options.note && !reader.note().empty()) options.note(reader.note());
    left -= std::ssize(lot);
    records += std::ssize(lot);
    settled = settled || settle_shape(path, lot, maker, reader, left, options);
    if (!settled) {
      for (const Record& record : lot) empty.add(record.place, false);
      call(options.heartbeat);
      if (error) std::rethrow_exception(error);
      continue;
    }
    if (names.records == 0) names.first_keys = maker.keys();
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
      if (errors[i]) refuse_record(errors[i], path, maker, lot, reader, left, options);
      if (made[i].is_empty) {
        empty.add(lot[i].place, false);
        continue;
      }
      seen.add(made[i]);
      add_to(names.fields, made[i].occurs);
      add_to(names.roles, made[i].has_role);
      ++names.records;
      for (const Sample& sample : made[i].samples) visit(sample, lot[i].place);
    }
    if (error) std::rethrow_exception(error);
  }
  if (empty.count() > 0 && empty.count() == records)
    user_error("{}; expected one that has what it needs", empty.line(records));
  if (empty.count() > 0 && options.note) options.note(empty.line(records));
  if (reader.json()) seen.say_of_keys(path.string(), options);
  seen.say_of_ends(path.string(), options);
  seen.say_of_answers(path.string(), options);
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
                            const std::function<void(const Sample&, const std::string& place)>& visit,
                            const std::function<void()>& end_of_file) {
  validate(options.shape);
  SampleMaker maker(options, encoder);
  SeenNames names{std::vector<bool>(maker.named().size()), std::vector<bool>(maker.roles().size())};
  for (const std::filesystem::path& path : options.files) {
    visit_file(path, maker, options, names, visit);
    if (end_of_file) end_of_file();
  }
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
    if (!sample.weights.empty() && sample.weights[i] != 1) weights_.emplace_back(at, sample.weights[i]);
  }
  starts_.push_back(ids_.size());
  if (sample.second > 0) seconds_.push_back(sample.second);
  if (sample.value) values_.push_back(*sample.value);
  images_.add(static_cast<uint32_t>(samples() - 1), sample);
  const auto samples_now = static_cast<size_t>(samples());
  check(sample.second < sample.ids.size() && (seconds_.empty() || seconds_.size() == samples_now) &&
            (values_.empty() || values_.size() == samples_now),
        "{}: a sample beside others of another kind", place);
}

uint64_t Dataset::growth(const Sample& sample) const {
  const uint64_t tokens = sample.ids.size();
  return growth_of(ids_, tokens) + growth_of(has_label_, tokens / 64 + 1) + growth_of(starts_, 1) +
         growth_of(other_labels_, tokens) + growth_of(seconds_, 1) + growth_of(values_, 1) + images_.growth(sample) +
         (sample.weights.empty() ? 0 : growth_of(weights_, tokens));
}

int64_t Dataset::patches(int64_t sample, int64_t begin, int64_t end) const {
  int64_t patches = 0;
  for (const DatasetView& view : views(sample))
    if (view.begin >= begin && int64_t{view.begin} + view.tokens <= end) patches += view.patches();
  return patches;
}

int64_t Dataset::end_before_image(int64_t sample, int64_t end) const {
  int64_t begin = 0;  // of the image, or of the video that it is a step of
  for (const DatasetImage& image : images(sample)) {
    if (image.step <= 1) begin = image.begin;
    if (begin < end && end < image.end) return begin;
  }
  return end;
}

std::span<const int32_t> Dataset::ids(int64_t sample) const {
  const auto s = static_cast<size_t>(sample);
  return std::span(ids_).subspan(starts_[s], starts_[s + 1] - starts_[s]);
}

void Dataset::weights(int64_t sample, int64_t begin, std::span<float> out) const {
  const uint64_t start = starts_[static_cast<size_t>(sample)] + static_cast<uint64_t>(begin);
  std::ranges::fill(out, 1.0f);
  auto weight = std::ranges::lower_bound(weights_, start, {}, &std::pair<uint64_t, float>::first);
  for (; weight != weights_.end() && weight->first < start + out.size(); ++weight)
    out[weight->first - start] = weight->second;
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

namespace {

// Holds a sample's tokens, and where its reply begins.
struct Parted {
  std::vector<int32_t> ids, labels;
  size_t reply = 0;

  bool has_prompt_of(const Parted& other) const {
    return std::equal(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(reply), other.ids.begin(),
                      other.ids.begin() + static_cast<std::ptrdiff_t>(other.reply));
  }
};

Parted parted(const Dataset& dataset, int64_t sample) {
  Parted parts;
  const std::span<const int32_t> ids = dataset.ids(sample);
  parts.ids.assign(ids.begin(), ids.end());
  parts.labels.resize(ids.size());
  dataset.labels(sample, 0, parts.labels);
  const auto first = std::ranges::find_if(parts.labels, [](int32_t label) { return label != kNoLabel; });
  parts.reply = static_cast<size_t>(first - parts.labels.begin());
  return parts;
}

}  // namespace

Dataset with_other_replies(const Dataset& judged, std::span<const uint32_t> selection) {
  check(!judged.has_pairs(), "other replies to pairs");
  const size_t samples = selection.size();
  const auto at = [&](size_t i) { return parted(judged, selection[i]); };
  // Runs of samples with one prompt: where that of each sample ends.
  std::vector<size_t> ends(samples, samples);
  for (size_t i = 0, begin = 0; i < samples; i++) {
    if (i + 1 < samples && at(i).has_prompt_of(at(i + 1))) continue;
    for (; begin <= i; begin++) ends[begin] = i + 1;
  }
  Dataset out;
  out.set_kinds(judged.kinds());
  const bool alike = samples == 0 || ends[0] == samples;
  for (size_t i = 0, next = 0; i < samples; i++) {
    const Parted own = at(i);
    Sample both{own.ids, own.labels, 0, judged.value(selection[i])};
    if (!alike) {
      next = i > 0 && ends[i] == ends[i - 1] ? next + 1 : ends[i];
      Parted other = at(next %= samples);
      // A run that begins the samples may have the prompt of the one that ends them, and none beside it has.
      for (; own.has_prompt_of(other); other = at(next)) next = ends[next] % samples;
      both.second = static_cast<uint32_t>(own.ids.size());
      const auto prompt = static_cast<std::ptrdiff_t>(own.reply), reply = static_cast<std::ptrdiff_t>(other.reply);
      for (const auto& [to, mine, theirs] :
           {std::tuple(&both.ids, &own.ids, &other.ids), std::tuple(&both.labels, &own.labels, &other.labels)}) {
        to->insert(to->end(), mine->begin(), mine->begin() + prompt);
        to->insert(to->end(), theirs->begin() + reply, theirs->end());
      }
    }
    out.add(both);
  }
  return out;
}

Dataset load_dataset(const DataOptions& options, const TextEncoder* encoder) {
  Dataset dataset;
  const auto add = [&](const Sample& sample, const std::string& place) {
    if (const uint64_t bytes = dataset.growth(sample); bytes > 0 && options.take) options.take(bytes);
    dataset.add(sample, place);
  };
  dataset.set_kinds(for_each_sample(options, encoder, add, [&] { dataset.end_file(); }));
  if (options.files.empty()) user_error("data: found no file, expected at least one");
  if (dataset.samples() == 0)
    user_error("{}: found no sample, as no reply is better than another, expected at least one",
               names_of_files(options.files));
  return dataset;
}

namespace {

// Returns where each record of a file begins that is not left out; nothing unless it has as many as it had samples.
std::vector<std::string> places_in_file(const std::filesystem::path& path, const DataOptions& options,
                                        uint64_t samples) {
  constexpr uint64_t kMostBytes = uint64_t{256} << 20;
  std::vector<std::string> places;
  try {
    if (std::filesystem::file_size(path) > kMostBytes) return {};
    RecordReader reader(path, record_options(options));
    const TextEncoder none;
    SampleMaker maker(options, &none);
    bool settled = false;
    const auto is_left_out = [&](const Record& record) {
      if (options.empty_records == EmptyRecords::Error) return false;
      try {
        if (!settled) maker.look_at(path, record, reader.json());
        settled = true;
      } catch (const NullFieldError&) {
        return true;
      }
      return maker.nulls_of(record) != SampleMaker::Nulls::None;
    };
    int64_t left = options.max_samples.value_or(INT64_MAX);
    for (Record record; left > 0 && places.size() <= samples && reader.next(record); left--)
      if (!is_left_out(record)) places.push_back(record.place);
  } catch (const UserError&) {
    return {};
  } catch (const std::filesystem::filesystem_error&) {
    return {};
  }
  if (places.size() != samples) places.clear();
  return places;
}

}  // namespace

std::vector<std::string> places_of(const Dataset& dataset, const DataOptions& options,
                                   std::span<const uint32_t> samples) {
  const std::vector<uint64_t>& ends = dataset.file_ends();
  const bool in_files = !ends.empty() && ends.size() == options.files.size();
  std::vector<std::string> found, of_file;
  size_t file = ends.size();
  for (const uint32_t sample : samples) {
    if (!in_files) {
      found.push_back(fmt::format("sample {}", sample + 1));
      continue;
    }
    const auto its = static_cast<size_t>(std::ranges::upper_bound(ends, sample) - ends.begin());
    check(its < ends.size(), "sample {} of a data set of {}", sample, dataset.samples());
    const uint64_t begin = its > 0 ? ends[its - 1] : 0;
    if (its != file) of_file = places_in_file(options.files[file = its], options, ends[its] - begin);
    found.push_back(of_file.empty() ? fmt::format("{}, sample {}", options.files[its].string(), sample - begin + 1)
                                    : of_file[sample - begin]);
  }
  return found;
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
