// Asks a teacher what it expects of the data before the first step.
#pragma once

#include "train/score_references.h"
#include "train/session.h"
#include "train/stream_source.h"

namespace snug {

// Keeps what the session's model says of the documents that the file did not know when it was opened, with Task::Score,
// pass by pass of the source. Returns how many passes that took, and whether it was interrupted before all is known.
// All ranks call it, with files that know the same.
ScoredPasses ask_teacher(Session& session, StreamSource& source, const Dataset& dataset, TeacherFile& file,
                         const ReferenceOptions& options = {});

}  // namespace snug
