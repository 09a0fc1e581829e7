// A model that is used and not trained: what it says, and how well it foretells, is one rank's, however it is held.
#include "arranged.h"
#include "data/dataset.h"
#include "train/generate.h"
#include "train/stream_source.h"
#include "train/trainer.h"

namespace snug {
namespace {

struct Model {
  std::string family;
  DType compute = DType::F32;
  BaseFormat format = BaseFormat::Plain;
  bool adapted = false;
};

std::string name_of(const testing::TestParamInfo<Model>& info) {
  const std::string format = info.param.format == BaseFormat::Plain ? "plain" : std::string(name(info.param.format));
  return fmt::format("{}_{}_{}{}", info.param.family, name(info.param.compute), format,
                     info.param.adapted ? "_adapted" : "");
}

JobSpec job_of(const Model& model, Purpose purpose) {
  JobSpec spec;
  spec.purpose = purpose;
  spec.model = read_model_config(models() / model.family).spec;
  SourceRequest request{models() / model.family, false, 1, std::nullopt};
  if (model.adapted) request.adapter = models() / model.family / "adapter_qv";
  spec.table = model.adapted ? lora_parameters(spec.model, read_peft_config(*request.adapter), true)
                             : full_parameters(spec.model, false);
  spec.sources = find_sources(spec.table, request);
  spec.numerics.compute = spec.numerics.base = model.compute;
  spec.numerics.base_format = model.format;
  spec.numerics.logits_chunk_rows = 32;
  spec.cut.sequence_length = 40;
  spec.strategy = plain_strategy(spec.table);
  return spec;
}

// On 1, 2 and 4 ranks; each has all weights or its share of them, on the device or elsewhere.
std::vector<Arrangement> holdings() {
  std::vector<Arrangement> all;
  for (const int ranks : {1, 2, 4})
    for (const int zero : {0, 3})
      for (const Space weights : {Space::Device, Space::Host, Space::Disk}) {
        if (zero == 0 && weights != Space::Device && ranks > 1) continue;  // sharded whatever the stage
        Arrangement a;
        a.ranks = ranks;
        a.zero = zero;
        a.weights = weights;
        a.lanes = ranks == 2 ? LaneMode::Threads : LaneMode::Inline;
        all.push_back(a);
      }
  return all;
}

// What transformers generated; of another family with the same vocabulary where there is none.
nlohmann::json generation_of(const Model& model) {
  const auto path = models() / model.family / "generation.json";
  return read_json(std::filesystem::exists(path) ? path : models() / "llama" / "generation.json");
}

class UseOnRanks : public testing::TestWithParam<Model> {};

TEST_P(UseOnRanks, RepliesAreThoseOfOneRank) {
  const auto reference = generation_of(GetParam());
  const auto prompt = reference["prompt"].get<std::vector<int32_t>>();
  const auto length = reference["reply"].size();
  JobSpec spec = job_of(GetParam(), Purpose::Generate);
  spec.cache_positions = static_cast<int64_t>(prompt.size() + length);
  for (const double temperature : {0.0, 0.9}) {
    std::vector<int32_t> expected;  // of one rank that holds everything, which comes first
    if (temperature == 0 && GetParam().compute == DType::F32 && GetParam().format == BaseFormat::Plain &&
        !GetParam().adapted)
      expected = reference["reply"].get<std::vector<int32_t>>();
    for (const Arrangement& a : holdings()) {
      SCOPED_TRACE(to_string(a));
      std::mutex mutex;
      on_ranks(spec, a, [&](Session& session) {
        session.load();
        Generator generator(session, {static_cast<int64_t>(length), {.temperature = temperature, .seed = 7}, {}});
        const std::vector<int32_t> first = generator.generate(prompt);
        const std::lock_guard lock(mutex);
        EXPECT_EQ(first.size(), length);
        if (expected.empty()) expected = first;
        EXPECT_EQ(first, expected) << "rank " << session.rank();
      });
    }
  }
}

// Prompts that begin with what was said are continued as if all of them were fed.
TEST(Conversation, GoesOnWhereItStands) {
  const Model model{"llama"};
  const auto prompt = generation_of(model)["prompt"].get<std::vector<int32_t>>();
  JobSpec spec = job_of(model, Purpose::Generate);
  spec.cache_positions = static_cast<int64_t>(prompt.size()) + 40;
  Arrangement a;
  a.ranks = 2;
  a.zero = 3;
  on_ranks(spec, a, [&](Session& session) {
    session.load();
    Generator generator(session, {8, {}, {}});
    std::vector<int32_t> talk(prompt.begin(), prompt.end() - 20);
    for (int turn = 0; turn < 3; turn++) {
      const std::vector<int32_t> reply = generator.reply(talk);
      talk.insert(talk.end(), reply.begin(), reply.end());
      talk.insert(talk.end(), {7, 11, 13});
    }
    const std::vector<int32_t> end = generator.reply(talk);
    EXPECT_EQ(generator.reply(talk), end);  // all of it is there already
    talk[5]++;
    const std::vector<int32_t> other = generator.reply(talk);
    EXPECT_EQ(generator.generate(talk), other);
    talk[5]--;
    EXPECT_EQ(generator.generate(talk), end);
  });
}

Dataset tiny_data() {
  DataOptions options;
  options.files = {models() / "data.jsonl"};
  options.vocabulary = 997;
  return load_dataset(options, nullptr);
}

// To the bit, as losses of passes are summed in the order of their blocks: also where the last pass has fewer blocks
// than there are ranks.
TEST_P(UseOnRanks, TheLossIsThatOfOneRank) {
  const Dataset data = tiny_data();
  const JobSpec spec = job_of(GetParam(), Purpose::Evaluate);
  for (const int64_t micro_batch : {1, 2}) {
    std::optional<double> expected;
    for (Arrangement a : holdings()) {
      SCOPED_TRACE(to_string(a));
      a.passes = kBatch / a.ranks / micro_batch;  // of a step that nobody makes: leaves each pass its blocks
      std::mutex mutex;
      on_ranks(spec, a, [&](Session& session) {
        session.load();
        PackingOptions packing;
        packing.sequence_length = spec.cut.sequence_length;
        packing.packing = packing.shuffle = false;
        std::vector<uint32_t> samples = all_samples(data.samples());
        samples.resize(11);
        StreamSource source(data, samples, packing, {1, a.ranks, micro_batch}, {std::nullopt, 1}, session.rank());
        const EvaluationResult result = evaluate(session, source, source.stream().steps());
        const std::lock_guard lock(mutex);
        if (!expected) expected = result.loss;
        EXPECT_EQ(result.loss, *expected) << "rank " << session.rank();
        EXPECT_GT(result.loss_tokens, 0);
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, UseOnRanks,
                         testing::Values(Model{"llama"}, Model{"qwen2_tied"}, Model{"llama_gqa7", DType::BF16},
                                         Model{"llama", DType::F32, BaseFormat::Int8, true},
                                         Model{"llama", DType::BF16, BaseFormat::Nf4},
                                         Model{"llama16", DType::BF16, BaseFormat::Fp8}),
                         name_of);

}  // namespace
}  // namespace snug
