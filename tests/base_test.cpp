// Frozen bases in fewer bits: what products see of them is what bitsandbytes' numbers are to transformers and peft
// (tests/fixtures/base), and ranks hold what one rank would.
#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "backend/cpu/facts.h"
#include "comm/threads.h"
#include "tiny_model.h"

namespace snug {
namespace {

const std::filesystem::path kFixtures = SNUG_FIXTURES;

struct Base {
  std::string word;  // of the fixtures
  BaseFormat format;
  bool plain_scales;
};
const std::array kBases{Base{"int8", BaseFormat::Int8, false}, Base{"fp8", BaseFormat::Fp8, false},
                        Base{"nf4", BaseFormat::Nf4, false}, Base{"nf4_plain", BaseFormat::Nf4, true}};

JobSpec lora_job(const Base& base) {
  JobSpec spec = tiny_job("llama", std::nullopt, DType::F32);
  const std::filesystem::path adapter = kFixtures / "base" / "adapter";
  spec.table = lora_parameters(spec.model, read_peft_config(adapter), true);
  spec.sources = find_sources(spec.table, {models() / "llama", false, 1, adapter});
  spec.numerics.base_format = base.format;
  spec.numerics.plain_scales = base.plain_scales;
  return spec;
}

TEST(QuantisedBase, LossAndLoraGradientsAreThoseOfTheNumbersThatComeBack) {
  const auto samples = tiny_samples();
  for (const Base& base : kBases) {
    SCOPED_TRACE(base.word);
    const auto reference = read_tensors(kFixtures / "base" / fmt::format("gradients.{}.safetensors", base.word));
    JobSpec spec = lora_job(base);
    spec.cut.micro_batch = static_cast<int64_t>(samples.size());
    spec.evaluate = true;
    Session session(spec, 2);
    session.load();
    TinyTrainer trainer(session);
    const double loss = read_json(kFixtures / "base" / "reference.json")["loss"][base.word];
    EXPECT_NEAR(trainer.evaluate(samples) / static_cast<double>(loss_tokens(samples)), loss, 1e-5);
    trainer.passes(samples, 1, 0);
    size_t compared = 0;
    for (size_t i = 0; i < spec.table.params.size(); i++) {
      if (!spec.table.params[i].adapter) continue;
      const auto& expected = reference.at(spec.table.params[i].name);
      const double error = relative_error(values(session, session.compiled().owned[i].gradient), expected);
      EXPECT_TRUE(error <= 1e-4) << spec.table.params[i].name << " is off by " << error;
      compared++;
    }
    EXPECT_EQ(compared, reference.size());
  }
}

TEST(QuantisedBase, IsReadAsTransformersSavedIt) {
  const auto reference = read_json(kFixtures / "base" / "reference.json");
  TinySample sample{reference["ids"], reference["ids"]};
  for (const std::string word : {"int8", "nf4", "nf4_single"}) {
    SCOPED_TRACE(word);
    JobSpec spec;
    spec.purpose = Purpose::Evaluate;
    spec.model = read_model_config(kFixtures / "bnb" / word).spec;
    spec.table = full_parameters(spec.model, false);
    spec.sources = find_sources(spec.table, {kFixtures / "bnb" / word, false, 0, std::nullopt});
    EXPECT_EQ(spec.sources.format, word == "int8" ? BaseFormat::Int8 : BaseFormat::Nf4);
    spec.numerics.compute = spec.numerics.base = DType::F32;
    spec.numerics.base_format = spec.sources.format;
    spec.numerics.plain_scales = spec.sources.plain_scales;
    spec.cut.sequence_length = static_cast<int64_t>(sample.ids.size());
    spec.strategy = plain_strategy(spec.table);
    Session session(spec, 1);
    session.load();
    TinyTrainer trainer(session);
    EXPECT_NEAR(trainer.evaluate({sample}) / static_cast<double>(sample.ids.size() - 1),
                reference["stored"][word].get<double>(), 1e-5);
  }
}

// By parameter, put together from what ranks own: codes; by group: the table that every rank has.
struct Held8 {
  std::vector<std::vector<uint8_t>> codes;
  std::vector<std::vector<float>> tables;
  bool operator==(const Held8&) const = default;
};

Held8 held(const JobSpec& job, int ranks, int replicas, int stage, Space weights) {
  Held8 all;
  std::mutex mutex;
  auto run = [&](int rank, Comm* comm) {
    JobSpec spec = job;
    spec.cut.ranks = ranks;
    spec.rank = rank;
    spec.strategy.replicas = replicas;
    set_zero_stage(spec.strategy, stage);
    for (GroupPlacement& group : spec.strategy.groups) group.weights = weights;
    Session session(spec, 1, LaneMode::Inline, comm);
    session.load();
    const std::lock_guard lock(mutex);
    const Compiled& compiled = session.compiled();
    all.codes.resize(spec.table.params.size());
    for (size_t i = 0; i < spec.table.params.size(); i++) {
      const Operand& codes = compiled.owned[i].weight;
      if (!spec.table.params[i].linear || compiled.owned[i].span.count() == 0) continue;
      const TensorView view = session.view(codes);
      const auto per_code = spec.numerics.base_format == BaseFormat::Nf4 ? 2 : 1;
      all.codes[i].resize(static_cast<size_t>(spec.table.params[i].shape.count() / per_code));
      std::memcpy(all.codes[i].data() + compiled.owned[i].span.begin / per_code, view.data,
                  static_cast<size_t>(view.count()));
    }
    std::vector<std::vector<float>> tables;
    for (BufferId id = 0; id < compiled.set.buffers.size(); id++) {
      const Buffer& buffer = compiled.set.buffers[id];
      if (!buffer.name.ends_with(".table") || buffer.life != Life::Persistent) continue;
      const auto count = static_cast<int64_t>(buffer.bytes / 4);
      const TensorView view = session.view({id, Access::Read, DType::F32, {count}, 0, count});
      tables.emplace_back(view.as<float>(), view.as<float>() + count);
    }
    EXPECT_TRUE(all.tables.empty() || all.tables == tables) << "rank " << rank;
    all.tables = tables;
  };
  if (ranks == 1) return run(0, nullptr), all;
  const auto comms = thread_ranks(ranks, replicas);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; rank++)
    threads.emplace_back([&, rank] { run(rank, comms[static_cast<size_t>(rank)].get()); });
  threads.clear();
  return all;
}

TEST(QuantisedBase, RanksHoldTheCodesThatOneRankWould) {
  for (const Base& base : kBases)
    for (const bool from_seed : {false, true}) {
      JobSpec spec = lora_job(base);
      if (from_seed) spec.sources = find_sources(spec.table, {models() / "llama", true, 7, std::nullopt});
      const Held8 one = held(spec, 1, 1, 0, Space::Device);
      EXPECT_EQ(one.tables.size(), base.plain_scales ? 0u : 2u);
      for (const auto& [ranks, replicas, stage, weights] :
           {std::tuple(1, 1, 0, Space::Host), std::tuple(2, 1, 0, Space::Device), std::tuple(2, 1, 3, Space::Device),
            std::tuple(4, 2, 3, Space::Host), std::tuple(4, 1, 3, Space::Device)})
        EXPECT_EQ(held(spec, ranks, replicas, stage, weights), one)
            << base.word << (from_seed ? " from the seed, " : ", ") << ranks << " ranks, stage " << stage;
    }
}

}  // namespace
}  // namespace snug
