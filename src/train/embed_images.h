// Computes what a frozen vision tower makes of images, before a run's first step.
#pragma once

#include "data/image_batcher.h"
#include "data/image_embeddings.h"
#include "train/session.h"

namespace snug {

struct EmbeddedImages {
  int64_t images = 0, passes = 0;  // of this rank's machine, and of each rank
  bool interrupted = false;
};

// Says which ranks embed for the same files: those of one machine. `place` is this one's number among them.
struct EmbeddingShare {
  int place = 0, ranks = 1;
};

// Runs Task::Embed until every image of `embeddings` has its file, each rank of a machine its share of what is missing
// there; `interrupted` is asked after each pass, and any rank's yes ends it. What is written by then stays. All ranks
// call it, each with a session of Purpose::Embed that is loaded. Throws UserError, named by the image, for one that
// cannot be read or is another than when it was added.
EmbeddedImages embed_images(Session& session, const ImageEmbeddings& embeddings, const ImageBatches& batches,
                            const EmbeddingShare& share, const std::function<bool()>& interrupted);

}  // namespace snug
