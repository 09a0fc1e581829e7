// The data sets that the options name, as commands use them.
#pragma once

#include "base/fields.h"
#include "cli/plan_report.h"
#include "cli/text.h"
#include "train/stream_source.h"

namespace snug {

// Samples that train and samples that are held out.
struct Corpus {
  Dataset training, held_out_files;
  std::vector<uint32_t> training_samples, validation_samples;
  PromptFormat prompt_format;      // of data that is not tokens already
  std::vector<std::string> notes;  // what is to be said of data and format, a line each

  const Dataset& validation() const { return held_out_files.samples() > 0 ? held_out_files : training; }
  bool validates() const { return !validation_samples.empty(); }
};

// The share of the data that --validation holds out, if it names no files.
std::optional<double> validation_fraction(const Options& options);

// Token files need no tokenizer; a model directory without one will do for them.
Corpus read_corpus(const Options& options, const Heartbeat& heartbeat);

PackingOptions packing_options(const Options& options, const Heartbeat& heartbeat = {});
RunLength run_length(const Options& options);
DataSummary summarise(const BlockStream& stream);
// DataSummary::filled() of the training data, for who has no summary: packs the first epoch, but places nothing.
double filled_share(const Corpus& corpus, const Options& options, const Heartbeat& heartbeat);
// Shorter shapes of passes that are worth their while with blocks that are filled so far (Cut::short_eighths); none
// where they are mostly full.
std::vector<int> short_passes(double filled);
// The fields of the data (train/checkpoint.h): how samples become blocks, what they hold, which options they came of.
Fields data_fields(const Corpus& corpus, const Options& options, const Heartbeat& heartbeat);

// Every sample once, in file order, for evaluation: what one rank of `ranks` sees of the data, and of what is held out.
StreamSource evaluation_source(const Corpus& corpus, const Options& options, int64_t micro_batch, int ranks, int rank,
                               const Heartbeat& heartbeat = {});
StreamSource validation_source(const Corpus& corpus, const Options& options, int64_t micro_batch, int ranks, int rank,
                               const Heartbeat& heartbeat = {});

}  // namespace snug
