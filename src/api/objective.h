// Turns options into an objective, and serves a run that has one other than sft.
#pragma once

#include <chrono>
#include <list>

#include "api/corpus.h"
#include "api/options.h"
#include "api/reference_model.h"
#include "train/score_references.h"

namespace snug {

// Returns what a step minimises. Throws UserError for options of another objective, and for what an objective has no
// use for.
ObjectiveOptions objective_of(const JobConfig& options);
// Returns words for it: "dpo (sigmoid), beta 0.1; reference: ...".
std::string objective_words(const ObjectiveOptions& objective);

struct FoundReferences {
  std::string line;  // that says so; empty where there is no reference
  bool interrupted = false;
  int64_t known = 0;           // samples whose references are known
  std::filesystem::path file;  // in which they are kept; empty: none
};

// Holds the objectives of a run's sources: of the data, and of what is held out. It holds nothing where the objective
// is sft. All that it is made of must outlive it.
class RunObjective {
 public:
  RunObjective(const JobSpec& spec, const Corpus& corpus, StreamSource& data, StreamSource* validation);

  StepObjective* of_data() { return data_.get(); }
  StepObjective* of_validation() { return validation_.get(); }
  // Return the parts of the data, or of what is held out, to be evaluated by the sources that evaluation_sources() or
  // validation_sources() made, with objectives that belong to that of all.
  std::vector<EvaluationPart> parts_of_data(std::list<StreamSource>& sources);
  std::vector<EvaluationPart> parts_of_validation(std::list<StreamSource>& sources);

  // Finds the reference's log-probabilities in the cache, and computes the others with a session that is loaded and has
  // trained nothing yet. All ranks call it.
  FoundReferences find_references(Session& session, const JobConfig& options, const ReferenceOptions& reference);
  // Does so by another model, planned by plan_reference(), before the run has a session.
  FoundReferences find_references_by(const Planned& planned, const JobConfig& options, int rank, int place, Comm* comm,
                                     const ReferenceOptions& reference);
  // Returns the file of what a teacher says, which the run reads; empty: there is none.
  std::filesystem::path teacher_file() const { return teacher_ ? file_ : std::filesystem::path(); }
  // Writes those that are known to the cache, if there is one; one rank calls it.
  void keep_references() const;

 private:
  std::vector<EvaluationPart> parts(const Dataset& dataset, StepObjective* whole,
                                    const std::vector<NamedSamples>& names, std::list<StreamSource>& sources);
  // Reads what the cache knows of a reference; returns what is to be said of a damaged file.
  std::string read_known(const JobSpec& reference, const JobConfig& options, const Heartbeat& heartbeat);
  uint64_t hash_of_known() const;
  int64_t known() const;
  FoundReferences found(const std::string& damaged, int64_t before, const ScoredPasses& scored,
                        std::chrono::duration<double> spent) const;

  // Asks a teacher, planned by plan_reference(), what its file does not know, before the run has a session.
  FoundReferences ask_teacher_by(const Planned& planned, const JobConfig& options, int rank, int place, Comm* comm,
                                 const ReferenceOptions& reference);
  // Makes a source learn from the teacher, once that has been asked.
  void teach(StreamSource& source);

  const JobSpec& spec_;
  const Corpus& corpus_;
  StreamSource& data_source_;
  StreamSource* validation_source_;
  std::list<std::pair<const Dataset*, References>> references_;  // of one data set, or of two
  std::vector<Referenced> referenced_;
  std::unique_ptr<StepObjective> data_, validation_;
  std::vector<std::unique_ptr<StepObjective>> parts_;
  std::filesystem::path file_;
  std::string key_;
  std::vector<TaughtDocuments> taught_;  // of the data, and of what is held out
  std::optional<TeacherFile> teacher_;
  std::vector<StreamSource*> pupils_;
  bool computed_ = false;  // some of them, which the file does not have
};

}  // namespace snug
