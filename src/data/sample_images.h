// Turns the images that a record names into text, tokens and views.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/dataset.h"

namespace snug {

// Holds an image of a record, or a video, and what becomes of it.
struct PlannedImage {
  SampleImage image;  // its tokens are not known yet
  ImagePlan plan;
  std::vector<SampleImage> later{};  // steps of a video behind the first, each with a view as that has

  bool video() const { return image.step > 0; }
  int64_t tokens() const { return plan.tokens * (1 + std::ssize(later)); }
};

// Refers to its arguments, which must outlive it.
class SampleImages {
 public:
  // Throws UserError for a mark of the model's images that is no single token of the encoder.
  SampleImages(const ImageInput& input, const TextEncoder& encoder);

  // Returns what becomes of the images of a record in a file, by their headers. Relative paths begin at `folder`.
  // Throws UserError that names file, line and image for one that cannot be read or is too large.
  std::vector<PlannedImage> plan(std::span<const ImageReference> images, const std::filesystem::path& folder,
                                 const std::filesystem::path& file, const Record& record) const;
  // Replaces each kImageMark in a conversation by the text of the next of the images and videos, and returns those it
  // has.
  std::span<const PlannedImage> write(std::span<const PlannedImage> images, Conversation& conversation) const;
  // Replaces each pad token by as many as its view has tokens, none of which has a label, and adds images and views to
  // the sample. Throws UserError unless there are as many as views, each between its marks.
  void expand(std::span<const PlannedImage> images, Sample& sample) const;

 private:
  PlannedImage plan_video(const ImageReference& video, const std::filesystem::path& folder) const;
  bool has_marks(const std::vector<int32_t>& ids, size_t pad) const;

  const ImageInput& input_;
  std::optional<int32_t> begin_, end_;  // the tokens around each view
};

}  // namespace snug
