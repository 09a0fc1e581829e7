#include "data/preferences.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/ascii.h"
#include "base/error.h"
#include "format/jinja_json.h"

namespace snug {
namespace {

constexpr std::string_view kHuman = "Human:", kAssistant = "\n\nAssistant:";

bool same_value(const jinja::Value& a, const jinja::Value& b) {
  jinja::Budget budget;
  budget.steps = budget.bytes = 64 + 16 * (jinja::bytes_of(a) + jinja::bytes_of(b));
  try {
    return jinja::equal(budget, a, b);
  } catch (const jinja::Failure&) {
    return false;
  }
}

bool same_message(const Message& a, const Message& b) {
  return a.role == b.role && a.name_of_role() == b.name_of_role() && a.content == b.content &&
         a.no_content == b.no_content && a.thinking == b.thinking &&
         std::equal(a.calls.begin(), a.calls.end(), b.calls.begin(), b.calls.end(), same_value) &&
         std::equal(a.others.begin(), a.others.end(), b.others.begin(), b.others.end(),
                    [](const auto& x, const auto& y) { return x.first == y.first && same_value(x.second, y.second); });
}

}  // namespace

std::string_view stripped(std::string_view text) {
  text.remove_prefix(white_before(text));
  text.remove_suffix(white_behind(text));
  return text;
}

size_t common_messages(const std::vector<Conversation>& conversations) {
  size_t common = conversations.front().size();
  for (const Conversation& one : conversations) {
    const auto end = conversations.front().begin() + static_cast<std::ptrdiff_t>(common);
    const auto parts = std::mismatch(conversations.front().begin(), end, one.begin(), one.end(), same_message);
    common = static_cast<size_t>(parts.first - conversations.front().begin());
  }
  return common;
}

bool begins_with_messages(const Conversation& conversation, const Conversation& beginning) {
  return beginning.size() <= conversation.size() &&
         std::equal(beginning.begin(), beginning.end(), conversation.begin(), same_message);
}

size_t common_tokens(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

size_t common_tokens(const std::vector<TokenSample>& samples) {
  size_t common = SIZE_MAX;
  for (const TokenSample& sample : samples)
    common = std::min(
        {common, common_tokens(sample.ids, samples.front().ids), sample.ids.empty() ? 0 : sample.ids.size() - 1});
  return common;
}

void label_from(size_t begin, TokenSample& sample) {
  sample.labels = sample.ids;
  std::fill_n(sample.labels.begin(), std::min(begin, sample.ids.size()), kNoLabel);
}

void align_labels(std::vector<TokenSample>& samples) {
  const auto first_of = [](const TokenSample& sample) {
    const auto is_label = [](int32_t label) { return label != kNoLabel; };
    return static_cast<size_t>(std::find_if(sample.labels.begin(), sample.labels.end(), is_label) -
                               sample.labels.begin());
  };
  size_t begin = samples.size() > 1 ? common_tokens(samples) : SIZE_MAX;
  for (const TokenSample& sample : samples) begin = std::min(begin, first_of(sample));
  for (TokenSample& sample : samples) {
    const size_t first = first_of(sample);
    if (first == sample.labels.size()) continue;
    for (size_t i = begin; i < first; ++i) sample.labels[i] = sample.ids[i];
  }
}

std::vector<TokenSample> chosen_samples(const std::vector<TokenSample>& replies,
                                        const std::vector<Answers::Choice>& choices) {
  std::vector<TokenSample> out;
  for (const Answers::Choice& choice : choices) {
    TokenSample sample = replies.at(choice.reply);
    sample.value = choice.value;
    if (choice.rejected) {
      const TokenSample& rejected = replies.at(*choice.rejected);
      if (sample.ids.size() + rejected.ids.size() > UINT32_MAX)
        user_error("found a pair of {} tokens, expected less than 2^32", sample.ids.size() + rejected.ids.size());
      sample.second = static_cast<uint32_t>(sample.ids.size());
      sample.ids.insert(sample.ids.end(), rejected.ids.begin(), rejected.ids.end());
      sample.labels.insert(sample.labels.end(), rejected.labels.begin(), rejected.labels.end());
    }
    out.push_back(std::move(sample));
  }
  return out;
}

bool begins_as_transcript(std::string_view text) {
  text.remove_prefix(white_before(text));
  return text.starts_with(kHuman) && text.find(kAssistant) != std::string_view::npos;
}

std::optional<Conversation> turns_of_transcript(std::string_view text) {
  if (!begins_as_transcript(text)) return std::nullopt;
  Conversation turns;
  text.remove_prefix(white_before(text) + kHuman.size());
  for (ChatRole role = ChatRole::User;;) {
    const size_t human = text.find("\n\nHuman:"), assistant = text.find(kAssistant);
    const size_t end = std::min({human, assistant, text.size()});
    turns.push_back({role, std::string(stripped(text.substr(0, end)))});
    if (end == text.size()) return turns;
    role = end == human ? ChatRole::User : ChatRole::Assistant;
    text.remove_prefix(end + (end == human ? std::string_view("\n\nHuman:").size() : kAssistant.size()));
  }
}

}  // namespace snug
