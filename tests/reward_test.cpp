// A model that gives scores, from pairs of replies to its steps and its files: against fp64 (fixtures/objective),
// however a step is cut or held.
#include "expect_error.h"
#include "format/peft.h"
#include "pairs.h"
#include "train/export.h"

namespace snug {
namespace {

constexpr const char *kWeights = "model-00001-of-00002.safetensors", *kHead = "model-00002-of-00002.safetensors";

// Makes a directory of a tiny model for sequence classification, of its weights and the fixtures' head.
void make_scorer(const std::filesystem::path& directory) {
  const std::filesystem::path llama = models() / "llama";
  std::filesystem::create_directories(directory);
  std::filesystem::copy(llama / "model.safetensors", directory / kWeights);
  std::filesystem::copy(kObjective / "score.safetensors", directory / kHead);
  nlohmann::json index, config = read_json(llama / "config.json");
  const auto tensors = SafetensorsIndex::open_model(llama);
  for (const SafetensorsEntry& entry : tensors.entries()) index["weight_map"][entry.name] = kWeights;
  index["weight_map"]["score.weight"] = kHead;
  config["architectures"] = {"LlamaForSequenceClassification"};
  config["id2label"] = {{"0", "LABEL_0"}};
  write_text(directory / "model.safetensors.index.json", index.dump());
  write_text(directory / "config.json", config.dump());
}

// Returns its job; with `lora` its head is trained whole beside adapters.
JobSpec reward_job(const std::filesystem::path& directory, bool lora, DType compute) {
  JobSpec spec = job_of({.kind = ObjectiveKind::Reward, .center_coefficient = 0.01}, false, compute, 64);
  spec.model = read_model_config(directory).spec;
  if (lora) {
    PeftConfig adapter{.rank = 4, .alpha = 8, .modules_to_save = {"score"}, .scores = true};
    adapter.target_modules = {"down_proj", "q_proj", "v_proj"};
    spec.rules.adapter = adapter;
  }
  spec.table = trained_parameters(spec.model, spec.rules);
  spec.sources = find_sources(spec.table, {directory, false, 1, std::nullopt});
  spec.strategy = plain_strategy(spec.table);
  return spec;
}

Dataset pairs_with_margins() {
  const Dataset plain = pairs_of_file();
  Dataset dataset;
  for (int64_t i = 0; i < plain.samples(); i++) {
    Sample pair{{plain.ids(i).begin(), plain.ids(i).end()}, std::vector<int32_t>(plain.ids(i).size()), plain.second(i)};
    plain.labels(i, 0, pair.labels);
    pair.value = expected()["reward"]["margins"][static_cast<size_t>(i)].get<float>();
    dataset.add(pair);
  }
  return dataset;
}

TEST(Reward, LossNormAndMetricsOfThreeStepsAreThoseOfFp64) {
  const TempDirectory directory;
  make_scorer(directory.path() / "model");
  const Dataset dataset = pairs_with_margins();
  References none(dataset);
  for (const auto& [micro, passes] : {std::pair(4, 1), {2, 2}, {1, 4}}) {
    JobSpec spec = reward_job(directory.path() / "model", false, DType::F32);
    spec.cut.micro_batch = micro;
    spec.cut.passes = passes;
    Session session(spec, 1);
    session.load();
    PairRun run(session, dataset, none, 3);
    const auto lines = run.train(directory.path() / fmt::format("{}", passes), 1e-3);
    SCOPED_TRACE(fmt::format("{} passes", passes));
    expect_steps(lines, expected()["reward"]["steps"]);
  }
}

TEST(Reward, GradientsOfEveryParameterAreThoseOfFp64) {
  const TempDirectory directory;
  make_scorer(directory.path() / "model");
  const Dataset dataset = pairs_with_margins();
  References none(dataset);
  JobSpec spec = reward_job(directory.path() / "model", false, DType::F32);
  spec.cut.micro_batch = 4;
  Session session(spec, 1);
  session.load();
  PairRun run(session, dataset, none, 3);
  expect_gradients(session, run, expected()["reward"]["steps"][0]["gradients"]);
}

TEST(Reward, NoArrangementChangesABit) {
  const TempDirectory model;
  make_scorer(model.path() / "model");
  const Dataset dataset = pairs_with_margins();
  for (const bool lora : {false, true}) {
    std::map<std::pair<int, int64_t>, std::vector<std::string>> expected;  // by ranks and passes
    for (const Arrangement& a : pair_arrangements()) {
      SCOPED_TRACE(to_string(a));
      const std::vector<std::string> found =
          lines_of_ranks(reward_job(model.path() / "model", lora, DType::BF16), a, dataset);
      auto& of_cut = expected[{a.ranks, a.passes}];
      if (of_cut.empty()) of_cut = found;
      ASSERT_EQ(found.size(), 3u);
      EXPECT_EQ(found, of_cut);
      const auto first = nlohmann::json::parse(found[0]), plain = nlohmann::json::parse(expected[{1, 1}][0]);
      for (const char* key : {"loss", "accuracy", "margin", "mean_reward"}) EXPECT_EQ(first[key], plain[key]) << key;
    }
  }
}

TEST(Reward, AHeadIsDrawnForTrainingAndMissedOtherwise) {
  ModelSpec model = read_model_config(models() / "llama").spec;
  model.become_scorer();
  const ParamTable table = full_parameters(model, true);
  SourceRequest request{models() / "llama", false, 7, std::nullopt};
  EXPECT_TRUE(fails_with<UserError>([&] { find_sources(table, request); }, "found no tensor 'score.weight'"));
  request.draws_head = true;
  const WeightSources sources = find_sources(table, request);
  const auto* const drawn = std::get_if<RandomFill>(&sources.params[static_cast<size_t>(table.head)]);
  ASSERT_TRUE(drawn);
  EXPECT_EQ(drawn->distribution, Distribution::Normal);
  EXPECT_FLOAT_EQ(drawn->scale, 1.0f / static_cast<float>(model.hidden + 1));
  EXPECT_EQ(table[table.head].shape, (Shape{1, model.hidden}));
}

TEST(Reward, AConfigurationWithOneLabelIsRead) {
  nlohmann::json config = read_json(models() / "llama" / "config.json");
  config["architectures"] = {"LlamaForSequenceClassification"};
  EXPECT_TRUE(fails_with<UserError>([&] { parse_model_config(config.dump(), "config.json"); }, "one label"));
  config["id2label"] = {{"0", "bad"}, {"1", "good"}};
  EXPECT_TRUE(fails_with<UserError>([&] { parse_model_config(config.dump(), "config.json"); }, "one label"));
  config["id2label"] = {{"0", "LABEL_0"}};
  const ModelSpec spec = parse_model_config(config.dump(), "config.json").spec;
  EXPECT_TRUE(spec.scores);
  EXPECT_EQ(spec.head, "score.weight");
  config["architectures"] = {"LlamaForTokenClassification"};
  EXPECT_TRUE(fails_with<UserError>([&] { parse_model_config(config.dump(), "config.json"); }, "LlamaForCausalLM"));
}

TEST(Reward, AnAdaptersConfigurationSaysThatItsModelGivesScores) {
  PeftConfig config{.rank = 4, .alpha = 8, .target_modules = {"q_proj"}, .modules_to_save = {"score"}, .scores = true};
  const std::string text = write_peft_config(config);
  const auto json = nlohmann::json::parse(text);
  EXPECT_EQ(json["task_type"], "SEQ_CLS");
  EXPECT_EQ(json["modules_to_save"], (nlohmann::json{"classifier", "score"}));
  const PeftConfig read = parse_peft_config(text, "adapter_config.json");
  EXPECT_TRUE(read.scores);
  EXPECT_EQ(read.modules_to_save, config.modules_to_save);
  auto other = json;
  other.erase("modules_to_save");
  EXPECT_TRUE(fails_with<UserError>([&] { parse_peft_config(other.dump(), "adapter_config.json"); }, "score"));
}

}  // namespace
}  // namespace snug
