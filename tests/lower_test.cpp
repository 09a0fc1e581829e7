// What lowering writes, op by op: text dumps of small programs under each strategy, kept as golden files. A change that
// means to alter them rewrites them (run with --gtest_also_run_disabled_tests --gtest_filter=*Rewrite*) and is read as
// a diff.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "flat_facts.h"
#include "tiny_model.h"

namespace snug {
namespace {

struct Golden {
  std::string name;
  bool lora;
  Recompute recompute;
  int64_t offloaded, passes;
};

std::vector<Golden> goldens() {
  return {{"lora", true, Recompute::None, 0, 1},
          {"lora_block_offload", true, Recompute::Block, 2, 1},
          {"full_mlp_two_passes", false, Recompute::Mlp, 0, 2},
          {"full_attention_offload", false, Recompute::Attention, 1, 1}};
}

Compiled compiled_of(const Golden& golden) {
  JobSpec spec =
      tiny_job("qwen2", golden.lora ? std::optional<std::string>("adapter_init") : std::nullopt, DType::BF16);
  spec.cut.passes = golden.passes;
  spec.strategy = plain_strategy(spec.table, golden.recompute);
  for (size_t b = 0; b < static_cast<size_t>(golden.offloaded); b++)
    spec.strategy.activations[b][ActivationClass::LayerInput] = Retention::Offload;
  return compile(spec, FlatFacts());
}

std::string dump(const Golden& golden) {
  const Compiled compiled = compiled_of(golden);
  std::string text;
  for (const Task task : {Task::Pass, Task::First, Task::Last, Task::Update})
    if (compiled.has(task)) text += compiled.set.dump(compiled.at(task)) + "\n";
  return text;
}

std::filesystem::path path_of(const Golden& golden) {
  return std::filesystem::path(SNUG_FIXTURES) / "golden" / (golden.name + ".txt");
}

TEST(Lower, ProgramsAreThoseOfTheGoldenFiles) {
  for (const Golden& golden : goldens()) {
    std::ifstream in(path_of(golden));
    std::stringstream expected;
    expected << in.rdbuf();
    EXPECT_EQ(dump(golden), expected.str()) << golden.name;
  }
}

// Whoever meets a norm that is not finite reads them after the update, to name a parameter.
TEST(Lower, TheNormsPartialSumsStayToTheUpdatesEnd) {
  for (const Golden& golden : goldens()) {
    const Compiled compiled = compiled_of(golden);
    const std::vector<Op>& ops = compiled.set.programs[compiled.at(Task::Update)].ops;
    OpId end = 0;
    for (const Op& op : ops)
      for (const Operand& operand : op.operands)
        if (operand.buffer == compiled.update.partials.buffer) end = std::max(end, op.retire);
    EXPECT_EQ(end, ops.size() - 1) << golden.name;
  }
}

TEST(DISABLED_Lower, RewriteGoldenFiles) {
  for (const Golden& golden : goldens()) std::ofstream(path_of(golden)) << dump(golden);
}

}  // namespace
}  // namespace snug
