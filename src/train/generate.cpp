#include "train/generate.h"

#include <algorithm>

#include "tensor/batch.h"

namespace snug {

Generator::Generator(Session& session, GenerateOptions options)
    : session_(session), options_(std::move(options)), sampler_(options_.sampling) {
  session_.on(HostJob::FillTokens, [this](const HostTask&, std::span<const TensorView> views, RuntimeScalars&) {
    fill_tokens(token_views(views));
  });
  session_.on(HostJob::TakeLogits, [this](const HostTask&, std::span<const TensorView> views, RuntimeScalars&) {
    const float* logits = views[0].as<float>();
    logits_.assign(logits, logits + views[0].count());
  });
}

void Generator::fill_tokens(const TokenViews& tokens) {
  const size_t count = tokens.ids.size(), axes = tokens.positions.size() / count;
  const auto room = static_cast<size_t>(session_.spec().cache_positions);
  check(axes == 1 || positions_.size() == axes * room, "a prompt before look() of a model with a tower");
  for (size_t i = 0; i < count; i++) {
    const bool fed = i < fed_.size();  // the next tokens overwrite rows after these before any op sees them
    tokens.ids[i] = fed ? fed_[i] : 0;
    const size_t at = cached_.size() + i;
    for (size_t axis = 0; axis < axes; axis++)
      tokens.positions[axis * count + i] = !fed        ? 0
                                           : axes == 1 ? static_cast<int32_t>(at)
                                                       : positions_[axis * room + at];
  }
  tokens.row[0] = static_cast<int32_t>(fed_.size()) - 1;
  const auto begin = static_cast<int32_t>(cached_.size()), end = begin + static_cast<int32_t>(fed_.size());
  for (size_t row = 0; row < tokens.places.size(); row++) {
    const int32_t token = row_tokens_[row];
    tokens.places[row] = begin <= token && token < end ? token - begin : -1;
  }
}

void Generator::look(std::span<const ImageTokens> images, const std::function<ImageCounts(const ImageViews&)>& fill) {
  cached_.clear();
  if (session_.spec().model.rope_axes) {  // where positions are on one axis, an image's rows are tokens like others
    const int64_t room = session_.spec().cache_positions;
    positions_.resize(static_cast<size_t>(3 * room));
    write_positions(positions_, room, 0, room, images);
  }
  session_.on(HostJob::FillImages, [&](const HostTask&, std::span<const TensorView> views, RuntimeScalars& runtime) {
    const ImageViews arrays = image_views(views);
    const ImageCounts counts = fill(arrays);
    runtime.images = counts.images;
    runtime.image_windows = counts.windows;
    runtime.patch_segments = counts.segments;
    row_tokens_.assign(arrays.places.begin(), arrays.places.end());
  });
  session_.run(Task::Look);
}

std::vector<int32_t> Generator::generate(std::span<const int32_t> prompt, const TokenHandler& on_token) {
  cached_.clear();
  return reply(prompt, on_token);
}

std::vector<int32_t> Generator::reply(std::span<const int32_t> prompt, const TokenHandler& on_token) {
  check(!prompt.empty() &&
            static_cast<int64_t>(prompt.size()) + options_.max_new_tokens <= session_.spec().cache_positions,
        "a prompt of {} tokens and {} new ones, caches of {}", prompt.size(), options_.max_new_tokens,
        session_.spec().cache_positions);
  feed_prompt(prompt);
  std::vector<int32_t> reply;
  while (static_cast<int64_t>(reply.size()) < options_.max_new_tokens) {
    const uint64_t draw = draws_++;
    const uint64_t chosen = session_.rank() == 0 ? static_cast<uint64_t>(sampler_.choose(logits_, cached_, draw)) : 0;
    const auto token = static_cast<int32_t>(session_.as_rank_0(chosen, "the choice of a token"));
    if (std::ranges::find(options_.stop, token) != options_.stop.end()) break;
    reply.push_back(token);
    if (on_token && !on_token(token)) break;
    if (static_cast<int64_t>(reply.size()) < options_.max_new_tokens) feed(Task::Decode, std::span(reply).last(1));
  }
  return reply;
}

void Generator::feed_prompt(std::span<const int32_t> prompt) {
  // The last token is fed in any case: its logits choose the next one.
  const auto known = std::ranges::mismatch(cached_, prompt.first(prompt.size() - 1)).in1 - cached_.begin();
  cached_.resize(static_cast<size_t>(known));
  prompt = prompt.subspan(cached_.size());
  while (!prompt.empty()) {
    const size_t count = std::min(prompt.size(), static_cast<size_t>(kPrefillTokens));
    // A token that stands for an image is never decoded.
    feed(count > 1 || !row_tokens_.empty() ? Task::Prefill : Task::Decode, prompt.first(count));
    prompt = prompt.subspan(count);
  }
}

std::vector<float> Generator::score(std::span<const int32_t> prompt) {
  cached_.clear();
  std::vector<float> all;
  for (size_t i = 0; i < prompt.size(); i++) {
    feed(Task::Decode, prompt.subspan(i, 1));
    all.insert(all.end(), logits_.begin(), logits_.end());
  }
  return all;
}

void Generator::feed(Task task, std::span<const int32_t> tokens) {
  fed_ = tokens;
  RuntimeScalars runtime;
  runtime.position = std::ssize(cached_);
  session_.run(task, runtime);
  cached_.insert(cached_.end(), tokens.begin(), tokens.end());
}

}  // namespace snug
