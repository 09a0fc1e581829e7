// Puts images, which --image names, before what a model is asked.
#pragma once

#include "api/image_job.h"
#include "data/sample_images.h"
#include "train/generate.h"

namespace snug {

// Holds the images of all prompts of a command. Without any, and of a model that takes none, it changes nothing.
class PromptImages {
 public:
  // Reads the files' headers. UserError that names the option for images of a model that takes none, and for what is
  // no image. `tokenizer` is that of load_tokenizer().
  PromptImages(const JobConfig& options, const std::vector<std::string>& files, const Tokenizer& tokenizer);
  PromptImages(const PromptImages&) = delete;
  PromptImages& operator=(const PromptImages&) = delete;

  bool empty() const { return planned_.empty(); }
  // Returns the patches of all images.
  int64_t patches() const;
  // Returns a text with the images in the place of its markers "<image>" or, without markers, before it. UserError,
  // named by `place`, for other numbers of them, and for a text that has the model's own tokens of images.
  std::string write(const std::string& text, const std::string& place) const;
  // Throws UserError, named by `place`, for a text that no image stands in and that has markers or such tokens.
  void refuse_in(const std::string& text, const std::string& place) const;
  // Returns the tokens of a prompt with each view's token as often as the view has rows.
  std::vector<int32_t> expand(std::vector<int32_t> ids, const std::string& place) const;
  // Lets a generator look at the images of an expanded prompt, unless it has seen them at the same tokens: `shown` says
  // at which, view by view.
  void show(std::span<const int32_t> prompt, Generator& generator, const JobConfig& options,
            std::vector<uint32_t>& shown) const;

 private:
  void refuse_tokens(const std::string& text, const std::string& place) const;

  std::optional<ImageInput> input_;  // nothing: the model takes no images
  std::optional<SampleImages> images_;
  std::vector<PlannedImage> planned_;
  std::shared_ptr<ImageNotes> notes_ = std::make_shared<ImageNotes>();
};

}  // namespace snug
