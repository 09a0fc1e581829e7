#include "cli/reply_text.h"

#include <algorithm>

#include "format/unicode.h"

namespace snug {

GenerateOptions generate_options(const JobConfig& options, const CommandFlags& flags, const PromptEncoder& encoder) {
  SamplingOptions sampling = flags.sampling;
  sampling.seed = options.seed;
  if (sampling.temperature == 0) {
    const auto refuse = [](std::string_view option) {
      user_error(
          "{}: found it with --temperature 0, expected a temperature: the likeliest token is chosen, and none drawn",
          option);
    };
    if (sampling.top_k > 0) refuse("top_k");
    if (sampling.top_p < 1) refuse("top_p");
    if (sampling.min_p > 0) refuse("min_p");
  }
  for (const std::string& stop : flags.stop) {
    if (stop.empty()) user_error("stop: found an empty text, expected one at which replies end");
    if (find_invalid_utf8(stop)) user_error("stop: found bytes that are not UTF-8, expected a text");
  }
  return {flags.max_new_tokens, sampling, encoder.stop_tokens()};
}

bool ReplyText::add(int32_t token) {
  const size_t before = text_.size();
  text_ += stream_.next(token);
  size_t end = std::string::npos;
  for (const std::string& stop : stops_)
    end = std::min(end, text_.find(stop, before - std::min(before, stop.size() - 1)));
  if (end == std::string::npos) return true;
  text_.resize(end);
  return false;
}

std::string_view ReplyText::next(bool over) {
  const size_t from = shown_;
  shown_ = over ? text_.size() : text_.size() - held_back();
  return std::string_view(text_).substr(from, shown_ - from);
}

size_t ReplyText::held_back() const {
  size_t most = 0;
  for (const std::string& stop : stops_)
    for (size_t length = std::min(stop.size() - 1, text_.size()); length > most; length--)
      if (text_.ends_with(std::string_view(stop).substr(0, length))) most = length;
  return most;
}

}  // namespace snug
