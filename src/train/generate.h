// Generates text with a model, token by token.
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

// Continues prompts on a session made for Purpose::Generate, one after the other. With several ranks all of them make
// equal calls with equal prompts; rank 0 chooses every token.
class Generator {
 public:
  Generator(Session& session, GenerateOptions options);

  // Returns the new tokens, starting from empty caches. `on_token` gets each as it comes. Throws InternalError if
  // prompt.size() + max_new_tokens exceeds the session's cache_positions, or if the prompt has no token.
  std::vector<int32_t> generate(std::span<const int32_t> prompt, const std::function<void(int32_t)>& on_token = {});
  // Returns the new tokens for a prompt that may begin with what was fed or generated last: what the caches have of it
  // is not fed again.
  std::vector<int32_t> reply(std::span<const int32_t> prompt, const std::function<void(int32_t)>& on_token = {});

  // Returns the logits after every token of a prompt, one row after the other.
  std::vector<float> score(std::span<const int32_t> prompt);

 private:
  // Runs tokens through the model, behind those in the caches; logits_ are then the last token's.
  void feed(Task task, std::span<const int32_t> tokens);
  int32_t choose(uint64_t draw);

  Session& session_;
  GenerateOptions options_;
  std::vector<int32_t> cached_;   // the tokens that the caches hold
  std::span<const int32_t> fed_;  // by the running program
  std::vector<float> logits_;
  uint64_t draws_ = 0;
};

}  // namespace snug
