// Lays one pass's blocks out as the arrays that its ops read.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/image_layout.h"
#include "data/packing.h"
#include "tensor/batch.h"

namespace snug {

// BatchViews hold T tokens, at most micro_batch * sequence_length, and at most D = max_documents(micro_batch,
// sequence_length) documents. The documents of all blocks lie end to end from token 0 on, in order of block and place
// in it; padding comes after the last, so that the starts of the documents say all about them. (A row of the batch is
// thus no block; no op of a step looks at rows.)
//   ids             0 in padding
//   positions       from 0 in each document; 0 in padding. On several axes (RopeAxes) as write_positions() has them
//   documents       starts of the documents and the end of the last, which also fills the remaining elements
//   loss_rows       the tokens t, in order, whose next token has a label; t and t + 1 lie in one document. -1 in the
//                   remaining elements
//   loss_targets    that label; 0 in the remaining elements
//   loss_weights    by what its loss is multiplied; 0 in the remaining elements
// The tokens of documents are also sorted by id, and by place where ids are equal, without those whose rows a tower
// makes; that is the order in which a gradient of embeddings is summed:
//   token_order     token indices; 0 in the remaining elements
//   segment_starts  where in token_order each run of equal ids starts, and the last one's end, which also fills the
//                   remaining elements
//   segment_ids     the id of each run; 0 in the remaining elements

struct BatchCounts {
  int64_t documents = 0, loss_rows = 0, segments = 0;
  int64_t tokens = 0;  // in documents
  bool operator==(const BatchCounts&) const = default;
};

// Fills batches. It takes its memory at construction and none later. One thread may use it at a time.
class Batcher {
 public:
  // Throws UserError if T is 2^31 or more. The data set must outlive the batcher.
  // `pools` is that of PackingOptions.
  Batcher(const Dataset& dataset, int64_t micro_batch, int64_t sequence_length, bool pools = false,
          const TowerShape& tower = {});

  int64_t tokens() const { return tokens_; }        // T, at most
  int64_t documents() const { return documents_; }  // D

  // Fills in the blocks of one pass on one rank, of the step at which `stream` stands. It writes every element of every
  // view. Throws InternalError for views of other sizes than above, and if T is less than the documents' tokens.
  BatchCounts fill(const BlockStream& stream, int64_t pass, int64_t rank, const BatchViews& views,
                   Half half = Half::Both);

 private:
  void add_document(const DocumentSpan& document, const BatchViews& views, BatchCounts& counts);
  void place_tokens(const DocumentSpan& document, int64_t start, const BatchViews& views);
  void sort_tokens(const BatchViews& views, BatchCounts& counts);

  const Dataset& dataset_;
  int64_t micro_batch_, tokens_, documents_;
  bool pools_;
  TowerShape tower_;
  std::vector<int32_t> labels_;      // scratch: labels of one document
  std::vector<float> weights_;       //   and their weights
  std::vector<uint64_t> keys_;       // scratch: id * 2^32 + token
  std::vector<bool> replaced_;       // scratch, by token: a tower makes its row
  std::vector<ImageTokens> images_;  // scratch: those of one document
};

}  // namespace snug
