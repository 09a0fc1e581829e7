#include "cli/use.h"

#include <algorithm>

#include "cli/launch.h"
#include "cli/plan_report.h"

namespace snug {

Planned plan_use(JobSpec spec, const Options& options, Comm* launched) {
  const Target target(options);
  target.require_here();
  refuse_disk_dir(options, Aim::Run);
  require_weights(spec.sources);
  Options settled = options;
  if (options.ranks == 0 && spec.purpose == Purpose::Generate && target.cuda() && target.machine()->cards->count > 1) {
    settled.ranks = 1;
    if (options.offload_parameters == "auto") settled.offload_parameters = "none";
    Planned alone = plan_job(spec, settled, target, Aim::Run, launched);
    if (alone.fit.chosen) return alone;
    settled = options;
  }
  settle_ranks(settled, target);
  Planned planned = plan_job(std::move(spec), settled, target, Aim::Run, launched);
  require_fit(planned, options);
  return planned;
}

void use_model(const Planned& planned, const Options& options, Comm* launched,
               const std::function<void(Session&)>& work) {
  const std::optional<int> device = launched ? std::optional(place_on_node(*launched)) : std::nullopt;
  const int ranks = planned.spec.cut.ranks;
  const auto away = [](const GroupPlacement& group) { return group.weights != Space::Device; };
  const bool remarkable = ranks > 1 || std::ranges::any_of(planned.spec.strategy.groups, away);
  if (remarkable && (!launched || launched->topology().rank == 0)) fmt::print(stderr, "{}", use_text(planned, options));
  run_ranks(ranks, 1, launched, [&](int rank, Comm* comm) {
    Session session = rank_session(planned, options, rank, device.value_or(rank), comm);
    session.load();
    work(session);
    return 0;
  });
}

}  // namespace snug
