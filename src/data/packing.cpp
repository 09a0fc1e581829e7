#include "data/packing.h"

#include <algorithm>
#include <array>
#include <bit>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/limits.h"
#include "base/option_name.h"
#include "base/rounding.h"

namespace snug {
namespace {

constexpr size_t kOpenBlocks = 64;

}  // namespace

size_t half_of(const Dataset& dataset, const DocumentSpan& document) {
  return dataset.has_pairs() && document.begin >= dataset.second(document.sample) ? 1 : 0;
}

int64_t counted_labels(const Dataset& dataset, const DocumentSpan& document) {
  return dataset.loss_tokens(document.sample, int64_t{document.begin} + 1, int64_t{document.begin} + document.length);
}

int64_t patches_of(const Dataset& dataset, const DocumentSpan& document) {
  return dataset.has_images()
             ? dataset.patches(document.sample, document.begin, int64_t{document.begin} + document.length)
             : 0;
}

LongSamples long_samples_from_name(std::string_view name) {
  if (name == "cut") return LongSamples::Cut;
  if (name == "split") return LongSamples::Split;
  if (name == "drop") return LongSamples::Drop;
  user_error("long_samples: found '{}', expected cut, split or drop", name);
}

std::string_view name(LongSamples long_samples) {
  constexpr std::array<std::string_view, 3> kNames{"cut", "split", "drop"};
  return kNames[static_cast<size_t>(long_samples)];
}

std::string left_out_text(const PackingReport& report, const PackingOptions& options) {
  std::vector<std::string> parts;
  const auto add = [&](int64_t count, std::string_view what) {
    if (count > 0) parts.push_back(fmt::format("{} of {} samples {}", count, report.samples, what));
  };
  constexpr std::string_view kDone[] = {"cut", "split", "dropped"};
  add(report.long_samples,
      fmt::format("are longer than sequence_length {}: {}, {} tokens lost", options.sequence_length,
                  kDone[static_cast<size_t>(options.long_samples)], report.lost_tokens));
  add(report.cut_off_loss, fmt::format("are {} before their first token that carries loss: left out",
                                       kDone[static_cast<size_t>(options.long_samples)]));
  add(report.without_loss, "have no token that carries loss: left out");
  add(report.long_replies,
      fmt::format("have replies that leave no room for their prompt in sequence_length {}: left out",
                  options.sequence_length));
  add(report.equal_pairs, "are pairs of equal replies: left out");
  if (parts.empty()) return "";
  const bool by_length = report.lost_tokens > 0 || report.cut_off_loss > 0 || report.long_replies > 0;
  if (!by_length) return fmt::format("{}", fmt::join(parts, "; "));
  const std::string of_images = fmt::format("; images take fewer tokens by {}, or by {} where they are sliced",
                                            option_name("image_max_pixels"), option_name("max_slices"));
  return fmt::format("{} ({} and {} choose{})", fmt::join(parts, "; "), option_name("sequence_length"),
                     option_name("long_samples"), report.cut_with_images > 0 ? of_images : "");
}

// Calls visit(DocumentSpan) for what the options leave of a sample, and returns the tokens of that, including those of
// documents without loss.
template <class Visit>
int64_t Packer::for_each_document(uint32_t sample, Visit&& visit) const {
  const int64_t length = dataset_.length(sample), limit = options_.sequence_length;
  if (length > limit && options_.long_samples == LongSamples::Drop) return 0;
  int64_t begin = 0;
  do {
    const int64_t end = dataset_.end_before_image(sample, std::min(begin + limit, length));
    if (end <= begin) break;
    const DocumentSpan d{sample, static_cast<uint32_t>(begin), static_cast<uint32_t>(end - begin)};
    if (counted_labels(dataset_, d) > 0) visit(d);
    begin = end;
  } while (begin < length && options_.long_samples == LongSamples::Split);
  return begin;
}

// Returns the two documents that the options leave of a pair; nothing where one has no token that carries loss, or
// where they do not fit.
std::optional<std::array<DocumentSpan, 2>> Packer::pair_of(uint32_t sample) const {
  const int64_t length = dataset_.length(sample), second = dataset_.second(sample), room = options_.sequence_length;
  const bool apart = options_.apart;
  const int64_t cut = apart ? std::max<int64_t>(second - room, 0) : ceil_div(std::max<int64_t>(length - room, 0), 2);
  if (cut > 0 && options_.long_samples == LongSamples::Drop) return std::nullopt;
  // What is cut off may hold no label, nor the last token before one.
  const auto is_kept = [&](int64_t begin, int64_t end) {
    return cut + 1 < end - begin && dataset_.loss_tokens(sample, begin, begin + cut + 1) == 0 &&
           dataset_.loss_tokens(sample, begin, end) > 0;
  };
  if (!is_kept(0, second) || (!apart && !is_kept(second, length))) return std::nullopt;
  const auto span = [&](int64_t begin, int64_t end) {
    return DocumentSpan{sample, static_cast<uint32_t>(begin), static_cast<uint32_t>(end - begin)};
  };
  return std::array{span(cut, second), apart ? span_of_other(sample) : span(second + cut, length)};
}

// Returns what fits of a second document that is only scored, whatever becomes of the first: without the beginning of
// its prompt, and where its reply alone is too long, without that one's end.
DocumentSpan Packer::span_of_other(uint32_t sample) const {
  const int64_t length = dataset_.length(sample), second = dataset_.second(sample);
  int64_t begin = std::max(second, length - options_.sequence_length);
  int64_t prompt = 0;  // tokens before its first label
  for (auto step = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(length - second))); step > 0; step /= 2)
    if (second + prompt + step <= length && dataset_.loss_tokens(sample, second, second + prompt + step) == 0)
      prompt += step;
  begin = std::min(begin, second + std::max<int64_t>(prompt - 1, 0));
  return {sample, static_cast<uint32_t>(begin),
          static_cast<uint32_t>(std::min(options_.sequence_length, length - begin))};
}

Packer::Packer(const Dataset& dataset, std::vector<uint32_t> selection, const PackingOptions& options)
    : dataset_(dataset), options_(options), selection_(std::move(selection)) {
  options_.apart = options.apart && dataset.has_pairs();
  if (options_.sequence_length < 2 || options_.sequence_length > INT32_MAX) {
    user_error("sequence_length: found {}, expected 2 to {}", options_.sequence_length, INT32_MAX);
  }
  report_.samples = static_cast<int64_t>(selection_.size());
  std::erase_if(selection_, [&](uint32_t sample) { return !examine(sample); });
  check(!dataset.has_pairs() || options_.long_samples != LongSamples::Split, "pairs that are split");
  if (report_.documents == 0) {
    user_error("{}: no sample is left with a token that carries loss: {}", options_.name,
               left_out_text(report_, options_));
  }
  if (report_.documents >= int64_t{UINT32_MAX})
    user_error("{}: found {} documents, expected less than 2^32 - 1", options_.name, report_.documents);
  const auto documents = static_cast<size_t>(report_.documents);
  order_.resize(selection_.size());
  placed_.resize(documents * (options_.apart ? 2 : 1));
  block_of_.resize(placed_.size());
  open_.reserve(kOpenBlocks);
}

bool Packer::examine_pair(uint32_t sample) {
  const int64_t length = dataset_.length(sample), second = dataset_.second(sample);
  const std::span<const int32_t> ids = dataset_.ids(sample);
  const auto halves = pair_of(sample);
  const bool apart = options_.apart;
  report_.long_samples += (apart ? second : length) > options_.sequence_length;
  if (dataset_.loss_tokens(sample, 0, second) == 0 || (!apart && dataset_.loss_tokens(sample, second, length) == 0)) {
    report_.without_loss++;
  } else if (!halves) {
    report_.lost_tokens += apart ? second : length;
    report_.long_replies += options_.long_samples != LongSamples::Drop;
  } else if (!apart &&
             std::ranges::equal(ids.first(static_cast<size_t>(second)), ids.subspan(static_cast<size_t>(second)))) {
    report_.equal_pairs++;
  } else {
    for_each_of(*halves, apart ? Half::First : Half::Both, [&](const DocumentSpan& d) {
      report_.documents++;
      report_.tokens += d.length;
      report_.loss_tokens += counted_labels(dataset_, d);
      report_.lost_tokens += (*halves)[0].begin;
    });
    return true;
  }
  return false;
}

// Counts a sample in the report, and returns whether any document of it takes part.
bool Packer::examine(uint32_t sample) {
  if (dataset_.has_pairs()) return examine_pair(sample);
  const int64_t length = dataset_.length(sample), before = report_.documents;
  const int64_t left = for_each_document(sample, [&](const DocumentSpan& d) {
    ++report_.documents;
    report_.tokens += d.length;
    report_.loss_tokens += counted_labels(dataset_, d);
    const int64_t patches = patches_of(dataset_, d);
    check(options_.patches == 0 || patches <= options_.patches, "room for {} patches, a document has {}",
          options_.patches, patches);
  });
  report_.long_samples += length > options_.sequence_length;
  report_.lost_tokens += length - left;
  if (left < length && !dataset_.views(sample).empty()) report_.cut_with_images++;
  if (report_.documents > before) return true;
  if (dataset_.loss_tokens(sample, 0, length) == 0)
    ++report_.without_loss;
  else if (left > 0)
    ++report_.cut_off_loss;
  return false;
}

int64_t Packer::most_patches() {
  check(options_.patches == 0, "blocks with room for {} patches", options_.patches);
  if (!dataset_.has_images()) return 0;
  std::vector<int64_t> patches;
  pack(0, [&](const DocumentSpan& d, uint32_t block) {
    if (block >= patches.size()) patches.resize(block + 1);
    patches[block] += patches_of(dataset_, d);
  });
  return std::ranges::max(patches);
}

int64_t Packer::least_blocks() const {
  if (options_.packing) return ceil_div(report_.tokens, options_.sequence_length);
  return dataset_.has_pairs() && !options_.apart ? report_.documents / 2 : report_.documents;
}

std::vector<DocumentSpan> Packer::documents() const {
  std::vector<DocumentSpan> all;
  for (const uint32_t sample : selection_) {
    if (dataset_.has_pairs())
      std::ranges::copy(pair_of(sample).value(), std::back_inserter(all));
    else
      for_each_document(sample, [&](const DocumentSpan& span) { all.push_back(span); });
  }
  return all;
}

EpochBlocks Packer::reserve() const {
  EpochBlocks out;
  out.documents.resize(placed_.size());
  out.starts.reserve(placed_.size() + 1);
  return out;
}

template <class Visit>
void Packer::pack(int64_t epoch, Visit&& visit) {
  std::copy(selection_.begin(), selection_.end(), order_.begin());
  if (options_.shuffle) {
    const Random random(options_.seed, RandomPurpose::DataOrder, static_cast<uint32_t>(epoch));
    for (size_t i = order_.size() - 1; i > 0; --i) std::swap(order_[i], order_[random.below(i, i + 1)]);
  }
  open_.clear();
  opened_ = 0;
  for (size_t i = 0; i < order_.size(); ++i) {
    if (i % (1 << 20) == 0) call(options_.heartbeat);
    if (dataset_.has_pairs()) {
      const std::array<DocumentSpan, 2> halves = pair_of(order_[i]).value();
      const uint32_t block = options_.apart ? place(std::max(halves[0].length, halves[1].length), 1, 0)
                                            : place(int64_t{halves[0].length} + halves[1].length, 2, 0);
      for (const DocumentSpan& half : halves) visit(half, block);
    } else {
      for_each_document(order_[i],
                        [&](const DocumentSpan& d) { visit(d, place(d.length, 1, patches_of(dataset_, d))); });
    }
  }
}

int64_t Packer::count(int64_t epoch) {
  if (!options_.packing) return least_blocks();
  pack(epoch, [](const DocumentSpan&, uint32_t) {});
  return opened_;
}

void Packer::build(int64_t epoch, EpochBlocks& out) {
  size_t n = 0;
  pack(epoch, [&](const DocumentSpan& d, uint32_t block) {
    placed_[n] = d;
    block_of_[n++] = block;
  });
  // Sorts by block, keeping the order within each: counts become starts, and each start moves on as its block fills and
  // ends as the start of the next.
  out.starts.assign(size_t{opened_} + 1, 0);
  for (const uint32_t block : block_of_) {
    if (block + 1 < opened_) ++out.starts[block + 2];
  }
  for (size_t b = 2; b < out.starts.size(); ++b) out.starts[b] += out.starts[b - 1];
  out.documents.resize(placed_.size());
  for (size_t i = 0; i < placed_.size(); ++i) out.documents[out.starts[block_of_[i] + 1]++] = placed_[i];
}

// Returns the block for the next documents, which have `length` tokens and so many patches together.
uint32_t Packer::place(int64_t length, int64_t documents, int64_t patches) {
  if (!options_.packing) return opened_++;
  auto block = std::find_if(open_.begin(), open_.end(), [&](const OpenBlock& b) {
    return b.free_tokens >= length && b.free_documents >= documents && b.free_patches >= patches;
  });
  if (block == open_.end()) {
    if (open_.size() == kOpenBlocks) {
      open_.erase(std::min_element(open_.begin(), open_.end(), [](const OpenBlock& a, const OpenBlock& b) {
        return a.free_tokens < b.free_tokens;
      }));
    }
    open_.push_back({opened_++, options_.sequence_length, max_documents(1, options_.sequence_length),
                     options_.patches > 0 ? options_.patches : INT64_MAX});
    block = std::prev(open_.end());
  }
  const uint32_t number = block->number;
  block->free_tokens -= length;
  block->free_documents -= documents;
  block->free_patches -= patches;
  if (block->free_documents == 0 || block->free_tokens == 0) open_.erase(block);
  return number;
}

BlockStream::BlockStream(const Dataset& dataset, std::vector<uint32_t> selection, const PackingOptions& packing,
                         const StepShape& shape, const RunLength& length)
    : dataset_(dataset),
      packer_(dataset, std::move(selection), packing),
      shape_(shape),
      sequence_length_(packing.sequence_length) {
  check(shape.passes > 0 && shape.ranks > 0 && shape.micro_batch > 0, "a step of {} passes, {} ranks, {} blocks",
        shape.passes, shape.ranks, shape.micro_batch);
  check(length.max_steps || length.epochs, "a run without an end");
  if (length.max_steps.value_or(1) < 1 || length.epochs.value_or(1) < 1) {
    user_error("max_steps, epochs: found {} and {}, expected 1 or more", length.max_steps.value_or(1),
               length.epochs.value_or(1));
  }
  const int64_t step_blocks = shape_.blocks();
  const int64_t enough =
      length.max_steps && *length.max_steps < INT64_MAX / step_blocks ? *length.max_steps * step_blocks : INT64_MAX;
  // A step, or two, touch this many epochs at most.
  const int64_t held_blocks = (dataset.has_images() ? 2 : 1) * step_blocks;
  const int64_t touched = ceil_div(held_blocks - 1, packer_.least_blocks()) + 1;
  held_.resize(static_cast<size_t>(std::min(touched, length.epochs.value_or(touched))));
  for (Held& held : held_) held.blocks = packer_.reserve();
  if (dataset.has_images()) {
    for (std::vector<int64_t>* order : {&order_, &next_order_}) order->resize(static_cast<size_t>(step_blocks));
    counted_.resize(static_cast<size_t>(step_blocks));
    dealt_.resize(static_cast<size_t>(shape.ranks));
  }
  restart();
  first_epoch_blocks_ = held_[0].blocks.count();
  blocks_ = length.epochs ? count_blocks(*length.epochs, enough) : enough;
  steps_ = ceil_div(blocks_, step_blocks);
  seek(0);
}

int64_t BlockStream::steps_per_epoch() const { return ceil_div(first_epoch_blocks_, shape_.blocks()); }

int64_t BlockStream::count_blocks(int64_t epochs, int64_t enough) {
  int64_t blocks = first_epoch_blocks_;
  if (packer_.counts_are_equal()) return epochs < ceil_div(enough, blocks) ? blocks * epochs : enough;
  for (int64_t epoch = 1; epoch < epochs && blocks < enough; ++epoch) blocks += packer_.count(epoch);
  return std::min(blocks, enough);
}

void BlockStream::restart() {
  packer_.build(0, held_[0].blocks);
  held_[0].epoch = held_[0].first = 0;
  used_ = 1;
}

void BlockStream::hold_next() {
  check(used_ > 0 && used_ < held_.size(), "a step touches more than {} epochs", held_.size());
  const Held& last = held_[used_ - 1];
  Held& next = held_[used_];
  next.epoch = last.epoch + 1;
  next.first = last.first + last.blocks.count();
  packer_.build(next.epoch, next.blocks);
  ++used_;
}

void BlockStream::seek(int64_t step) {
  check(step >= 0 && step < steps_, "step {} of a run of {}", step, steps_);
  begin_ = step * shape_.blocks();
  end_ = std::min(begin_ + shape_.blocks(), blocks_);
  if (used_ == 0 || begin_ < held_[0].first) restart();
  const auto end_of = [&](const Held& held) { return held.first + held.blocks.count(); };
  while (end_of(held_[0]) <= begin_) {
    if (used_ > 1) {
      std::rotate(held_.begin(), held_.begin() + 1, held_.end());
      --used_;
    } else {
      held_[0].first = end_of(held_[0]);
      packer_.build(++held_[0].epoch, held_[0].blocks);
    }
  }
  held_end_ = dataset_.has_images() ? std::min(end_ + shape_.blocks(), blocks_) : end_;
  while (end_of(held_[used_ - 1]) < held_end_) hold_next();
  deal_out(begin_, end_, order_);
  deal_out(begin_ + shape_.blocks(), held_end_, next_order_);
  tokens_ = loss_tokens_ = samples_ = first_loss_tokens_ = 0;
  for (int64_t number = begin_; number < end_; ++number) {
    for_each_of(run_block(number, end_), packer_.apart() ? Half::First : Half::Both, [&](const DocumentSpan& d) {
      const bool first = half_of(dataset_, d) == 0;
      const int64_t labels = counted_labels(dataset_, d);
      tokens_ += d.length;
      loss_tokens_ += labels;
      samples_ += first;
      first_loss_tokens_ += first ? labels : 0;
    });
  }
}

std::span<const DocumentSpan> BlockStream::run_block(int64_t number, int64_t end) const {
  if (number >= end) return {};
  size_t h = 0;
  while (number >= held_[h].first + held_[h].blocks.count()) ++h;
  return held_[h].blocks.block(number - held_[h].first);
}

void BlockStream::deal_out(int64_t begin, int64_t end, std::vector<int64_t>& order) {
  if (order.empty()) return;
  for (CountedBlock& block : counted_) {
    block = {begin++, {}};
    for (const DocumentSpan& document : run_block(block.number, end)) {
      block.cost.patches += patches_of(dataset_, document);
      block.cost.tokens += document.length;
    }
  }
  std::ranges::sort(counted_, {}, [](const CountedBlock& block) {
    return std::tuple(-block.cost.patches, -block.cost.tokens, block.number);
  });
  const size_t of_rank = static_cast<size_t>(shape_.micro_batch), of_pass = dealt_.size() * of_rank;
  for (size_t i = 0; i < counted_.size(); ++i) {
    const size_t pass_begin = i / of_pass * of_pass;
    if (i == pass_begin) std::ranges::fill(dealt_, Dealt{});
    const Cost& cost = counted_[i].cost;
    const auto to = std::ranges::min_element(dealt_, {}, [&](const Dealt& rank) {
      return std::tuple(rank.blocks == shape_.micro_batch, cost.patches > 0 ? rank.cost.patches : 0, rank.cost.tokens);
    });
    const auto rank = static_cast<size_t>(to - dealt_.begin());
    order[pass_begin + rank * of_rank + static_cast<size_t>(to->blocks++)] = counted_[i].number;
    to->cost.patches += cost.patches;
    to->cost.tokens += cost.tokens;
  }
}

int64_t BlockStream::number_of(int64_t pass, int64_t rank, int64_t i, int64_t begin,
                               const std::vector<int64_t>& order) const {
  const int64_t place = (pass * shape_.ranks + rank) * shape_.micro_batch + i;
  return order.empty() ? begin + place : order[static_cast<size_t>(place)];
}

std::span<const DocumentSpan> BlockStream::block(int64_t pass, int64_t rank, int64_t i) const {
  return run_block(number_of(pass, rank, i, begin_, order_), end_);
}

std::span<const DocumentSpan> BlockStream::next_block(int64_t pass, int64_t rank, int64_t i) const {
  if (!dataset_.has_images()) return {};
  return run_block(number_of(pass, rank, i, begin_ + shape_.blocks(), next_order_), held_end_);
}

int64_t BlockStream::pass_tokens(int64_t pass, Half half) const {
  int64_t most = 0;
  for (int64_t rank = 0; rank < shape_.ranks; rank++) {
    int64_t tokens = 0;
    for (int64_t i = 0; i < shape_.micro_batch; i++)
      for_each_of(block(pass, rank, i), half, [&](const DocumentSpan& document) { tokens += document.length; });
    most = std::max(most, tokens);
  }
  return most;
}

int64_t BlockStream::pass_patches(int64_t pass) const {
  int64_t most = 0;
  for (int64_t rank = 0; rank < shape_.ranks; rank++) {
    int64_t patches = 0;
    for (int64_t i = 0; i < shape_.micro_batch; i++)
      for (const DocumentSpan& document : block(pass, rank, i)) patches += patches_of(dataset_, document);
    most = std::max(most, patches);
  }
  return most;
}

bool BlockStream::ends_epoch() const { return held_[0].first + held_[0].blocks.count() <= end_; }

}  // namespace snug
