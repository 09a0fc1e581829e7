// The program on models that are used and not trained, on one rank and several: evaluated, asked, talked to.
#include "cli_fixture.h"

namespace snug {
namespace {

class Use : public Cli {
 protected:
  // A model of twelve blocks that are drawn from the seed, with a tokenizer.
  void SetUp() override {
    fs::copy(kModels.parent_path() / "tokenizer" / "smollm", at("model"));
    auto config = nlohmann::json::parse(text_of(kModels / "llama" / "config.json"));
    config["vocab_size"] = 2620;
    config["num_hidden_layers"] = 12;
    put(at("model/config.json"), config.dump());
  }

  static Words command(const std::string& name, const Words& more = {}) {
    return with({name, "--model", "model", "--init", "random", "--threads", "1", "--json"}, more);
  }
  static Words eval(const Words& more = {}) {
    return command("eval", with({"--data", kModels / "data.jsonl", "--sequence-length", "48"}, more));
  }
  static Words chat(const Words& more = {}) {
    return command("chat", with({"--template", "chatml", "--max-new-tokens", "6"}, more));
  }

  // With a pipe as standard input; its writing end comes in `input`.
  pid_t start_with_input(const Words& words, int& input) const {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    const pid_t child = start(words, SNUG_BINARY, [&] { return dup2(ends[0], STDIN_FILENO) == STDIN_FILENO; });
    close(ends[0]);
    input = ends[1];
    return child;
  }
  Outcome run_with_input(const Words& words, const std::string& text) const {
    int input = 0;
    const pid_t child = start_with_input(words, input);
    EXPECT_EQ(write(input, text.data(), text.size()), std::ssize(text));
    close(input);
    return finish(child);
  }
  // Returns what standard output has when it has so many lines; gives up after a minute.
  std::string wait_for_lines(std::ptrdiff_t count) const {
    std::string text;
    for (int i = 0; i < 6000 && std::ranges::count(text, '\n') < count; i++) {
      usleep(10'000);
      text = text_of(at("stdout"));
    }
    return text;
  }
};

TEST_F(Use, TheLossIsTheSameOnHoweverManyRanks) {
  for (const std::string format : {"bf16", "nf4"}) {
    const std::string one = run(eval({"--base-format", format})).out;
    EXPECT_THAT(one, HasSubstr("\"loss\":"));
    for (const std::string ranks : {"1", "2", "4"})
      for (const auto& [zero, words] : {std::pair("0", "all weights on each"), {"3", "weights sharded"}}) {
        const Outcome outcome = run(eval({"--base-format", format, "--ranks", ranks, "--zero", zero}));
        EXPECT_EQ(outcome.out, one) << ranks << " ranks, zero " << zero;
        if (ranks == "1")
          EXPECT_EQ(outcome.err, "data: 2 of 12 samples have no token that carries loss: left out\n");
        else
          EXPECT_THAT(outcome.err, HasSubstr(ranks + " ranks, " + words));
      }
  }
}

TEST_F(Use, WhatDoesNotFitOnEveryRankIsSharded) {
  const Outcome whole = run(eval({"--ranks", "2"}));
  EXPECT_THAT(whole.err, HasSubstr("2 ranks, all weights on each, no offload"));
  const std::string before = "host of a node ";  // 3.5 MiB of ...
  ASSERT_THAT(whole.err, HasSubstr(before));
  const double needed = std::stod(whole.err.substr(whole.err.find(before) + before.size()));
  const auto capped = [&](double share) {
    return run(eval({"--ranks", "2", "--host-memory", std::to_string(share * needed) + "MiB"}));
  };
  const Outcome sharded = capped(0.8);
  EXPECT_EQ(sharded.out, whole.out) << sharded.err;
  EXPECT_THAT(sharded.err, HasSubstr("sharded"));
  EXPECT_THAT(sharded.err, HasSubstr("MiB allowed"));
  const Outcome refused = capped(0.05);
  EXPECT_EQ(refused.code, 3);
  EXPECT_THAT(refused.err, HasSubstr("weights sharded"));
}

// Nothing that is said is passed over.
TEST_F(Use, WeightsElsewhereAreShardedAndNotSaidToBeWhole) {
  for (const std::string place : {"host", "disk"})
    expect_refusal(eval({"--ranks", "3", "--zero", "0", "--offload-parameters", place}),
                   {"zero: found 0, expected 3 or nothing", "the " + place, "--offload-parameters", "sharded"});
  for (const Words& more : {Words{"--ranks", "3", "--zero", "3"}, {"--ranks", "3"}, {"--ranks", "1", "--zero", "0"}}) {
    const Outcome outcome = run(eval(with(more, {"--offload-parameters", "disk"})));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("weights on the disk"));
  }
}

TEST_F(Use, RepliesAreTheSameOnHoweverManyRanks) {
  for (const std::string temperature : {"0", "0.8"})
    for (const std::string format : {"bf16", "int8"}) {
      const Words ask =
          command("generate", {"--template", "chatml", "--prompt", "What is a kluge?", "--prompt", "foo",
                               "--max-new-tokens", "6", "--temperature", temperature, "--base-format", format});
      const std::string one = run(ask).out;
      EXPECT_EQ(std::ranges::count(one, '\n'), 2);
      for (const std::string ranks : {"2", "4"})
        for (const std::string zero : {"0", "3"}) {
          const Outcome outcome = run(with(ask, {"--ranks", ranks, "--zero", zero}));
          EXPECT_EQ(outcome.out, one) << outcome.err;
        }
    }
}

TEST_F(Use, AReplyEndsBeforeAStopTextOnEveryRank) {
  const Words more{"--template", "chatml", "--max-new-tokens", "12"};
  const auto ask = [&](const Words& words) {
    return nlohmann::json::parse(run_well(command("generate", with(with({"--prompt", "Hello"}, more), words))).out);
  };
  const nlohmann::json whole = ask({});
  const std::string text = whole["text"];
  const auto begins = [&](size_t i) { return (static_cast<unsigned char>(text[i]) & 0xc0) != 0x80; };
  size_t at = 4, end = 0;  // a character in the middle
  while (!begins(at)) at++;
  for (end = at + 1; !begins(end);) end++;
  const std::string stop = text.substr(at, end - at);
  for (const std::string ranks : {"1", "2"}) {
    const Words stops{"--stop", "never said", "--stop", stop, "--ranks", ranks};
    const nlohmann::json cut = ask(stops);
    EXPECT_EQ(cut["text"], text.substr(0, text.find(stop)));
    EXPECT_LT(cut["ids"].size(), whole["ids"].size());
    const Outcome talk = run_with_input(command("chat", with(more, stops)), "Hello\n");
    EXPECT_EQ(nlohmann::json::parse(talk.out)["text"], cut["text"]) << talk.err;
  }
  expect_refusal(command("generate", with(more, {"--prompt", "Hello", "--stop", ""})), {"stop: found an empty text"});
}

TEST_F(Use, ASystemTextIsInTheTemplateOrRefused) {
  const auto ask = [&](const std::string& chat_template, const Words& words) {
    return command("generate",
                   with({"--prompt", "Hello", "--max-new-tokens", "6", "--template", chat_template}, words));
  };
  const std::string with_system = run_well(ask("chatml", {"--system", "Be brief."})).out;
  EXPECT_NE(with_system, run_well(ask("chatml", {})).out);
  const Words talk{"--template", "chatml", "--max-new-tokens", "6", "--system", "Be brief."};
  EXPECT_EQ(run_with_input(command("chat", talk), "Hello\n").out, with_system);
  expect_refusal(ask("none", {"--system", "Be brief."}), {"system: found a text", "--template"});
}

TEST_F(Use, OptionsOfDrawingAreRefusedWhereNothingIsDrawn) {
  const Words ask = command("generate", {"--template", "none", "--prompt", "Hello", "--max-new-tokens", "24"});
  for (const auto& [option, value, key] : {std::tuple("--top-k", "5", "top_k"), std::tuple("--top-p", "0.9", "top_p"),
                                           std::tuple("--min-p", "0.1", "min_p")})
    expect_refusal(with(ask, {option, value}), {key, "with --temperature 0"});
  const std::string likeliest = run_well(ask).out;
  EXPECT_EQ(run_well(with(ask, {"--temperature", "2", "--top-k", "1"})).out, likeliest);
  EXPECT_NE(run_well(with(ask, {"--repetition-penalty", "50"})).out, likeliest);
}

TEST_F(Use, ATalkIsTheSameOnHoweverManyRanks) {
  const Outcome asked =
      run(command("generate", {"--template", "chatml", "--prompt", "Hello", "--max-new-tokens", "6"}));
  const std::string text = "Hello\n\nAnd then?\nWell";
  const Outcome alone = run_with_input(chat(), text);
  EXPECT_EQ(alone.code, 0) << alone.err;
  EXPECT_THAT(alone.out, StartsWith(asked.out));
  EXPECT_EQ(std::ranges::count(alone.out, '\n'), 3);  // an empty line is no turn, and the last one may have no end
  for (const Words& more : {Words{"--ranks", "2", "--zero", "3"}, {"--ranks", "4"}}) {
    const Outcome talk = run_with_input(chat(more), text);
    EXPECT_EQ(talk.code, 0) << talk.err;
    EXPECT_EQ(talk.out, alone.out);
  }
  const std::string sampled = run_with_input(chat({"--temperature", "0.8"}), text).out;
  EXPECT_EQ(run_with_input(chat({"--temperature", "0.8", "--ranks", "2", "--zero", "3"}), text).out, sampled);
  EXPECT_NE(sampled, alone.out);
}

TEST_F(Use, ATalkAnswersBeforeTheNextTurnAndEndsWithItsInput) {
  for (const std::string ranks : {"1", "2"}) {
    int input = 0;
    const pid_t child = start_with_input(chat({"--ranks", ranks}), input);
    for (int turn = 1; turn <= 2; turn++) {
      EXPECT_EQ(write(input, "Hello\n", 6), 6);
      EXPECT_EQ(std::ranges::count(wait_for_lines(turn), '\n'), turn);
    }
    close(input);
    EXPECT_EQ(finish(child).code, 0);
  }
}

TEST_F(Use, AnInterruptEndsATalk) {
  for (const std::string ranks : {"1", "2"}) {
    int input = 0;
    const pid_t child = start_with_input(chat({"--ranks", ranks}), input);
    EXPECT_EQ(write(input, "Hello\n", 6), 6);
    wait_for_lines(1);
    kill(child, SIGINT);
    EXPECT_EQ(finish(child).code, 130);
    close(input);
  }
}

TEST_F(Use, ATalkThatHasBecomeTooLongBeginsAnew) {
  const Outcome talk = run_with_input(chat({"--sequence-length", "45", "--ranks", "2"}), "Hello\nHello\nHello\n");
  EXPECT_EQ(talk.code, 0);
  EXPECT_THAT(talk.err, HasSubstr("begins anew; --sequence-length"));
  std::istringstream lines(talk.out);
  std::string first, line;
  std::getline(lines, first);
  bool again = false;
  while (std::getline(lines, line)) again = again || line == first;
  EXPECT_TRUE(again) << talk.out;
  const Outcome longer = run_with_input(chat({"--sequence-length", "20"}), std::string(200, 'x') + " yz\nHello\n");
  EXPECT_THAT(longer.err, HasSubstr("expected at most 14 before a reply"));
}

TEST_F(Use, WhatIsTypedIsChecked) {
  const Outcome broken = run_with_input(chat({"--ranks", "2"}), "Hello\nbr\xffken\n");
  EXPECT_EQ(broken.code, 2);
  EXPECT_THAT(broken.err, HasSubstr("standard input, line 2: found byte 0xff"));
  expect_refusal(chat({"--sequence-length", "6"}), {"max_new_tokens: found 6", "--sequence-length"});
  expect_refusal(chat({"--disk-dir", "nowhere"}), {"disk_dir", "'nowhere'"});
}

}  // namespace
}  // namespace snug
