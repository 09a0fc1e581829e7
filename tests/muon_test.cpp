// Muon: directions and a run of it against torch.optim.Muon's in fp64 (fixtures/muon.json), and what is kept of it, and
// a run of it however it is held.
#include "backend/cpu/backend.h"
#include "optimizer_runs.h"
#include "plan/lowering/orthogonalize.h"

namespace snug {
namespace {

const nlohmann::json& expected() {
  static const nlohmann::json all = read_json(std::filesystem::path(SNUG_FIXTURES) / "muon.json");
  return all;
}

JobSpec muon_job(const std::string& model, DType compute) {
  JobSpec job = tiny_job(model, std::nullopt, compute);
  job.numerics.optimizer = Optimizer::Muon;
  return job;
}

// Runs the ops of orthogonalize() one by one, each buffer with memory of its own.
std::vector<float> orthogonalized(const Shape& shape, const std::vector<float>& numbers, double factor) {
  ProgramSet set;
  set.programs.emplace_back().name = "muon_test";
  const CpuFacts facts;
  Emitter emitter(set, 0, facts);
  const Operand matrix = emitter.tensor("matrix", DType::F32, shape);
  Orthogonalizer(emitter, DType::F32, std::vector{shape}).orthogonalize(matrix, factor);
  std::vector<std::vector<float>> memory;
  for (const Buffer& buffer : set.buffers) memory.emplace_back(buffer.bytes / sizeof(float), NAN);
  memory[matrix.buffer] = numbers;
  CpuBackend backend;
  for (const Op& op : emitter.program().ops) {
    std::vector<TensorView> views;
    for (const Operand& o : op.operands)
      views.push_back(
          {reinterpret_cast<std::byte*>(memory[o.buffer].data()) + o.offset, o.dtype, o.shape, o.row_stride});
    backend.bind(op, views)(RuntimeScalars{});
  }
  return memory[matrix.buffer];
}

// Of a first step the direction is the gradient's, whatever share of it momentum takes. Singular values go through a
// polynomial of degree 5 five times, which magnifies what fp32 rounds.
TEST(Muon, DirectionsAreTorchs) {
  for (const nlohmann::json& one : expected()["directions"]) {
    const Shape shape{one["shape"][0], one["shape"][1]};
    SCOPED_TRACE(to_string(shape));
    const double factor = 0.2 * std::sqrt(static_cast<double>(std::max(shape.rows(), shape.cols())));
    const std::vector<float> found = orthogonalized(shape, one["gradient"].get<std::vector<float>>(), factor);
    for (size_t i = 0; i < found.size(); i++) EXPECT_NEAR(found[i], one["direction"][i].get<double>(), 2e-5) << i;
  }
}

TEST(Muon, ARunIsTorchs) {
  const nlohmann::json& training = expected()["training"];
  JobSpec job = muon_job("llama", DType::F32);
  job.numerics.weight_decay = training["weight_decay"];
  expect_training(job, training, 5e-5, 2e-4);
}

TEST(Muon, NoArrangementChangesABit) {
  expect_no_arrangement_changes_a_bit(
      false, [](JobSpec& job) { job.numerics.optimizer = Optimizer::Muon; }, [](const Outcome&) {});
}

TEST(Muon, RunsGoOnWhateverRanksSaved) { expect_runs_go_on_whatever_ranks_saved(muon_job("qwen2", DType::BF16)); }

// A matrix has momentum alone; what AdamW updates has both moments.
TEST(Muon, MatricesKeepOneMoment) {
  const JobSpec job = muon_job("qwen2", DType::BF16);  // has biases
  const Outcome outcome = train(job, {});
  const auto kept = [&](const std::string& name, const char* array) { return outcome.saved.contains(name + array); };
  for (const ParamSpec& param : job.table.params) {
    const bool matrix = param.shape.rank == 2 && param.name.find(".layers.") != std::string::npos;
    EXPECT_TRUE(kept(param.name, ".first_moment")) << param.name;
    EXPECT_EQ(kept(param.name, ".second_moment"), !matrix) << param.name;
  }
}

}  // namespace
}  // namespace snug
