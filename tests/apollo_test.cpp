// APOLLO: a run of it against its authors' code in fp64 (fixtures/apollo.json), what is kept of it, and a run of it
// however it is held.
#include "optimizer_runs.h"

namespace snug {
namespace {

void set_apollo(JobSpec& job) {
  job.numerics.optimizer = Optimizer::Apollo;
  job.numerics.apollo_rank = 4;
  job.numerics.apollo_update_interval = 2;
}

JobSpec apollo_job(const std::string& model, DType compute) {
  JobSpec job = tiny_job(model, std::nullopt, compute);
  set_apollo(job);
  return job;
}

// The fixture draws the projections that the op does, by the parameter's place among all.
TEST(Apollo, ARunIsItsAuthors) {
  const nlohmann::json all = read_json(std::filesystem::path(SNUG_FIXTURES) / "apollo.json");
  for (const nlohmann::json& training : all) {
    SCOPED_TRACE(training["scale_type"].get<std::string>());
    JobSpec job = apollo_job("llama", DType::F32);
    job.numerics.weight_decay = 0;
    job.numerics.apollo_rank = training["rank"];
    job.numerics.apollo_scale = training["scale"];
    if (training["scale_type"] == "tensor") job.numerics.apollo_scale_type = ScaleType::Tensor;
    for (const auto& [name, id] : training["streams"].items())
      ASSERT_EQ(job.table.params.at(id.get<size_t>()).name, name);
    expect_training(job, training, 2e-5, 2e-4);
  }
}

TEST(Apollo, NoArrangementChangesABit) {
  expect_no_arrangement_changes_a_bit(false, set_apollo, [](const Outcome&) {});
}

TEST(Apollo, RunsGoOnWhateverRanksSaved) { expect_runs_go_on_whatever_ranks_saved(apollo_job("qwen2", DType::BF16)); }

// Of a matrix of layers there are moments of its projection, to no more than its smaller side, and a norm; embeddings,
// head, norms and biases have AdamW's.
TEST(Apollo, MatricesKeepMomentsOfTheirProjections) {
  JobSpec job = apollo_job("qwen2", DType::F32);
  job.numerics.apollo_rank = 40;
  const Outcome outcome = train(job, {});
  int narrow = 0;
  for (const ParamSpec& param : job.table.params) {
    SCOPED_TRACE(param.name);
    const bool matrix = param.shape.rank == 2 && param.name.find(".layers.") != std::string::npos;
    const int64_t rows = param.shape.rows(), cols = param.shape.cols();
    const int64_t count = matrix ? std::max(rows, cols) * std::min({int64_t{40}, rows, cols}) : param.shape.count();
    for (const char* moment : {".first_moment", ".second_moment"})
      EXPECT_EQ(outcome.saved.at(param.name + moment).size(), static_cast<size_t>(count) * sizeof(float));
    EXPECT_EQ(outcome.saved.contains(param.name + ".update_norm"), matrix);
    narrow += matrix && std::min(rows, cols) < 40;
  }
  EXPECT_EQ(narrow, 4);  // keys and values of two layers
}

}  // namespace
}  // namespace snug
