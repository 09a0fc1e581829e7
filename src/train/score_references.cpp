#include "train/score_references.h"

#include "train/metrics.h"

namespace snug {

int64_t score_references(Session& session, StreamSource& source, PairObjective& pairs) {
  int64_t scored = 0, pass = 0;
  session.on(HostJob::FillBatch, [&](const HostTask&, std::span<const TensorView> views, RuntimeScalars& runtime) {
    source.fill(pass, batch_views(views), runtime);
  });
  session.on(HostJob::TakeScores, [&](const HostTask&, std::span<const TensorView> views, RuntimeScalars&) {
    pairs.take_references(pass, views[0]);
  });
  Progress progress("reference", 0, source.stream().steps(), session.rank() == 0);
  for (int64_t step = 1; step <= source.stream().steps() && !pairs.knows_all(); step++) {
    source.begin_step(step);
    for (pass = 0; pass < source.stream().shape().passes; pass++) {
      if (pairs.knows(pass)) continue;
      session.run(Task::Score, {}, session.spec().cut.shape_for(source.pass_tokens(pass)));
      scored++;
    }
    progress.update(step, fmt::format("{} passes", scored));
  }
  return scored;
}

}  // namespace snug
