// Models as they lie there: by other names, of other formats, with more in their files than the model has.
#include <fmt/format.h>

#include <cstring>

#include "cli_fixture.h"

namespace snug {
namespace {

const fs::path kFixtures = SNUG_FIXTURES;

class Inputs : public Cli {
 protected:
  void SetUp() override { put(at("d.jsonl"), R"({"input_ids": [5, 6, 7, 8, 9], "labels": [5, 6, 7, 8, 9]})"); }

  Words eval(const std::string& model, const Words& more = {}) const {
    return with({"eval", "--model", model, "--data", "d.jsonl", "--sequence-length", "16", "--compute", "fp32",
                 "--device", "cpu", "--threads", "1", "--json"},
                more);
  }

  // A copy of the tiny llama, `m`, whose file holds empty tensors of these names too.
  void add_tensors(const Words& names) const {
    fs::remove_all(at("m"));
    fs::create_directory(at("m"));
    fs::copy(kModels / "llama/config.json", at("m"));
    const std::string file = text_of(kModels / "llama/model.safetensors");
    uint64_t length = 0;
    std::memcpy(&length, file.data(), sizeof(length));
    auto header = nlohmann::json::parse(file.substr(8, length));
    for (const std::string& name : names) header[name] = {{"dtype", "F32"}, {"shape", {0}}, {"data_offsets", {0, 0}}};
    const std::string text = header.dump();
    const uint64_t bytes = text.size();
    std::string written(8, '\0');
    std::memcpy(written.data(), &bytes, sizeof(bytes));
    put(at("m/model.safetensors"), written + text + file.substr(8 + length));
  }

  void set_config(const std::string& key, const nlohmann::json& value) const {
    auto config = nlohmann::json::parse(text_of(at("m/config.json")));
    config[key] = value;
    put(at("m/config.json"), config.dump());
  }
  // What `snug tokenize --text` says of a line on its standard input.
  Outcome cut_text(const Words& more) const {
    const Words words{"-c", "echo a b | \"$0\" tokenize --text \"$@\"", SNUG_BINARY};
    const Outcome outcome = finish(start(with(words, more), "/bin/sh"));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome;
  }
};

// The pickled weights and the shards hold the same numbers; both were written by their own libraries.
TEST_F(Inputs, PickledWeightsAreReadAsSafetensorsAre) {
  const Outcome shards = run(eval(kFixtures / "safetensors/sharded"));
  ASSERT_EQ(shards.code, 0) << shards.err;
  fs::create_directory(at("m"));
  fs::copy(kFixtures / "safetensors/sharded/config.json", at("m"));
  fs::copy(kFixtures / "torch/model/pytorch_model.bin", at("m"));
  const Outcome pickled = run(eval("m"));
  ASSERT_EQ(pickled.code, 0) << pickled.err;
  EXPECT_EQ(pickled.out, shards.out);
  EXPECT_THAT(pickled.err, HasSubstr("note: m/pytorch_model.bin: pickled, read as tensors and nothing else"));
  fs::copy_file(kFixtures / "torch/runs.bin", at("m/pytorch_model.bin"), fs::copy_options::overwrite_existing);
  expect_refusal(eval("m"), {"m/pytorch_model.bin", "the global 'posix.system'"});
}

TEST_F(Inputs, AGgufFileIsImportedOnceToTheCache) {
  const std::string file = kFixtures / "gguf/smollm.gguf";
  ASSERT_EQ(run({"import", file, "--out", "made"}).code, 0);
  const Outcome made = run(eval("made"));
  ASSERT_EQ(made.code, 0) << made.err;
  const Outcome first = run(eval(file, {"--cache-dir", "cache"})), second = run(eval(file, {"--cache-dir", "cache"}));
  EXPECT_EQ(first.out, made.out);
  EXPECT_EQ(second.out, made.out);
  EXPECT_THAT(first.err, HasSubstr("imports it to cache/gguf-"));
  EXPECT_THAT(second.err, HasSubstr("lies in cache/gguf-"));
  EXPECT_THAT(second.err, ::testing::Not(HasSubstr("imports it")));
  put(at("no.gguf"), "GGUF" + std::string(60, '\0'));
  expect_refusal(eval("no.gguf", {"--cache-dir", "cache"}), {"--model no.gguf: cannot import it: ", "version"});
}

TEST_F(Inputs, EveryCommandThatTakesAModelTakesAGgufFile) {
  const std::string file = kFixtures / "gguf/smollm.gguf";
  const auto takes = [&](Words words) {
    words.insert(words.end(), {"--model", file, "--cache-dir", "cache"});
    EXPECT_EQ(run(words).code, 0) << words[0] << ": " << text_of(at("stderr"));
  };
  put(at("text.txt"), "a b\n");
  for (const char* command : {"plan", "train"})
    takes({command, "--data", "text.txt", "--sequence-length", "32", "--out", "trained"});
  for (const char* command : {"eval", "tokenize"}) takes({command, "--data", "text.txt", "--sequence-length", "32"});
  EXPECT_THAT(cut_text({"--model", file, "--cache-dir", "cache", "--json"}).out, StartsWith("{\"ids\":["));
  takes({"generate", "--prompt", "a", "--max-new-tokens", "1"});
  takes({"merge", "--adapter", "trained/adapter", "--out", "merged"});
  takes({"export", "--out", "exported"});
}

TEST_F(Inputs, WhatIsRefusedIsSaidAlone) {
  fs::create_directory(at("m"));
  fs::copy(kFixtures / "gguf/smollm.tokenizer.json", at("m/tokenizer.json"));
  fs::copy(kModels / "llama/config.json", at("m"));
  put(at("d.jsonl"), R"({"text": "a"})");
  const Words words{"tokenize", "--model", "m", "--data", "d.jsonl", "--sequence-length", "100000"};
  const Outcome shown = run_well(words);
  EXPECT_THAT(shown.err, HasSubstr("--sequence-length 100000 changes nothing"));
  expect_refusal(with(words, {"--template", "none-such"}), {"template"});
  put(at("d.jsonl"), R"({"txt": "a"})");
  expect_refusal(words, {"d.jsonl"});
}

TEST_F(Inputs, PreferencesAreShownAsTheObjectiveHasThem) {
  fs::create_directory(at("m"));
  fs::copy(kFixtures / "tokenizer/smollm/tokenizer.json", at("m/tokenizer.json"));
  fs::copy(kModels / "llama/config.json", at("m"));
  std::string config = text_of(at("m/config.json"));
  config.replace(config.find("997"), 3, "9970");  // the tokenizer has more tokens than this model
  put(at("m/config.json"), config);
  put(at("d.jsonl"), R"({"prompt": "Once", "chosen": " upon", "rejected": " there", "margin": 0.5})");
  const auto shown = [&](const char* objective, const Words& more = {}) {
    return run_well(with({"tokenize", "--model", "m", "--data", "d.jsonl", "--objective", objective}, more));
  };
  const std::string chosen = R"({"ids":[1771,1772,2595],"mask":[0,0,1]})",
                    rejected = R"({"ids":[1771,1772,1001],"mask":[0,0,1]})";
  const std::string pair = R"("chosen":)" + chosen + R"(,"rejected":)" + rejected;
  EXPECT_EQ(shown("dpo", {"--json"}).out, "{" + pair + "}\n");
  EXPECT_EQ(shown("reward", {"--json"}).out, "{" + pair + ",\"margin\":0.5}\n");
  const auto labelled = [](std::string one, const char* label) {
    one.pop_back();
    return one + ",\"label\":" + label + "}\n";
  };
  EXPECT_EQ(shown("kto", {"--json"}).out, labelled(chosen, "true") + labelled(rejected, "false"));
  const std::string prompt = "1771\t0\t\"On\"\n1772\t0\t\"ce\"\n";
  EXPECT_EQ(shown("reward").out,
            "chosen\n" + prompt + "2595\t1\t\" upon\"\nrejected\n" + prompt + "1001\t1\t\" there\"\nmargin\t0.5\n\n");
  EXPECT_THAT(shown("kto").out, ::testing::AllOf(StartsWith("desirable\n1771"), HasSubstr("\n\nundesirable\n1771")));
  const Words tokenize{"tokenize", "--model", "m", "--data", "d.jsonl"};
  expect_refusal(tokenize, {"d.jsonl, line 1, key 'chosen'",
                            "--objective sft or distill: dpo, orpo, simpo and reward learn from pairs"});
  expect_refusal(with(tokenize, {"--objective", "dpo", "--train-on", "all"}),
                 {"train_on: found all with --objective dpo"});
  expect_refusal(with(tokenize, {"--objective", "ppo"}), {"objective: found 'ppo'", "sft, dpo, orpo, simpo, kto"});
}

TEST_F(Inputs, RefusalsOfFilesAndTokenizersSayWhatHelps) {
  const std::string file = kFixtures / "gguf/smollm.gguf";
  std::string bytes = text_of(file);
  put(at("short.gguf"), bytes.substr(0, bytes.size() - 4096));
  expect_refusal(eval("short.gguf", {"--cache-dir", "cache"}),
                 {"short.gguf", "; fetch the file again, or have llama.cpp's tools make another one"});
  const std::string name = "llama";
  const size_t architecture = bytes.find(name, bytes.find("general.architecture"));
  bytes.replace(architecture, name.size(), "lemma");
  put(at("other.gguf"), bytes);
  for (const Words& words :
       {eval("other.gguf", {"--cache-dir", "cache"}), Words{"import", "other.gguf", "--out", "run"}})
    expect_refusal(words,
                   {"'general.architecture'", "\"lemma\"",
                    "; --model also takes the directory in Hugging Face's layout from which such a file was made"});
  fs::create_directory(at("m"));
  fs::copy(kModels / "llama/config.json", at("m"));
  put(at("m/tokenizer.json"), R"({"version": "1.0", "model": {"type": "Unigram"}})");
  expect_refusal(eval("m"), {"m/tokenizer.json, key 'model.type'", "needs no tokenizer (--data-format tokens)"});
}

TEST_F(Inputs, TextIsCutByADirectoryThatHasATokenizerAlone) {
  fs::create_directory(at("m"));
  fs::copy(kFixtures / "gguf/smollm.tokenizer.json", at("m/tokenizer.json"));
  EXPECT_THAT(cut_text({"--model", "m", "--json"}).out, StartsWith("{\"ids\":["));
  fs::remove(at("m/tokenizer.json"));
  expect_refusal({"tokenize", "--model", "m", "--text"}, {"m: is empty", "config.json"});
}

// Those of tests/fixtures/quantized, with the losses that transformers finds.
class Quantized : public Inputs {
 protected:
  void SetUp() override {
    const auto ids = reference_["ids"].dump();
    put(at("d.jsonl"), fmt::format(R"({{"input_ids": {}, "labels": {}}})", ids, ids));
  }
  void copy_model(const std::string& name) const {
    fs::create_directory(at("m"));
    for (const char* file : {"config.json", "model.safetensors"}) fs::copy(models_ / name / file, at("m"));
  }
  Words with_cache(const Words& words) const { return with(words, {"--cache-dir", "cache"}); }
  Words train(const std::string& model, const Words& more) const {
    return with_cache(
        with({"train", "--model", model, "--data", "d.jsonl", "--sequence-length", "24", "--batch-size", "1",
              "--max-steps", "2", "--threads", "1", "--compute", "fp32", "--out", "run", "--overwrite"},
             more));
  }

  const fs::path models_ = kFixtures / "quantized";
  const nlohmann::json reference_ = nlohmann::json::parse(text_of(models_ / "reference.json"));
};

TEST_F(Quantized, ModelsAreImportedOnceToTheCacheAndHaveTransformersLosses) {
  for (const auto& [name, loss] : reference_["loss"].items()) {
    const std::string model = models_ / name;
    const Outcome first = run(with_cache(eval(model, {"--sequence-length", "24"})));
    ASSERT_EQ(first.code, 0) << first.err;
    EXPECT_NEAR(nlohmann::json::parse(first.out)["loss"], static_cast<double>(loss), 1e-5) << name;
    EXPECT_THAT(first.err, HasSubstr("imports it to cache/"));
    EXPECT_THAT(first.err, HasSubstr(" are written in bf16"));
    const Outcome second = run(with_cache(eval(model, {"--sequence-length", "24"})));
    EXPECT_EQ(second.out, first.out);
    EXPECT_THAT(second.err, HasSubstr("lies in cache/"));
    EXPECT_THAT(second.err, ::testing::Not(HasSubstr("imports it")));
    EXPECT_THAT(second.err, HasSubstr(" are written in bf16"));
  }
}

TEST_F(Quantized, AnAdaptersModelfileNamesTheBaseAsItWasGiven) {
  const Outcome trained = run(with(train(models_ / "gptq4", {}), {"--lora-rank", "2"}));
  ASSERT_EQ(trained.code, 0) << trained.err;
  const Outcome outcome = run(with_cache(
      {"export", "--model", models_ / "gptq4", "--adapter", "run/adapter", "--out", "lora", "--format", "adapter"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(text_of(at("lora/Modelfile")), StartsWith("FROM " + (models_ / "gptq4").string() + "\n"));
  EXPECT_THAT(outcome.err, HasSubstr("gptq4, whose weights are quantised; where Ollama does not read them, export"));
}

TEST_F(Quantized, EveryCommandSaysThatCodesPassThroughBf16IntoWhatTheBaseIsKeptIn) {
  const std::string gptq = models_ / "gptq4", fp8 = models_ / "fp8_block";
  const auto said = [&](const std::string& model, const std::string& format) {
    return run(with_cache(eval(model, {"--sequence-length", "24", "--base-format", format}))).err;
  };
  for (int i = 0; i < 2; i++) {  // imported, and found in the cache
    EXPECT_THAT(
        said(gptq, "int8"),
        HasSubstr("7 of 15 tensors ('model.layers.0.self_attn.q_proj.weight') are stored in bf16, to which " + gptq +
                  " in gptq, 4 bits, groups of 16 was rounded, by 1 in 512 at most, and kept "
                  "in int8: a number differs by at most 1 in 254 of the largest in its row"));
    EXPECT_THAT(said(fp8, "fp8"), HasSubstr(" in fp8, e4m3, blocks of 16 x 16 was rounded, by 1 in 512 at most, and "
                                            "kept in fp8: a number differs by at most 1 in 16 of itself"));
  }
}

TEST_F(Quantized, CodesOfWhichConfigJsonSaysNothingAreNamedWithTheKey) {
  const std::string q = "model.layers.0.self_attn.q_proj.";
  const std::map<std::string, std::string> found{
      {"gptq4", fmt::format("'{0}qweight', '{0}qzeros', '{0}scales', '{0}g_idx', codes of '{0}weight'", q)},
      {"packed4", fmt::format("'{0}weight_packed', '{0}weight_scale', '{0}weight_shape', codes of '{0}weight'", q)},
      {"fp8_block", fmt::format("'{0}weight' of F8_E4M3, '{0}weight_scale_inv', codes of '{0}weight'", q)},
      {"float_channel", fmt::format("'{0}weight' of F8_E4M3, '{0}weight_scale', codes of '{0}weight'", q)}};
  for (const auto& [name, codes] : found) {
    fs::remove_all(at("m"));
    copy_model(name);
    set_config("quantization_config", nullptr);
    expect_refusal(with_cache(eval("m")), {"m/model.safetensors: found " + codes,
                                           "config.json needs the key 'quantization_config'", "quantize_config.json"});
    expect_refusal({"import", "m", "--out", "run"},
                   {"m/config.json: found no 'quantization_config', and '", "config.json needs the key"});
  }
  fs::remove_all(at("m"));
  copy_model("gptq4");
  fs::copy(models_ / "gptq4/expected.safetensors", at("m/model.safetensors"), fs::copy_options::overwrite_existing);
  set_config("quantization_config", nullptr);
  expect_refusal({"import", "m", "--out", "run"}, {"expected a model in fewer bits: others are read as they are"});
}

TEST_F(Quantized, ABiasThatTheModelHasNoPlaceForIsPassedOverIfItIsZero) {
  copy_model("awq");
  set_config("attention_bias", false);
  const Outcome refused = run(with_cache(eval("m", {"--sequence-length", "24"})));
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("'model.layers.0.self_attn.k_proj.bias', which config.json has no place for"));
  std::string file = text_of(at("m/model.safetensors"));
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof(length));
  const auto header = nlohmann::json::parse(file.substr(8, length));
  for (const auto& [name, entry] : header.items()) {
    if (!name.ends_with(".bias")) continue;
    const size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
    file.replace(8 + length + begin, end - begin, end - begin, '\0');
  }
  put(at("m/model.safetensors"), file);
  const Outcome outcome = run(with_cache(eval("m", {"--sequence-length", "24"})));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err,
              HasSubstr("passed over, a bias of zeros: 'model.layers.0.self_attn.k_proj.bias' and 3 more"));
}

TEST_F(Quantized, AnImportedModelTrainsAsAPlainOne) {
  const std::string model = models_ / "gptq4_order";
  ASSERT_EQ(run({"import", model, "--out", "plain"}).code, 0);
  for (const Words& more : {Words{"--method", "lora"}, {"--method", "full"}, {"--base-format", "nf4"}}) {
    const Outcome here = run(train(model, more));
    ASSERT_EQ(here.code, 0) << here.err;
    const std::vector<double> found = losses("run");
    const double tolerance = more[0] == "--method" ? 1e-5 : 0.1;  // nf4 rounds once more
    EXPECT_NEAR(found[0], reference_["loss"]["gptq4_order"], tolerance);
    EXPECT_THAT(text_of(at("run/job.yaml")), HasSubstr("model: " + model + "\n"));
    ASSERT_EQ(run(train("plain", more)).code, 0);
    EXPECT_EQ(found, losses("run"));
  }
}

TEST_F(Quantized, ImportRefusesAFamilyThatIsNotReadAndWhatItWouldReplace) {
  copy_model("awq");
  set_config("model_type", "deepseek_v3");
  expect_refusal({"import", "m", "--out", "made"}, {"m/config.json, key 'model_type': found \"deepseek_v3\""});
  expect_refusal(with_cache(eval("m")), {"--model m: cannot import it: m/config.json, key 'model_type'"});
  set_config("model_type", "llama");
  expect_refusal({"import", "m", "--out", "m", "--overwrite"}, {"m: is read by this command"});
  set_config("quantization_config", {{"quant_method", "gptq"}, {"bits", 3}});
  expect_refusal(with_cache(eval("m")), {"cannot import it: m/config.json, key 'quantization_config.bits'"});
  EXPECT_FALSE(fs::exists(at("made")));
  EXPECT_TRUE(fs::is_regular_file(at("m/model.safetensors")));
}

// Neither needs the values of weights.
TEST_F(Quantized, TokensAndPlansFromTheConfigAloneNeedNoImport) {
  copy_model("fp8_block");
  fs::copy(kFixtures / "gguf/smollm.tokenizer.json", at("m/tokenizer.json"));
  const Outcome tokens = run(with_cache({"tokenize", "--model", "m", "--data", "d.jsonl", "--json"}));
  EXPECT_EQ(tokens.code, 0) << tokens.err;
  const auto plan = [&] {
    return run(with_cache({"plan", "--model", "m", "--sequence-length", "24", "--device", "cpu", "--json"}));
  };
  fs::remove(at("m/model.safetensors"));
  const Outcome alone = plan();
  ASSERT_EQ(alone.code, 0) << alone.err;
  EXPECT_THAT(alone.err, HasSubstr("quantised by fp8: read as the plain model that 'snug import' makes of it"));
  EXPECT_FALSE(fs::exists(at("cache")));
  fs::copy(models_ / "fp8_block/model.safetensors", at("m"));
  const auto weights = [](const Outcome& outcome) { return nlohmann::json::parse(outcome.out)["classes"]["weights"]; };
  EXPECT_EQ(weights(plan()), weights(alone));
}

TEST_F(Inputs, AnIdOfTheHubStaysOneInWhatARunWrites) {
  const fs::path snapshot = at("hub/models--maker--tiny/snapshots/1a2b");
  fs::create_directories(snapshot);
  for (const char* name : {"config.json", "model.safetensors"}) fs::copy(kModels / "llama" / name, snapshot);
  const auto here = [&](const Words& words) {
    return finish(start(words, SNUG_BINARY, [] { return setenv("HF_HUB_CACHE", "hub", 1) == 0; }));
  };
  expect_refusal(eval("maker/other"), {"maker/other", "hf download maker/other"});
  const Outcome outcome = here(job("train", {"--max-steps", "1"}, "maker/tiny"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("--model maker/tiny lies in hub/models--maker--tiny/snapshots/1a2b"));
  EXPECT_THAT(text_of(at("run/job.yaml")), HasSubstr("model: maker/tiny\n"));
  const auto adapter = nlohmann::json::parse(text_of(at("run/adapter/adapter_config.json")));
  EXPECT_EQ(adapter["base_model_name_or_path"], "maker/tiny");
  const Outcome more = here({"train", "--out", "run", "--resume", "--max-steps", "2"});
  EXPECT_EQ(more.code, 0) << more.err;
}

TEST_F(Inputs, TensorsThatChangeNothingPassWithANote) {
  const std::string next = "model.layers.2.";  // behind the last
  const std::pair<Words, const char*> cases[] = {
      {{"model.layers.0.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"},
       "what rotary embeddings are computed from: 'model.layers.0.self_attn.rotary_emb.inv_freq' and 1 more"},
      {{"mtp.layers.0.mlp.up_proj.weight"}, "layers that predict further tokens"},
      {{next + "eh_proj.weight", next + "mlp.up_proj.weight"}, "layers that predict further tokens"},
      {{"model.layers.1.mlp.up_proj.SCB", "model.layers.1.mlp.up_proj.weight.absmax"},
       "what a quantised model has beside its weights"}};
  const Outcome plain = run(eval(kModels / "llama"));
  for (const auto& [names, note] : cases) {
    add_tensors(names);
    const Outcome outcome = run(eval("m"));
    EXPECT_EQ(outcome.out, plain.out) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(std::string("note: passed over, ") + note));
  }
}

TEST_F(Inputs, OtherTensorsWithoutAPlaceAreRefused) {
  for (const char* name : {"model.layers.2.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.bias", "score.weight",
                           "model.layers.1.mlp.up_proj.weight_scale"}) {
    add_tensors({name});
    expect_refusal(eval("m"), {name, "no place for"});
  }
  add_tensors({"model.layers.2.mlp.up_proj.weight"});
  set_config("num_nextn_predict_layers", 1);
  EXPECT_EQ(run(eval("m")).code, 0) << "a layer that predicts further tokens, as config.json says";
}

TEST_F(Inputs, WhatTheIndexNamesAndNobodyNeedsMayBeMissing) {
  fs::copy(kFixtures / "safetensors/sharded", at("m"));
  const std::string name = "model.safetensors.index.json";
  auto index = nlohmann::json::parse(text_of(at("m") / name));
  index["weight_map"]["model.extra.weight"] = "model-00004-of-00004.safetensors";
  put(at("m") / name, index.dump());
  const Outcome outcome = run(eval("m"));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("named by the index alone: 'model.extra.weight'"));
  index["weight_map"]["model.norm.weight"] = "model-00004-of-00004.safetensors";
  put(at("m") / name, index.dump());
  expect_refusal(eval("m"), {"'model.norm.weight' is missing", "'model-00004-of-00004.safetensors', which is missing"});
}

// As AutoModel saves one: without the head, which is the embedding, and without "model." before the names.
TEST_F(Inputs, ABaseModelWhoseHeadIsItsEmbeddingIsReadAndWrittenAsItLies) {
  fs::copy(kModels / "llama_bias", at("m"), fs::copy_options::recursive);
  const auto loss = [&](const std::string& model) {
    const Outcome outcome = run(eval(model));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.code == 0 ? nlohmann::json::parse(outcome.out)["loss"].get<double>() : 0;
  };
  const double whole = loss("m");
  const std::string file = text_of(at("m/model.safetensors"));
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof(length));
  nlohmann::json bare;
  const auto header = nlohmann::json::parse(file.substr(8, length));
  for (const auto& [name, entry] : header.items()) bare[name.starts_with("model.") ? name.substr(6) : name] = entry;
  bare.erase("lm_head.weight");
  const std::string text = bare.dump();
  const uint64_t bytes = text.size();
  std::string written(8, '\0');
  std::memcpy(written.data(), &bytes, sizeof(bytes));
  put(at("m/model.safetensors"), written + text + file.substr(8 + length));
  set_config("architectures", {"LlamaModel"});
  EXPECT_EQ(loss("m"), whole);
  EXPECT_THAT(text_of(at("stderr")),
              HasSubstr("m: names of tensors lack 'model.', as a base model is saved: they are"));
  const Outcome trained =
      run({"train", "--model",         "m", "--data",       "d.jsonl", "--method",          "full", "--max-steps",
           "1",     "--learning-rate", "0", "--batch-size", "1",       "--sequence-length", "16",   "--compute",
           "fp32",  "--threads",       "1", "--out",        "run"});
  EXPECT_EQ(trained.code, 0) << trained.err;
  EXPECT_THAT(text_of(at("run/model/model.safetensors")), HasSubstr("\"embed_tokens.weight\""));
  EXPECT_EQ(loss("run/model"), whole);
  EXPECT_EQ(run({"merge", "--model", "run", "--checkpoint", "last", "--out", "last", "--cache-dir", "cache"}).code, 0)
      << text_of(at("stderr"));
  EXPECT_EQ(loss("last"), whole);
}

TEST_F(Inputs, OtherWeightsBesideThoseThatAreReadAreNamed) {
  add_tensors({});
  put(at("m/pytorch_model.bin"), "");
  EXPECT_THAT(
      run(eval("m")).err,
      HasSubstr("note: m: weights are read of model.safetensors; passed over beside it: 'pytorch_model.bin'\n"));
}

TEST_F(Inputs, WhatAShellMadeOfAPatternIsSaidToBeData) {
  const Words train{"train", "--model", kModels / "llama", "--out", "run", "--data", "d.jsonl"};
  for (const Words& more : {Words{"e.jsonl"}, Words{"e.jsonl", "f.jsonl"}, Words{"e.jsonl", "--epochs", "1"}})
    expect_refusal(with(train, more), {"command line: found the data file '", "several data files are --data A,B"});
  expect_refusal({"generate", "--model", kModels / "llama", "--max-length", "5"}, {"here it is 'max_new_tokens'"});
  expect_refusal({"tokenize", "--model", kModels / "llama", "--text", "--data", "d.jsonl"},
                 {"--text reads standard input: found --data d.jsonl beside it, expected one of them"});
}

TEST_F(Inputs, ARunDoesNotLieAmongWhatItReads) {
  add_tensors({});
  expect_refusal({"train", "--model", "m", "--out", "m", "--data", "d.jsonl"},
                 {"--out: found 'm', which is the directory of --model, expected one for the run alone"});
  fs::create_directory(at("d"));
  fs::copy(at("d.jsonl"), at("d"));
  expect_refusal({"train", "--model", "m", "--out", "d/../d", "--data", "d"}, {"which is the directory of --data"});
}

TEST_F(Inputs, DropoutOfTheModelIsNamedWhereItTrains) {
  add_tensors({});
  set_config("attention_dropout", 0.25);
  const Outcome evaluated = run(eval("m"));
  EXPECT_EQ(evaluated.code, 0);
  EXPECT_THAT(evaluated.err, ::testing::Not(HasSubstr("dropout")));
  const Outcome trained = run(job("train", {"--max-steps", "1"}, "m"));
  EXPECT_EQ(trained.code, 0) << trained.err;
  EXPECT_THAT(trained.err, HasSubstr("config.json asks for attention_dropout 0.25, which is not applied"));
}

}  // namespace
}  // namespace snug
