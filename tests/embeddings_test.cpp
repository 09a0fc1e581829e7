// Passes that are given what a frozen tower makes of images are, bit for bit, those that make it themselves.
#include <gtest/gtest.h>

#include "arranged.h"

namespace snug {
namespace {

struct Embeddings : testing::TestWithParam<TinyCase> {
  JobSpec own() const { return GetParam().job(); }
  JobSpec given() const {
    TinyCase given = GetParam();
    given.given_embeddings = true;
    return given.job();
  }
};

TEST_P(Embeddings, GivenRowsTrainAndEvaluateAsRowsOfThePassDo) {
  for (const int ranks : {1, 2, 4})
    for (const bool elsewhere : {false, true}) {
      if (ranks > kMostRanks) continue;
      Arrangement a;
      a.ranks = ranks;
      a.passes = GetParam().passes;
      if (elsewhere) {
        a.zero = 3;
        a.inputs = Space::Host;
        a.layer_major = true;
        a.recompute = Recompute::Block;
      }
      EXPECT_TRUE(train(given(), a) == train(own(), a)) << to_string(a);
    }
}

// A run may go on with rows that are given where another has made them, and the other way round.
TEST_P(Embeddings, FieldsThatDecideResultsAreEqual) {
  EXPECT_EQ(
      differences(fields_of(given()), fields_of(own()), {kMethodFields, kModelFields, kNumericsFields, kCutFields}),
      std::vector<std::string>());
}

uint64_t persistent_weights(const Compiled& compiled) {
  uint64_t bytes = 0;
  for (const Buffer& buffer : compiled.set.buffers)
    if (buffer.role == Role::Weight && buffer.life == Life::Persistent) bytes += buffer.bytes;
  return bytes;
}

// Neither job holds a weight of the other's part, which the plan shows.
TEST_P(Embeddings, NoWeightOfTheTowerIsHeldWhereRowsAreGiven) {
  JobSpec spec = given();
  spec.cut.micro_batch = kBatch;
  const Compiled compiled = compile(spec, CpuFacts());
  JobSpec with_tower = own();
  with_tower.cut.micro_batch = kBatch;
  uint64_t tower = 0;
  for (size_t i = 0; i < spec.table.params.size(); i++) {
    if (!spec.table.params[i].tower) continue;
    EXPECT_EQ(compiled.owned[i].span.count(), 0) << spec.table.params[i].name;
    tower += static_cast<uint64_t>(spec.table.params[i].shape.count()) * element_bytes(spec.numerics.base);
  }
  ASSERT_GT(tower, 0u);
  EXPECT_GE(persistent_weights(compile(with_tower, CpuFacts())), persistent_weights(compiled) + tower);

  JobSpec embed = spec;
  embed.purpose = Purpose::Embed;
  embed.given_embeddings = false;
  embed.cut.micro_batch = 1;
  embed.table = full_parameters(embed.model, false);
  embed.sources.params.clear();
  embed.step_only = true;
  embed.strategy = plain_strategy(embed.table);
  const Compiled tower_alone = compile(embed, CpuFacts());
  for (size_t i = 0; i < embed.table.params.size(); i++)
    EXPECT_EQ(tower_alone.owned[i].span.count() > 0, embed.table.params[i].tower) << embed.table.params[i].name;
}

INSTANTIATE_TEST_SUITE_P(Cases, Embeddings,
                         testing::Values(TinyCase{"../vision/qwen2_vl", true, DType::F32, 2},
                                         TinyCase{"../vision/qwen2_vl", true, DType::BF16, 1, BaseFormat::Int8},
                                         TinyCase{"../vision/qwen2_5_vl", true, DType::F32, 1},
                                         TinyCase{"../vision/qwen2_5_vl", true, DType::BF16, 2},
                                         TinyCase{"../vision/minicpmv", true, DType::F32, 2},
                                         TinyCase{"../vision/minicpmv", true, DType::BF16, 1}));

}  // namespace
}  // namespace snug
