// Says what a model takes of images, and what the images of a sample are.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "image/processor.h"

namespace snug {

// What transformers takes a list of frames for, where nothing says how many are of a second.
constexpr double kFramesASecond = 2;

// Says how a model writes images in text: a picture's views come one after another, each as `begin`, `pad`, `end`, the
// overview first. Slices stand between `slices_begin` and `slices_end`, row by row. All but what separates them are
// tokens of the model, which no text of a record may hold.
struct ImageMarkup {
  std::string pad;  // one a view: it becomes as many as the view has tokens
  std::string begin = {}, end = {};
  std::string slices_begin = {}, slices_end = {}, between_rows = {};
  std::string behind_unmarked = {};  // behind an image that no marker places
  std::string between_parts = {};    // of a message that is a list of texts and images
  std::string video_pad = {};        // in place of `pad`, one a video; empty: the model takes no videos
  std::string around_named = {};     // before and behind a marker that has a name: "<image_00>"
  bool operator==(const ImageMarkup&) const = default;
};

// Says what a model takes: the rows of patches that a picture becomes, and the text.
struct ImageInput {
  ImageProcessor processor;
  ImageMarkup markup;
  int32_t pad_token = 0;
  int32_t video_pad_token = 0;    // where the markup has one
  double positions_a_second = 0;  // of a video's steps in time (Qwen2.5-VL); 0: each has the next position
  // Say why images, and videos, cannot be taken, as the model's files do not tell how; empty where they do.
  std::string no_images{}, no_videos{};
  std::vector<std::string> notes{};  // on how images are sized, a line each

  bool is_pad(int32_t token) const {
    return token == pad_token || (!markup.video_pad.empty() && token == video_pad_token);
  }
};

// Returns the text of an image that becomes this, with one pad token a view.
std::string text_of_image(const ImageMarkup& markup, const ImagePlan& plan);
// Returns the text of a video, with one pad token.
std::string text_of_video(const ImageMarkup& markup);
// Returns the tokens of the model's images that no text of a record may hold.
std::vector<std::string> tokens_of(const ImageMarkup& markup);

// Names an image as a record does, or a video.
struct ImageReference {
  std::string where;                        // a path, or a data URL; empty for a video
  std::string place;                        // for messages: file, line and key
  std::vector<std::string> frames{};        // paths, of a video
  double frames_a_second = kFramesASecond;  // of a video
};

// Holds an image of a sample, or a step of a video: as many frames as a row of patches has, of which the last one may
// be repeated. Steps of a video follow each other, and one's tokens begin where those of the one before end.
struct SampleImage {
  std::string source = {};  // for messages: file, line and image
  std::string path = {};    // of the image, or of the data file in which its data URL stands, if place_bytes > 0
  uint64_t place = 0, place_bytes = 0;
  std::string bytes = {};               // the image itself, where it stands in no file as it is; path is empty then
  uint32_t width = 0, height = 0;       // pixels, upright
  uint32_t begin = 0, end = 0;          // tokens of the sample that stand for it, with its marks
  uint32_t step = 0;                    // of a video, from 1 on; 0: an image
  uint32_t time = 0;                    // position behind that of the video's first step
  std::vector<std::string> later = {};  // paths of the step's further frames
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
