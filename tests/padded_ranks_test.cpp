// Adapters of ranks that 8 does not divide: products pad them with zeros (model/linear.cpp), and nothing else knows.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "api/job.h"
#include "api/rules.h"
#include "backend/cuda/facts.h"
#include "format/safetensors.h"
#include "model/model_config.h"
#include "plan/lowering/compile.h"
#include "stored_adapters.h"
#include "temp_directory.h"
#include "train/export.h"

namespace snug {
namespace {

constexpr int64_t kRank = 12, kPadded = 16;

using Tensors = std::map<std::string, std::vector<float>>;

// Returns the halves of "rank_12" as those of rank 16 whose last four rows, of A, and columns, of B, are zeros.
Tensors padded(const Tensors& tensors) {
  Tensors wide;
  for (const auto& [name, values] : tensors) {
    std::vector<float>& all = wide[name];
    if (name.ends_with(".lora_A.weight")) {
      all = values;
      all.resize(values.size() / kRank * kPadded);
      continue;
    }
    for (size_t row = 0; row < values.size(); row += kRank) {
      all.insert(all.end(), values.begin() + static_cast<ptrdiff_t>(row),
                 values.begin() + static_cast<ptrdiff_t>(row) + kRank);
      all.resize(all.size() + kPadded - kRank);
    }
  }
  return wide;
}

// Writes "rank_12" as an adapter of rank 16, with the same scale.
void write_padded(const std::filesystem::path& directory) {
  const std::filesystem::path own = adapters() / "rank_12";
  const Tensors tensors = padded(read_tensors(own / "adapter_model.safetensors"));
  std::vector<SafetensorsTensor> list;
  for (const auto& [name, values] : tensors) {
    const auto count = static_cast<int64_t>(values.size());
    list.push_back(
        {name, DType::F32,
         name.ends_with(".lora_A.weight") ? Shape{kPadded, count / kPadded} : Shape{count / kPadded, kPadded}});
  }
  const SafetensorsLayout layout = layout_safetensors(list);
  std::string bytes = layout.header;
  bytes.resize(layout.file_bytes);
  for (size_t i = 0; i < list.size(); i++) {
    const std::vector<float>& values = tensors.at(list[i].name);
    std::memcpy(bytes.data() + layout.offset[i], values.data(), values.size() * sizeof(float));
  }
  write_text(directory / "adapter_model.safetensors", bytes);
  auto config = read_json(own / "adapter_config.json");
  config["r"] = config["lora_alpha"] = kPadded;
  write_text(directory / "adapter_config.json", config.dump());
}

struct Outcome {
  std::vector<double> losses;
  Tensors adapter;
  int64_t trained = 0;
};

Outcome trained(const std::filesystem::path& adapter, const std::string& compute) {
  const TempDirectory directory;
  const auto samples = samples_of_adapters();
  JobConfig options = options_on("own_head");
  options.adapter = adapter.string();
  options.compute = compute;
  options.weight_decay = 0.1;
  options.max_grad_norm = 0;  // sums of squares are grouped by elements, zeros among them
  JobSpec spec = make_job(options, Purpose::Train);
  spec.cut.passes = 2;
  spec.cut.micro_batch = std::ssize(samples) / 2;
  for (LayerParams& layer : spec.table.layers)
    for (Linear* linear : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down}) linear->lora.dropout = 0.25;
  TinySession session(spec, 1);
  session.load();
  TinyTrainer trainer(session);
  Outcome run;
  run.trained = spec.table.count(true);
  for (int64_t step = 1; step <= 4; step++) run.losses.push_back(trainer.step(samples, step, 1e-2).loss);
  export_adapter(session, directory.path() / "out", written_adapter(options), options.model);
  run.adapter = read_tensors(directory.path() / "out" / "adapter_model.safetensors");
  return run;
}

TEST(PaddedRanks, TrainAsARankWithZerosDoes) {
  const TempDirectory directory;
  write_padded(directory.path());
  for (const char* compute : {"fp32", "bf16"}) {
    const Outcome own = trained(adapters() / "rank_12", compute), wide = trained(directory.path(), compute);
    EXPECT_EQ(own.losses, wide.losses) << compute;
    EXPECT_NE(own.losses.front(), own.losses.back()) << compute;
    EXPECT_EQ(padded(own.adapter), wide.adapter) << compute;
    EXPECT_EQ(own.trained * kPadded, wide.trained * kRank) << compute;
  }
}

Compiled compiled_for(Purpose purpose, int64_t rank) {
  const std::filesystem::path model = std::filesystem::path(SNUG_FIXTURES) / "configs" / "llama-3-8b";
  JobSpec spec;
  spec.purpose = purpose;
  spec.model = read_model_config(model).spec;
  spec.model.layers.resize(2);
  spec.rules.adapter = PeftConfig{.rank = rank, .alpha = 32, .target_modules = linear_names(spec.model)};
  spec.table = lora_parameters(spec.model, *spec.rules.adapter, purpose == Purpose::Train);
  spec.sources = find_sources(spec.table, {model, true, 1, std::nullopt});
  spec.strategy = plain_strategy(spec.table, Recompute::None);
  if (purpose == Purpose::Generate) {
    spec.cut.sequence_length = 1;
    spec.cache_positions = 100;
  }
  return compile(spec, CudaFacts(90));
}

template <class Kind>
int count_of(const Program& program) {
  return static_cast<int>(
      std::ranges::count_if(program.ops, [](const Op& op) { return std::holds_alternative<Kind>(op.attrs); }));
}

TEST(PaddedRanks, EveryRankRunsOnTheKernelsOfOneThatEightDivides) {
  const CudaFacts hopper(90);
  for (const int64_t rank : {1, 4, 8, 12, 16, 20, 33}) {
    const Compiled compiled = compiled_for(Purpose::Train, rank);
    int adapted = 0, padding = 0;
    for (const Program& program : compiled.set.programs) padding += count_of<FitColumns>(program);
    EXPECT_EQ(padding > 0, rank % 8 != 0) << rank;
    for (const Program& program : compiled.set.programs)
      for (const Op& op : program.ops) {
        const bool product = std::holds_alternative<Gemm>(op.attrs);
        const bool fused =
            std::holds_alternative<AdaptedGemm>(op.attrs) || std::holds_alternative<SwiGluGemm>(op.attrs) ||
            std::holds_alternative<SwiGluGemmBackward>(op.attrs) || std::holds_alternative<AdapterBackward>(op.attrs);
        if (!product && !fused) continue;
        adapted += fused;
        const Kernel kernel = hopper.kernel(op.attrs, op.operands);
        EXPECT_EQ(kernel.slow, "") << rank << ": " << op.site;
        EXPECT_NE(kernel.name, "cuBLASLt, twice") << rank << ": " << op.site;
      }
    EXPECT_GT(adapted, 20) << rank;
  }
}

// A new token's products read each half once: a copy would take as long.
TEST(PaddedRanks, OneRowIsMultipliedByHalvesAsTheyAre) {
  const Compiled compiled = compiled_for(Purpose::Generate, 12);
  for (const Program& program : compiled.set.programs) {
    if (program.name == "load") continue;
    EXPECT_GT(count_of<AdaptedGemm>(program), 0) << program.name;
    EXPECT_EQ(count_of<FitColumns>(program) > 0, program.name == "prefill") << program.name;
  }
}

}  // namespace
}  // namespace snug
