// Turns options into an objective, and serves a run whose samples are pairs.
#pragma once

#include <list>

#include "cli/corpus.h"
#include "cli/options.h"
#include "train/score_references.h"

namespace snug {

// Returns what a step minimises. Throws UserError for options of another objective, and for what an objective has no
// use for.
ObjectiveOptions objective_of(const Options& options);
// Returns words for it: "dpo (sigmoid), beta 0.1; reference: ...".
std::string objective_words(const ObjectiveOptions& objective);

// Holds what the sources of a run's pairs have of its objective: of the data, and of what is held out. It holds nothing
// where samples are no pairs. All that it is made of must outlive it.
class RunPairs {
 public:
  RunPairs(const JobSpec& spec, const Corpus& corpus, StreamSource& data, StreamSource* validation);

  PairObjective* of_data() { return data_ ? &*data_ : nullptr; }
  PairObjective* of_validation() { return validation_ ? &*validation_ : nullptr; }

  // Finds the reference's log-probabilities in the cache, and computes the others with a session that is loaded and has
  // trained nothing yet. Returns a line that says so; empty where there is no reference. All ranks call it.
  std::string find_references(Session& session, const Options& options);
  // Writes them to the cache, once the run's directory is its own; one rank calls it.
  void keep_references() const;

 private:
  const JobSpec& spec_;
  StreamSource& data_source_;
  StreamSource* validation_source_;
  std::list<std::pair<const Dataset*, References>> references_;  // of one data set, or of two
  std::vector<ReferencedPairs> referenced_;
  std::optional<PairObjective> data_, validation_;
  std::filesystem::path file_;
  std::string key_;
  bool computed_ = false;  // some of them, which the file does not have
};

}  // namespace snug
