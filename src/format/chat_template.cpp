#include "format/chat_template.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "format/chat_texts.h"

namespace snug {
namespace {

constexpr std::array<std::string_view, 7> kNames = {"auto", "chatml", "llama2", "llama3", "mistral", "none", "qwen"};
constexpr std::string_view kWhite = " \t\n\r";
constexpr const char* kPlaceholder = "\xee\x80\x80";  // a character of private use

std::string_view role_name(ChatRole role) {
  switch (role) {
    case ChatRole::System:
      return "system";
    case ChatRole::User:
      return "user";
    case ChatRole::Assistant:
      return "assistant";
  }
  return "";
}

bool carries_loss(const Message& message) { return message.loss.value_or(message.role == ChatRole::Assistant); }

void add(std::vector<Piece>& out, std::string_view text, bool loss = false, bool masked = false) {
  if (text.empty()) return;
  if (out.empty() || out.back().loss != loss || out.back().masked != masked) {
    out.push_back({.text = "", .loss = loss, .masked = masked});
  }
  out.back().text += text;
}

void add(std::vector<Piece>& out, std::string_view text, const Message& message) {
  const bool loss = carries_loss(message);
  add(out, text, loss, /*masked=*/message.loss && !loss);
}

// How many bytes of white space the text begins with, or ends with.
size_t white_before(std::string_view text) { return std::min(text.find_first_not_of(kWhite), text.size()); }
size_t white_behind(std::string_view text) { return text.size() - (text.find_last_not_of(kWhite) + 1); }

// The token that a text begins with behind white space, as far as its spelling tells; empty for none.
std::string token_at(std::string_view text, const std::string& eos) {
  text.remove_prefix(white_before(text));
  if (!eos.empty() && text.starts_with(eos)) return eos;
  if (!text.starts_with('<')) return "";
  return std::string(text.substr(0, text.find('>') + 1));
}

void collect_markers(std::string_view text, std::vector<std::string>& markers) {
  for (size_t at = text.find("<|"); at != std::string_view::npos; at = text.find("<|", at + 2)) {
    const size_t end = text.find("|>", at + 2);
    if (end == std::string_view::npos) return;
    const std::string marker(text.substr(at, end + 2 - at));
    if (marker.find('\n') == std::string::npos && std::ranges::find(markers, marker) == markers.end())
      markers.push_back(marker);
  }
}

std::vector<Message> one_turn() { return {{ChatRole::User, "Ask"}, {ChatRole::Assistant, "Say"}}; }

}  // namespace

std::string chat_template_names() { return fmt::format("{}", fmt::join(kNames, ", ")); }

jinja::Text ChatTemplate::text_of(std::span<const Message> messages, bool for_generation,
                                  const SpecialTexts& special) const {
  uint64_t bytes = 0;
  std::vector<jinja::Value> list;
  for (size_t i = 0; i < messages.size(); ++i) {
    bytes += messages[i].content.size() + 64;
    auto* const dict = new jinja::DictRep;
    list.emplace_back(jinja::Kind::Dict, dict);
    dict->set(jinja::make_string(jinja::Text("role")),
              jinja::make_string(jinja::Text(std::string(role_name(messages[i].role)))));
    dict->set(jinja::make_string(jinja::Text("content")),
              jinja::make_string(jinja::Text(messages[i].content, static_cast<jinja::Mark>(i + 1))));
  }
  auto* const rep = new jinja::ListRep;
  const jinja::Value value(jinja::Kind::List, rep);
  rep->items = std::move(list);
  rep->height = 2;
  JinjaTemplate::Variables variables = {{"messages", value},
                                        {"add_generation_prompt", jinja::Value(for_generation)},
                                        {"tools", jinja::Value::none()},
                                        {"documents", jinja::Value::none()}};
  if (!special.bos.empty()) variables.emplace_back("bos_token", jinja::make_string(jinja::Text(special.bos)));
  if (!special.eos.empty()) variables.emplace_back("eos_token", jinja::make_string(jinja::Text(special.eos)));
  return program_->render(variables, JinjaLimits::for_input(bytes));
}

std::vector<ChatTemplate::Span> ChatTemplate::spans_of(const jinja::Text& text, size_t count) const {
  std::vector<Span> spans(count);
  size_t begin = 0;
  jinja::Mark before = 0;  // of the message that the last marked bytes are of
  for (const jinja::Run& run : text.runs()) {
    const jinja::Mark mark = run.mark & ~jinja::kGenerated;
    if (mark > 0) {
      Span& span = spans[mark - 1];
      if (!span.found) span.begin = begin;
      span.broken |= span.found && before != mark;
      before = mark;
      span.end = run.end;
      span.found = true;
    }
    begin = run.end;
  }
  return spans;
}

// What the template does without a special token that there is none of, by giving it one.
void ChatTemplate::find_what_is_needed(std::string_view source) {
  const std::vector<Message> one = one_turn();
  const auto renders = [&](const SpecialTexts& special) {
    try {
      text_of(one, false, special);
      return true;
    } catch (const UserError&) {
      return false;
    }
  };
  if (renders(special_)) return;
  const SpecialTexts both{special_.bos.empty() ? "<s>" : special_.bos, special_.eos.empty() ? "</s>" : special_.eos};
  try {
    text_of(one, false, both);
  } catch (const UserError& error) {
    user_error("{} renders no question and reply, expected one that does: {}", source, error.what());
  }
  needs_bos_ = special_.bos.empty() && !renders({"", both.eos});
  needs_eos_ = special_.eos.empty() && !renders({both.bos, ""});
}

// Renders short conversations and looks at what stands around their messages.
void ChatTemplate::look_around(std::string_view source) {
  find_what_is_needed(source);
  SpecialTexts special = special_;
  if (needs_bos_) special.bos = "<s>";
  if (needs_eos_) special.eos = "</s>";
  const std::vector<Message> one = one_turn();
  std::vector<Message> two = one_turn(), systematic = one_turn();
  two.insert(two.end(), one.begin(), one.end());
  systematic.insert(systematic.begin(), {ChatRole::System, "Sys"});
  const jinja::Text turn = text_of(one, false, special);
  const std::vector<Span> spans = spans_of(turn, one.size());
  if (!spans[1].found) user_error("{} leaves out what the assistant says", source);
  const std::string& text = turn.bytes();
  if (spans[0].found && spans[0].end <= spans[1].begin) between_ = turn.view(spans[0].end, spans[1].begin);
  behind_ = text.substr(spans[1].end);
  const auto probe = [&](std::span<const Message> messages, bool for_generation) {
    try {
      return text_of(messages, for_generation, special);
    } catch (const UserError&) {
      return jinja::Text();  // it refuses
    }
  };
  const std::string question = probe(std::span(one).first(1), false).bytes();
  const std::string prompt = probe(std::span(one).first(1), true).bytes();
  if (prompt.starts_with(question)) prompt_ = prompt.substr(question.size());
  const jinja::Text turns = probe(two, false);
  end_of_turn_ = token_at(behind_, special.eos);
  if (const Span reply = spans_of(turns, two.size())[1]; end_of_turn_.empty() && reply.found)
    end_of_turn_ = token_at(std::string_view(turns.bytes()).substr(reply.end), special.eos);
  const jinja::Text with_system = probe(systematic, false);
  if (const Span system = spans_of(with_system, systematic.size())[0]; system.found) {
    const std::string_view before = with_system.view(0, system.begin);
    const std::string_view after = with_system.view(system.end, with_system.size());
    if (text.size() > before.size() + after.size() && text.starts_with(before) && text.ends_with(after))
      default_system_ = text.substr(before.size(), text.size() - before.size() - after.size());
  }
  probes_ = {text, turns.bytes(), prompt, with_system.bytes()};
  for (const std::string& text_of_one : probes_) collect_markers(text_of_one, markers_);
}

ChatTemplate ChatTemplate::of_program(std::string_view program, SpecialTexts special, std::string_view source) {
  ChatTemplate out;
  out.program_ = JinjaTemplate::parse(program, std::string(source));
  out.jinja_ = program;
  out.special_ = std::move(special);
  out.name_ = "own";
  out.look_around(source);
  return out;
}

ChatTemplate ChatTemplate::choose(std::string_view name, std::string_view model_template, SpecialTexts special,
                                  std::string_view owner) {
  if (std::find(kNames.begin(), kNames.end(), name) == kNames.end()) {
    user_error("template: found '{}', expected one of {}", name, chat_template_names());
  }
  ChatTemplate named;
  named.special_ = special;
  named.end_of_turn_ = special.eos;
  if (name == "none") return named;
  const auto look_like = [](const ChatTemplate& a, const ChatTemplate& b) {
    return a.between_ == b.between_ && a.prompt_ == b.prompt_ &&
           a.behind_.substr(0, a.behind_.size() - white_behind(a.behind_)) ==
               b.behind_.substr(0, b.behind_.size() - white_behind(b.behind_));
  };
  const auto of_name = [&](std::string_view one) {
    ChatTemplate out = of_program(jinja_text(one), special, fmt::format("template {}", one));
    out.name_ = one == "qwen" ? "chatml" : one;
    return out;
  };
  const std::string source = fmt::format("template: {} has a chat template that", owner);
  if (name == "auto") {
    if (model_template.empty())
      user_error("template: {} has no chat template; name one with --template: {}", owner,
                 fmt::join(kNames.begin() + 1, kNames.end(), ", "));  // all but auto
    ChatTemplate own;
    try {
      own = of_program(model_template, special, fmt::format("{}'s chat template", owner));
    } catch (const UserError& error) {
      user_error("{}; --template takes another, or none", error.what());
    }
    for (const std::string_view one : {"chatml", "llama3", "llama2", "mistral"}) {
      if (look_like(own, of_name(one))) own.name_ = one;
    }
    return own;
  }
  named = of_name(name);
  try {
    ChatTemplate own = of_program(model_template, special, source);
    const bool fits =
        !model_template.empty() && look_like(own, named) && (name != "qwen" || !own.default_system_.empty());
    own.name_ = named.name_;
    if (fits) return own;
    const bool begins = name == "qwen" && look_like(own, named) && !special.bos.empty();
    if (begins && own.probes_[0].starts_with(special.bos)) {
      named = of_program("{{ bos_token }}" + std::string(jinja_text(name)), special, "template qwen");
      named.name_ = "chatml";
    }
  } catch (const UserError&) {  // it has none that could tell more
  }
  return named;
}

std::vector<std::string> ChatTemplate::lacking(const std::function<bool(std::string_view)>& is_token) const {
  std::vector<std::string> out;
  for (const std::string& marker : markers_) {
    if (marker != special_.bos && !is_token(marker)) out.push_back(fmt::format("'{}'", marker));
  }
  if (needs_bos_) out.emplace_back("a bos_token");
  if (needs_eos_) out.emplace_back("an eos_token");
  return out;
}

// Where texts would stand that leave no byte: a placeholder in their place shows it, if it changes nothing else.
void ChatTemplate::find_empty(std::span<const Message> messages, bool for_generation, const jinja::Text& text,
                              std::vector<Span>& spans) const {
  std::vector<Message> shown(messages.begin(), messages.end());
  bool any = false;
  for (size_t i = 0; i < shown.size(); ++i) {
    if (spans[i].found || (!carries_loss(shown[i]) && !shown[i].loss)) continue;
    shown[i].content = kPlaceholder;
    any = true;
  }
  if (!any) return;
  const jinja::Text with = text_of(shown, for_generation, special_);
  const std::vector<Span> found = spans_of(with, shown.size());
  std::string without;
  size_t from = 0;
  for (size_t i = 0; i < shown.size(); ++i) {
    if (spans[i].found || !found[i].found || shown[i].content != kPlaceholder || found[i].begin < from) continue;
    without += with.view(from, found[i].begin);
    spans[i] = {without.size(), without.size(), true};
    from = found[i].end;
  }
  without += with.view(from, with.size());
  for (size_t i = 0; i < shown.size(); ++i) {
    const bool empty = spans[i].begin == spans[i].end;
    if (empty && without != text.bytes()) spans[i].found = false;
    if (!spans[i].found && carries_loss(messages[i]) &&
        messages[i].content.find_first_not_of(kWhite) != std::string::npos)
      user_error("template {}: found message {} left out of the text, expected every one that carries loss in it",
                 name_, i + 1);
  }
}

// `from`: where the message before it ends.
ChatTemplate::Span ChatTemplate::with_surroundings(std::string_view text, Span span, size_t from,
                                                   const Message& message) const {
  const std::string_view before = text.substr(from, span.begin - from);
  if (message.role == ChatRole::Assistant) {
    const size_t header = prompt_.empty() ? std::string_view::npos : before.rfind(prompt_);
    const std::string_view inserted =
        header == std::string_view::npos ? std::string_view() : before.substr(header + prompt_.size());
    const bool thinks = message.content.find("</think>") != std::string::npos;
    if (prompt_.empty() || (header != std::string_view::npos && white_before(inserted) == inserted.size())) {
      span.begin -= prompt_.empty() ? white_behind(before) : inserted.size();
    } else if (thinks) {
      span.begin -= inserted.size();
    }
  }
  const size_t white = white_before(text.substr(span.end));
  if (!end_of_turn_.empty() && text.substr(span.end + white).starts_with(end_of_turn_))
    span.end += white + end_of_turn_.size();
  return span;
}

std::vector<Piece> ChatTemplate::render(std::span<const Message> messages, bool for_generation) const {
  std::vector<Piece> out;
  if (!program_) {
    for (const Message& m : messages) add(out, m.content + (m.role == ChatRole::Assistant ? special_.eos : ""), m);
    return out;
  }
  const jinja::Text rendered = text_of(messages, for_generation, special_);
  std::vector<Span> spans = spans_of(rendered, messages.size());
  find_empty(messages, for_generation, rendered, spans);
  // Messages that are pieces of their own, in the order in which the template has them.
  std::vector<size_t> order;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (spans[i].found && (carries_loss(messages[i]) || messages[i].loss)) order.push_back(i);
  }
  std::ranges::stable_sort(order, {}, [&](size_t i) { return spans[i].begin; });
  std::vector<size_t> ends;  // of the others
  for (size_t i = 0; i < messages.size(); ++i) {
    if (spans[i].found && !carries_loss(messages[i]) && !messages[i].loss) ends.push_back(spans[i].end);
  }
  std::ranges::sort(ends);
  const std::string_view text = rendered.bytes();
  size_t from = 0;
  for (const size_t i : order) {
    if (spans[i].broken || spans[i].begin < from)
      user_error(
          "template {}: found message {} repeated or within another, expected texts that carry loss one after another",
          name_, i + 1);
    const auto other = std::ranges::upper_bound(ends, spans[i].begin);
    const size_t before = other == ends.begin() ? from : std::max(from, *(other - 1));
    const Span span = with_surroundings(text, spans[i], before, messages[i]);
    add(out, text.substr(from, span.begin - from));
    add(out, text.substr(span.begin, span.end - span.begin), messages[i]);
    from = span.end;
  }
  add(out, text.substr(from));
  return out;
}

}  // namespace snug
