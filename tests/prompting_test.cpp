// How to ask and where to stop, from the run that teaches it to the commands that use what it wrote.
#include "api/text.h"

#include <csignal>

#include "cli_fixture.h"

namespace snug {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;

// A base model: EOS is <|endoftext|> (0), and it has no chat template.
class Prompting : public Cli {
 protected:
  void SetUp() override {
    fs::create_directory(at("base"));
    fs::copy(kModels.parent_path() / "tokenizer" / "smollm" / "tokenizer.json", at("base"));
    put(at("base/tokenizer_config.json"), R"({"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"})");
    auto config = json::parse(text_of(kModels / "llama" / "config.json"));
    config["vocab_size"] = 2620;
    config["bos_token_id"] = config["eos_token_id"] = 0;
    put(at("base/config.json"), config.dump());
    put(at("chats.jsonl"),
        R"({"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]})");
    put(at("texts.jsonl"), R"({"text": "Hello, world"})");
  }

  json json_of(const std::string& file) const { return json::parse(text_of(at(file))); }

  static Words train(const std::string& model, const std::string& out, const Words& more) {
    return with({"train", "--model", model, "--out", out, "--max-steps", "2", "--batch-size", "1", "--sequence-length",
                 "96", "--threads", "1", "--compute", "fp32"},
                more);
  }
  void run_well(const Words& words) const {
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.code, 0) << ::testing::PrintToString(words) << outcome.err;
  }
  // What a model is asked, as ids, and the reply.
  std::string asked(const Words& more) const {
    const Outcome outcome =
        run(with({"generate", "--prompt", "Hello", "--max-new-tokens", "4", "--threads", "1", "--json"}, more));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.out;
  }
  // A base with weights: all of them trained for two steps on what needs no tokenizer.
  void make_weights() const {
    run_well(train("base", "made", {"--init", "random", "--method", "full", "--data", kModels / "data.jsonl"}));
    fs::rename(at("made/model"), at("model"));
  }
};

TEST_F(Prompting, AModelThatIsGivenATemplateIsAskedByItAfterwards) {
  run_well(
      train("base", "run", {"--init", "random", "--method", "full", "--data", "chats.jsonl", "--template", "chatml"}));
  EXPECT_EQ(text_of(at("run/model/chat_template.jinja")),
            text_of(fs::path(SNUG_FIXTURES) / "templates" / "named" / "chatml.jinja"));
  EXPECT_THAT(json_of("run/model/generation_config.json")["eos_token_id"], ElementsAre(2, 0));
  EXPECT_THAT(json_of("run/model/config.json")["eos_token_id"], ElementsAre(2, 0));
  const Words tokenize{"tokenize", "--model", "run/model", "--data", "chats.jsonl", "--json"};
  EXPECT_EQ(run(tokenize).out,
            run({"tokenize", "--model", "base", "--data", "chats.jsonl", "--json", "--template", "chatml"}).out);
  EXPECT_EQ(asked({"--model", "run/model"}), asked({"--model", "run/model", "--template", "chatml"}));
}

TEST_F(Prompting, ARunThatGoesOnEndsRepliesAsItBegan) {
  make_weights();
  run_well(train("model", "run", {"--data", "texts.jsonl"}));
  const json ends = json_of("run/adapter/generation_config.json")["eos_token_id"];
  put(at("model/generation_config.json"), R"({"eos_token_id": [5, 0]})");
  const Outcome resumed = run({"train", "--out", "run", "--resume", "--max-steps", "3"});
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_THAT(resumed.err,
              HasSubstr("tokens that end a reply are 5, 0 by what model and tokenizer say now, and 0 since "
                        "the run began (run/"));
  EXPECT_EQ(json_of("run/adapter/generation_config.json")["eos_token_id"], ends);
}

TEST_F(Prompting, RepliesBeyondTheModelsPositionsAreSaid) {
  const Outcome far = run({"generate", "--model", "base", "--init", "random", "--prompt", "Hello", "--max-new-tokens",
                           "256", "--threads", "1"});
  EXPECT_EQ(far.code, 0);
  EXPECT_THAT(far.err, HasSubstr(" is beyond the 256 positions that the model was made for\n"));
}

TEST_F(Prompting, AnAdapterIsAskedAndMergedAsItWasTrained) {
  make_weights();
  EXPECT_FALSE(fs::exists(at("model/chat_template.jinja")));  // nothing was asked
  EXPECT_EQ(json_of("model/config.json")["eos_token_id"], 0);
  run_well(train("model", "run", {"--data", "chats.jsonl", "--template", "qwen", "--learning-rate", "1e-2"}));
  const json facts = json_of("run/adapter/snug.json");
  EXPECT_EQ(facts["template"], "chatml");
  EXPECT_EQ(facts["format"], 1);
  EXPECT_EQ(facts["base"].get<std::string>().size(), 16u);
  EXPECT_THAT(json_of("run/adapter/generation_config.json")["eos_token_id"], ElementsAre(2, 0));
  const std::string jinja = text_of(fs::path(SNUG_FIXTURES) / "templates" / "named" / "qwen.jinja");
  EXPECT_EQ(text_of(at("run/adapter/chat_template.jinja")), jinja);

  const Words adapter{"--model", "model", "--adapter", "run/adapter"};
  const std::string reply = asked(adapter);
  EXPECT_EQ(reply, asked(with(adapter, {"--template", "qwen"})));
  const Words tokenize = with({"tokenize", "--data", "chats.jsonl", "--json"}, adapter);
  EXPECT_EQ(run(tokenize).out, run(with(tokenize, {"--template", "qwen"})).out);
  EXPECT_NE(run(tokenize).out, run(with(tokenize, {"--template", "chatml"})).out);
  EXPECT_THAT(run(with(tokenize, {"--template", "chatml"})).err,
              HasSubstr("was trained with template chatml of other"));

  run_well(with({"merge", "--out", "merged"}, adapter));
  EXPECT_EQ(text_of(at("merged/chat_template.jinja")), jinja);
  EXPECT_THAT(json_of("merged/config.json")["eos_token_id"], ElementsAre(2, 0));
  EXPECT_EQ(run({"tokenize", "--data", "chats.jsonl", "--json", "--model", "merged"}).out, run(tokenize).out);

  // Texts teach nothing of how to ask: what the adapter was trained with stays.
  run_well(train("model", "more", {"--data", "texts.jsonl", "--adapter", "run/adapter"}));
  EXPECT_EQ(text_of(at("more/adapter/chat_template.jinja")), jinja);
}

// The run says so from its start: the base has a template of its own, which is not how it is asked.
TEST_F(Prompting, ACheckpointOfARunThatGoesOnIsAskedAsItIsTrained) {
  make_weights();
  put(at("model/chat_template.jinja"), "{% for m in messages %}{{ m['content'] }}{% endfor %}");
  for (const char* method : {"lora", "full"}) {
    const bool lora = method == std::string("lora");
    const std::string result = lora ? "adapter" : "model", option = lora ? "--adapter" : "--model";
    const pid_t child = start(train("model", "run",
                                    {"--method", method, "--data", "chats.jsonl", "--template", "chatml", "--overwrite",
                                     "--save-every", "2", "--keep", "all", "--max-steps", "100000"}));
    wait_for_steps(5);
    ASSERT_FALSE(fs::exists(at("run") / result));
    const Words use{option, "run", "--checkpoint", "step-2", "--cache-dir", "cache"};
    const std::string as_trained = asked(with(use, {"--template", "chatml"}));
    EXPECT_EQ(asked(use), as_trained) << method;
    kill(child, SIGTERM);
    EXPECT_EQ(finish(child).code, 130);
    EXPECT_EQ(asked(use), as_trained) << method;
    for (const auto& entry : fs::recursive_directory_iterator(at("run") / result)) {
      const fs::path name = entry.path().lexically_relative(at("run") / result);
      if (!entry.is_regular_file() || name.extension() == ".safetensors") continue;
      EXPECT_EQ(text_of(at("run/format") / name), text_of(entry.path())) << name;
    }
    fs::remove_all(at("run"));
  }
}

TEST_F(Prompting, ATokenizerThatWasSavedWithAnAdapterIsUsedAndWrittenWithIt) {
  make_weights();
  const Words data{"--data", "chats.jsonl", "--template", "chatml"};
  run_well(train("model", "run", data));
  auto tokenizer = json_of("model/tokenizer.json");
  const int added = 2610;  // the next that is free
  auto call = tokenizer["added_tokens"].back();
  call["id"] = added;
  call["content"] = "<call>";
  tokenizer["added_tokens"].push_back(call);
  put(at("run/adapter/tokenizer.json"), tokenizer.dump());
  fs::copy(at("model/tokenizer_config.json"), at("run/adapter"));
  put(at("calls.jsonl"), R"({"text": "<call>"})");
  const Words adapter{"--model", "model", "--adapter", "run/adapter"};
  const auto ids = [&](const Words& model) {
    const Outcome outcome = run(with({"tokenize", "--data", "calls.jsonl", "--json"}, model));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return std::pair(json::parse(outcome.out)["ids"], outcome.err);
  };
  EXPECT_THAT(ids(adapter).first, testing::Contains(added));
  EXPECT_THAT(ids({"--model", "model"}).first, testing::Not(testing::Contains(added)));
  EXPECT_THAT(ids(adapter).second, HasSubstr("the tokenizer is the one in run/adapter, which is not the one in model"));
  EXPECT_EQ(ids({"--model", "model"}).second, "");

  run_well(with({"merge", "--out", "merged"}, adapter));
  EXPECT_EQ(text_of(at("merged/tokenizer.json")), tokenizer.dump());
  run_well(train("model", "more", with(data, {"--adapter", "run/adapter"})));
  EXPECT_EQ(text_of(at("more/adapter/tokenizer.json")), tokenizer.dump());
}

TEST_F(Prompting, AnAdapterOnAnotherBaseThanItsOwnIsSaid) {
  make_weights();
  run_well(train("base", "other",
                 {"--init", "random", "--method", "full", "--seed", "2", "--data", kModels / "data.jsonl"}));
  run_well(train("model", "run", {"--data", "texts.jsonl"}));
  const Words ask{"generate",  "--prompt", "Hello",     "--max-new-tokens", "1",
                  "--threads", "1",        "--adapter", "run/adapter",      "--model"};
  EXPECT_THAT(run(with(ask, {"other/model"})).err, HasSubstr("run/adapter was trained on other weights ("));
  EXPECT_THAT(run(with(ask, {"model"})).err, testing::Not(HasSubstr("other weights")));

  auto config = json_of("model/config.json");
  config["rms_norm_eps"] = 1e-3;
  put(at("model/config.json"), config.dump());
  EXPECT_THAT(run(with(ask, {"model"})).err, HasSubstr("run/adapter was trained on another model than model, by its "
                                                       "snug.json: final_norm.epsilon: found "));
}

TEST_F(Prompting, WhatIsNotAskedByATemplateGetsNone) {
  run_well(train("base", "run", {"--init", "random", "--data", "texts.jsonl"}));
  EXPECT_FALSE(fs::exists(at("run/adapter/chat_template.jinja")));
  EXPECT_EQ(json_of("run/adapter/snug.json")["template"], nullptr);
  run_well(train("base", "bare", {"--init", "random", "--data", "chats.jsonl", "--template", "none"}));
  EXPECT_FALSE(fs::exists(at("bare/adapter/chat_template.jinja")));
  EXPECT_EQ(json_of("bare/adapter/snug.json")["template"], "none");
}

TEST_F(Prompting, ATemplateWhoseMarkersAreNoTokensIsRefusedByEveryCommand) {
  const Words lacking{"template llama3", "'<|eot_id|>'", "'<|start_header_id|>'"};
  for (const Words& command : {Words{"train", "--init", "random"}, Words{"tokenize"}, Words{"plan"},
                               Words{"eval", "--init", "random", "--sequence-length", "32"}})
    expect_refusal(with(command, {"--model", "base", "--data", "chats.jsonl", "--template", "llama3"}), lacking);
  expect_refusal({"generate", "--init", "random", "--model", "base", "--prompt", "Hi", "--template", "llama3"},
                 lacking);
  put(at("base/chat_template.jinja"), text_of(fs::path(SNUG_FIXTURES) / "templates" / "llama3.jinja"));
  expect_refusal({"tokenize", "--model", "base", "--data", "chats.jsonl"}, lacking);
}

TEST_F(Prompting, WhatARecordOfAPromptAsksForIsRefusedAndTheRestIsNamed) {
  const Words generate{"generate",         "--model", "base",      "--init", "random",    "--prompts", "p.jsonl",
                       "--max-new-tokens", "1",       "--threads", "1",      "--compute", "fp32"};
  for (const auto& [key, expected] :
       {std::pair("system", "--system"), std::pair("messages", "'snug chat'"), std::pair("temperature", "--temper"),
        std::pair("max_tokens", "--max-new-tokens"), std::pair("max_new_tokens", "--max-new-tokens"),
        std::pair("top_p", "--temper"), std::pair("seed", "seed"), std::pair("stop", "--stop")}) {
    put(at("p.jsonl"), json({{"prompt", "Hi"}}).dump() + "\n" + json({{"prompt", "Hi"}, {key, "x"}}).dump());
    expect_refusal(generate,
                   {std::string("p.jsonl, line 2, key '") + key + "': found \"x\", expected none: ", expected});
  }
  put(at("p.jsonl"), R"({"prompt": "Hi", "id": 3, "answer": "a", "system": null}
                        {"prompt": "Hi", "id": 4})");
  const Outcome outcome = run(generate);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("p.jsonl: keys ignored: \"answer\" (1 record), \"id\" (2 records)\n"));
}

TEST_F(Prompting, EmptyPromptsAreRefusedAtOnceOrLeftOut) {
  const Words generate{"generate",         "--model", "base",      "--init", "random",    "--prompts", "p.csv",
                       "--max-new-tokens", "1",       "--threads", "1",      "--compute", "fp32",      "--json"};
  put(at("p.csv"), "prompt,id\n,1\nHi,2\n,3\nHo,4\n");
  expect_refusal(generate, {"p.csv, line 2, key 'prompt': found null", "--empty-records skip leaves such records out",
                            "2 records of the file have such fields: line 2, line 4"});
  const Outcome outcome = run(with(generate, {"--empty-records", "skip"}));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err,
              HasSubstr("p.csv: 2 of 4 records are left out, as a field that they need is null or an empty "
                        "cell: line 2, line 4\n"));
  EXPECT_EQ(std::ranges::count(outcome.out, '\n'), 2) << outcome.out;
  put(at("p.csv"), "prompt,id\n,1\n");
  expect_refusal(with(generate, {"--empty-records", "skip"}),
                 {"1 of 1 records is left out", "found no other prompt, expected at least one"});
  const Outcome none = run({"generate", "--model", "base", "--init", "random", "--prompt", "Hi", "--max-new-tokens",
                            "1", "--compute", "fp32", "--empty-records", "skip"});
  EXPECT_THAT(none.err, HasSubstr("--empty-records skip changes nothing: there is no file of prompts\n"));
}

TEST_F(Prompting, APromptThatSaysBosHasOne) {
  put(at("base/tokenizer_config.json"), R"({"bos_token": "<|endoftext|>", "add_bos_token": true})");
  JobConfig options;
  options.model = at("base");
  const PromptEncoder bare(options);
  const std::vector<int32_t> ids = bare.encode("Hello", "prompt");
  ASSERT_GT(ids.size(), 1u);
  EXPECT_EQ(std::ranges::count(ids, 0), 1);
  EXPECT_EQ(bare.encode("<|endoftext|>Hello", "prompt"), ids);
  EXPECT_EQ(std::ranges::count(bare.encode("<|endoftext|><|endoftext|>Hello", "prompt"), 0), 1) << "said";
  options.chat_template = "chatml";  // which has no BOS
  EXPECT_EQ(std::ranges::count(PromptEncoder(options).encode("Hello", "prompt"), 0), 0);
}

}  // namespace
}  // namespace snug
