// Another order of a step is searched with the cuts and options that it has a use for, not only with those that the
// fastest had before.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "backend/cpu/facts.h"
#include "brute_force.h"
#include "model/model_config.h"
#include "plan/search/evaluator.h"
#include "plan/search/fit.h"
#include "plan/spec/sources.h"

namespace snug {
namespace {

using testing::ElementsAre;

// All weights of three of Llama-3-8B's layers, eight blocks a step, in two passes.
JobSpec job() {
  JobSpec spec;
  const std::filesystem::path model = std::filesystem::path(SNUG_FIXTURES) / "configs/llama-3-8b";
  spec.model = read_model_config(model).spec;
  spec.model.layers.resize(3);
  spec.table = full_parameters(spec.model, true);
  spec.sources = find_sources(spec.table, {model, true, 1, std::nullopt});
  spec.step_only = true;
  spec.cut.sequence_length = 4096;
  spec.cut.passes = 2;
  spec.cut.micro_batch = 4;
  return spec;
}

// On a slow bus with quick products. Pass by pass the fastest that fits has eight passes; in their cut, layer by layer
// takes a seventh longer than it does in two passes, with states that come beside a whole forward.
TEST(OtherOrder, LayerByLayerIsSearchedInOtherCutsThanTheFastestPassByPass) {
  JobSpec known = job();
  known.strategy = plain_strategy(known.table);
  known.strategy.layer_major = known.strategy.defer_updates = true;
  for (GroupPlacement& group : known.strategy.groups) group.states = Space::Host;
  std::ranges::fill(known.strategy.activations, policy_of(Recompute::Mlp));
  known.strategy.activations[0][ActivationClass::Attention] = Retention::Recompute;
  const CpuFacts facts;
  const Compiled compiled = compile(known, facts);
  Pricing pricing = balanced();
  pricing.machine.link = 1e9;
  pricing.machine.teams.front().flops = 2e14;
  Pricing of_known = pricing;
  of_known.lanes = lanes_of(known.strategy, known.cut);
  Caps caps;  // an evaluation takes a little more than a step
  caps.device_bytes = compiled.plan.reserved_bytes[index(Space::Device)] / 100 * 104;
  Choices choices;
  choices.batch_size = 8;
  choices.activations = choices.gradients = choices.parameters = Offload{};
  const FitResult found = fit(known, choices, caps, facts, pricing);
  ASSERT_TRUE(found.chosen);
  EXPECT_LE(found.tried[0].step_seconds, 1.001 * step_seconds(compiled, of_known))
      << found.tried[0].words << " beside " << arrangement_words(known.cut, known.strategy, known.table);
}

// Where the search ends before all cuts are tried, it has tried the most promising ones: that of the fastest so far,
// then those that compile soonest, but a single pass last where weights are read from the disk for every pass.
TEST(OtherOrder, CutsAreTriedByWhatTheyPromise) {
  const JobSpec spec = job();
  const CpuFacts facts;
  const Pricing pricing = balanced();
  Choices choices;
  choices.batch_size = 16;
  const Evaluator evaluator(spec, choices, facts, pricing, {});
  const auto passes = [&](int64_t fastest, bool reads_disk) {
    std::vector<int64_t> all;
    for (const Cut& cut : evaluator.cuts_for_other_order(fastest, reads_disk)) all.push_back(cut.passes);
    return all;
  };
  EXPECT_THAT(passes(8, false), ElementsAre(8, 1, 2, 4, 16));
  EXPECT_THAT(passes(8, true), ElementsAre(8, 2, 4, 16, 1));
  EXPECT_THAT(passes(1, false), ElementsAre(1, 2, 4, 8, 16));
  EXPECT_THAT(passes(1, true), ElementsAre(2, 4, 8, 16, 1));
}

}  // namespace
}  // namespace snug
