#include "train/score_references.h"

#include "train/metrics.h"

namespace snug {

int64_t score_references(Session& session, StreamSource& source, StepObjective& objective) {
  int64_t scored = 0, pass = 0;
  Half part = Half::Both;
  serve_batches(session, source, [&pass](int64_t) { return pass; });
  session.on(HostJob::TakeScores, [&](const HostTask&, std::span<const TensorView> views, RuntimeScalars&) {
    objective.take_references(pass, part, views[0]);
  });
  const BlockStream& stream = source.stream();
  Progress progress("reference", 0, stream.steps(), session.rank() == 0);
  for (int64_t step = 1; step <= stream.steps() && !objective.knows_all(); step++) {
    source.begin_step(step);
    for (pass = 0; pass < stream.shape().passes; pass++) {
      if (objective.knows(pass)) continue;
      for (const Half half : objective.parts()) {
        source.choose(part = half);
        session.run(Task::Score, {}, source.shape_of(session.spec().cut, pass));
        scored++;
      }
    }
    progress.update(step, fmt::format("{} passes", scored));
  }
  source.choose(Half::Both);
  return scored;
}

}  // namespace snug
