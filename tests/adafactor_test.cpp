// Adafactor: a run of it against transformers' in fp64 (fixtures/adafactor.json), what is kept of it, and a run of it
// however it is held.
#include "optimizer_runs.h"

namespace snug {
namespace {

JobSpec adafactor_job(const std::string& model, DType compute) {
  JobSpec job = tiny_job(model, std::nullopt, compute);
  job.numerics.optimizer = Optimizer::Adafactor;
  return job;
}

TEST(Adafactor, ARunIsTransformers) {
  const nlohmann::json training = read_json(std::filesystem::path(SNUG_FIXTURES) / "adafactor.json");
  JobSpec job = adafactor_job("llama", DType::F32);
  job.numerics.weight_decay = training["weight_decay"];
  expect_training(job, training, 2e-5, 2e-4);
}

TEST(Adafactor, NoArrangementChangesABit) {
  expect_no_arrangement_changes_a_bit(
      false, [](JobSpec& job) { job.numerics.optimizer = Optimizer::Adafactor; }, [](const Outcome&) {});
}

// Without clipping, one rank updates a group within the backward, wherever its weights and states lie.
TEST(Adafactor, UpdatesInTheBackwardAreThoseAfterIt) {
  for (const Optimizer optimizer : {Optimizer::Adafactor, Optimizer::Muon, Optimizer::Apollo})
    for (const DType compute : {DType::BF16, DType::F32}) {
      JobSpec job = adafactor_job("qwen2", compute);
      job.numerics.optimizer = optimizer;
      job.numerics.apollo_rank = 4;
      job.numerics.max_grad_norm = 0;
      const Outcome after = train(job, {});
      for (const Space space : {Space::Device, Space::Host}) {
        Arrangement within;
        within.zero = 2, within.in_backward = true, within.states = within.weights = space;
        EXPECT_TRUE(train(job, within) == after) << name(optimizer) << " " << name(compute) << " " << to_string(within);
      }
    }
}

TEST(Adafactor, RunsGoOnWhateverRanksSaved) {
  expect_runs_go_on_whatever_ranks_saved(adafactor_job("qwen2", DType::BF16));
}

// Beside the weights there is a number a row and a column; a vector is one row.
TEST(Adafactor, RowsAndColumnsKeepANumber) {
  const JobSpec job = adafactor_job("qwen2", DType::F32);
  const Outcome outcome = train(job, {});
  size_t count = 0;
  for (const ParamSpec& param : job.table.params) {
    SCOPED_TRACE(param.name);
    const auto bytes = [](int64_t numbers) { return static_cast<size_t>(numbers) * sizeof(float); };
    EXPECT_EQ(outcome.saved.at(param.name + ".value").size(), bytes(param.shape.count()));
    EXPECT_EQ(outcome.saved.at(param.name + ".row_means").size(), bytes(param.shape.rows()));
    EXPECT_EQ(outcome.saved.at(param.name + ".column_means").size(), bytes(param.shape.cols()));
    count += 3;
  }
  EXPECT_EQ(outcome.saved.size(), count);
}

}  // namespace
}  // namespace snug
