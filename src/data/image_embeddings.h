// Holds which images a job has, and where the rows are that a frozen vision tower makes of them.
#pragma once

#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "data/embedding_files.h"
#include "data/packing.h"
#include "image/image_queue.h"

namespace snug {

// Names an image of a data set, by content.
struct NamedImage {
  const Dataset* dataset = nullptr;
  const DatasetImage* image = nullptr;
  uint64_t hash = 0;              // of the bytes that are decoded, and of whether they are frames of a video
  int64_t patches = 0, rows = 0;  // of all its views
};

// Returns what is to be decoded, with the bytes of all its files. Throws UserError if they cannot be read.
ImageTask task_in_memory(const Dataset& dataset, const DatasetImage& image);
// Returns the hash of such a task.
uint64_t content_hash(const ImageTask& task);

class ImageEmbeddings {
 public:
  explicit ImageEmbeddings(EmbeddingFiles files) : files_(std::move(files)) {}

  // Adds the images that lie within documents of a data set, which must outlive it; reads all of them.
  void add(const Dataset& dataset, std::span<const DocumentSpan> documents, const Heartbeat& heartbeat = {});

  const EmbeddingFiles& files() const { return files_; }
  // Uses the directory of the files (EmbeddingFiles::use()).
  void use_files() { files_.use(); }
  // Returns the images that were added, each content once, in the order in which it came first.
  const std::vector<NamedImage>& images() const { return images_; }
  // Returns those that have no file.
  std::vector<NamedImage> missing() const;
  // Returns the bytes of the files of all.
  uint64_t bytes() const;

  // Returns an image's hash. Throws InternalError for one that was not added.
  uint64_t hash_of(const DatasetImage& image) const;

 private:
  EmbeddingFiles files_;
  std::vector<NamedImage> images_;
  std::unordered_set<uint64_t> known_;                         // hashes of these
  std::unordered_map<const DatasetImage*, uint64_t> hash_of_;  // of every image of the data sets
};

}  // namespace snug
