#include "api/use.h"

#include <algorithm>

#include "api/inputs.h"
#include "api/launch.h"
#include "api/plan_report.h"
#include "base/option_name.h"
#include "base/say.h"

namespace snug {
namespace {

// Refuses whole copies of weights that are all offloaded: all ranks share those, whatever the stage.
void refuse_whole_copies(const JobConfig& options) {
  const Choices choices = choices_of(options);
  if (choices.ranks < 2 || choices.zero.value_or(3) == 3 || !choices.parameters || choices.parameters->share < 1)
    return;
  user_error("zero: found {}, expected 3 or nothing: weights that wait on the {} ({}) are sharded", options.zero,
             choices.parameters->space == Space::Disk ? "disk" : "host", option_name("offload_parameters"));
}

}  // namespace

Planned plan_use(JobSpec spec, const JobConfig& options, Comm* launched, bool says) {
  const Target target(options);
  target.require_here();
  refuse_disk_dir(options, PlanMode::Run);
  require_weights(spec.sources);
  if (says && (!launched || launched->topology().rank == 0)) say_lines(notes_of(spec));
  JobConfig settled = options;
  if (options.ranks == 0 && !launched && spec.purpose == Purpose::Generate && target.cuda() &&
      cards_of(target, PlanMode::Run).count > 1) {
    settled.ranks = 1;
    if (options.offload_parameters == "auto") settled.offload_parameters = "none";
    Planned alone = plan_job(spec, settled, target, PlanMode::Run);
    if (alone.fit.chosen) return alone;
    settled = options;
  }
  resolve_ranks(settled, target, PlanMode::Run, launched);
  if (launched) agree_on_inputs(options, *launched);
  refuse_whole_copies(settled);
  Planned planned = plan_job(std::move(spec), settled, target, PlanMode::Run, launched);
  require_fit(planned, options);
  return planned;
}

void use_model(const Planned& planned, const JobConfig& options, std::unique_ptr<Comm> launched,
               const std::function<void(Session&)>& work,
               const std::function<void(int rank, int place, Comm* comm)>& before) {
  const int ranks = planned.spec.cut.ranks;
  const auto away = [](const GroupPlacement& group) { return group.weights != Space::Device; };
  const bool remarkable = ranks > 1 || std::ranges::any_of(planned.spec.strategy.groups, away);
  if (remarkable && (!launched || launched->topology().rank == 0)) say(use_text(planned, options));
  run_ranks(ranks, 1, std::move(launched), [&](int rank, int place, Comm* comm) {
    if (before) before(rank, place, comm);
    Session session = rank_session(planned, options, rank, place, comm);
    session.load();
    work(session);
    return 0;
  });
}

}  // namespace snug
