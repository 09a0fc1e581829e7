// The program as a process of a test, on the tiny models.
#pragma once

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>

#include "temp_directory.h"

namespace snug {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Words = std::vector<std::string>;

inline const fs::path kModels = fs::path(SNUG_FIXTURES) / "models";

inline std::string text_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

inline void put(const fs::path& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

struct Outcome {
  int code = -1;
  std::string out, err;
};

class Cli : public ::testing::Test {
 protected:
  fs::path at(const std::string& name) const { return directory_.path() / name; }

  // Starts snug, or another program, in the test's directory, in a process that is prepared first.
  pid_t start(
      const Words& words, const char* program = SNUG_BINARY,
      const std::function<bool()>& prepare = [] { return true; }) const {
    const pid_t child = fork();
    if (child == 0) {
      if (chdir(directory_.path().c_str()) != 0 || !prepare()) _exit(126);
      dup2(open("stdout", O_CREAT | O_TRUNC | O_WRONLY, 0644), STDOUT_FILENO);
      dup2(open("stderr", O_CREAT | O_TRUNC | O_WRONLY, 0644), STDERR_FILENO);
      std::vector<char*> arguments{const_cast<char*>(program)};
      for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
      arguments.push_back(nullptr);
      execv(program, arguments.data());
      _exit(127);
    }
    return child;
  }

  Outcome finish(pid_t child) const {
    int status = 0;
    waitpid(child, &status, 0);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), text_of(at("stdout")),
            text_of(at("stderr"))};
  }

  Outcome run(const Words& words) const { return finish(start(words)); }
  // Runs what must succeed.
  Outcome run_well(const Words& words) const {
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.code, 0) << ::testing::PrintToString(words) << outcome.err;
    return outcome;
  }

  // Returns when the run has written so many lines of metrics; gives up after a minute.
  void wait_for_steps(size_t count) const {
    for (int i = 0; i < 6000 && losses("run").size() < count; i++) usleep(10'000);
  }

  static Words with(Words words, const Words& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  // A small job, with `more` at its end; later flags win.
  static Words job(const std::string& command, const Words& more = {}, const std::string& model = kModels / "llama") {
    return with(
        {command, "--model", model, "--data", kModels / "data.jsonl", "--sequence-length", "48", "--batch-size", "4",
         "--max-steps", "6", "--threads", "1", "--compute", "fp32", "--out", "run", "--learning-rate", "1e-3"},
        more);
  }

  // One line that holds every part, exit 2, nothing on standard output and no run directory.
  void expect_refusal(const Words& words, const Words& parts) const {
    SCOPED_TRACE(::testing::PrintToString(words));
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.code, 2);
    EXPECT_EQ(outcome.out, "");
    EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 1) << outcome.err;
    EXPECT_THAT(outcome.err, StartsWith("snug: "));
    for (const std::string& part : parts) EXPECT_THAT(outcome.err, HasSubstr(part));
    EXPECT_FALSE(fs::exists(at("run")));
  }

  std::vector<double> losses(const std::string& out) const {
    std::vector<double> result;
    std::istringstream lines(text_of(at(out) / "metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) result.push_back(nlohmann::json::parse(line)["loss"]);
    return result;
  }

  TempDirectory directory_;
};

}  // namespace snug
