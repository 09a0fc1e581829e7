// Makes the rows of patches that a vision tower reads in a pass, out of the files of the pass's images.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>

#include "base/heartbeat.h"
#include "data/packing.h"
#include "image/image_queue.h"

namespace snug {

// Goes through the images of documents, in order; each is asked for as a task when its turn comes.
class ImagesOfDocuments {
 public:
  // `next_document` returns the documents one by one, then nothing. The data set must outlive it.
  ImagesOfDocuments(const Dataset& dataset, std::function<std::optional<DocumentSpan>()> next_document)
      : dataset_(dataset), next_document_(std::move(next_document)) {}

  // Returns the next image, nothing after the last.
  std::optional<ImageTask> next();

 private:
  const Dataset& dataset_;
  std::function<std::optional<DocumentSpan>()> next_document_;
  std::span<const DatasetImage> images_;  // of the document, that are left
};

// Return the images, and the views, that lie within a document.
std::span<const DatasetView> views_of(const Dataset& dataset, const DocumentSpan& document);
std::span<const DatasetImage> images_of(const Dataset& dataset, const DocumentSpan& document);

struct ImageRowsOptions {
  int threads = 1;
  int64_t most_bytes = int64_t{1} << 30;  // that decoding takes at once, or what the largest image takes alone
  // Called with a line for each image that a decoder found damaged and yet read, once an image.
  std::function<void(const std::string&)> note{};
};

// Fills in the rows of documents' images. For one thread.
class PassRows {
 public:
  // The data set must outlive it.
  PassRows(const Dataset& dataset, const ImageProcessor& processor, ImageRowsOptions options);

  // Decodes the images of these documents and writes the rows of their views one after the other, in order, as
  // write_patches() does. Returns how many patches that are; what is behind them in `out` stays as it is. Throws
  // UserError that names file, line and image for one that cannot be read or that has not the size it had when the data
  // was read, and InternalError if `out` has no room.
  int64_t fill(std::span<const DocumentSpan> documents, std::span<float> out, const Heartbeat& heartbeat = {});

 private:
  const Dataset& dataset_;
  ImageProcessor processor_;
  ImageRowsOptions options_;
  std::set<std::string> noted_;
};

}  // namespace snug
