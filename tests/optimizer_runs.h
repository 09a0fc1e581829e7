// Runs a tiny model by an optimizer: beside the numbers of a fixture, and however the job is held.
#pragma once

#include "arranged.h"
#include "temp_directory.h"

namespace snug {

// Trains on four samples a step and evaluates all after each; losses, norms and held-out losses are within `bound` of
// the numbers in `training`, norms within `norm_bound`.
inline void expect_training(JobSpec job, const nlohmann::json& training, double bound, double norm_bound) {
  const auto all = tiny_samples();
  job.evaluate = true;
  job.cut.micro_batch = 12;
  job.cut.passes = 1;
  TinySession session(job, 1);
  session.load();
  TinyTrainer trainer(session);
  for (int64_t number = 1; number <= std::ssize(training["loss"]); number++) {
    const auto at = static_cast<size_t>(number - 1);
    const StepResult step = trainer.step(step_samples(all, number, 4), number, training["learning_rate"]);
    EXPECT_NEAR(step.loss, training["loss"][at].get<double>(), bound) << number;
    EXPECT_NEAR(step.norm, training["grad_norm"][at].get<double>(), norm_bound) << number;
    const double heldout = trainer.evaluate(all) / static_cast<double>(loss_tokens(all));
    EXPECT_NEAR(heldout, training["heldout_loss"][at].get<double>(), bound) << number;
  }
}

// Trains all weights and adapters in both dtypes under nine arrangements: losses, norms, weights and states are the
// same to the bit at equal ranks and passes. `speculative`: one of them is. `set` makes a job the optimizer's, `look`
// is given what each run leaves.
template <class Set, class Look>
void expect_no_arrangement_changes_a_bit(bool speculative, const Set& set, const Look& look) {
  std::vector<Arrangement> all(9);  // of each number of ranks and passes the plain one first
  all[1].recompute = Recompute::Block, all[1].states = Space::Disk, all[1].lanes = LaneMode::Threads;
  all[2].states = all[2].gradients = all[2].weights = Space::Host, all[2].deferred = true;
  for (const size_t a : {3u, 4u}) all[a].passes = 4;
  all[4].layer_major = true, all[4].states = Space::Host, all[4].speculative = speculative;
  for (const size_t a : {5u, 6u}) all[a].ranks = 2, all[a].passes = 2;
  all[6].zero = 3, all[6].lanes = LaneMode::Threads;
  for (const size_t a : {7u, 8u}) all[a].ranks = 4;
  all[8].replicas = 2, all[8].zero = 2, all[8].states = Space::Host;
  for (const DType compute : {DType::BF16, DType::F32})
    for (const bool lora : {false, true}) {
      JobSpec job = tiny_job("llama", lora ? std::optional<std::string>("adapter_init") : std::nullopt, compute);
      set(job);
      std::map<std::pair<int, int64_t>, Outcome> expected;  // by ranks and passes
      for (const Arrangement& a : all) {
        SCOPED_TRACE(to_string(a));
        const Outcome found = train(job, a);
        const auto [of_cut, first] = expected.try_emplace({a.ranks, a.passes}, found);
        EXPECT_EQ(found.steps, of_cut->second.steps);
        EXPECT_TRUE(found == of_cut->second);
        look(found);
      }
    }
}

// Lets four ranks, each of which updates a part, save a job's first step; as many go on to the same bits, and fewer and
// one from the same states.
inline void expect_runs_go_on_whatever_ranks_saved(const JobSpec& job) {
  const TempDirectory run;
  Arrangement four;
  four.ranks = 4, four.zero = 3, four.states = Space::Host;
  const Halves fresh = halves(Begin::Fresh, run.path(), job, four);
  expect_resumed(halves(Begin::Resumed, run.path(), job, four), fresh, true, 0, "by four");
  for (const int ranks : {2, 1}) {
    Arrangement fewer;
    fewer.ranks = ranks;
    expect_resumed(halves(Begin::Resumed, run.path(), job, fewer), fresh, false, 1e-2, "by fewer");
  }
}

}  // namespace snug
