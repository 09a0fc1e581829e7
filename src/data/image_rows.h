// Makes the rows of patches that a vision tower reads in a pass, out of the files of the pass's images.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>

#include "base/heartbeat.h"
#include "data/packing.h"
#include "image/image_queue.h"

namespace snug {

// Return the images, and the views, that lie within a document.
std::span<const DatasetView> views_of(const Dataset& dataset, const DocumentSpan& document);
std::span<const DatasetImage> images_of(const Dataset& dataset, const DocumentSpan& document);

struct ImageRowsOptions {
  int threads = 1;
  int64_t most_bytes = int64_t{1} << 30;  // that decoding takes at once, or what the largest image takes alone
  // Called with a line for each image that a decoder found damaged and yet read, once an image.
  std::function<void(const std::string&)> note{};
};

// Fills in the rows of documents' images. For one thread; images are decoded on others, those of documents that are
// expected ahead of being asked for.
class PassRows {
 public:
  // The data set must outlive it.
  PassRows(const Dataset& dataset, const ImageProcessor& processor, ImageRowsOptions options);
  PassRows(PassRows&&) noexcept;
  ~PassRows();

  // Says which documents fill() will be asked for, in this order, though not in which lots. Decoding goes on where
  // those that are expected already, and not filled in, are the first of these; else it begins anew.
  void expect(std::span<const DocumentSpan> documents);

  // Decodes the images of these documents and forgets them: throws UserError as fill() would.
  void look_at(std::span<const DocumentSpan> documents, const Heartbeat& heartbeat = {});

  // Decodes the images of these documents and writes the rows of their views one after the other, in order, as
  // write_patches() does. They may be other ones than were expected, which are then forgotten. Returns how many patches
  // that are; what is behind them in `out` stays as it is. Throws UserError that names file, line and image for one
  // that cannot be read or that has not the size it had when the data was read, and InternalError if `out` has no room.
  int64_t fill(std::span<const DocumentSpan> documents, std::span<float> out, const Heartbeat& heartbeat = {});

 private:
  class Ahead;
  // Returns the documents that have images.
  std::deque<DocumentSpan> with_images(std::span<const DocumentSpan> documents) const;
  void begin_again(std::deque<DocumentSpan> documents);

  const Dataset& dataset_;
  ImageProcessor processor_;
  ImageRowsOptions options_;
  std::set<std::string> noted_;
  std::deque<DocumentSpan> expected_;  // that have images, and are not filled in
  std::unique_ptr<Ahead> ahead_;       // decodes their images
};

}  // namespace snug
