// Says what a model takes of images, and what the images of a sample are.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "image/processor.h"

namespace snug {

// Says how a model writes images in text: a picture's views come one after another, each as `begin`, `pad`, `end`, the
// overview first. Slices stand between `slices_begin` and `slices_end`, row by row. All but what separates them are
// tokens of the model, which no text of a record may hold.
struct ImageMarkup {
  std::string pad;  // one a view: it becomes as many as the view has tokens
  std::string begin = {}, end = {};
  std::string slices_begin = {}, slices_end = {}, between_rows = {};
  std::string behind_unmarked = {};      // behind an image that no marker places
  std::string between_parts = {};        // of a message that is a list of texts and images
  std::string around_named = {};         // before and behind a marker that has a name: "<image_00>"
  std::vector<std::string> others = {};  // more tokens that no text of a record may hold
  bool operator==(const ImageMarkup&) const = default;
};

// Says what a model takes: the rows of patches that a picture becomes, and the text.
struct ImageInput {
  ImageProcessor processor;
  ImageMarkup markup;
  int32_t pad_token = 0;
};

// Returns the text of an image that becomes this, with one pad token a view.
std::string text_of_image(const ImageMarkup& markup, const ImagePlan& plan);
// Returns the tokens of the model's images that no text of a record may hold.
std::vector<std::string> tokens_of(const ImageMarkup& markup);

// Names an image as a record does.
struct ImageReference {
  std::string where;  // a path, or a data URL
  std::string place;  // for messages: file, line and key
};

// Holds an image of a sample.
struct SampleImage {
  std::string source = {};  // for messages: file, line and image
  std::string path = {};    // of the image, or of the data file in which its data URL stands, if place_bytes > 0
  uint64_t place = 0, place_bytes = 0;
  std::string bytes = {};          // the image itself, where it stands in no file as it is; path is empty then
  uint32_t width = 0, height = 0;  // pixels, upright
  uint32_t begin = 0, end = 0;     // tokens of the sample that stand for it, with its marks
  bool operator==(const SampleImage&) const = default;
};

// Describes a view: `tokens` tokens of the sample from `begin` on, which are pad tokens, stand for rows x columns
// patches of its image, the number of which is among the sample's images.
struct DatasetView {
  uint32_t image = 0;
  uint32_t begin = 0, tokens = 0;
  uint32_t rows = 0, columns = 0;

  int64_t patches() const { return int64_t{rows} * columns; }
  bool operator==(const DatasetView&) const = default;
};

}  // namespace snug
