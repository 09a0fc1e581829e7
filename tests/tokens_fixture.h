// A job whose data is just large enough for its token ids to be kept.
#pragma once

#include "cli_fixture.h"

namespace snug {

inline constexpr const char* kKept = "token ids are kept for later runs in cache/tokens/";
inline constexpr const char* kUsed = "token ids are those that an earlier run has kept in cache/tokens/";

class Tokens : public Cli {
 protected:
  // A model with a tokenizer, and data that is just large enough to be kept.
  void SetUp() override {
    fs::copy(kModels.parent_path() / "tokenizer" / "smollm", at("model"));
    auto config = nlohmann::json::parse(text_of(kModels / "llama" / "config.json"));
    config["vocab_size"] = 2620;
    put(at("model/config.json"), config.dump());
    std::string texts;
    for (int i = 0; texts.size() < (16u << 20); i++)
      texts += R"({"messages": [{"role": "user", "content": "a)" + std::to_string(i) +
               R"("}, {"role": "assistant", "content": "aaa"}], "foo": ")" + std::string(4000, 'a') + "\"}\n";
    put(at("d.jsonl"), texts);
  }

  Words command(const std::string& name, const Words& more = {}) const {
    return with({name, "--model", "model", "--init", "random", "--data", "d.jsonl", "--template", "chatml",
                 "--sequence-length", "64", "--threads", "1", "--compute", "fp32", "--cache-dir", "cache"},
                more);
  }
  Words train(const std::string& out, const Words& more = {}) const {
    return command("train", with({"--out", out, "--max-steps", "2", "--batch-size", "4", "--validation", "0.5",
                                  "--eval-every", "0", "--max-samples", "20000"},
                                 more));
  }
  // Without the lines of the cache itself.
  static std::string other_lines(const Outcome& outcome) {
    std::string others;
    std::istringstream lines(outcome.err);
    for (std::string line; std::getline(lines, line);)
      if (line.find("/tokens/") == line.npos) others += line + "\n";
    return others;
  }
};

}  // namespace snug
