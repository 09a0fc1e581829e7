// Lion: its steps against torch's (fixtures/lion.json), and a run of it however it is held.
#include "arranged.h"
#include "backend/cpu/backend.h"

namespace snug {
namespace {

const nlohmann::json& expected() {
  static const nlohmann::json all = read_json(std::filesystem::path(SNUG_FIXTURES) / "lion.json");
  return all;
}

TEST(Lion, StepsAreTorchsToTheBit) {
  const auto numbers = [](const nlohmann::json& json) { return json.get<std::vector<float>>(); };
  std::vector<float> weight = numbers(expected()["weight"]), mean(weight.size(), 0), clip{1, 1, 1};
  Op op;
  op.attrs = Lion{expected()["beta1"], expected()["beta2"], expected()["weight_decay"]};
  op.site = "lion_test";
  for (const nlohmann::json& step : expected()["steps"]) {
    std::vector<float> gradient = numbers(step["gradient"]);
    const RuntimeScalars runtime{.step = 1, .learning_rate = expected()["learning_rate"].get<double>()};
    const std::vector<TensorView> views{vector_view(gradient), vector_view(weight), vector_view(mean),
                                        vector_view(clip)};
    CpuBackend().bind(op, views)(runtime);
    EXPECT_EQ(weight, numbers(step["weight"]));
    EXPECT_EQ(mean, numbers(step["mean"]));
  }
}

// Losses, norms, weights and the moment, to the bit, at equal ranks and passes.
TEST(Lion, NoArrangementChangesABit) {
  std::vector<Arrangement> all(9);  // of each number of ranks and passes the plain one first
  all[1].recompute = Recompute::Block, all[1].states = Space::Disk, all[1].lanes = LaneMode::Threads;
  all[2].states = all[2].gradients = all[2].weights = Space::Host, all[2].deferred = true;
  for (const size_t a : {3u, 4u}) all[a].passes = 4;
  all[4].layer_major = true, all[4].states = Space::Host, all[4].speculative = true;
  for (const size_t a : {5u, 6u}) all[a].ranks = 2, all[a].passes = 2;
  all[6].zero = 3, all[6].lanes = LaneMode::Threads;
  for (const size_t a : {7u, 8u}) all[a].ranks = 4;
  all[8].replicas = 2, all[8].zero = 2, all[8].states = Space::Host;
  for (const DType compute : {DType::BF16, DType::F32})
    for (const bool lora : {false, true}) {
      JobSpec job = tiny_job("llama", lora ? std::optional<std::string>("adapter_init") : std::nullopt, compute);
      job.numerics.optimizer = Optimizer::Lion;
      job.numerics.beta2 = 0.99;
      std::map<std::pair<int, int64_t>, Outcome> expected;  // by ranks and passes
      for (const Arrangement& a : all) {
        SCOPED_TRACE(to_string(a));
        const Outcome found = train(job, a);
        const auto [of_cut, first] = expected.try_emplace({a.ranks, a.passes}, found);
        EXPECT_EQ(found.steps, of_cut->second.steps);
        EXPECT_TRUE(found == of_cut->second);
        EXPECT_TRUE(std::ranges::none_of(found.saved, [](const auto& array) {
          return array.first.find("second_moment") != std::string::npos;
        })) << "one moment alone is kept";
      }
    }
}

}  // namespace
}  // namespace snug
