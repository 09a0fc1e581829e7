// Fills the rows of a pass's images from the files in which they are kept.
#pragma once

#include "data/image_embeddings.h"
#include "tensor/batch.h"

namespace snug {

// For one thread.
class EmbeddingBatcher {
 public:
  // Both must outlive it.
  EmbeddingBatcher(const Dataset& dataset, const ImageEmbeddings& embeddings)
      : dataset_(dataset), embeddings_(embeddings) {}

  // Has the system read what fill() will be asked for.
  void expect(std::span<const DocumentSpan> documents) const;

  // Fills in the rows of the images of documents whose tokens lie end to end, from token 0 of the batch on, and the
  // tokens whose places they take. Rows behind them stay as they are: their places are -1. Throws UserError as
  // EmbeddingFiles::read() does, and InternalError where there is no room.
  void fill(std::span<const DocumentSpan> documents, const EmbeddingViews& views) const;

 private:
  const Dataset& dataset_;
  const ImageEmbeddings& embeddings_;
};

}  // namespace snug
