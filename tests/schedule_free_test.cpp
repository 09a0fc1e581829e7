// Schedule-free AdamW: its steps and a run of it against its authors' package (fixtures/schedule_free.json), and what
// is evaluated and saved of it. How it is held is arrangement_test's.
#include "backend/cpu/backend.h"
#include "optimizer_runs.h"
#include "train/schedule.h"

namespace snug {
namespace {

const nlohmann::json& expected() {
  static const nlohmann::json all = read_json(std::filesystem::path(SNUG_FIXTURES) / "schedule_free.json");
  return all;
}

void expect_near(const std::vector<float>& found, const nlohmann::json& expected, double bound) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); i++) EXPECT_NEAR(found[i], expected[i].get<double>(), bound) << i;
}

TEST(ScheduleFree, StepsAndAveragesAreTheAuthors) {
  std::vector<float> y = expected()["weight"].get<std::vector<float>>();
  std::vector<float> difference(y.size(), 0), v(y.size(), 0), clip{1, 1, 1};
  const double beta1 = expected()["beta1"];
  Op update, average;
  update.attrs =
      ScheduleFreeAdamW{beta1, expected()["beta2"], expected()["epsilon"], expected()["weight_decay"], false, 1};
  average.attrs = ScheduleFreeAverage{beta1};
  update.site = average.site = "schedule_free_test";
  AverageWeights weights;
  RuntimeScalars runtime;
  for (const nlohmann::json& step : expected()["steps"]) {
    std::vector<float> gradient = step["gradient"].get<std::vector<float>>();
    runtime.step++;
    runtime.learning_rate = step["learning_rate"];
    runtime.average_share = weights.add(runtime.learning_rate);
    const std::vector<TensorView> updated{vector_view(gradient), vector_view(y), vector_view(difference),
                                          vector_view(v), vector_view(clip)};
    CpuBackend().bind(update, updated)(runtime);
    std::vector<float> x = y, z = y;
    for (size_t i = 0; i < z.size(); i++) z[i] += difference[i];
    const std::vector<TensorView> averaged{vector_view(difference), vector_view(x)};
    CpuBackend().bind(average, averaged)(runtime);
    expect_near(y, step["y"], 1e-6);
    expect_near(z, step["z"], 1e-6);
    expect_near(v, step["second_moment"], 1e-6);
    expect_near(x, step["x"], 1e-6);
  }
}

JobSpec tiny_full_job() {
  JobSpec job = tiny_job("llama", std::nullopt, DType::F32);
  job.numerics.optimizer = Optimizer::ScheduleFreeAdamW;
  job.numerics.beta2 = expected()["beta2"];
  return job;
}

// Gradients are of y, what is held out is evaluated at x, and training goes on at y.
TEST(ScheduleFree, ARunIsTheAuthors) {
  const nlohmann::json& training = expected()["training"];
  ASSERT_EQ(training["loss"].size(), 4U);
  expect_training(tiny_full_job(), training, 2e-5, 1e-4);
}

std::vector<float> floats(const Outcome& outcome, const std::string& name) {
  const std::string& bytes = outcome.saved.at(name);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// What files have as a parameter's value is x; y, at which a run goes on, stands beside it.
TEST(ScheduleFree, CheckpointsHoldTheAverage) {
  const JobSpec job = tiny_full_job();
  const Outcome outcome = train(job, {});
  size_t moved = 0;
  for (const ParamSpec& param : job.table.params) {
    const std::vector<float> x = floats(outcome, param.name + ".value"), y = floats(outcome, param.name + ".y"),
                             difference = floats(outcome, param.name + ".z_minus_y");
    ASSERT_EQ(x.size(), static_cast<size_t>(param.shape.count())) << param.name;
    for (size_t i = 0; i < x.size(); i++) {
      EXPECT_NEAR(x[i], y[i] - difference[i] * (1 - 0.9) / 0.9, 1e-6) << param.name;
      moved += x[i] != y[i];
    }
  }
  EXPECT_GT(moved, 1000U);
}

TEST(ScheduleFree, AnAverageWeighsBySquaresOfTheLargestRate) {
  AverageWeights weights;
  EXPECT_EQ(weights.add(0), 0);
  EXPECT_EQ(weights.add(2), 1);
  EXPECT_EQ(weights.add(4), 16.0 / 20);
  EXPECT_EQ(weights.add(1), 16.0 / 36) << "the largest rate counts";
}

}  // namespace
}  // namespace snug
