// Finds out what a chat template does, by rendering short conversations.
#include <algorithm>
#include <cctype>
#include <set>
#include <utility>

#include "base/ascii.h"
#include "base/error.h"
#include "format/chat_template.h"
#include "format/jinja_json.h"

namespace snug {
namespace {

// Returns the token with which a text begins behind white space, as far as its spelling tells; empty for none.
std::string token_at(std::string_view text, const std::string& eos) {
  text.remove_prefix(white_before(text));
  if (!eos.empty() && text.starts_with(eos)) return eos;
  if (!text.starts_with('<')) return "";
  return std::string(text.substr(0, text.find('>') + 1));
}

// Returns the token with which a text ends, as far as its spelling tells; empty for none.
std::string last_token(std::string_view text, const std::string& eos) {
  if (!eos.empty() && text.ends_with(eos)) return eos;
  const size_t at = text.ends_with('>') ? text.rfind('<') : std::string_view::npos;
  return at == std::string_view::npos ? "" : std::string(text.substr(at));
}

// Returns the text if it is one word.
std::string word_of(std::string_view text) {
  constexpr size_t kLongest = 32;
  text.remove_prefix(white_before(text));
  text.remove_suffix(white_behind(text));
  return text.size() <= kLongest && text.find_first_of(" \t\n\r") == std::string_view::npos ? std::string(text) : "";
}

// Returns the end of a prompt that the question alone does not have. Some templates end the question otherwise.
std::string what_asks(std::string_view question, std::string_view prompt) {
  auto same = static_cast<size_t>(std::ranges::mismatch(question, prompt).in2 - prompt.begin());
  const std::string_view common = prompt.substr(0, same);
  const size_t open = common.rfind('<');
  if (same < question.size() && open != std::string_view::npos && common.find('>', open) == std::string_view::npos)
    same = open;  // two tokens with equal beginnings
  return std::string(prompt.substr(same));
}

// Returns the texts <|...|> of some texts, each once.
std::vector<std::string> markers_of(std::span<const std::string> texts) {
  constexpr size_t kLongest = 120;
  std::vector<std::string> markers;
  std::set<std::string_view> seen;
  for (const std::string_view text : texts) {
    for (size_t at = text.find("<|"); at != std::string_view::npos; at = text.find("<|", at + 2)) {
      const std::string_view rest = text.substr(at, kLongest);
      const size_t end = rest.find("|>", 2);
      if (end == std::string_view::npos || rest.find('\n') < end) continue;
      const std::string_view marker = rest.substr(0, end + 2);
      if (seen.insert(marker).second) markers.emplace_back(marker);
    }
  }
  return markers;
}

// Returns whether a template's text reads a message's key: message.KEY, message['KEY'] or message.get("KEY").
bool reads_key(std::string_view program, std::string_view key) {
  for (size_t at = program.find(key, 1); at != std::string_view::npos; at = program.find(key, at + 1)) {
    const char next = at + key.size() < program.size() ? program[at + key.size()] : ' ';
    if (std::string_view(".'\"").find(program[at - 1]) == std::string_view::npos) continue;
    if (!std::isalnum(static_cast<unsigned char>(next)) && next != '_') return true;
  }
  return false;
}

std::vector<Message> one_turn() { return {{ChatRole::User, "Ask"}, {ChatRole::Assistant, "Say"}}; }

constexpr std::string_view kObject = R"({"needle": "thread"})", kText = R"("{\"needle\": \"thread\"}")";

// Returns a question and a call as its reply.
std::vector<Message> call_turn(std::string_view arguments) {
  std::vector<Message> out = one_turn();
  out[1].content.clear();
  out[1].calls = {jinja::value_of_json(fmt::format(
      R"({{"id": "call00001", "type": "function", "function": {{"name": "look", "arguments": {}}}}})", arguments))};
  return out;
}

jinja::Value tool() {
  return jinja::value_of_json(
      R"({"type": "function", "function": {"name": "look", "description": "Looks", "parameters": {"type": "object",)"
      R"( "properties": {"needle": {"type": "string", "description": "What"}}, "required": ["needle"]}}})");
}

}  // namespace

ChatTemplate::Rendering ChatTemplate::run_short(std::span<const Message> messages, bool for_generation,
                                                const SpecialTexts& special) const {
  if (!needs_tools_) return run(messages, {}, for_generation, special);
  const jinja::Value one = tool();
  return run(messages, std::span(&one, 1), for_generation, special);
}

std::optional<ChatTemplate::Rendering> ChatTemplate::probe(std::span<const Message> messages, bool for_generation,
                                                           const SpecialTexts& special) const {
  try {
    return run_short(messages, for_generation, special);
  } catch (const JinjaLimitError&) {  // so would the next ones take too long
    throw;
  } catch (const UserError&) {  // it refuses
    return std::nullopt;
  }
}

// Renders calls beside the tool that they call or without it, whichever shows their arguments.
std::optional<ChatTemplate::Rendering> ChatTemplate::probe_calls(std::span<const Message> messages,
                                                                 const SpecialTexts& special) const {
  const jinja::Value one = tool();
  for (const bool with_tools : {true, false}) {
    try {
      Rendering out = run(messages, std::span(&one, with_tools ? 1 : 0), false, special);
      if (out.text.bytes().find("needle") != std::string::npos) return out;
    } catch (const JinjaLimitError&) {
      throw;
    } catch (const UserError&) {
    }
  }
  return std::nullopt;
}

// Finds out what the template does without a special token that the tokenizer lacks, and without tools, by giving it
// them.
void ChatTemplate::find_what_is_needed(std::string_view source) {
  const std::vector<Message> one = one_turn();
  const auto renders = [&](const SpecialTexts& special) { return probe(one, false, special).has_value(); };
  if (renders(special_)) return;
  const SpecialTexts both{special_.bos.empty() ? "<s>" : special_.bos, special_.eos.empty() ? "</s>" : special_.eos,
                          special_.others};
  try {
    run_short(one, false, both);
  } catch (const UserError& error) {
    needs_tools_ = true;
    if (!renders(both))
      user_error("{} renders no question and reply, expected one that does: {}", source, error.what());
  }
  if (renders(special_)) return;
  needs_bos_ = special_.bos.empty() && !renders({"", both.eos, both.others});
  needs_eos_ = special_.eos.empty() && !renders({both.bos, "", both.others});
}

void ChatTemplate::add_end(const std::string& end) {
  if (!end.empty() && std::ranges::find(around_.ends, end) == around_.ends.end()) around_.ends.push_back(end);
}

// Adds what stands between the two, from where a prompt would begin its reply.
void ChatTemplate::add_header(std::string_view text, const ChatSpan& question, const ChatSpan& reply) {
  if (!question.found || !reply.found || question.own_end > reply.begin) return;
  std::string_view between = text.substr(question.own_end, reply.begin - question.own_end);
  const size_t at = around_.prompt.empty() ? std::string_view::npos : between.rfind(around_.prompt);
  if (at != std::string_view::npos) between.remove_prefix(at);
  // White space behind a prompt belongs to the reply.
  const std::string_view inserted = between.substr(at == std::string_view::npos ? 0 : around_.prompt.size());
  if (white_before(inserted) < inserted.size()) around_.headers.emplace_back(between);
  // A prompt may go on with something with which this reply does not begin, such as a thought.
  for (size_t end = around_.prompt.find_last_of(">\n");
       at == std::string_view::npos && end != std::string::npos && end > 0;
       end = around_.prompt.find_last_of(">\n", end - 1)) {
    const std::string common = around_.prompt.substr(0, end + 1);
    if (between.find(common) == std::string_view::npos) continue;
    around_.headers.push_back(common);
    return;
  }
}

// Finds what ends a turn: the last token that stands behind a reply whether or not a turn follows. If these have none
// in common, or the text always ends with the header of a reply, it is the first token behind the reply.
void ChatTemplate::find_ends(std::string_view next, bool always_asks) {
  const std::string& eos = around_.eos;
  around_.open = white_before(behind_) == behind_.size();
  const auto same = static_cast<size_t>(std::ranges::mismatch(behind_, next).in1 - behind_.begin());
  std::string_view common = std::string_view(behind_).substr(0, same);
  common.remove_suffix(white_behind(common));
  if (!always_asks) around_.end_of_turn = last_token(common, eos);
  if (around_.end_of_turn.empty()) around_.end_of_turn = token_at(around_.open ? next : behind_, eos);
  if (around_.end_of_turn.empty()) around_.end_of_turn = word_of(behind_);
  add_end(around_.end_of_turn);
  if (common.find(around_.end_of_turn) == std::string_view::npos) add_end(token_at(next, eos));
}

// Renders short conversations and examines what stands around their messages.
void ChatTemplate::look_around(std::string_view source) {
  find_what_is_needed(source);
  SpecialTexts special = special_;
  if (needs_bos_) special.bos = "<s>";
  if (needs_eos_) special.eos = "</s>";
  const std::vector<Message> one = one_turn();
  std::vector<Message> two = one_turn(), systematic = one_turn();
  two.insert(two.end(), one.begin(), one.end());
  systematic.insert(systematic.begin(), {ChatRole::System, "Sys"});
  const Rendering turn = run_short(one, false, special);
  const std::vector<ChatSpan> spans = spans_of(turn.text, turn.variables, one.size(), around_);
  if (!spans[1].found) user_error("{} leaves out what the assistant says", source);
  const std::string& text = turn.text.bytes();
  if (spans[0].found && spans[0].end <= spans[1].begin) between_ = turn.text.view(spans[0].end, spans[1].begin);
  behind_ = text.substr(spans[1].end);
  const auto text_of = [&](const std::optional<Rendering>& rendered) {
    return rendered ? rendered->text.bytes() : std::string();
  };
  const std::optional<Rendering> asked = probe(std::span(one).first(1), false, special);
  const std::string question = text_of(asked);
  const std::string prompt = text_of(probe(std::span(one).first(1), true, special));
  around_.prompt = what_asks(question, prompt);
  if (asked && question == prompt) {  // it always ends with what asks for a reply
    const ChatSpan user = spans_of(asked->text, asked->variables, 1, {})[0];
    if (user.found) around_.prompt = question.substr(user.own_end);
  }
  around_.eos = special.eos;
  add_header(text, spans[0], spans[1]);
  around_.generation =
      std::ranges::any_of(turn.text.runs(), [](const jinja::Run& r) { return r.mark & jinja::kGenerated; });
  const std::optional<Rendering> turns = probe(two, false, special);
  std::string_view next = behind_;  // the text behind a reply that another turn follows
  if (turns) {
    const std::vector<ChatSpan> both = spans_of(turns->text, turns->variables, two.size(), {});
    add_header(turns->text.bytes(), both[0], both[1]);
    if (both[1].found)
      next = turns->text.view(both[1].end, both[2].begin > both[1].end ? both[2].begin : turns->text.size());
  }
  find_ends(next, question == prompt);
  const std::optional<Rendering> with_system = probe(systematic, false, special);
  if (with_system && !needs_tools_) {
    const ChatSpan system = spans_of(with_system->text, with_system->variables, systematic.size(), {})[0];
    const std::string_view before = with_system->text.view(0, system.begin);
    const std::string_view after = with_system->text.view(system.end, with_system->text.size());
    if (system.found && text.size() > before.size() + after.size() && text.starts_with(before) && text.ends_with(after))
      default_system_ = text.substr(before.size(), text.size() - before.size() - after.size());
  }
  probes_ = {text, text_of(turns), prompt, text_of(with_system)};
  markers_ = markers_of(probes_);
  find_calls(special);
  find_forms(special);
}

// Finds the key from which a reply's thinking is read, and whether <think> in its content is.
void ChatTemplate::find_forms(const SpecialTexts& special) {
  const auto thought = [](const std::optional<Rendering>& rendered) -> std::optional<size_t> {
    size_t begin = 0;
    for (const jinja::Run& run : rendered ? rendered->text.runs() : std::vector<jinja::Run>()) {
      const ChatVariables::Source* const source = rendered->variables.source(run.mark);
      if (source && source->part == ChatVariables::Part::Thinking) return begin;
      begin = run.end;
    }
    return std::nullopt;
  };
  std::vector<Message> in_key = one_turn(), in_content = one_turn(), in_call = call_turn(kObject);
  in_key[1].thinking = in_call[1].thinking = "Thought";
  in_content[1].content = "<think>\nThought\n</think>\n\nSay";
  const std::optional<Rendering> within = probe(in_content, false, special);
  // Some have it in every reply, some beside calls alone.
  for (const bool calls : {false, true}) {
    for (const std::string_view key : kThinkingKeys) {
      forms_.thinking_key = key;
      const std::optional<Rendering> beside = probe(in_key, false, special);
      if (!thought(calls ? probe_calls(in_call, special) : beside)) continue;
      forms_.writes_thinking = true;
      forms_.thinking_in_content = within && beside && within->text.bytes() == beside->text.bytes();
      return;
    }
  }
  // Some would read it if variables said so that no conversation sets, and take <think> in a reply for a text.
  const auto reads = [&](std::string_view key) { return reads_key(jinja_, key); };
  forms_.thinking_key.clear();
  if (const auto* const key = std::ranges::find_if(kThinkingKeys, reads); key == kThinkingKeys.begin()) {
    forms_.thinking_key = *key;
    forms_.thinking_in_content = false;
    return;
  }
  const std::optional<size_t> begin = thought(within);
  forms_.writes_thinking =
      begin && jinja_.find("</think>") != std::string::npos && around_.prompt.find("</think>") == std::string::npos;
  if (!begin) return;
  std::string_view before = within->text.view(0, *begin);
  before.remove_suffix(white_behind(before));
  forms_.opens_thinking = before.ends_with("<think>");
}

// Finds how calls are given, and what ends them.
void ChatTemplate::find_calls(const SpecialTexts& special) {
  const auto has = [](const std::optional<Rendering>& rendered, std::string_view text) {
    return rendered && rendered->text.bytes().find(text) != std::string::npos;
  };
  std::vector<Message> messages = call_turn(kObject);
  const std::optional<Rendering> object = probe_calls(messages, special);
  forms_.arguments_as_object = has(object, "thread") && !has(object, "{'needle'");
  forms_.arguments_as_text = true;
  std::vector<Message> in_text = call_turn(kText);
  const std::optional<Rendering> text = probe_calls(in_text, special);
  forms_.arguments_as_text = has(text, R"({"needle": "thread"})");
  if (!forms_.arguments_as_object && !forms_.arguments_as_text) {
    forms_.arguments_as_object = true;
    return;
  }
  if (!forms_.arguments_as_object) messages = std::move(in_text);
  const Rendering& rendered = forms_.arguments_as_object ? *object : *text;
  const std::string& whole = rendered.text.bytes();
  const ChatSpan span = spans_of(rendered.text, rendered.variables, messages.size(), {})[1];
  std::string_view behind = std::string_view(whole).substr(span.end);
  if (behind.ends_with(around_.prompt)) behind.remove_suffix(around_.prompt.size());
  behind.remove_suffix(white_behind(behind));
  messages.push_back({.role = ChatRole::Tool, .content = "Result"});
  messages.back().others = {{"tool_call_id", jinja::value_of_json("\"call00001\"")},
                            {"name", jinja::value_of_json("\"look\"")}};
  const std::optional<Rendering> result = probe_calls(messages, special);
  const bool turn_ends = !around_.end_of_turn.empty() && behind.find(around_.end_of_turn) != std::string_view::npos;
  if (turn_ends) {
    around_.end_of_call = around_.end_of_turn;
  } else if (!special.eos.empty() && behind.find(special.eos) != std::string_view::npos) {
    around_.end_of_call = special.eos;
  } else if (around_.open && result) {
    const std::string_view called = std::string_view(whole).substr(0, whole.size() - white_behind(whole));
    if (result->text.bytes().starts_with(called))
      around_.end_of_call = token_at(result->text.view(called.size(), result->text.size()), special.eos);
  }
  if (const std::string last = last_token(behind, special.eos); around_.end_of_call.empty() && !last.starts_with("</"))
    around_.end_of_call = last;
  add_end(around_.end_of_call);
  messages.push_back({ChatRole::Assistant, "Say"});
  if (const std::optional<Rendering> told = probe_calls(messages, special)) {
    const std::vector<ChatSpan> spans = spans_of(told->text, told->variables, messages.size(), around_);
    add_header(told->text.bytes(), spans[2], spans[3]);
  }
}

}  // namespace snug
