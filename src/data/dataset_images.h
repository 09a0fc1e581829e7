// Holds the images of a data set's samples, of which most may have none.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/heartbeat.h"
#include "data/images.h"

namespace snug {

struct ImageTask;
struct TokenSample;

// Returns the bytes that a vector takes to hold `more` values; 0 if it has room for them.
template <class T>
uint64_t growth_of(const std::vector<T>& values, uint64_t more) {
  const uint64_t needed = values.size() + more, capacity = values.capacity();
  return needed <= capacity ? 0 : std::max(needed, 2 * capacity) * sizeof(T);
}

// Describes an image of a sample, or a step of a video. What it is called, where its file is and the file that a record
// holds stand one after another in DatasetImages, from `text` on; a step's frames are files, between whose paths stands
// a byte of 0.
struct DatasetImage {
  uint64_t text = 0, held_bytes = 0;
  uint64_t place = 0, place_bytes = 0;  // of its data URL in the file; no bytes: the file is the image
  uint32_t source_bytes = 0, path_bytes = 0;
  uint32_t width = 0, height = 0;  // pixels, upright
  uint32_t begin = 0, end = 0;     // tokens of the sample that stand for it, with its marks
  uint32_t step = 0, time = 0;     // as of SampleImage
  bool operator==(const DatasetImage&) const = default;
};
static_assert(std::has_unique_object_representations_v<DatasetImage>);
static_assert(std::has_unique_object_representations_v<DatasetView>);

class DatasetImages {
 public:
  // Adds what the sample of a number holds, which is above those added before.
  void add(uint32_t number, const TokenSample& sample);
  // Returns the bytes that the next add() takes while it enlarges what holds the images; 0 if it enlarges nothing.
  uint64_t growth(const TokenSample& sample) const;

  bool empty() const { return images_.empty(); }
  // Return those of a sample, in the order of its tokens.
  std::span<const DatasetImage> images(int64_t sample) const;
  std::span<const DatasetView> views(int64_t sample) const;
  // Returns what an image is called in messages: file, line and image.
  std::string_view source(const DatasetImage& image) const;
  // Returns what is to be decoded, with the image's bytes if a record holds it, which are read now where they stand in
  // the data's file. Throws UserError that names the image if they are there no more.
  ImageTask task(const DatasetImage& image) const;
  // Looks up how many bytes each image's files have together, or the data of it; a file that is gone has none.
  void look_up_sizes(const Heartbeat& heartbeat = {});
  // Returns that of an image, as it was then.
  uint64_t stored_bytes(const DatasetImage& image) const;
  // Returns a hash of size and time of every image's file; other than before if one of them has been written or is
  // gone.
  uint64_t state() const;
  bool operator==(const DatasetImages&) const = default;

 private:
  friend class DatasetFile;  // data/dataset_file.h

  // Says which images and views are a sample's.
  struct Owner {
    uint64_t images = 0, views = 0;  // the first ones
    uint32_t sample = 0, image_count = 0, view_count = 0, unused = 0;
    bool operator==(const Owner&) const = default;
  };
  static_assert(std::has_unique_object_representations_v<Owner>);

  const Owner* owner(int64_t sample) const;
  // Returns the paths of its files.
  std::vector<std::string_view> paths(const DatasetImage& image) const;
  std::string_view text(const DatasetImage& image, uint64_t begin, uint64_t count) const;

  std::vector<Owner> owners_;  // samples with images, in order
  std::vector<DatasetImage> images_;
  std::vector<DatasetView> views_;
  std::vector<char> text_;
  std::vector<uint64_t> sizes_;  // by image, from look_up_sizes() on
};

}  // namespace snug
