// Text from a model, token by token.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "train/session.h"

namespace snug {

struct GenerateOptions {
  int64_t max_new_tokens = 256;
  double temperature = 0;  // 0: the likeliest token (the lowest id among equals)
  uint64_t seed = 42;
  std::vector<int64_t> stop;  // tokens that end a reply; they are not part of it
};

// Continues prompts on a session made for Purpose::Generate, one after the other. With several ranks all of them call
// the same with the same prompts; rank 0 chooses every token.
class Generator {
 public:
  Generator(Session& session, GenerateOptions options);

  // The new tokens, from empty caches. `on_token` sees each as it comes. prompt.size() + max_new_tokens may not exceed
  // the session's cache_positions, and a prompt has at least one token; InternalError otherwise.
  std::vector<int32_t> generate(std::span<const int32_t> prompt, const std::function<void(int32_t)>& on_token = {});
  // The same of a prompt that may begin with what was fed or generated last: what the caches have of it is not fed
  // again.
  std::vector<int32_t> reply(std::span<const int32_t> prompt, const std::function<void(int32_t)>& on_token = {});

  // The logits after every token of a prompt, one row after the other.
  std::vector<float> score(std::span<const int32_t> prompt);

 private:
  // Runs tokens through the model, behind those in the caches; logits_ are the last one's.
  void feed(Task task, std::span<const int32_t> tokens);
  int32_t choose(uint64_t draw);

  Session& session_;
  GenerateOptions options_;
  std::vector<int32_t> cached_;   // the tokens that caches hold
  std::span<const int32_t> fed_;  // by the program that runs
  std::vector<float> logits_;
  uint64_t draws_ = 0;
};

}  // namespace snug
