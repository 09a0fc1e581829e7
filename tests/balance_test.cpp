// Ranks' arenas are alike: of each space the fullest rank needs at most 2 % more than the emptiest, for the whole run
// (loading, saving and evaluating included), at the shape of a model of 8 billion parameters.
#include <gtest/gtest.h>

#include "backend/cuda/facts.h"
#include "model/model_config.h"
#include "plan/lowering/compile.h"

namespace snug {
namespace {

const std::filesystem::path kModel = std::filesystem::path(SNUG_FIXTURES) / "configs" / "llama-3-8b";

struct Family {
  std::string_view name;
  bool qkv_bias, tied;
};

JobSpec job(const Family& family, bool full) {
  JobSpec spec;
  spec.model = read_model_config(kModel).spec;
  for (LayerSpec& layer : spec.model.layers) layer.qkv.bias = family.qkv_bias;
  spec.model.tied = family.tied;
  spec.table =
      full ? full_parameters(spec.model, true)
           : lora_parameters(spec.model, {.rank = 16, .alpha = 32, .target_modules = linear_names(spec.model)}, true);
  spec.sources = find_sources(spec.table, {.model = kModel, .adapter = std::nullopt});
  spec.evaluate = true;
  return spec;
}

// At every stage on 2, 4 and 8 ranks; at stage 3 also with all that may wait on the host there.
void expect_balance(JobSpec spec, std::string_view what) {
  for (int stage = 0; stage < 5; stage++) {
    spec.strategy = plain_strategy(spec.table, Recompute::Block);
    set_zero_stage(spec.strategy, std::min(stage, 3));
    for (GroupPlacement& group : spec.strategy.groups)
      if (stage == 4) group.weights = group.states = group.gradients = Space::Host;
    for (spec.cut.ranks = 2; spec.cut.ranks <= 8; spec.cut.ranks *= 2) {
      PerSpace<uint64_t> most{}, least{UINT64_MAX, UINT64_MAX, UINT64_MAX};
      for (spec.rank = 0; spec.rank < spec.cut.ranks; spec.rank++) {
        const PerSpace<uint64_t> bytes = compile(spec, CudaFacts()).plan.reserved_bytes;
        raise(most, bytes);
        for (const Space space : kSpaces) least[index(space)] = std::min(least[index(space)], bytes[index(space)]);
      }
      for (const Space space : kSpaces)
        EXPECT_LE(static_cast<double>(most[index(space)]), 1.02 * static_cast<double>(least[index(space)]))
            << what << ", stage " << stage << ", " << spec.cut.ranks << " ranks, " << name(space);
    }
  }
}

TEST(Balance, AllWeightsOfEveryFamily) {
  for (const Family& family :
       {Family{"llama", false, false}, Family{"qwen2", true, false}, Family{"tied", false, true}})
    expect_balance(job(family, true), family.name);
}

TEST(Balance, AdaptersOnEveryBase) {
  JobSpec spec = job({"llama", false, false}, false);
  for (const BaseFormat format : {BaseFormat::Plain, BaseFormat::Int8, BaseFormat::Nf4}) {
    spec.numerics.base_format = format;
    expect_balance(spec, name(format));
  }
}

}  // namespace
}  // namespace snug
