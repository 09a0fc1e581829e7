#include "train/ask_teacher.h"

#include "train/metrics.h"

namespace snug {
namespace {

bool knew(const BlockStream& stream, const Dataset& dataset, const TeacherFile& file, int64_t pass) {
  for (int64_t rank = 0; rank < stream.shape().ranks; rank++)
    for (int64_t i = 0; i < stream.shape().micro_batch; i++)
      for (const DocumentSpan& document : stream.block(pass, rank, i))
        if (!file.knew(dataset, document)) return false;
  return true;
}

}  // namespace

ScoredPasses ask_teacher(Session& session, StreamSource& source, const Dataset& dataset, TeacherFile& file,
                         const ReferenceOptions& options) {
  ScoredPasses scored;
  int64_t pass = 0;
  serve_batches(session, source, [&pass](int64_t) { return pass; });
  session.on(HostJob::KeepTeacher, [&](const HostTask&, std::span<const TensorView> views, RuntimeScalars&) {
    source.keep_teacher(pass, teacher_views(views), file);
  });
  const BlockStream& stream = source.stream();
  Progress progress("teacher", 0, stream.steps(), session.rank() == 0);
  for (int64_t step = 1; step <= stream.steps() && !scored.interrupted; step++) {
    source.begin_step(step);
    for (pass = 0; pass < stream.shape().passes; pass++) {
      if (knew(stream, dataset, file, pass)) continue;
      session.run(Task::Score, {}, source.shape_of(session.spec().cut, pass));
      scored.passes++;
    }
    progress.update(step, fmt::format("{} passes", scored.passes));
    scored.interrupted = step < stream.steps() && session.as_rank_0(options.interrupted() ? 1 : 0,
                                                                    {"what a teacher says of step", step}, 1) != 0;
  }
  return scored;
}

}  // namespace snug
