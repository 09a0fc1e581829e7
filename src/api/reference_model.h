// Another model that serves as a reference, or as a teacher: it scores the data before a run has a session of its own.
#pragma once

#include "api/corpus.h"
#include "api/job.h"
#include "train/ask_teacher.h"
#include "train/score_references.h"

namespace snug {

// Returns the job of the model that --reference or --teacher names, which evaluates with the options of the run. Throws
// UserError unless it is a model of the same vocabulary, and a teacher one with the same tokens.
JobSpec reference_job(const JobConfig& options, const ModelSpec& model);

// Plans it for here and now; nothing where --reference names no model. Throws CapacityError if it does not fit.
std::optional<Planned> plan_reference(const JobSpec& spec, const JobConfig& options, Comm* launched);

// Plans it for whatever the options name, where nothing is to be run.
std::optional<Planned> look_at_reference(const JobSpec& spec, const JobConfig& options, const Target& target);

// Names the samples of a data set and how they become blocks.
struct ReferencedSamples {
  const Dataset& dataset;
  const std::vector<uint32_t>& samples;
  References& references;
};

// Scores the samples of which the references are not known, with a session of the planned job that is gone afterwards.
// All ranks call it, and know as much before and after.
ScoredPasses score_by_another(const Planned& planned, const JobConfig& options, int rank, int place, Comm* comm,
                              std::span<const ReferencedSamples> all, const ReferenceOptions& reference);

// Names the samples of a data set of which a teacher is asked.
struct TaughtSamples {
  const Dataset& dataset;
  const std::vector<uint32_t>& samples;
};

// Asks the model of the planned job, which is a teacher, what the file does not know, with a session that is gone
// afterwards. All ranks call it, with files that know the same.
ScoredPasses ask_another(const Planned& planned, const JobConfig& options, int rank, int place, Comm* comm,
                         std::span<const TaughtSamples> all, TeacherFile& teacher, const ReferenceOptions& reference);

}  // namespace snug
