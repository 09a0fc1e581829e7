// Embeds the images of a job's data once, where what they go through is frozen, and keeps the rows under --cache-dir.
#pragma once

#include <memory>

#include "api/corpus.h"
#include "api/job.h"
#include "data/image_embeddings.h"

namespace snug {

// Says what becomes of a job's images.
struct ImageCache {
  std::shared_ptr<const ImageEmbeddings> embeddings{};  // null: every pass makes the rows of its images
  size_t missing = 0;                                   // images whose rows are made before the first step
  uint64_t missing_bytes = 0;                           // that these rows take
  std::string line{};                                   // that says so; empty where the job has no images
};

// Decides by --image-cache whether the images of the corpus are embedded once; all processes of a job decide alike.
// It looks at every image's bytes, and where that is a run makes room for their rows: files that were not used for
// longest go. Rows take at most a quarter of --disk-memory and of what the disk would have free without any; with "on"
// all of these. Throws UserError for "on" where the tower, or its projector, is trained, and CapacityError where there
// is no room.
ImageCache find_image_cache(const JobSpec& spec, const Corpus& corpus, const JobConfig& options, const Target& target,
                            PlanMode mode, Comm* launched);

// Makes a job take these rows, and notes what they take of the disk.
void use_image_cache(const ImageCache& cache, JobSpec& spec, Corpus& corpus, JobConfig& options);

// Plans the job that makes rows that are missing, by the tower alone; nothing where none are. For a run it throws
// CapacityError if it does not fit.
std::optional<Planned> plan_embedding(const ImageCache& cache, const JobSpec& spec, const JobConfig& options,
                                      const Target& target, PlanMode mode, Comm* launched);

// Makes them, with a session of the planned job that is gone afterwards; all ranks call it. Returns whether it was
// interrupted before the end: what was made by then is kept. Rank 0 says so.
bool embed_before(const Planned& planned, const ImageCache& cache, const Corpus& corpus, const JobConfig& options,
                  int rank, int place, Comm* comm, const std::function<bool()>& interrupted);

}  // namespace snug
