#include "format/chat_spans.h"

#include <algorithm>
#include <utility>

#include "base/ascii.h"
#include "base/error.h"

namespace snug {
namespace {

using Part = ChatVariables::Part;
using Source = ChatVariables::Source;

// Holds bytes of one source; of the template if it is null.
struct Stretch {
  const Source* source = nullptr;
  size_t begin = 0, end = 0;
};

std::vector<Stretch> stretches_of(const jinja::Text& text, const ChatVariables& variables) {
  std::vector<Stretch> out;
  size_t begin = 0;
  for (const jinja::Run& run : text.runs()) {
    const Source* const source = variables.source(run.mark);
    if (!out.empty() && out.back().source == source) {
      out.back().end = run.end;
    } else {
      out.push_back({source, begin, run.end});
    }
    begin = run.end;
  }
  return out;
}

// Returns whether bytes are a message's own text, as opposed to what refers to it.
bool is_said(const Source& source) { return source.part != Part::Tool && source.part != Part::Other; }

// Returns where the first of some texts ends that stand in a text; npos for none.
size_t end_of_first(std::string_view text, const std::vector<std::string>& ends) {
  size_t first = std::string_view::npos, end = first;
  for (const std::string& one : ends) {
    const size_t at = one.empty() ? std::string_view::npos : text.find(one);
    if (at == std::string_view::npos || at >= first) continue;
    first = at;
    end = at + one.size();
  }
  return end;
}

// Follows a message from its first byte to where its turn ends: at the first end that the template writes behind the
// last of its parts. `pending` is where that part begins.
void follow(std::span<const Stretch> stretches, size_t message, size_t pending, std::string_view text,
            const ChatSurroundings& around, ChatSpan& span) {
  for (const Stretch& stretch : stretches) {
    if (stretch.source && stretch.source->part != Part::Tool) {
      if (stretch.source->message != message) {
        span.broken = stretch.begin < pending;
        return;
      }
      if (is_said(*stretch.source)) span.own_end = span.end = stretch.end;
    } else if (!stretch.source && stretch.begin > pending) {
      const std::string_view written = text.substr(stretch.begin, stretch.end - stretch.begin);
      const size_t end = end_of_first(written, around.ends);
      if (end == std::string_view::npos) continue;
      const bool twice = !around.open && written.substr(end).starts_with(around.eos);
      span.end = stretch.begin + end + (twice ? around.eos.size() : 0);
      span.ended = true;
      return;
    }
  }
}

}  // namespace

std::vector<ChatSpan> spans_of(const jinja::Text& text, const ChatVariables& variables, size_t count,
                               const ChatSurroundings& around) {
  const std::vector<Stretch> stretches = stretches_of(text, variables);
  std::vector<ChatSpan> spans(count);
  std::vector<size_t> starts(count), pending(count);  // by message: its first stretch; where its last part begins
  std::vector<bool> seen(variables.count());
  for (size_t i = 0; i < stretches.size(); ++i) {
    const Source* const source = stretches[i].source;
    if (!source || !is_said(*source)) continue;
    const auto number = static_cast<size_t>(source - variables.source(1));
    if (seen[number]) continue;
    seen[number] = true;
    ChatSpan& span = spans[source->message];
    if (!span.found) {
      span.found = true;
      span.begin = stretches[i].begin;
      span.first = source->part;
      starts[source->message] = i;
    }
    pending[source->message] = stretches[i].begin;
  }
  for (size_t i = 0; i < count; ++i) {
    if (spans[i].found) follow(std::span(stretches).subspan(starts[i]), i, pending[i], text.bytes(), around, spans[i]);
  }
  for (const Stretch& stretch : stretches) {  // texts that are repeated
    if (!stretch.source || (stretch.source->part != Part::Content && stretch.source->part != Part::Thinking)) continue;
    ChatSpan& span = spans[stretch.source->message];
    span.broken = span.broken || stretch.begin >= span.end;
  }
  return spans;
}

void add_piece(std::vector<Piece>& out, std::string_view text, bool loss, bool masked, float weight) {
  if (text.empty()) return;
  if (out.empty() || out.back().loss != loss || out.back().masked != masked || out.back().weight != weight) {
    out.push_back({.text = "", .loss = loss, .masked = masked, .weight = weight});
  }
  out.back().text += text;
}

namespace {

// Holds a stretch of text on which a message decides; null: a generation block that shows none.
struct Taken {
  size_t begin = 0, end = 0;
  const Message* message = nullptr;
};

// Returns how many bytes of a text stand up to where it leaves the prompt that it repeats; 0 for no prompt. At least a
// beginning of the prompt, up to a token or line, stands in the text's first `before` bytes.
size_t end_of_prompt(std::string_view text, size_t before, std::string_view prompt, bool* whole = nullptr) {
  constexpr std::string_view kEnds = ">]\n";  // of tokens and lines
  for (size_t known = prompt.size(); known > 0;) {
    const size_t at = text.substr(0, before).rfind(prompt.substr(0, known));
    if (at != std::string_view::npos) {
      const std::string_view here = text.substr(at);
      auto same = static_cast<size_t>(std::ranges::mismatch(here, prompt).in2 - prompt.begin());
      if (whole) *whole = same == prompt.size();
      if (same < prompt.size()) same = prompt.find_last_of(kEnds, same - 1) + 1;  // not within a token
      return at + std::max(same, known);
    }
    const size_t cut = known < 2 ? std::string_view::npos : prompt.find_last_of(kEnds, known - 2);
    known = cut == std::string_view::npos || white_before(prompt) > cut ? 0 : cut + 1;
  }
  return 0;
}

// Returns where a reply begins. A call and a thought begin where a prompt ends, or behind what the template inserts
// before plain replies; a plain reply begins at its own text, or behind a prompt with white space between. What the
// prompt has already never belongs to it: this reply may leave out how the prompt goes on, such as a <think>, or have
// it in its own text.
size_t begin_of_reply(std::string_view text, const ChatSpan& span, size_t from, const ChatSurroundings& around) {
  const std::string_view before = text.substr(from, span.begin - from);
  const auto behind = [&](const std::string& header) {
    const size_t at = header.empty() ? std::string_view::npos : before.rfind(header);
    return at == std::string_view::npos ? 0 : at + header.size();
  };
  if (span.first != Part::Content) {
    const bool thought = span.first == ChatVariables::Part::Thinking;
    size_t header =
        end_of_prompt(text.substr(from, (thought ? span.own_end : span.begin) - from), before.size(), around.prompt);
    for (const std::string& other : around.headers) header = std::max(header, behind(other));
    if (header > 0) return from + header;
  }
  const size_t prompt = end_of_prompt(before, before.size(), around.prompt);
  if (prompt == 0) return span.begin - white_behind(before);
  const std::string_view inserted = before.substr(prompt);
  if (white_before(inserted) == inserted.size()) return from + prompt;
  return span.begin - (before.size() - (before.find_last_not_of(' ') + 1));  // blanks begin words
}

// Returns the stretches of generation blocks.
std::vector<Taken> generated(const jinja::Text& text, const ChatVariables& variables,
                             std::span<const Message> messages) {
  std::vector<Taken> out;
  size_t begin = 0;
  for (const jinja::Run& run : text.runs()) {
    if ((run.mark & jinja::kGenerated) != 0) {
      if (out.empty() || out.back().end != begin) out.push_back({begin, begin, nullptr});
      Taken& block = out.back();
      block.end = run.end;
      const Source* const source = variables.source(run.mark);
      const Message* const message = source && is_said(*source) ? &messages[source->message] : nullptr;
      if (message && block.message && block.message->carries_loss() != message->carries_loss())
        user_error(
            "found messages of which one carries loss and another does not in one generation block of the chat "
            "template, expected blocks of their own");
      if (message) block.message = message;
    }
    begin = run.end;
  }
  return out;
}

// Returns the turns of messages that carry loss or say that they carry none, in the order of the text.
std::vector<Taken> turns(std::string_view text, std::span<const Message> messages, std::span<const ChatSpan> spans,
                         const ChatSurroundings& around) {
  std::vector<size_t> order, ends;  // ends: of the other turns
  for (size_t i = 0; i < messages.size(); ++i) {
    if (!spans[i].found) continue;
    const bool generated = around.generation && messages[i].role == ChatRole::Assistant;
    if (!generated && (messages[i].carries_loss() || messages[i].loss)) {
      order.push_back(i);
    } else {
      ends.push_back(spans[i].own_end);
    }
  }
  std::ranges::stable_sort(order, {}, [&](size_t i) { return spans[i].begin; });
  std::ranges::sort(ends);
  std::vector<Taken> out;
  size_t from = 0;
  for (const size_t i : order) {
    const ChatSpan& span = spans[i];
    if (span.broken || span.begin < from)
      user_error("found message {} repeated or within another, expected texts that carry loss one after another",
                 i + 1);
    const auto other = std::ranges::upper_bound(ends, span.begin);
    const size_t before = other == ends.begin() ? from : std::max(from, *(other - 1));
    const bool reply = messages[i].role == ChatRole::Assistant;
    out.push_back({reply ? begin_of_reply(text, span, before, around) : span.begin, span.end, &messages[i]});
    if (!span.ended && around.open && !messages[i].calls.empty() && i + 1 == messages.size())
      out.back().end = text.size() - white_behind(text);
    from = out.back().end;
  }
  return out;
}

}  // namespace

bool is_unasked(std::string_view text, std::span<const Message> messages, std::span<const ChatSpan> spans,
                const ChatSurroundings& around) {
  if (messages.empty() || around.prompt.empty() || around.generation) return false;
  const ChatSpan& reply = spans.back();
  if (messages.back().role != ChatRole::Assistant || !messages.back().carries_loss() || !reply.found) return false;
  size_t from = 0;
  for (const ChatSpan& span : spans.first(spans.size() - 1))
    if (span.found && span.own_end <= reply.begin) from = std::max(from, span.own_end);
  bool whole = false;
  end_of_prompt(text.substr(from, reply.own_end - from), reply.begin - from, around.prompt, &whole);
  return !whole;
}

std::vector<Piece> pieces_of(const jinja::Text& text, const ChatVariables& variables, std::span<const Message> messages,
                             std::span<const ChatSpan> spans, const ChatSurroundings& around, bool for_generation) {
  std::vector<Taken> taken = turns(text.bytes(), messages, spans, around);
  if (around.generation) {
    const std::vector<Taken> blocks = generated(text, variables, messages);
    taken.insert(taken.end(), blocks.begin(), blocks.end());
    std::ranges::stable_sort(taken, {}, &Taken::begin);
  }
  std::vector<Piece> out;
  size_t from = 0;
  for (const Taken& one : taken) {
    if (one.begin < from) user_error("found a message within another's generation block, expected one after another");
    const bool loss = !one.message || one.message->carries_loss();
    add_piece(out, text.view(from, one.begin));
    add_piece(out, text.view(one.begin, one.end), loss, /*masked=*/!loss && one.message->loss,
              one.message ? one.message->weight : 1);
    from = one.end;
  }
  const std::string_view rest = text.view(from, text.size());
  add_piece(out, rest);
  // The turn that would follow ends the last reply.
  if (around.open && !around.generation && !for_generation && !messages.empty() &&
      messages.back().role == ChatRole::Assistant && messages.back().carries_loss() && spans.back().found &&
      !spans.back().ended && white_before(rest) == rest.size())
    add_piece(out, messages.back().calls.empty() ? around.end_of_turn : around.end_of_call, true, false,
              messages.back().weight);
  return out;
}

}  // namespace snug
