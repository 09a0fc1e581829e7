// The program on models in all their forms: merged, quantised, with values that are no numbers.
#include <cmath>
#include <cstring>
#include <set>

#include "cli_fixture.h"

namespace snug {
namespace {

TEST_F(Cli, MergedEvaluatesAsBaseAndAdapter) {
  const std::string base = kModels / "llama", adapter = kModels / "llama" / "adapter_qv", data = kModels / "data.jsonl";
  ASSERT_EQ(run({"merge", "--model", base, "--adapter", adapter, "--out", "merged"}).code, 0);
  const Words tail{"--data", data, "--sequence-length", "48", "--compute", "fp32", "--json"};
  Words apart{"eval", "--model", base, "--adapter", adapter}, merged{"eval", "--model", "merged"};
  apart.insert(apart.end(), tail.begin(), tail.end());
  merged.insert(merged.end(), tail.begin(), tail.end());
  EXPECT_NEAR(nlohmann::json::parse(run(apart).out)["loss"], nlohmann::json::parse(run(merged).out)["loss"], 1e-5);
}

// Where the tensors of a safetensors file begin, and what its header says of them.
std::pair<uint64_t, nlohmann::json> header_of(const std::string& file) {
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof(length));
  return {8 + length, nlohmann::json::parse(file.substr(8, length))};
}

TEST_F(Cli, MergedIsStoredAsTheModelIs) {
  const std::string adapter = kModels / "llama" / "adapter_qv";
  const auto merge = [&](const std::string& model, const Words& more, const std::string& out) {
    Words words{"merge", "--model", model, "--adapter", adapter, "--out", out};
    words.insert(words.end(), more.begin(), more.end());
    EXPECT_EQ(run(words).code, 0) << text_of(at("stderr"));
    std::set<std::string> types;
    const auto header = header_of(text_of(at(out) / "model.safetensors")).second;
    for (const auto& [name, tensor] : header.items())
      if (name != "__metadata__") types.insert(tensor["dtype"]);
    return types;
  };
  const std::string fp32 = kModels / "llama";
  EXPECT_EQ(merge(fp32, {}, "wide"), std::set<std::string>{"F32"});
  EXPECT_EQ(merge(fp32, {"--base-format", "bf16"}, "narrow"), std::set<std::string>{"BF16"});
  EXPECT_EQ(merge(fp32, {"--base-format", "int8"}, "quantized"), std::set<std::string>{"F32"});
  EXPECT_EQ(merge(at("narrow"), {"--compute", "fp32"}, "again"), std::set<std::string>{"BF16"});
}

// Byte `at` of a tensor of a model file becomes the first of a float that is no number.
void put_nan(const fs::path& path, const std::string& tensor, size_t at) {
  std::string file = text_of(path);
  const auto [start, header] = header_of(file);
  const uint64_t begin = header[tensor]["data_offsets"][0];
  const float nan = std::nanf("");
  std::memcpy(file.data() + start + begin + at, &nan, sizeof(nan));
  put(path, file);
}

TEST_F(Cli, AWeightThatIsNoNumberIsNamed) {
  fs::copy(kModels / "llama", at("broken"), fs::copy_options::recursive);
  const std::string name = "model.layers.1.mlp.up_proj.weight";
  put_nan(at("broken/model.safetensors"), name, 40);
  for (const Words& more : {Words{},
                            {"--max-grad-norm", "0"},
                            {"--method", "full"},
                            {"--method", "full", "--ranks", "4", "--zero", "3"},
                            {"--base-format", "int8", "--ranks", "2"},
                            {"--base-format", "nf4"},
                            {"--base-format", "fp8"}}) {
    Words words = job("train", {"--overwrite"}, at("broken"));
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.code, 2);
    EXPECT_THAT(outcome.err, HasSubstr("'" + name + "' holds a value that is not finite")) << more.size();
  }
}

TEST_F(Cli, WithoutClippingAStepThatIsNoNumberSaysThatWeightsWereUpdated) {
  fs::copy(kModels / "llama", at("broken"), fs::copy_options::recursive);
  put_nan(at("broken/model.safetensors"), "model.layers.1.mlp.up_proj.weight", 40);
  const Outcome outcome = run(job("train", {"--overwrite", "--method", "full", "--max-grad-norm", "0"}, at("broken")));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("weights were updated before that was known"));
  EXPECT_THAT(outcome.err, HasSubstr("look at the model's files and the data"));
}

TEST_F(Cli, EvaluationNamesTheWeightThatIsNoNumber) {
  fs::copy(kModels / "llama", at("broken"), fs::copy_options::recursive);
  const std::string name = "model.layers.0.mlp.down_proj.weight";
  put_nan(at("broken/model.safetensors"), name, 40);
  const Outcome outcome =
      run({"eval", "--model", "broken", "--data", kModels / "data.jsonl", "--sequence-length", "48"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("'" + name + "' holds a value that is not finite"));
  EXPECT_EQ(outcome.out, "");
}

TEST_F(Cli, AScaleThatIsNoNumberIsNamed) {
  put(at("small.jsonl"), R"({"input_ids": [1, 2, 3], "labels": [1, 2, 3]})");
  const std::string down = "model.layers.0.mlp.down_proj.";
  for (const auto& [model, scale] :
       {std::pair("int8", "SCB"), {"nf4", "weight.nested_absmax"}, {"nf4_single", "weight.absmax"}}) {
    fs::copy(kModels.parent_path() / "bnb" / model, at(model), fs::copy_options::recursive);
    put_nan(at(model) / "model.safetensors", down + scale, 0);
    const Outcome outcome = run({"train", "--model", model, "--data", "small.jsonl", "--sequence-length", "8",
                                 "--batch-size", "1", "--out", "run", "--overwrite"});
    EXPECT_EQ(outcome.code, 2);
    EXPECT_THAT(outcome.err, HasSubstr("'" + down + "weight' holds a value that is not finite"));
  }
}

// What the adapter was trained on is what products saw of the base; merging rounds it once more.
TEST_F(Cli, MergedFromAQuantisedBaseDriftsByARounding) {
  const std::string base = kModels / "llama", adapter = kModels / "llama" / "adapter_qv";
  for (const std::string format : {"int8", "nf4", "fp8"}) {
    const Outcome outcome = run({"merge", "--model", base, "--adapter", adapter, "--out", "merged", "--overwrite",
                                 "--base-format", format, "--compute", "fp32", "--json"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const auto drift = nlohmann::json::parse(outcome.out)["drift"];
    EXPECT_LT(drift["largest"], 1e-3) << format;
    EXPECT_EQ(drift["same_likeliest"], drift["tokens"]);
    EXPECT_FALSE(nlohmann::json::parse(text_of(at("merged/config.json"))).contains("quantization_config"));
  }
}

// Products in fp8: of linears whose sizes are multiples of 16, in fp8 where they are frozen, on cards that have them.
TEST_F(Cli, ProductsInFp8TrainAndSayWhatTheyNeed) {
  const std::string model = kModels / "llama16";
  ASSERT_EQ(run(job("train", {"--compute", "fp8"}, model)).code, 0);
  EXPECT_THAT(text_of(at("run/job.yaml")), AllOf(HasSubstr("compute: fp8"), HasSubstr("base_format: fp8")));
  EXPECT_EQ(run({"eval", "--model", model, "--adapter", "run/adapter", "--data", kModels / "data.jsonl",
                 "--sequence-length", "48", "--compute", "fp8"})
                .code,
            0);
  const auto refused = [&](const Words& more, const std::string& of, const std::string& what) {
    Words words{"--compute", "fp8", "--overwrite"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = run(job("plan", words, of));
    EXPECT_EQ(outcome.code, 2);
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("compute fp8"), HasSubstr(what)));
  };
  refused({"--method", "full", "--sequence-length", "40"}, model, "found 40, expected a multiple of 16");
  refused({"--base-format", "int8"}, model, "found base_format int8, expected fp8");
  refused({}, kModels / "llama", "expected multiples of 16");
  refused({"--machine", "A100-80GB"}, model, "'A100-80GB' has no products in fp8");
  EXPECT_EQ(run(job("plan", {"--compute", "fp8", "--machine", "H100"}, model)).code, 0);
}

TEST_F(Cli, AQuantisedBaseTrainsAndSaysWhatItIs) {
  ASSERT_EQ(run(job("train", {"--base-format", "nf4"})).code, 0);
  EXPECT_THAT(text_of(at("run/job.yaml")), HasSubstr("base_format: nf4"));
  const Outcome full = run(job("train", {"--base-format", "int8", "--method", "full", "--overwrite"}));
  EXPECT_EQ(full.code, 2);
  EXPECT_THAT(full.err, HasSubstr("lora"));
  put(at("small.jsonl"), R"({"input_ids": [1, 2, 3], "labels": [1, 2, 3]})");
  const Outcome other = run(
      {"eval", "--model", kModels.parent_path() / "bnb" / "int8", "--data", "small.jsonl", "--base-format", "bf16"});
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.err, HasSubstr("found bf16, expected int8"));
}

}  // namespace
}  // namespace snug
