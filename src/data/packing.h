// Packs samples into blocks of a fixed length, and blocks into steps: it decides which tokens every rank sees in every
// pass of every step. All of it follows from the data set, the options and the seed, so a run resumes from a step's
// number alone.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/rng.h"
#include "data/dataset.h"

namespace snug {

// Says what becomes of a sample that is longer than a block: its head is kept; it becomes several documents, each as
// long as a block but the last; it is left out. A document never ends within an image, but before it: what follows an
// image for which no block is long enough is left out. Of a pair that is cut, both documents lose equally many tokens
// of their prompt's beginning, and one whose prompt is too short for that is left out; pairs are not split.
enum class LongSamples { Cut, Split, Drop };

// Returns the value of "cut", "split" or "drop"; throws UserError for another name.
LongSamples long_samples_from_name(std::string_view name);
std::string_view name(LongSamples long_samples);

struct PackingOptions {
  int64_t sequence_length = 2048;  // tokens of a block
  bool packing = true;             // several samples a block; false: one
  LongSamples long_samples = LongSamples::Cut;
  bool shuffle = true;  // a new order each epoch; false: file order
  // The two documents of a pair are never in one pass: a block has room for the first ones, and for the second ones.
  bool apart = false;
  bool pools =
      false;  // of a document one row counts: that of its last token with a label itself, not of the one before
  int64_t patches = 0;  // of images, the most of a block; 0: any number
  uint64_t seed = 42;
  Heartbeat heartbeat{};           // called for each epoch that is packed, and for each million of its samples
  std::string_view name = "data";  // the option that named the samples, for messages
};

// Describes a document of a block: tokens [begin, begin + length) of a sample. Attention and positions restart at each.
struct DocumentSpan {
  uint32_t sample = 0, begin = 0, length = 0;
  bool operator==(const DocumentSpan&) const = default;
};

// Says which documents of pairs are meant.
enum class Half : uint8_t { Both, First, Second };

// Returns which document of its sample one is: 0, or 1 for the second of a pair.
size_t half_of(const Dataset& dataset, const DocumentSpan& document);

// Returns how many of a document's tokens have a label that counts: the first of a document has none.
int64_t counted_labels(const Dataset& dataset, const DocumentSpan& document);

// Returns how many patches the images of a document have.
int64_t patches_of(const Dataset& dataset, const DocumentSpan& document);

// Calls visit(DocumentSpan) for those of a block: they alternate, the first of a pair before the second.
template <class Visit>
void for_each_of(std::span<const DocumentSpan> block, Half half, Visit&& visit) {
  for (size_t d = 0; d < block.size(); d++)
    if (half == Half::Both || (d % 2 == 0) == (half == Half::First)) visit(block[d]);
}

// Counts what the options make of the samples, which is equal in every epoch. Documents without a loss token are left
// out: they would cost time, and a step of only such documents would still move weights by momentum and decay.
struct PackingReport {
  int64_t samples = 0;          // selected
  int64_t long_samples = 0;     // longer than a block: cut, split or dropped
  int64_t lost_tokens = 0;      // cut off or dropped
  int64_t documents = 0;        // an epoch
  int64_t tokens = 0;           // an epoch
  int64_t loss_tokens = 0;      // an epoch
  int64_t without_loss = 0;     // samples without a loss token, which are left out
  int64_t cut_with_images = 0;  // samples with images that are cut or dropped
  int64_t cut_off_loss = 0;     // samples with loss tokens only in what is cut off, which are left out
  int64_t long_replies = 0;     // pairs whose replies leave no room for a prompt, which are left out
  int64_t equal_pairs = 0;      // pairs of equal documents, which are left out, as they teach nothing

  bool operator==(const PackingReport&) const = default;
};

// Says how many samples were cut, dropped or left out, and why, with the options that change it: "3 of 40 samples are
// longer than sequence_length 2048: cut, 812 tokens lost; ...". Empty if all samples take part whole.
std::string left_out_text(const PackingReport& report, const PackingOptions& options);

// Holds the blocks of one epoch.
struct EpochBlocks {
  std::vector<DocumentSpan> documents;  // block after block, each block's in the order in which they were placed
  std::vector<uint32_t> starts;         // by block, its first document; and the end of the last

  int64_t count() const { return static_cast<int64_t>(starts.size()) - 1; }
  std::span<const DocumentSpan> block(int64_t i) const {
    const auto b = static_cast<size_t>(i);
    return std::span(documents).subspan(starts[b], starts[b + 1] - starts[b]);
  }
};

// Makes the blocks of any epoch.
//
// Samples of which something is left come in the order of the epoch: a permutation by Fisher and Yates with
// Random(seed, DataOrder, epoch), or file order. Without packing each document is a block. With packing up to 64 blocks
// are open at a time; a document goes into the first of them, in the order in which they were opened, that has room for
// all of it and for the patches of its images; max_documents(1, sequence_length) documents close a block. Where none
// has room, a new one is opened, and if 64 are open the fullest (the first of equals) is closed before. Blocks are
// numbered as they are opened. So a document is never split over blocks, and packed or not each keeps its tokens,
// positions and loss. The two documents of a pair lie one after the other in one block.
class Packer {
 public:
  // `selection` holds the samples that take part, in file order. Throws UserError that says why if no document with a
  // loss token is left of them. The data set must outlive the packer.
  Packer(const Dataset& dataset, std::vector<uint32_t> selection, const PackingOptions& options);

  const PackingReport& report() const { return report_; }
  // Returns whether the two documents of a pair are never in one pass; false where samples are no pairs.
  bool apart() const { return options_.apart; }
  // Returns the most patches of a block of the first epoch, of blocks that have room for any number; 0 if there are no
  // images.
  int64_t most_patches();
  // Returns the number of blocks of an epoch. It packs the epoch if epochs differ, without placing tokens.
  int64_t count(int64_t epoch);
  // Returns whether all epochs have as many blocks.
  bool counts_are_equal() const { return !options_.packing || !options_.shuffle; }
  // Returns a number of blocks below which no epoch falls.
  int64_t least_blocks() const;
  // Returns the samples that take part, in file order, and all that is left of them.
  const std::vector<uint32_t>& selection() const { return selection_; }
  std::vector<DocumentSpan> documents() const;
  // Returns room for any epoch, so that build() does not allocate.
  EpochBlocks reserve() const;
  // Replaces the blocks by those of an epoch (from 0). One thread may call it at a time.
  void build(int64_t epoch, EpochBlocks& out);

 private:
  struct OpenBlock {
    uint32_t number;
    int64_t free_tokens, free_documents, free_patches;
  };

  bool examine(uint32_t sample);
  bool examine_pair(uint32_t sample);
  template <class Visit>
  int64_t for_each_document(uint32_t sample, Visit&& visit) const;
  std::optional<std::array<DocumentSpan, 2>> pair_of(uint32_t sample) const;
  DocumentSpan span_of_other(uint32_t sample) const;
  // Puts the documents of an epoch into blocks, one after another, and calls visit(DocumentSpan, block).
  template <class Visit>
  void pack(int64_t epoch, Visit&& visit);
  uint32_t place(int64_t length, int64_t documents, int64_t patches);

  const Dataset& dataset_;
  PackingOptions options_;
  PackingReport report_;
  std::vector<uint32_t> selection_, order_;
  std::vector<DocumentSpan> placed_;  // scratch of build(): documents in the epoch's order
  std::vector<uint32_t> block_of_;    //   by document: its block
  std::vector<OpenBlock> open_;
  uint32_t opened_ = 0;
};

// Says how a step is cut: block i of pass p on rank r is number ((step * passes + p) * ranks + r) * micro_batch + i of
// the run, counted through all epochs. Where there are images, the blocks of a step are dealt out by what they cost,
// which is their patches, and their tokens among blocks with as many. Passes take them in falling order, so that few
// passes need the shape with the most patches. Within a pass, again in falling order, a block with images goes to the
// rank that has the fewest patches by then (of these to the one with the fewest tokens), and one without to the rank
// with the fewest tokens; only ranks that have less than micro_batch blocks count, and of equals the lowest. So all
// ranks have about as much to do. It follows from the index alone, and a step's blocks are the same however it is cut.
struct StepShape {
  int64_t passes = 1, ranks = 1, micro_batch = 1;
  int64_t blocks() const { return passes * ranks * micro_batch; }
};

// Says when a run ends: at whichever comes first; with max_steps alone the data repeats as often as needed. At least
// one is given.
struct RunLength {
  std::optional<int64_t> max_steps = {}, epochs = {};
};

// Gives the blocks of a run, step by step. Steps run across the ends of epochs; only the last step of the run may be
// short of blocks, and the missing ones are empty. All memory is taken at construction. One thread may use it at a
// time.
class BlockStream {
 public:
  // Throws UserError for a run of no steps. The data set must outlive the stream.
  BlockStream(const Dataset& dataset, std::vector<uint32_t> selection, const PackingOptions& packing,
              const StepShape& shape, const RunLength& length);

  int64_t steps() const { return steps_; }
  const StepShape& shape() const { return shape_; }
  int64_t sequence_length() const { return sequence_length_; }
  const PackingReport& report() const { return packer_.report(); }
  // Return the numbers of the first epoch: with shuffling the others differ by a few. A step that holds the end of the
  // epoch counts whole.
  int64_t blocks_per_epoch() const { return first_epoch_blocks_; }
  int64_t steps_per_epoch() const;

  // Goes to a step (from 0, below steps()). The next step is quick; an earlier one rebuilds the epochs from the first.
  void seek(int64_t step);

  // Returns a block's documents in the step that was sought last; empty for a missing block.
  std::span<const DocumentSpan> block(int64_t pass, int64_t rank, int64_t i) const;
  // Returns the same of the step behind, whose images may be decoded ahead: empty where the data has none, and behind
  // the last step.
  std::span<const DocumentSpan> next_block(int64_t pass, int64_t rank, int64_t i) const;
  // Returns the tokens in the documents of a pass, on the rank that has the most.
  int64_t pass_tokens(int64_t pass, Half half = Half::Both) const;
  // Returns the patches of a pass's images, on the rank that has the most.
  int64_t pass_patches(int64_t pass) const;
  // Returns whether the last block of an epoch is in the step.
  bool ends_epoch() const;
  // Return, over all passes and ranks and from the index alone, the tokens in documents, and those of them with a label
  // that counts (the first of a document has none). Of pairs whose documents are apart the first ones count.
  int64_t tokens() const { return tokens_; }
  int64_t loss_tokens() const { return loss_tokens_; }
  // Return how many samples there are (each piece of one that is split counts), and, of pairs, the tokens with a label
  // in their first documents.
  int64_t samples() const { return samples_; }
  int64_t first_loss_tokens() const { return first_loss_tokens_; }
  // Return the samples of the data that take part, in file order, and all that is left of them.
  const std::vector<uint32_t>& samples_of_data() const { return packer_.selection(); }
  std::vector<DocumentSpan> documents_of_data() const { return packer_.documents(); }

 private:
  struct Held {
    EpochBlocks blocks;
    int64_t epoch, first;  // number in the run of its first block
  };
  struct Cost {
    int64_t patches, tokens;
  };
  struct CountedBlock {
    int64_t number;
    Cost cost;
  };
  struct Dealt {
    int64_t blocks;
    Cost cost;
  };

  // Returns the number of blocks of all epochs of the run, but at most `enough`: it packs each shuffled epoch up to
  // there.
  int64_t count_blocks(int64_t epochs, int64_t enough);
  void restart();
  void hold_next();
  std::span<const DocumentSpan> run_block(int64_t number, int64_t end) const;
  // Returns the number in the run of a block of the step that begins with block `begin`.
  int64_t number_of(int64_t pass, int64_t rank, int64_t i, int64_t begin, const std::vector<int64_t>& order) const;
  // Deals the blocks [begin, end) of a step out: sets the number in the run of each pass's, rank by rank.
  void deal_out(int64_t begin, int64_t end, std::vector<int64_t>& order);

  const Dataset& dataset_;
  Packer packer_;
  StepShape shape_;
  int64_t sequence_length_ = 0;
  int64_t blocks_ = 0;  // of the run
  int64_t steps_ = 0;
  int64_t first_epoch_blocks_ = 0;
  std::vector<Held> held_;       // the epochs that these touch come first, in order; the others are room
  size_t used_ = 0;              // of held_
  int64_t begin_ = 0, end_ = 0;  // blocks of the step
  int64_t held_end_ = 0;         // of the blocks that are held: of the step, or with images of the one behind it
  // Where blocks are dealt out: their numbers in the run, of the step and of the one behind it; else empty.
  std::vector<int64_t> order_, next_order_;
  std::vector<CountedBlock> counted_;  // scratch of deal_out(): a step's blocks
  std::vector<Dealt> dealt_;           //   by rank: what it has of a pass
  int64_t tokens_ = 0, loss_tokens_ = 0, samples_ = 0, first_loss_tokens_ = 0;
};

}  // namespace snug
