// Tokens that a run adds to its model: their rows, what is written, and what is refused.
#include "base/rng.h"
#include "format/tokenizer.h"
#include "stored_tensors.h"

namespace snug {
namespace {

constexpr int64_t kHidden = 72, kStored = 2612, kFirst = 2610;  // the embedding has two rows more than tokens

class NewTokenRun : public Cli {
 protected:
  void SetUp() override {
    make_model(false);
    std::string lines;
    for (int i = 0; i < 8; i++)
      lines += nlohmann::json{{"messages",
                               {{{"role", "user"}, {"content", "<|turn|>say " + std::to_string(i)}},
                                {{"role", "assistant"}, {"content", "<think>a bit</think>one"}}}}}
                   .dump() +
               "\n";
    put(at("d.jsonl"), lines);
  }

  // Makes a model of the llama fixture's shape with a tokenizer, its numbers from a seed.
  void make_model(bool tied) const {
    fs::remove_all(at("model"));
    fs::copy(kModels.parent_path() / "tokenizer" / "smollm", at("model"));
    auto config = nlohmann::json::parse(text_of(kModels / "llama" / "config.json"));
    config["vocab_size"] = kStored;
    config["tie_word_embeddings"] = tied;
    put(at("model/config.json"), config.dump());
    StoredTensors tensors = read_model(kModels / "llama");
    const Random random(7, RandomPurpose::Sampling);
    uint64_t drawn = 0;
    for (const char* name : {"model.embed_tokens.weight", "lm_head.weight"}) {
      std::vector<float> values(kStored * kHidden);
      for (float& value : values)
        value =
            static_cast<float>(random.below(drawn++, 1000)) / 5000 - 0.10005f;  // never 0, which any step would change
      tensors[name] = stored_as("F32", {kStored, kHidden}, values);
    }
    if (tied) tensors.erase("lm_head.weight");
    write_stored(at("model/model.safetensors"), tensors);
  }

  Words command(const std::string& name, const Words& more = {}) const {
    return with({name, "--model", "model", "--data", "d.jsonl", "--template", "chatml", "--sequence-length", "96",
                 "--threads", "1", "--compute", "fp32", "--cache-dir", "cache"},
                more);
  }
  Words train(const std::string& out, const Words& more = {}) const {
    return command("train", with({"--out", out, "--max-steps", "2", "--batch-size", "4", "--schedule", "constant",
                                  "--add-tokens", "<think>,</think>", "--add-special-tokens", "<|turn|>,<|end|>"},
                                 more));
  }
  // Returns a row of a matrix.
  static std::vector<float> row(const StoredTensor& matrix, int64_t index) {
    const std::vector<float> all = numbers_of(matrix);
    return {all.begin() + index * kHidden, all.begin() + (index + 1) * kHidden};
  }
  StoredTensors adapter_of(const std::string& run) const {
    return read_stored(at(run) / "adapter/adapter_model.safetensors");
  }
  double loss_of(const Words& more) const {
    return nlohmann::json::parse(run_well(command("eval", with({"--json"}, more))).out)["loss"];
  }
};

const std::string kEmbedding = "base_model.model.model.embed_tokens.weight", kHead = "base_model.model.lm_head.weight";

TEST_F(NewTokenRun, RowsBeginAsTheMeanOfThoseThatTheTextWasBefore) {
  const Outcome outcome = run_well(train("run", {"--learning-rate", "1e-30"}));
  EXPECT_THAT(outcome.err, HasSubstr("new tokens: '<think>' (2610), '</think>' (2611), '<|turn|>' (2612), '<|end|>' "
                                     "(2613)"));
  const StoredTensors before = read_model(at("model")), after = adapter_of("run");
  const Tokenizer tokenizer = Tokenizer::load(at("model"));
  for (const auto& [name, base] : {std::pair{kEmbedding, "model.embed_tokens.weight"}, {kHead, "lm_head.weight"}}) {
    const StoredTensor& grown = after.at(name);
    EXPECT_EQ(grown.shape, (std::vector<int64_t>{kFirst + 4, kHidden}));
    for (int64_t i = 0; i < kFirst; i++) ASSERT_EQ(row(grown, i), row(before.at(base), i)) << i;
    int64_t next = kFirst;
    for (const char* text : {"<think>", "</think>", "<|turn|>", "<|end|>"}) {
      const std::vector<int32_t> pieces = tokenizer.encode(text);
      std::vector<double> sums(kHidden);
      for (const int32_t piece : pieces)
        for (size_t k = 0; k < sums.size(); k++) sums[k] += static_cast<double>(row(before.at(base), piece)[k]);
      std::vector<float> means;
      for (const double sum : sums) means.push_back(static_cast<float>(sum / static_cast<double>(pieces.size())));
      EXPECT_EQ(row(grown, next++), means) << text;
    }
  }
}

TEST_F(NewTokenRun, AnAdapterHasItsTokenizerAndIsEvaluatedAndMerged) {
  run_well(train("run", {"--learning-rate", "1e-2"}));
  const StoredTensors trained = adapter_of("run"), before = read_model(at("model"));
  EXPECT_NE(row(trained.at(kEmbedding), kFirst), row(before.at("model.embed_tokens.weight"), kFirst));
  const auto config = nlohmann::json::parse(text_of(at("run/adapter/adapter_config.json")));
  EXPECT_EQ(config["modules_to_save"], (nlohmann::json{"embed_tokens", "lm_head"}));
  const Tokenizer tokenizer = Tokenizer::load(at("run/adapter"));
  EXPECT_EQ(tokenizer.encode("<think><|end|>"), (std::vector<int32_t>{kFirst, kFirst + 3}));
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{kFirst, kFirst + 3}, true), "<think>");
  const auto tokens_with = [&](const Words& more) {
    return run_well(with({"tokenize", "--model", "model", "--data", "d.jsonl", "--template", "chatml", "--json"}, more))
        .out;
  };
  const std::string tokens = tokens_with({"--adapter", "run/adapter"});
  EXPECT_THAT(tokens, HasSubstr("2610"));
  EXPECT_EQ(tokens_with({"--add-tokens", "<think>,</think>", "--add-special-tokens", "<|turn|>,<|end|>"}), tokens);
  EXPECT_THAT(run_well(command("eval", {"--adapter", "run/adapter"})).err, testing::Not(HasSubstr("other weights")));
  const double loss = loss_of({"--adapter", "run/adapter"});
  run_well({"merge", "--model", "model", "--adapter", "run/adapter", "--out", "merged", "--compute", "fp32"});
  EXPECT_NEAR(loss_of({"--model", "merged"}), loss, 1e-5);
  EXPECT_EQ(nlohmann::json::parse(text_of(at("merged/config.json")))["vocab_size"], kFirst + 4);
  EXPECT_EQ(Tokenizer::load(at("merged")).next_id(), kFirst + 4);
}

TEST_F(NewTokenRun, NoBitDependsOnWhereTheRowsLieOrOnAPause) {
  const Words ranks{"--ranks", "2", "--max-steps", "4"};
  run_well(train("whole", with(ranks, {"--zero", "0"})));
  run_well(train("parts", with(ranks, {"--zero", "3", "--offload-states", "host"})));
  run_well(train("resumed", {"--ranks", "2", "--zero", "3"}));
  fs::remove_all(at("cache"));
  run_well(train("resumed", with(ranks, {"--zero", "3", "--resume", "true"})));
  EXPECT_EQ(adapter_of("parts"), adapter_of("whole"));
  EXPECT_EQ(adapter_of("resumed"), adapter_of("whole"));
  EXPECT_EQ(loss_of({"--adapter", "resumed", "--checkpoint", "last"}), loss_of({"--adapter", "whole/adapter"}));
}

TEST_F(NewTokenRun, ATiedHeadStaysTheEmbedding) {
  make_model(true);
  run_well(train("run", {"--learning-rate", "1e-2"}));
  const StoredTensors trained = adapter_of("run");
  EXPECT_EQ(trained.at(kEmbedding), trained.at(kHead));  // as PEFT saves one matrix
  const auto config = nlohmann::json::parse(text_of(at("run/adapter/adapter_config.json")));
  EXPECT_EQ(config["ensure_weight_tying"], true);
  EXPECT_GT(loss_of({"--adapter", "run/adapter"}), 0);
}

TEST_F(NewTokenRun, AWholeModelIsWrittenWithThem) {
  run_well(train("run", {"--method", "full", "--learning-rate", "1e-3"}));
  EXPECT_EQ(read_model(at("run/model")).at("lm_head.weight").shape, (std::vector<int64_t>{kFirst + 4, kHidden}));
  EXPECT_EQ(nlohmann::json::parse(text_of(at("run/model/config.json")))["vocab_size"], kFirst + 4);
  EXPECT_EQ(Tokenizer::load(at("run/model")).encode("<think>"), (std::vector<int32_t>{kFirst}));
  EXPECT_EQ(loss_of({"--model", "run", "--checkpoint", "last"}), loss_of({"--model", "run/model"}));
}

TEST_F(NewTokenRun, WhatCannotBeIsRefused) {
  expect_refusal(train("run", {"--add-tokens", std::string(1025, 'a')}), {"add_tokens", "1 to 1024"});
  expect_refusal(train("run", {"--method", "full", "--freeze", "embed_tokens"}),
                 {"add_tokens: 'model.embed_tokens.weight' is not trained"});
  run_well(train("done"));
  expect_refusal(train("run", {"--adapter", "done/adapter"}), {"add_tokens", "--adapter", "merge"});
  fs::remove(at("model/tokenizer.json"));
  expect_refusal(train("run"), {"found neither tokenizer.json nor tokenizer.model"});
}

}  // namespace
}  // namespace snug
