// Holds the data sets that the options name, as commands use them.
#pragma once

#include <list>
#include <memory>

#include "api/image_notes.h"
#include "api/plan.h"
#include "api/text.h"
#include "base/fields.h"
#include "train/stream_source.h"

namespace snug {

// Names the samples [begin, end) of one of several files, or directories, that an option names.
struct NamedSamples {
  std::string name;  // the file's without its ending, or all of its path where another one has that name too
  uint32_t begin = 0, end = 0;
};

// Holds samples that train and samples that are held out.
struct Corpus {
  Dataset training, held_out_files;
  std::vector<uint32_t> training_samples, validation_samples;
  // List the samples by what --data and --validation name, where that is several files or directories.
  std::vector<NamedSamples> training_parts, validation_parts;
  PromptFormat prompt_format;        // for data that is not tokens already
  std::optional<ImageInput> images;  // what the model takes; nothing: none
  std::vector<std::string> notes;    // lines for the user about data and format
  std::shared_ptr<ImageNotes> image_notes = std::make_shared<ImageNotes>();
  std::shared_ptr<const ImageEmbeddings> embeddings{};  // what passes are given of images (api/image_cache.h)
  uint64_t cache_bytes = 0;  // of token ids that are kept (api/token_cache.h), for FoundOfJob::disk_taken

  const Dataset& validation() const { return held_out_files.samples() > 0 ? held_out_files : training; }
  bool validates() const { return !validation_samples.empty(); }
};

// Returns the share of the data that --validation holds out, if it names no files.
std::optional<double> validation_fraction(const JobConfig& options);

// Reads the data. Token files need no tokenizer, so a model directory without one serves for them.
Corpus read_corpus(const JobConfig& options, const Heartbeat& heartbeat);

// Returns where samples of the training data stand, by rising numbers: places_of() of data/dataset.h.
std::vector<std::string> places_of(const Corpus& corpus, const JobConfig& options, std::span<const uint32_t> samples,
                                   const Heartbeat& heartbeat);

PackingOptions packing_options(const JobConfig& options, const Heartbeat& heartbeat = {});
RunLength run_length(const JobConfig& options);
DataSummary summarise(const BlockStream& stream);
// Returns the bytes that are kept of what a teacher says of the data and of what is held out; 0 without one. Throws
// UserError for data with images, of which none is asked yet.
uint64_t teacher_bytes(const Corpus& corpus, const JobConfig& options);
// Returns DataSummary::filled() of the training data for a caller without a summary: it packs the first epoch without
// placing tokens.
double filled_share(const Corpus& corpus, const JobConfig& options, const Heartbeat& heartbeat);
// Returns shorter shapes of passes (Cut::short_eighths) that save time with blocks filled to this share; none if blocks
// are mostly full.
std::vector<int> short_passes(double filled);
// Returns the fields of the data (train/checkpoint.h): how samples become blocks, what they hold, which options gave
// them; after note_found() (api/image_job.h).
Fields data_fields(const Corpus& corpus, const JobConfig& options, const Heartbeat& heartbeat);
// Returns those of the bytes of its images, all of which are read; none without images.
Fields image_fields(const Corpus& corpus, const Heartbeat& heartbeat);

// Return every sample once, in file order, for evaluation: what one rank of `ranks` gets of the data, and of what is
// held out.
StreamSource evaluation_source(const Corpus& corpus, const JobConfig& options, int64_t micro_batch, int ranks, int rank,
                               const Heartbeat& heartbeat = {});
StreamSource validation_source(const Corpus& corpus, const JobConfig& options, int64_t micro_batch, int ranks, int rank,
                               const Heartbeat& heartbeat = {});
// Returns the same by part, in their order; none where the option names one file.
std::list<StreamSource> evaluation_sources(const Corpus& corpus, const JobConfig& options, int64_t micro_batch,
                                           int ranks, int rank, const Heartbeat& heartbeat = {});
std::list<StreamSource> validation_sources(const Corpus& corpus, const JobConfig& options, int64_t micro_batch,
                                           int ranks, int rank, const Heartbeat& heartbeat = {});

}  // namespace snug
