#include "cli/sample_printer.h"

#include <cstdio>

#include "api/text.h"

namespace snug {

SamplePrinter::SamplePrinter(const Tokenizer& tokenizer, const JobConfig& options, std::optional<ImageInput> images,
                             bool json)
    : tokenizer_(tokenizer),
      objective_(objective_from_name(options.objective)),
      images_(std::move(images)),
      json_(json) {}

void SamplePrinter::print_text(std::span<const int32_t> ids) const {
  const nlohmann::ordered_json line = document(ids, ids, {}, "");
  if (json_) end(line);
}

void SamplePrinter::print(const Sample& sample) const {
  const std::span<const int32_t> ids = sample.ids, labels = sample.labels;
  const bool judged = objective_ == ObjectiveKind::Kto, margin = objective_ == ObjectiveKind::Reward;
  if (sample.second == 0) {
    const bool good = sample.value.value_or(0) != 0;
    nlohmann::ordered_json line = document(ids, labels, sample.views, judged ? good ? "desirable" : "undesirable" : "");
    if (judged) line["label"] = good;
    if (json_ && images_) line["images"] = images_of(sample);
    end(line);
    return;
  }
  nlohmann::ordered_json line;
  line["chosen"] = document(ids.first(sample.second), labels.first(sample.second), {}, "chosen");
  line["rejected"] = document(ids.subspan(sample.second), labels.subspan(sample.second), {}, "rejected");
  if (margin) line["margin"] = sample.value.value_or(0);
  if (margin && !json_) fmt::print("margin\t{}\n", sample.value.value_or(0));
  end(line);
}

nlohmann::ordered_json SamplePrinter::document(std::span<const int32_t> ids, std::span<const int32_t> labels,
                                               std::span<const DatasetView> views, std::string_view name) const {
  if (json_) {
    std::vector<int> mask;
    for (const int32_t label : labels) mask.push_back(label != kNoLabel);
    return {{"ids", ids}, {"mask", mask}};
  }
  if (!name.empty()) fmt::print("{}\n", name);
  TokenStream stream(tokenizer_, /*skip_special=*/false);
  for (size_t i = 0; i < ids.size(); i++) {
    fmt::print("{}\t{}\t{}", ids[i], labels[i] != kNoLabel ? 1 : 0, to_line(stream.next(ids[i])));
    if (!views.empty() && i == views.front().begin) {
      const DatasetView& view = views.front();
      const bool video = ids[i] != images_->pad_token;
      fmt::print(" x {}: {} x {} pixels of {} {}", view.tokens, view.columns * images_->processor.patch,
                 view.rows * images_->processor.patch, video ? "a video's step, image" : "image", view.image + 1);
      i += view.tokens - 1;  // its tokens are all alike
      views = views.subspan(1);
    }
    fmt::print("\n");
  }
  return {};
}

nlohmann::ordered_json SamplePrinter::images_of(const Sample& sample) const {
  auto images = nlohmann::ordered_json::array();
  std::vector<int64_t> tokens(sample.images.size());
  for (const DatasetView& view : sample.views) {
    if (view.image == images.size())
      images.push_back(
          {{"width", view.columns * images_->processor.patch}, {"height", view.rows * images_->processor.patch}});
    if (const uint32_t step = sample.images[view.image].step; step > 0) images[view.image]["video_step"] = step;
    tokens[view.image] += view.tokens;
  }
  for (size_t i = 0; i < tokens.size(); i++) images[i]["tokens"] = tokens[i];
  return images;
}

void SamplePrinter::end(const nlohmann::ordered_json& line) const { fmt::print("{}\n", json_ ? to_line(line) : ""); }

}  // namespace snug
