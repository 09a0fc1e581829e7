// Generates text with a model, token by token.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "data/image_layout.h"
#include "train/sampling.h"
#include "train/session.h"

namespace snug {

// Sees each token as it comes; returns whether the reply goes on behind it. All ranks ask, and must say the same.
using TokenHandler = std::function<bool(int32_t)>;

struct GenerateOptions {
  int64_t max_new_tokens = 256;
  SamplingOptions sampling;
  std::vector<int64_t> stop;  // tokens that end a reply; they are not part of it
};

// Continues prompts on a session made for Purpose::Generate, one after the other. With several ranks all of them make
// equal calls with equal prompts; rank 0 chooses every token.
class Generator {
 public:
  Generator(Session& session, GenerateOptions options);

  // Lets the tower look at the images of the prompts that follow, which have them all at the same tokens. `fill`
  // fills the arrays of images as if the prompt were all of the batch. Empties the caches.
  void look(std::span<const ImageTokens> images, const std::function<ImageCounts(const ImageViews&)>& fill);
  // Returns the new tokens, from empty caches. prompt.size() + max_new_tokens may not exceed the session's
  // cache_positions, and a prompt has at least one token; InternalError otherwise.
  std::vector<int32_t> generate(std::span<const int32_t> prompt, const TokenHandler& on_token = {});
  // Returns the new tokens of a prompt that may begin with what was fed or generated last: what the caches have of it
  // is not fed again.
  std::vector<int32_t> reply(std::span<const int32_t> prompt, const TokenHandler& on_token = {});

  // Feeds a prompt, but for what the caches have of its beginning: the last token is fed in any case.
  void feed_prompt(std::span<const int32_t> prompt);

  // Returns the logits after every token of a prompt, one row after the other.
  std::vector<float> score(std::span<const int32_t> prompt);

 private:
  // Runs tokens through the model, behind those in the caches; logits_ are then the last token's.
  void feed(Task task, std::span<const int32_t> tokens);
  void fill_tokens(const TokenViews& tokens);

  Session& session_;
  GenerateOptions options_;
  std::vector<int32_t> cached_;   // the tokens that the caches hold
  std::span<const int32_t> fed_;  // by the running program
  std::vector<float> logits_;
  std::vector<int32_t> positions_;   // of all tokens that fit, on three axes
  std::vector<int32_t> row_tokens_;  // by row of the tower: the token that it stands for, or -1
  Sampler sampler_;
  uint64_t draws_ = 0;
};

}  // namespace snug
