// The real SmolLM2-135M-Instruct, imported from its GGUF file, against transformers in fp32 on the same bf16 weights
// (tests/fixtures/README.md). scripts/fetch_demo.sh fetches the file; without it there is nothing to test.
#include <gtest/gtest.h>

#include "api/text.h"
#include "format/gguf_import.h"
#include "temp_directory.h"
#include "tiny_model.h"
#include "train/generate.h"
#include "train/stream_source.h"

namespace snug {
namespace {

class SmolLM2 : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (!is_file(SNUG_DEMO_GGUF)) return;
    directory_ = new TempDirectory;
    import_gguf(SNUG_DEMO_GGUF, directory_->path() / "model", Existing::Refuse);
  }
  static void TearDownTestSuite() { delete directory_; }

  void SetUp() override {
    if (!directory_) GTEST_SKIP() << SNUG_DEMO_GGUF << " is not there; scripts/fetch_demo.sh fetches it";
  }

  static std::filesystem::path model() { return directory_->path() / "model"; }
  static std::filesystem::path fixtures() { return std::filesystem::path(SNUG_FIXTURES) / "smollm2"; }

  static JobSpec job(Purpose purpose) {
    JobSpec spec;
    spec.purpose = purpose;
    spec.model = read_model_config(model()).spec;
    spec.table = full_parameters(spec.model, false);
    spec.numerics.compute = spec.numerics.base = DType::F32;
    spec.sources = find_sources(spec.table, {model(), false, 0, std::nullopt});
    spec.cut.sequence_length = 1024;
    spec.strategy = plain_strategy(spec.table);
    return spec;
  }

 private:
  static inline TempDirectory* directory_ = nullptr;
};

TEST_F(SmolLM2, LossOnHeldOutEntriesIsThatOfTransformers) {
  const auto expected = read_json(fixtures() / "smollm2.json");
  const Tokenizer tokenizer = Tokenizer::load(model());
  const TextEncoder encoder = encoder_of(tokenizer);
  DataOptions data;
  data.files = {fixtures() / "heldout.jsonl"};
  data.vocabulary = 49152;
  data.prompt_format =
      decide_prompt_format("auto", {49152, read_model_config(model()).end_tokens}, &tokenizer, nullptr);
  const Dataset dataset = load_dataset(data, &encoder);
  PackingOptions packing;
  packing.sequence_length = 1024;
  packing.shuffle = false;
  StreamSource source(dataset, all_samples(dataset.samples()), packing, {1, 1, 1}, {std::nullopt, 1}, 0);
  Session session(job(Purpose::Evaluate), 2);
  session.load();
  const EvaluationResult result = evaluate(session, source, source.stream().steps());
  EXPECT_EQ(result.loss_tokens, expected["loss_tokens"].get<int64_t>());
  const double loss = expected["loss"];
  EXPECT_NEAR(result.loss, loss, 1e-5 * loss);
}

TEST_F(SmolLM2, GreedyContinuationsAreThoseOfTransformers) {
  const auto expected = read_json(fixtures() / "smollm2.json");
  JobConfig options;
  options.model = model().string();
  JobSpec spec = job(Purpose::Generate);
  const PromptEncoder encoder(options);
  spec.cut.sequence_length = 1;
  spec.cache_positions = 256;
  Session session(std::move(spec), 2);
  session.load();
  Generator generator(session, {24, {}, {}});
  ASSERT_EQ(expected["generations"].size(), 20u);
  for (const auto& generation : expected["generations"]) {
    const std::string prompt = generation["prompt"];
    const std::vector<int32_t> ids = encoder.encode(prompt, "prompt");
    EXPECT_EQ(ids, generation["prompt_ids"].get<std::vector<int32_t>>()) << prompt;
    EXPECT_EQ(generator.generate(ids), generation["continuation_ids"].get<std::vector<int32_t>>()) << prompt;
  }
}

}  // namespace
}  // namespace snug
