#include "cli/prompt_images.h"

#include <algorithm>

#include "api/images.h"
#include "api/launch.h"
#include "api/text.h"
#include "base/error.h"
#include "base/say.h"
#include "data/record_images.h"
#include "image/data_url.h"

namespace snug {

PromptImages::PromptImages(const JobConfig& options, const std::vector<std::string>& files,
                           const Tokenizer& tokenizer) {
  if (files.empty() && !whole_model_config_of(options).spec.tower) return;
  try {
    input_ = image_input(options, tokenizer);
  } catch (const UserError&) {  // texts need no file that says how images are cut
    if (!files.empty()) throw;
  }
  if (files.empty()) return;
  if (!input_) user_error("--image {}: found an image, expected none: {} takes no images", files[0], options.model);
  images_.emplace(*input_, encoder_of(tokenizer));
  std::vector<ImageReference> references;
  if (is_first_process()) say_lines(input_->notes);
  for (const std::string& given : files) {
    const std::string file = without_file_scheme(given);
    if (names_video_file(file))
      user_error(
          "--image: found the file of a video, {}, expected images: 'ffmpeg -i {} -vf fps=1 %05d.jpg' makes some, "
          "of which --image may name several",
          file, file);
    if (names_url(file))
      user_error("--image: found {}, expected the path of a file: images are not fetched, copy them here first", file);
    if (is_data_url(file)) user_error("--image: found a data URL, expected the path of a file");
    references.push_back({file, "--image"});
  }
  planned_ = images_->plan(references, options.image_dir, {}, {});
}

int64_t PromptImages::patches() const {
  int64_t patches = 0;
  for (const PlannedImage& image : planned_) patches += image.plan.patches;
  return patches;
}

void PromptImages::refuse_tokens(const std::string& text, const std::string& place) const {
  for (const std::string& token : tokens_of(input_->markup))
    if (token != kImageMarker && text.find(token) != std::string::npos)
      user_error("{}: found '{}' in the text, which the model has for images alone, expected the marker {}", place,
                 token, kImageMarker);
  if (!input_->markup.video_pad.empty() && text.find(kVideoMarker) != std::string::npos)
    user_error("{}: found the marker {} in the text, expected none: videos are in data alone", place, kVideoMarker);
}

void PromptImages::refuse_in(const std::string& text, const std::string& place) const {
  if (!input_) return;
  refuse_tokens(text, place);
  if (text.find(kImageMarker) != std::string::npos)
    user_error("{}: found the marker {} in the text, expected none: images stand in the first text that is asked",
               place, kImageMarker);
}

std::string PromptImages::write(const std::string& text, const std::string& place) const {
  if (!input_) return text;
  refuse_tokens(text, place);
  if (empty() && text.find(kImageMarker) != std::string::npos)
    user_error("{}: found the marker {} in the text and no image, expected --image FILE for each", place, kImageMarker);
  if (empty()) return text;
  Conversation turn{{ChatRole::User, ""}};
  std::string& content = turn[0].content;
  size_t markers = 0, begin = 0;
  for (size_t at = text.find(kImageMarker); at != text.npos; at = text.find(kImageMarker, begin), markers++) {
    content += text.substr(begin, at - begin) + kImageMark;
    begin = at + kImageMarker.size();
  }
  if (markers == 0)
    for (size_t i = 0; i < planned_.size(); i++) content += kImageMark + input_->markup.behind_unmarked;
  content += text.substr(begin);
  if (markers > 0 && markers != planned_.size())
    user_error("{}: found {} marker{} {} and {} image{}, expected as many, or no marker", place, markers,
               markers == 1 ? "" : "s", kImageMarker, planned_.size(), planned_.size() == 1 ? "" : "s");
  images_->write(planned_, turn);
  return content;
}

std::vector<int32_t> PromptImages::expand(std::vector<int32_t> ids, const std::string& place) const {
  if (empty()) return ids;
  Sample sample;
  sample.ids = std::move(ids);
  sample.labels.assign(sample.ids.size(), kNoLabel);
  at_place(place, [&] { images_->expand(planned_, sample); });
  return std::move(sample.ids);
}

void PromptImages::show(std::span<const int32_t> prompt, Generator& generator, const JobConfig& options,
                        std::vector<uint32_t>& shown) const {
  if (empty()) return;
  // The prompt as it was before each view's token was repeated.
  Sample sample;
  size_t image = 0, view = 0;
  for (size_t i = 0; i < prompt.size(); i++) {
    sample.ids.push_back(prompt[i]);
    if (prompt[i] != input_->pad_token || image == planned_.size()) continue;
    const ImagePlan& plan = planned_[image].plan;
    i += static_cast<size_t>(tokens_of_view(input_->processor, plan.views[view])) - 1;
    if (++view == plan.views.size()) view = 0, image++;
  }
  sample.labels.assign(sample.ids.size(), kNoLabel);
  images_->expand(planned_, sample);
  std::vector<uint32_t> begins;
  for (const DatasetView& one : sample.views) begins.push_back(one.begin);
  if (begins == shown) return;
  Dataset alone;
  alone.add(sample);
  const ModelSpec model = model_config_of(options).spec;
  ImageBatcher batcher(alone, image_batches(*input_, model, is_first_process() ? notes_ : nullptr));
  std::vector<ImageTokens> tokens;
  for (const DatasetView& one : alone.views(0))
    tokens.push_back({one.begin, one.rows / model.tower.merge, one.columns / model.tower.merge});
  const DocumentSpan all{0, 0, static_cast<uint32_t>(alone.length(0))};
  generator.look(tokens, [&](const ImageViews& views) { return batcher.fill(std::span(&all, 1), views); });
  shown = std::move(begins);
}

}  // namespace snug
