// What lowering writes, op by op: the text of one small program, kept as a golden file to be read by people. A change
// that means to alter it rewrites it (run with --gtest_also_run_disabled_tests --gtest_filter=*Rewrite*). The census
// (census.cpp) holds all other programs to their hashes.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "flat_facts.h"
#include "tiny_model.h"

namespace snug {
namespace {

// An adapter's step, whose layers are computed again from inputs that wait on the host.
Compiled small_program() {
  JobSpec spec = tiny_job("qwen2", "adapter_init", DType::BF16);
  spec.strategy = plain_strategy(spec.table, Recompute::Block);
  for (ActivationPolicy& policy : spec.strategy.activations)
    policy[ActivationClass::LayerBoundary] = Retention::Offload;
  return compile(spec, FlatFacts());
}

std::string dump(const Compiled& compiled) {
  std::string text;
  for (const Task task : {Task::Pass, Task::First, Task::Last, Task::Update})
    if (compiled.has(task)) text += compiled.set.dump(compiled.at(task)) + "\n";
  return text;
}

const std::filesystem::path kGolden = std::filesystem::path(SNUG_FIXTURES) / "golden" / "lora_block_offload.txt";

TEST(Lower, AProgramIsThatOfTheGoldenFile) {
  std::stringstream expected;
  expected << std::ifstream(kGolden).rdbuf();
  EXPECT_EQ(dump(small_program()), expected.str());
}

// Whoever meets a norm that is not finite reads them after the update, to name a parameter.
TEST(Lower, TheNormsPartialSumsStayToTheUpdatesEnd) {
  const Compiled compiled = small_program();
  const std::vector<Op>& ops = compiled.set.programs[compiled.at(Task::Update)].ops;
  OpId end = 0;
  for (const Op& op : ops)
    for (const Operand& operand : op.operands)
      if (operand.buffer == compiled.update.partials.buffer) end = std::max(end, op.retire);
  EXPECT_EQ(end, ops.size() - 1);
}

TEST(DISABLED_Lower, RewriteTheGoldenFile) { std::ofstream(kGolden) << dump(small_program()); }

}  // namespace
}  // namespace snug
