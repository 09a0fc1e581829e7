#include "train/score_references.h"

#include <chrono>

#include "train/metrics.h"

namespace snug {

namespace {

// What is known is kept each time that this many seconds have gone by: a process that is killed loses no more.
constexpr double kKeepSeconds = 300;

}  // namespace

ScoredPasses score_references(Session& session, StreamSource& source, StepObjective& objective,
                              const ReferenceOptions& options) {
  using Clock = std::chrono::steady_clock;
  ScoredPasses scored;
  int64_t pass = 0;
  Half part = Half::Both;
  serve_batches(session, source, [&pass](int64_t) { return pass; });
  session.on(HostJob::TakeScores, [&](const HostTask&, std::span<const TensorView> views, RuntimeScalars&) {
    objective.take_references(pass, part, views[0]);
  });
  const BlockStream& stream = source.stream();
  Progress progress("reference", 0, stream.steps(), session.rank() == 0);
  Clock::time_point kept = Clock::now();
  for (int64_t step = 1; step <= stream.steps() && !objective.knows_all() && !scored.interrupted; step++) {
    source.begin_step(step);
    for (pass = 0; pass < stream.shape().passes; pass++) {
      if (objective.knows(pass)) continue;
      for (const Half half : objective.parts()) {
        source.choose(part = half);
        session.run(Task::Score, {}, source.shape_of(session.spec().cut, pass));
        scored.passes++;
      }
    }
    progress.update(step, fmt::format("{} passes", scored.passes));
    scored.interrupted = session.as_rank_0(options.interrupted() ? 1 : 0, {"the references of step", step}, 1) != 0 &&
                         !objective.knows_all();
    if (session.rank() != 0 || std::chrono::duration<double>(Clock::now() - kept).count() < kKeepSeconds) continue;
    options.keep();
    kept = Clock::now();
  }
  source.choose(Half::Both);
  return scored;
}

}  // namespace snug
