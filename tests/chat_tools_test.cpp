// Tools, calls, results and thinking as chat templates render them, and what of them carries loss.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "expect_error.h"
#include "format/chat_template.h"
#include "format/jinja_json.h"
#include "format/tokenizer.h"

namespace snug {
namespace {

using OrderedJson = nlohmann::ordered_json;
using testing::ElementsAre;

std::string fixture(const std::string& file) {
  return read_text(std::string(SNUG_FIXTURES "/templates/") + file, 1 << 20);
}

ChatRole role_of(const std::string& name) {
  for (const ChatRole role :
       {ChatRole::System, ChatRole::User, ChatRole::Assistant, ChatRole::Tool, ChatRole::Developer})
    if (name_of(role) == name) return role;
  ADD_FAILURE() << name;
  return ChatRole::User;
}

Message message_of(const OrderedJson& json) {
  Message out{.role = role_of(json["role"])};
  out.no_content = json["content"].is_null();
  if (!out.no_content) out.content = json["content"];
  out.thinking = json.value("reasoning_content", "");
  for (const OrderedJson& call : json.value("tool_calls", OrderedJson::array()))
    out.calls.push_back(jinja::value_of_json(call.dump()));
  if (out.role == ChatRole::Tool) out.others = {{"tool_call_id", jinja::value_of_json(json["tool_call_id"].dump())}};
  return out;
}

struct Rendered {
  std::string text;
  std::vector<std::string> loss, pieces = {};
  LeftOut left_out = {};
  std::optional<ChatTemplate> chat = {};
};

Rendered rendered(const std::string& program, const std::vector<Message>& messages,
                  const std::vector<jinja::Value>& tools = {}) {
  Rendered out;
  const ChatTemplate chat = ChatTemplate::choose("auto", program, {"<s>", "</s>"});
  for (const Piece& piece : chat.render(messages, false, tools, &out.left_out)) {
    out.text += piece.text;
    out.pieces.push_back(piece.text);
    if (piece.loss) out.loss.push_back(piece.text);
  }
  out.chat = chat;
  return out;
}

std::string without(std::string text, std::string_view part) {
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at)) text.erase(at, part.size());
  return text;
}

jinja::Value tool(const std::string& name) {
  return jinja::value_of_json(R"({"type": "function", "function": {"name": ")" + name + R"("}})");
}

Message calling(const std::string& arguments, std::string content = "") {
  Message out{ChatRole::Assistant, std::move(content)};
  out.calls = {jinja::value_of_json(R"({"function": {"name": "tide", "arguments": )" + arguments + "}}")};
  return out;
}

const Message kAsk{ChatRole::User, "Ask"};

// The templates say by generation blocks what carries loss. It is that; and without the blocks it is the same.
TEST(ChatTools, LossIsOnRepliesCallsAndThoughtsWhetherOrNotATemplateSaysSo) {
  const auto cases = OrderedJson::parse(fixture("learnt.json"));
  ASSERT_GT(cases.size(), 30u);
  for (const OrderedJson& entry : cases) {
    const std::string name = entry["template"];
    SCOPED_TRACE(name + ", " + entry["conversation"].get<std::string>());
    std::vector<Message> messages;
    for (const OrderedJson& message : entry["messages"]) messages.push_back(message_of(message));
    std::vector<jinja::Value> tools;
    if (!entry["tools"].is_null())
      for (const OrderedJson& one : entry["tools"]) tools.push_back(jinja::value_of_json(one.dump()));
    const std::string program = fixture("marked/" + name + ".jinja");
    std::string text = entry["text"];
    std::vector<std::string> loss = entry["loss"];
    const Rendered marked = rendered(program, messages, tools);
    EXPECT_EQ(marked.text, text);
    EXPECT_EQ(marked.loss, loss);
    if (name == "next_role") {  // which stands behind the last reply too
      const std::string next = messages.back().calls.empty() ? "<|user|>" : "<|observation|>";
      text += next;
      loss.back() += next;
    }
    const Rendered plain =
        rendered(without(without(program, "{%- generation %}"), "{%- endgeneration %}"), messages, tools);
    EXPECT_EQ(plain.text, text);
    EXPECT_EQ(plain.loss, loss);
  }
}

TEST(ChatTools, WhatEndsTurnsAndCallsIsFoundOut) {
  const auto ends = [](const std::string& name) {
    const ChatTemplate chat = ChatTemplate::choose("auto", fixture("marked/" + name + ".jinja"), {"<s>", "</s>"});
    return std::pair(chat.end_of_turn(), chat.end_of_call());
  };
  EXPECT_EQ(ends("thoughts"), std::pair(std::string("<|im_end|>"), std::string("<|im_end|>")));
  EXPECT_EQ(ends("next_role"), std::pair(std::string("<|user|>"), std::string("<|observation|>")));
  EXPECT_EQ(ends("channels"), std::pair(std::string("<|return|>"), std::string("<|call|>")));
  EXPECT_EQ(ends("brackets"), std::pair(std::string("</s>"), std::string("</s>")));
  EXPECT_EQ(ends("actions"), std::pair(std::string("<|over|>"), std::string("<|over|>")));
}

// A template that writes all that a conversation may have.
constexpr const char* kAll =
    "{% if tools %}{{ tools | tojson }}\n{% endif %}{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}[{{ c.function.name }} {{ c.function.arguments | tojson }}]{% endfor %}<end>\n"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";

TEST(ChatTools, ArgumentsAreGivenAsTheTemplateWritesThem) {
  const std::string object = R"({"b": 1, "a": "ö"})", text = R"("{\"b\": 1, \"a\": \"ö\"}")";
  const std::string expected = R"([tide {"b": 1, "a": "ö"}]<end>)";
  EXPECT_THAT(rendered(kAll, {kAsk, calling(object)}).loss, ElementsAre(expected));
  EXPECT_THAT(rendered(kAll, {kAsk, calling(text)}).loss, ElementsAre(expected));
  const std::string as_text = without(kAll, " | tojson }}]");
  const std::string takes_text = std::string(kAll).replace(std::string(kAll).find(" | tojson }}]"), 9, "");
  EXPECT_THAT(rendered(takes_text, {kAsk, calling(object)}).loss, ElementsAre(expected));
  EXPECT_THAT(rendered(takes_text, {kAsk, calling(text)}).loss, ElementsAre(expected));
  EXPECT_THAT(rendered(takes_text, {kAsk, calling(R"("{\"b\":1}")")}).loss, ElementsAre(R"([tide {"b":1}]<end>)"));
  EXPECT_THAT(rendered(kAll, {kAsk, calling(R"("")")}).loss, ElementsAre("[tide {}]<end>"));
  EXPECT_TRUE(fails_with<UserError>(
      [&] {
        rendered(kAll, {kAsk, calling(R"("{b")")});
      },
      "key 'arguments' of a call in message 2: found a text that is no JSON"));
  EXPECT_TRUE(fails_with<UserError>([&] { rendered(kAll, {kAsk, calling(R"("[1]")")}); }, "found a text of another"));
}

TEST(ChatTools, NullContentIsNoTextWhereATemplateWouldPrintIt) {
  Message call = calling("{}");
  call.no_content = true;
  EXPECT_THAT(rendered(kAll, {kAsk, call}).loss, ElementsAre("[tide {}]<end>"));
  EXPECT_THAT(rendered(std::string(kAll) + "{{ messages[1].content + '' }}", {kAsk, call}).loss,
              ElementsAre("[tide {}]<end>"));
  const std::string asks =
      "{% for m in messages %}<{{ m.role }}>{{ m.content if m.content is not none else 'nothing' }}"
      "{% for c in m.tool_calls or [] %}[{{ c | tojson }}]{% endfor %}<end>{% endfor %}";
  EXPECT_EQ(rendered(asks, {kAsk, call}).text,
            R"(<user>Ask<end><assistant>nothing[{"function": {"name": "tide", "arguments": {}}}]<end>)");
}

TEST(ChatTools, WhatATemplateLeavesOutIsRefusedOrCounted) {
  const std::string texts =
      "{% for m in messages %}{% if m.role != 'tool' and m.role != 'developer' %}<{{ m.role }}>"
      "{{ m.content }}<end>{% endif %}{% endfor %}";
  const auto refused = [&](const std::string& program, std::vector<Message> messages, std::string_view part,
                           std::vector<jinja::Value> tools = {}) {
    return fails_with<UserError>([&] { rendered(program, messages, tools); }, part);
  };
  EXPECT_TRUE(refused(texts, {kAsk, {ChatRole::Assistant, "Say"}}, "key 'tools': the chat template leaves out the one",
                      {tool("tide")}));
  const std::string first = "{{ tools[0] | tojson if tools else '' }}" + texts;
  EXPECT_TRUE(
      refused(first, {kAsk, {ChatRole::Assistant, "Say"}}, "leaves out some of 2 tools", {tool("tide"), tool("wind")}));
  EXPECT_TRUE(refused(texts, {kAsk, calling("{}")}, "key 'tool_calls' of message 2: the chat template leaves out"));
  EXPECT_TRUE(
      refused("{% for m in messages %}<{{ m.role }}>{% if m.tool_calls %}{% for c in m.tool_calls %}"
              "{{ c.function | tojson }}{% endfor %}{% else %}{{ m.content }}{% endif %}<end>{% endfor %}",
              {kAsk, calling("{}", "Look")}, "key 'content' of message 2: found a text beside calls, which the"));
  EXPECT_TRUE(refused(texts +
                          "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}"
                          "{% endfor %}",
                      {kAsk, calling(R"({"a": 1})")}, "key 'tool_calls[].function.arguments' of message 2"));
  EXPECT_TRUE(refused(texts, {kAsk, {ChatRole::Tool, "Result"}, {ChatRole::Assistant, "Say"}},
                      "key 'role' of message 2: found 'tool', which the chat template leaves out"));
  Message developer{.role = ChatRole::Developer, .content = "Be brief"};
  EXPECT_TRUE(refused(texts, {developer, kAsk, {ChatRole::Assistant, "Say"}}, "--roles developer=ROLE names another"));
  Message thinks{ChatRole::Assistant, "Say"};
  thinks.thinking = "Hm";
  EXPECT_TRUE(refused(texts, {kAsk, thinks}, "key 'reasoning_content' of message 2: found thinking, which the chat"));
  const std::string no_system =
      "{% for m in messages %}{% if m.role != 'system' %}<{{ m.role }}>{{ m.content }}<end>"
      "{% endif %}{% endfor %}";
  const Rendered two =
      rendered(no_system, {{ChatRole::System, "Be"}, {ChatRole::System, " "}, kAsk, {ChatRole::Assistant, "Say"}});
  EXPECT_EQ(two.left_out.texts, 1);
}

TEST(ChatTools, TemplatesThatHaveNamesRenderTextsAlone) {
  const auto refused = [](const std::string& name, std::vector<Message> messages, std::string_view part,
                          std::vector<jinja::Value> tools = {}) {
    const ChatTemplate chat = ChatTemplate::choose(name, "", {"<s>", "</s>"});
    return fails_with<UserError>([&] { chat.render(messages, false, tools); }, part);
  };
  for (const std::string name : {"chatml", "llama3", "none"}) {
    EXPECT_TRUE(refused(name, {kAsk}, "key 'tools': found tools, expected none: template " + name, {tool("tide")}));
    EXPECT_TRUE(refused(name, {kAsk, calling("{}")}, "key 'tool_calls' of message 2: found calls, expected none"));
    EXPECT_TRUE(refused(name, {{ChatRole::Tool, "Result"}}, "key 'role' of message 1: found 'tool'"));
    Message thinks{ChatRole::Assistant, "Say"};
    thinks.thinking = "Hm";
    EXPECT_TRUE(refused(name, {kAsk, thinks}, "key 'reasoning_content' of message 2: found thinking, expected none"));
  }
}

TEST(ChatTools, ThinkingGoesWhereTheTemplateReadsIt) {
  const std::string open = "{% for m in messages %}<{{ m.role }}>",
                    close =
                        "{{ m.content }}<end>{% endfor %}"
                        "{% if add_generation_prompt %}<assistant>{% endif %}";
  const std::string of_key = open + "{% if m.thinking %}<t>{{ m.thinking }}</t>{% endif %}" + close;
  Message beside{ChatRole::Assistant, "Say"}, within{ChatRole::Assistant, "<think>\nHm\n</think>\n\nSay"};
  beside.thinking = "Hm";
  EXPECT_THAT(rendered(of_key, {kAsk, beside}).loss, ElementsAre("<t>Hm</t>Say<end>"));
  EXPECT_THAT(rendered(of_key, {kAsk, within}).loss, ElementsAre("<t>Hm</t>Say<end>"));
  // One that reads it in the text, and shows it in the last reply alone.
  const std::string of_text =
      open +
      "{% set c = m.content %}{% if not loop.last %}{% set c = c.split('</think>')[-1].strip() %}{% endif %}{{ c }}"
      "<end>{% endfor %}";
  EXPECT_THAT(rendered(of_text, {kAsk, beside}).loss, ElementsAre("<think>\nHm\n</think>\n\nSay<end>"));
  const Rendered earlier = rendered(of_text, {kAsk, within, kAsk, within});
  EXPECT_THAT(earlier.loss, ElementsAre("Say<end>", "<think>\nHm\n</think>\n\nSay<end>"));
  EXPECT_EQ(earlier.left_out.thoughts, 1);
  EXPECT_THAT(rendered(of_text, {kAsk, {ChatRole::Assistant, "Hm</think>Say"}}).loss,
              ElementsAre("Hm</think>Say<end>"));
  // One that knows nothing of it leaves it a part of the reply.
  EXPECT_THAT(rendered(open + close, {kAsk, within}).loss, ElementsAre("<think>\nHm\n</think>\n\nSay<end>"));
  EXPECT_THAT(rendered(of_key, {kAsk, {ChatRole::Assistant, "Say </think>"}}).loss, ElementsAre("Say </think><end>"));
}

TEST(ChatTools, ThinkingGoesOnWhereThePromptEnds) {
  const std::string open = "{% for m in messages %}{{ '<' + m.role + '>\\n' }}",
                    ask = "{% if add_generation_prompt %}{{ '<assistant>\\n<think>\\n' }}{% endif %}";
  Message beside{ChatRole::Assistant, "Say"}, within{ChatRole::Assistant, "<think>\nHm\n</think>\n\nSay"};
  beside.thinking = "Hm";
  // One opens the thinking of the last reply itself, but reads it in the text alone: it is not opened twice.
  const std::string opens = open +
                            "{% if m.role == 'assistant' and loop.last %}{{ '<think>\\n' }}{% endif %}"
                            "{{ m.content.split('</think>')[-1].strip() if not loop.last else m.content }}<end>"
                            "{% endfor %}" +
                            ask;
  for (const Message& reply : {beside, within}) {
    const Rendered out = rendered(opens, {kAsk, reply, kAsk, reply});
    EXPECT_EQ(out.text,
              "<user>\nAsk<end><assistant>\nSay<end><user>\nAsk<end><assistant>\n<think>\nHm\n</think>\n\nSay<end>");
    EXPECT_THAT(out.loss, ElementsAre("Say<end>", "Hm\n</think>\n\nSay<end>"));
    EXPECT_EQ(out.left_out.unasked, 0);
  }
  // One writes the text as it is, <think> and all, which its prompt has already.
  const std::string plain = open + "{{ m.content }}{% if '</think>' in m.content %}{% endif %}<end>{% endfor %}" + ask;
  EXPECT_THAT(rendered(plain, {kAsk, within}).loss, ElementsAre("Hm\n</think>\n\nSay<end>"));
  EXPECT_EQ(rendered(plain, {kAsk, within}).left_out.unasked, 0);
  EXPECT_EQ(rendered(plain, {kAsk, {ChatRole::Assistant, "Say"}}).left_out.unasked, 1);
}

TEST(ChatTools, ThinkingThatATemplateReadsIsGivenToItThoughItLeavesItOut) {
  const std::string open = "{{ tools | tojson if tools else '' }}{% for m in messages %}<{{ m.role }}>";
  const std::string calls =
      "{% for c in m.tool_calls or [] %}[{{ c.function.name }} {{ c.function.arguments | tojson }}]"
      "{% endfor %}";
  Message beside{ChatRole::Assistant, "Say"}, within{ChatRole::Assistant, "<think>Hm</think>Say"}, call = calling("{}");
  beside.thinking = call.thinking = "Hm";
  // One renders it beside calls alone.
  const std::string of_calls = open + "{% if m.tool_calls %}<t>{{ m.reasoning_content }}</t>{% endif %}" + calls +
                               "{{ m.content }}<end>{% endfor %}";
  EXPECT_THAT(rendered(of_calls, {kAsk, call}, {tool("tide")}).loss, ElementsAre("<t>Hm</t>[tide {}]<end>"));
  for (const Message& reply : {beside, within}) {
    const Rendered out = rendered(of_calls, {kAsk, reply});
    EXPECT_THAT(out.loss, ElementsAre("Say<end>"));
    EXPECT_EQ(out.left_out.thoughts, 1);
    EXPECT_EQ(out.left_out.last_thoughts, 1);
  }
  // One renders it if a variable says so; <think> in a reply is not a text to it.
  const std::string never = open + "{% if thinking %}<t>{{ m.reasoning_content }}</t>{% else %}</t>{% endif %}" +
                            calls + "{{ m.content }}<end>{% endfor %}";
  for (const Message& reply : {beside, within})
    EXPECT_TRUE(fails_with<UserError>(
        [&] {
          rendered(never, {kAsk, reply});
        },
        "found thinking, expected none: the chat template reads it"));
}

TEST(ChatTools, ATemplateThatRendersOnlyWithToolsIsTakenWithThem) {
  const std::string needs = "{% for t in tools %}{{ t | tojson }}{% endfor %}" + std::string(kAll);
  const Rendered out = rendered(needs, {kAsk, {ChatRole::Assistant, "Say"}}, {tool("tide")});
  EXPECT_THAT(out.loss, ElementsAre("Say<end>"));
  EXPECT_TRUE(fails_with<UserError>(
      [&] {
        rendered(needs, {kAsk, {ChatRole::Assistant, "Say"}});
      },
      "key 'tools': found none, expected a list of tools"));
}

// jinja2's sandbox refuses what changes a value, and so does transformers.
TEST(ChatTools, AMethodThatChangesAValueIsRefusedByItsName) {
  const std::string appends =
      "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n"
      "{% for c in m.tool_calls or [] %}{% set _ = m.tool_calls.append(c) %}{% endfor %}<end>{% endfor %}";
  EXPECT_TRUE(fails_with<UserError>(
      [&] {
        rendered(appends, {kAsk, calling("{}")});
      },
      "line 2: found append() of a list called, which would change it"));
}

TEST(ChatTools, ArgumentsThatAreNoObjectAreRefused) {
  const std::string takes_text =
      "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}"
      "[{{ c.function.name + ' ' + c.function.arguments }}]{% endfor %}<end>{% endfor %}";
  for (const std::string& program : {std::string(kAll), takes_text})
    for (const std::string arguments : {R"("{not json")", R"("{\"a\": 1} ]")", R"("[1]")", R"("3")"})
      EXPECT_TRUE(fails_with<UserError>(
          [&] {
            rendered(program, {kAsk, calling(arguments)});
          },
          "key 'arguments' of a call in message 2: found a text"))
          << arguments;
  EXPECT_THAT(rendered(takes_text, {kAsk, calling(R"("{\"a\": 123456789012345678901}")")}).loss,
              ElementsAre(R"([tide {"a": 123456789012345678901}]<end>)"));
}

TEST(ChatTools, AGenerationBlockBelongsToTheMessageThatItShows) {
  const std::string program =
      "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}"
      "{{ m.content }}<end>{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}";
  std::vector<Message> messages = {kAsk, {ChatRole::Assistant, "No", false}, kAsk, {ChatRole::Assistant, "Yes"}};
  EXPECT_TRUE(ChatTemplate::choose("auto", program, {}).says_loss());
  EXPECT_FALSE(ChatTemplate::choose("auto", kAll, {}).says_loss());
  EXPECT_THAT(rendered(program, messages).loss, ElementsAre("Yes<end>"));
  messages[2].loss = true;
  EXPECT_THAT(rendered(program, messages).loss, ElementsAre("Ask", "Yes<end>"));
  const std::string whole =
      "{% generation %}{% for m in messages %}{{ m.content }}<end>{% endfor %}{% endgeneration %}";
  EXPECT_TRUE(fails_with<UserError>(
      [&] {
        rendered(whole, {messages[1], messages[3]});
      },
      "of which one carries loss and another does not in one generation block"));
}

TEST(ChatTools, AQuestionAloneMayEndOtherwiseThanAPrompt) {
  const std::string ends =
      "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|assistant|>\n{% else %}{{ eos_token }}{% endif %}";
  EXPECT_THAT(rendered(ends, {kAsk, {ChatRole::Assistant, "\nSay"}, kAsk, {ChatRole::Assistant, "Bye"}}).loss,
              ElementsAre("\nSay<|end|>", "Bye<|end|>"));
}

TEST(ChatTools, ResultsCarryLossOnlyWhereTheyAskForIt) {
  Message result{ChatRole::Tool, "Result"};
  EXPECT_THAT(rendered(kAll, {kAsk, calling("{}"), result, {ChatRole::Assistant, "Say"}}).loss,
              ElementsAre("[tide {}]<end>", "Say<end>"));
  result.loss = true;
  EXPECT_THAT(rendered(kAll, {kAsk, calling("{}"), result, {ChatRole::Assistant, "Say"}}).loss,
              ElementsAre("[tide {}]<end>", "Result<end>", "Say<end>"));
}

// What must be in the loss, whatever a template writes around it.
std::vector<std::string> learnt_of(const OrderedJson& messages) {
  std::vector<std::string> out;
  const auto add = [&](std::string text) {
    const jinja::Range kept = jinja::strip(text, std::nullopt, jinja::Sides::Both);
    out.push_back(text.substr(kept.begin, kept.end - kept.begin));
  };
  for (const OrderedJson& message : messages) {
    if (message["role"] != "assistant") continue;
    if (message["content"].is_string() && message["content"].get<std::string>().find("</think>") == std::string::npos)
      add(message["content"]);
    for (const OrderedJson& call : message.value("tool_calls", OrderedJson::array())) {
      add(call["function"]["name"]);
      if (call["function"]["arguments"].is_object() && call["function"]["arguments"].contains("place"))
        add(call["function"]["arguments"]["place"]);
    }
  }
  return out;
}

// Gives the token ids of what pieces hold, one after another, as a sample has them.
class PublishedTokens {
 public:
  PublishedTokens() {
    Json json = Json::parse(fixture("../tokenizer/qwen2/tokenizer.json"));
    int64_t next = 0;
    for (const auto& [text, id] : json["model"]["vocab"].items()) next = std::max(next, id.get<int64_t>() + 1);
    std::set<std::string> known;
    for (const Json& token : json["added_tokens"]) {
      next = std::max(next, token["id"].get<int64_t>() + 1);
      known.insert(token["content"]);
    }
    for (const Json& marker : stored_["markers"]) {
      if (known.contains(marker)) continue;
      json["added_tokens"].push_back({{"id", next++},
                                      {"content", marker},
                                      {"special", true},
                                      {"normalized", false},
                                      {"single_word", false},
                                      {"lstrip", false},
                                      {"rstrip", false}});
    }
    tokenizer_ = Tokenizer::parse({.tokenizer = json.dump()});
  }
  std::istringstream hashes(const std::string& name) const {
    return std::istringstream(stored_["ids"][name].get<std::string>());
  }
  std::string hash(const std::vector<std::string>& pieces) const {
    std::string all;
    Before before = Before::Nothing;
    for (const std::string& piece : pieces)
      for (const int32_t id : tokenizer_->encode_next(piece, before))
        all += fmt::format("{}{}", all.empty() ? "" : ",", id);
    return fmt::format("{:016x}", hash_of(all));
  }

 private:
  const Json stored_ = Json::parse(fixture("../jinja/published_ids.json"));
  std::optional<Tokenizer> tokenizer_;
};

// Lists templates that write what is thought, or calls, as a message with a header and an end of its own, which are
// learnt between the parts of a reply.
const std::set<std::string, std::less<>> kPartsAreMessages = {
    "GigaChat3-10B-A1.8B.jinja", "muse-glimmer.jinja", "openai-gpt-oss-120b.jinja", "upstage-Solar-Open-100B.jinja"};

// Requires that a part with loss has no header in it, of its own reply or of what follows, and at most one end of a
// turn, behind all else. Generation blocks say otherwise what carries loss, headers included.
void expect_no_header(const ChatTemplate& chat, const std::string& part, bool parts_are_messages) {
  if (chat.says_loss()) return;
  const std::string &prompt = chat.prompt(), &end = chat.end_of_turn();
  const size_t header = prompt.find_first_not_of(" \n") == std::string::npos ? std::string::npos : part.find(prompt);
  EXPECT_NE(header, 0u) << part;
  for (const char* other : {"<|im_start|>", "<|start_header_id|>", "<start_of_turn>", "<|start|>user", "[INST]",
                            "<|user|>\n", "<|system|>", "<|START_OF_TURN_TOKEN|>", "<｜User｜>Hello"})
    EXPECT_EQ(part.find(other), std::string::npos) << part;
  if (parts_are_messages) return;
  EXPECT_EQ(header, std::string::npos) << part;
  const size_t at = end.empty() ? std::string::npos : part.find(end);
  if (at != std::string::npos) {
    EXPECT_EQ(part.find_first_not_of(" \n", at + end.size()), std::string::npos) << part;
  }
}

// Runs where the templates are that published.json was made from: SNUG_CHAT_TEMPLATES names their folder.
TEST(ChatTools, PublishedTemplatesTakeTheLossOfRepliesAndCallsAlone) {
  const char* const folder = std::getenv("SNUG_CHAT_TEMPLATES");
  if (!folder || !std::filesystem::is_directory(folder))
    GTEST_SKIP() << "SNUG_CHAT_TEMPLATES names no folder: scripts/fetch_templates.sh fetches build/templates";
  const auto conversations = OrderedJson::parse(fixture("../jinja/conversations.json"));
  const auto published = OrderedJson::parse(fixture("../jinja/published.json"));
  const PublishedTokens tokens;
  size_t texts = 0, equal = 0, equal_ids = 0;
  // Says which templates may refuse what transformers renders, and why; each of them does.
  const auto refusals = OrderedJson::parse(fixture("../jinja/published_refusals.json"));
  std::map<std::string, std::set<std::string>> found;
  for (const auto& [name, entry] : published.items()) {
    const std::string program = read_text(std::string(folder) + "/" + name, 1 << 24);
    std::istringstream hashes(entry["texts"].get<std::string>()), ids = tokens.hashes(name);
    for (const OrderedJson& conversation : conversations) {
      std::string expected, expected_ids;
      hashes >> expected;
      ids >> expected_ids;
      const bool parts =
          std::ranges::any_of(conversation["messages"], [](const OrderedJson& m) { return m["content"].is_array(); });
      if (parts || conversation["add_generation_prompt"] == true) continue;
      SCOPED_TRACE(name + ": " + conversation["messages"].dump());
      std::vector<Message> messages;
      for (const OrderedJson& message : conversation["messages"]) messages.push_back(message_of(message));
      std::vector<jinja::Value> tools;
      if (conversation["tools"].is_array())
        for (const OrderedJson& one : conversation["tools"]) tools.push_back(jinja::value_of_json(one.dump()));
      Rendered got;
      try {
        got = rendered(program, messages, tools);
      } catch (const UserError& error) {
        if (expected == "-") continue;  // transformers refuses it too
        size_t known = 0;
        for (const auto& [why, templates] : refusals.items()) {
          if (std::string_view(error.what()).find(why) == std::string_view::npos) continue;
          known += static_cast<size_t>(std::ranges::count(templates, OrderedJson(name)));
          found[why].insert(name);
        }
        EXPECT_EQ(known, 1u) << error.what();
        continue;
      }
      ++texts;
      const bool same = fmt::format("{:016x}", hash_of(got.text)) == expected;
      equal += same;
      equal_ids += same && tokens.hash(got.pieces) == expected_ids;
      const std::string loss = fmt::format("{}", fmt::join(got.loss, "\x1f"));
      for (const std::string& learnt : learnt_of(conversation["messages"]))
        EXPECT_NE(loss.find(learnt), std::string::npos) << learnt;
      for (const char* other : {"Weather in Ulm?", "Hello", "Be brief.", "degrees\": 21", "And then?", "Speak French."})
        EXPECT_EQ(loss.find(other), std::string::npos) << other << " in " << loss;
      for (const std::string& part : got.loss) expect_no_header(*got.chat, part, kPartsAreMessages.contains(name));
    }
  }
  for (const auto& [why, templates] : refusals.items()) EXPECT_EQ(found[why].size(), templates.size()) << why;
  std::cout << texts << " texts, " << equal << " of them as transformers has them, " << equal_ids
            << " with its token ids\n";
  EXPECT_GT(texts, 1000u);
  EXPECT_GT(equal, 1000u);      // others have thinking in another form, or the end of a last reply that has none
  EXPECT_GT(equal_ids, 1000u);  // in others a token of the whole text lies on both sides of a border
}

// Replies begin alike in every turn, and thinking is opened once.
TEST(ChatTools, PublishedTemplatesBeginRepliesAlikeInEveryTurn) {
  const char* const folder = std::getenv("SNUG_CHAT_TEMPLATES");
  if (!folder || !std::filesystem::is_directory(folder))
    GTEST_SKIP() << "SNUG_CHAT_TEMPLATES names no folder: scripts/fetch_templates.sh fetches build/templates";
  Message thinks{ChatRole::Assistant, "Reply"};
  thinks.thinking = "Pondered";
  const std::vector<Message> plain = {kAsk, {ChatRole::Assistant, "First"}, kAsk, {ChatRole::Assistant, "Reply"}};
  size_t all = 0, thinking = 0;
  const auto published = OrderedJson::parse(fixture("../jinja/published.json"));
  for (const auto& [name, entry] : published.items()) {
    SCOPED_TRACE(name);
    const std::string program = read_text(std::string(folder) + "/" + name, 1 << 24);
    try {
      const Rendered out = rendered(program, plain);
      ++all;
      ASSERT_EQ(out.loss.size(), 2u) << out.text;
      EXPECT_EQ(out.loss[0].substr(0, out.loss[0].find("First")), out.loss[1].substr(0, out.loss[1].find("Reply")));
    } catch (const UserError&) {  // it needs more than texts
      continue;
    }
    try {
      const Rendered out = rendered(program, {kAsk, thinks});
      const size_t open = out.text.rfind("<think>"), close = out.text.rfind("</think>");
      if (out.left_out.thoughts > 0 || open == std::string::npos || out.text.find("Pondered") == std::string::npos)
        continue;
      ++thinking;
      EXPECT_EQ(out.text.find_first_not_of('\n', open + 7), out.text.find("Pondered")) << out.text;
      EXPECT_LT(out.text.find("Pondered"), close) << out.text;
      const std::string before = out.text.substr(0, open);
      EXPECT_FALSE(before.ends_with("<think>\n") || before.ends_with("</think>")) << out.text;
    } catch (const UserError&) {  // it renders no thinking
    }
  }
  EXPECT_GT(all, 60u);
  EXPECT_GT(thinking, 10u);
}

TEST(ChatTools, JsonKeepsTheOrderOfItsKeysAndItsBounds) {
  const auto printed = [](std::string_view json) {
    jinja::Budget budget{.steps = 1 << 20, .bytes = 1 << 20};
    jinja::Text text;
    jinja::append_json(budget, jinja::value_of_json(json), {}, text);
    return text.bytes();
  };
  EXPECT_EQ(printed(R"({"b":[1,-2,0.5,true,null,"\u00f6"],"a":{"d":{},"c":[]},"b":3})"),
            R"({"b": 3, "a": {"d": {}, "c": []}})");
  EXPECT_EQ(printed("[9223372036854775807, 1e3]"), "[9223372036854775807, 1000.0]");
  for (const std::string& bad :
       {std::string(""), std::string("{"), std::string("[1,]"), std::string("{\"a\" 1}"), std::string("1e999"),
        std::string("\"\xff\""), std::string("{} {}"), std::string(65, '[') + std::string(65, ']')})
    EXPECT_THROW(jinja::value_of_json(bad), jinja::Failure) << bad;
  EXPECT_NO_THROW(jinja::value_of_json(std::string(64, '[') + std::string(64, ']')));
}

}  // namespace
}  // namespace snug
