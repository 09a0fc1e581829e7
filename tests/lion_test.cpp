// Lion: its steps against torch's (fixtures/lion.json), and a run of it however it is held.
#include "backend/cpu/backend.h"
#include "optimizer_runs.h"

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

TEST(Lion, NoArrangementChangesABit) {
  const auto set = [](JobSpec& job) {
    job.numerics.optimizer = Optimizer::Lion;
    job.numerics.beta2 = 0.99;
  };
  expect_no_arrangement_changes_a_bit(true, set, [](const Outcome& found) {
    EXPECT_TRUE(std::ranges::none_of(found.saved, [](const auto& array) {
      return array.first.find("second_moment") != std::string::npos;
    })) << "one moment alone is kept";
  });
}

}  // namespace
}  // namespace snug
