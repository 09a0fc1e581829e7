// Records with tools, calls, results and thinking: how they are read, and what becomes of earlier thinking.
#include <map>

#include "shapes_fixture.h"

namespace snug {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Turns between < and >, tools before them; replies show calls, and in the last turn what they thought.
constexpr const char* kTemplate =
    "{% if tools %}{{ tools | tojson }}\n{% endif %}{% set last = namespace(user=0) %}{% for m in messages %}"
    "{% if m.role == 'user' %}{% set last.user = loop.index0 %}{% endif %}{% endfor %}{% for m in messages %}"
    "{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.reasoning_content and loop.index0 > last.user %}({{ m.reasoning_content }}){% endif %}{{ m.content or '' "
    "}}"
    "{% for c in m.tool_calls or [] %}[{{ c.function | tojson }}]{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

class ToolRecords : public Shapes {
 protected:
  ToolRecords() { options_.prompt_format.chat = ChatTemplate::choose("auto", kTemplate, encoder_.special); }
};

TEST_F(ToolRecords, ToolsCallsAndResultsAreRenderedInTheOrderOfTheirKeys) {
  const std::string called = R"([{"type": "function", "function": {"name": "f", "b": 1, "a": 2}}])"
                             "\n<user\nq>\n<assistant\n|[{\"name\": \"f\", \"arguments\": {\"z\": 1, \"y\": "
                             "2}}]>|\n<tool\nr>\n<assistant\n|a>|\n";
  const std::string tools = R"("tools": [{"type": "function", "function": {"name": "f", "b": 1, "a": 2}}])";
  const std::string calls = R"("tool_calls": [{"function": {"name": "f", "arguments": {"z": 1, "y": 2}}}])";
  const auto record = [&](const std::string& reply, const std::string& result) {
    return R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", )" + reply + "}, {" + result +
           R"(, "content": "r"}, {"role": "assistant", "content": "a"}], )";
  };
  const std::string result = R"("role": "tool", "tool_call_id": "1", "name": "f")";
  for (const std::string content : {R"("content": "", )", R"("content": null, )", ""})
    EXPECT_THAT(read((record(content + calls, result) + tools + "}").c_str()), ElementsAre(called)) << content;
  EXPECT_THAT(notes_, ElementsAre());
  // As tables and other programs have them: texts of JSON, and functions without what says that they are some.
  EXPECT_THAT(read((record(R"("content": "", "tool_calls": "[{\"name\": \"f\", \"arguments\": {\"z\": 1, \"y\": 2}}]")",
                           result) +
                    R"("tools": "[{\"name\": \"f\", \"b\": 1, \"a\": 2}]"})")
                       .c_str()),
              ElementsAre(called));
  EXPECT_THAT(read((record("\"content\": \"\", " + calls, R"("role": "observation")") + tools + "}").c_str()),
              ElementsAre(std::string(called).replace(called.find("<tool"), 5, "<observation")));
  const char* written =
      R"({"prompt": "[{\"role\": \"user\", \"content\": \"q\"}]", "completion": "[{\"role\": \"assistant\", )"
      R"(\"content\": \"\", \"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": {\"z\": 1, \"y\": 2}}}]}]"})";
  EXPECT_THAT(read(written),
              ElementsAre("<user\nq>\n<assistant\n|[{\"name\": \"f\", \"arguments\": {\"z\": 1, \"y\": 2}}]>|\n"));
  EXPECT_THAT(
      read(R"({"instruction": "q", "output": "a", "tools": [{"name": "f"}]})"),
      ElementsAre("[{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]\n<user\nq>\n<assistant\n|a>|\n"));
}

TEST_F(ToolRecords, IntegersBeyond64BitsAreWrittenWithAllTheirDigits) {
  const std::string call = R"({"function": {"name": "f", "arguments": {"z": 9223372036854775808}}})";
  const auto record = [](const std::string& calls) {
    return R"({"tools": [{"name": "f", "maximum": 12345678901234567890123}], "messages": [{"role": "user", )"
           R"("content": "q"}, {"role": "assistant", "content": "", "tool_calls": )" +
           calls + "}]}";
  };
  EXPECT_THAT(read(record("[" + call + "]").c_str()),
              ElementsAre("[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"maximum\": "
                          "12345678901234567890123}}]\n<user\nq>\n<assistant\n|[{\"name\": \"f\", \"arguments\": "
                          "{\"z\": 9223372036854775808}}]>|\n"));
  EXPECT_TRUE(fails_with<UserError>([&] { read(record("\"[1\"").c_str()); }, "found no JSON at byte"));
}

TEST_F(ToolRecords, AMessageMaySayThatItsCallsCarryNoLoss) {
  EXPECT_THAT(
      read(R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "", "train": false,
                       "tool_calls": [{"name": "f"}]}, {"role": "tool", "content": "r", "train": true}]})"),
      ElementsAre("<user\nq>\n<assistant\n[{\"name\": \"f\"}]>\n<tool\n|r>|\n"));
}

TEST_F(ToolRecords, WhatCannotBeRenderedIsRefusedByFileLineAndKey) {
  const auto reply = [](const std::string& more) {
    return R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a")" + more + "}]}";
  };
  for (const std::string calls :
       {"3", "[3]", R"([{"function": "f"}])", R"([{"name": ""}])", R"("[")", R"({"name": "f"})"})
    EXPECT_TRUE(
        refused((reply(R"(, "tool_calls": )" + calls)).c_str(), "a.jsonl, line 1, key 'messages[1].tool_calls': found"))
        << calls;
  for (const std::string tools : {"3", "[3]", R"(["f"])", R"("f")", R"({"name": "f"})"})
    EXPECT_TRUE(refused((R"({"messages": [{"role": "user", "content": "q"}], "tools": )" + tools + "}").c_str(),
                        "a.jsonl, line 1, key 'tools': found"))
        << tools;
  EXPECT_TRUE(refused(R"({"messages": [{"role": "user", "content": "q", "tool_calls": [{"name": "f"}]}]})",
                      "key 'messages[0].tool_calls': found [{\"name\":\"f\"}], expected none"));
  EXPECT_TRUE(refused(reply(R"(, "reasoning_content": "t", "thinking": "u")").c_str(),
                      "key 'messages[1].thinking': found \"u\", expected none beside 'reasoning_content'"));
  EXPECT_TRUE(refused(R"({"messages": [{"role": "assistant", "content": "<think>t</think>a", "reasoning": "t"}]})",
                      "key 'messages[0].reasoning': found \"t\", expected none beside </think> in the reply itself"));
  options_.prompt_format.chat = ChatTemplate::choose("chatml", "", encoder_.special);
  EXPECT_TRUE(refused(reply(R"(, "tool_calls": [{"name": "f"}])").c_str(),
                      "a.jsonl, line 1: key 'tool_calls' of message 2: found calls, expected none: template chatml"));
  EXPECT_TRUE(refused(R"({"instruction": "q", "output": "a", "tools": [{"name": "f"}]})",
                      "a.jsonl, line 1: key 'tools': found tools, expected none: template chatml"));
}

const char* const kThoughts =
    R"({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"},
        {"role": "assistant", "content": "a", "reasoning_content": "t"}, {"role": "user", "content": "r"},
        {"role": "assistant", "content": "b", "thinking": "u"}]})";

std::string on_one_line(std::string text) {
  std::erase(text, '\n');
  return text;
}

TEST_F(ToolRecords, ThinkingIsKeptAsTheTemplateHasIt) {
  EXPECT_THAT(read(on_one_line(kThoughts).c_str()),
              ElementsAre("<system\ns>\n<user\nq>\n<assistant\n|a>|\n<user\nr>\n<assistant\n|(u)b>|\n"));
  EXPECT_THAT(notes_, ElementsAre(HasSubstr("a.jsonl: the chat template leaves out what 1 reply thought, as of earlier "
                                            "turns: --thinking last makes each turn the last one of a sample")));
}

TEST_F(ToolRecords, RepliesWithoutTheWholeEndOfAPromptAreCounted) {
  options_.prompt_format.chat =
      ChatTemplate::choose("auto",
                           "{% for m in messages %}<{{ m.role }}\n{{ m.content }}>{{ '\\n' }}{% endfor %}"
                           "{% if add_generation_prompt %}{{ '<assistant\\n<think>\\n' }}{% endif %}",
                           encoder_.special);
  EXPECT_THAT(read(R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})"),
              ElementsAre("<user\nq>\n<assistant\n|a>|\n"));
  EXPECT_THAT(notes_,
              ElementsAre(HasSubstr(
                  R"(a.jsonl: the chat template asks for replies by "<assistant\n<think>\n", which it does not )"
                  "write whole before the last reply of 1 conversation: they teach to reply without it")));
}

TEST_F(ToolRecords, ThinkingOfEarlierTurnsIsDropped) {
  options_.thinking = Thinking::Drop;
  EXPECT_THAT(read(on_one_line(kThoughts).c_str()),
              ElementsAre("<system\ns>\n<user\nq>\n<assistant\n|a>|\n<user\nr>\n<assistant\n|(u)b>|\n"));
  EXPECT_THAT(notes_, ElementsAre());
  options_.prompt_format.chat = ChatTemplate::choose("chatml", "", encoder_.special);
  EXPECT_THAT(
      read(R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "<think>t</think>\n\na"},
                      {"role": "user", "content": "r"}, {"role": "assistant", "content": "<think>u</think>b"}]})"),
      ElementsAre("<user\nq>\n<assistant\n|a>|\n<user\nr>\n<assistant\n|<think>u</think>b>|\n"));
}

TEST_F(ToolRecords, EachTurnMayBeTheLastOfASample) {
  options_.thinking = Thinking::Last;
  EXPECT_THAT(read(on_one_line(kThoughts).c_str()),
              ElementsAre("<system\ns>\n<user\nq>\n<assistant\n|(t)a>|\n",
                          "<system\ns>\n<user\nq>\n<assistant\na>\n<user\nr>\n<assistant\n|(u)b>|\n"));
  EXPECT_THAT(notes_, ElementsAre());
  // Nothing is thought before the last question.
  EXPECT_THAT(read(R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"},
                      {"role": "user", "content": "r"}, {"role": "assistant", "content": "b", "reasoning_content": "u"}]})"),
              ElementsAre("<user\nq>\n<assistant\n|a>|\n<user\nr>\n<assistant\n|(u)b>|\n"));
  // A turn is a question with the calls, results and replies behind it. What carries no loss makes no sample.
  EXPECT_THAT(
      read(R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "train": false,
               "reasoning_content": "t"}, {"role": "user", "content": "r"}, {"role": "assistant", "content": "",
               "reasoning_content": "u", "tool_calls": [{"name": "f"}]}, {"role": "tool", "content": "x"},
               {"role": "assistant", "content": "b", "reasoning_content": "v"}]})"),
      ElementsAre(
          "<user\nq>\n<assistant\na>\n<user\nr>\n<assistant\n|(u)[{\"name\": \"f\"}]>|\n<tool\nx>\n<assistant\n|"
          "(v)b>|\n"));
  // As many as would take more than a record may.
  std::string turns = R"({"messages": [)";
  for (int i = 0; i < 2000; ++i)
    turns += R"({"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "reasoning_content": "t"}, )";
  EXPECT_TRUE(refused((turns + R"({"role": "user", "content": "q"}]})").c_str(),
                      "line 1: thinking: found 2001 turns, which become samples"));
  EXPECT_TRUE(
      fails_with<UserError>([] { thinking_from_name("first"); }, "thinking: found 'first', expected keep, drop"));
}

// With a tokenizer that makes one token of "ab", wherever it stands in a text.
TEST_F(ToolRecords, ATokenLiesOnOneSideOfABorder) {
  constexpr int32_t kTogether = 200;
  encoder_.encode = [bytes = encoder_.encode](std::string_view text) {
    std::vector<int32_t> ids;
    for (const int32_t id : bytes(text)) {
      const bool together = id == 'b' && !ids.empty() && ids.back() == 'a';
      together ? void(ids.back() = kTogether) : ids.push_back(id);
    }
    return ids;
  };
  // What is asked for ends with a: the reply's b is its own, as it is behind a prompt.
  options_.prompt_format.chat = ChatTemplate::choose(
      "auto",
      "{% for m in messages %}{{ 'a' if m.role == 'assistant' else 'abq' }}{{ m.content }}b{% endfor %}"
      "{% if add_generation_prompt %}a{% endif %}",
      encoder_.special);
  const auto read_ids = [&](const std::string& reply) {
    std::ofstream(directory_.path() / "a.jsonl") << R"({"instruction": "a", "output": ")" << reply << "\"}";
    options_.files = {directory_.path() / "a.jsonl"};
    Sample out;
    for_each_sample(options_, &encoder_, [&](const Sample& sample, const std::string&) { out = sample; });
    return out;
  };
  const std::vector<int32_t> before = {kTogether, 'q', kTogether, 'a'};
  const auto with = [&](std::vector<int32_t> more) {
    more.insert(more.begin(), before.begin(), before.end());
    return more;
  };
  EXPECT_EQ(read_ids("bx").ids, with({'b', 'x', 'b'}));
  EXPECT_EQ(read_ids("ba").ids, with({'b', kTogether}));
  EXPECT_EQ(read_ids("ba").labels, (std::vector<int32_t>{kNoLabel, kNoLabel, kNoLabel, kNoLabel, 'b', kTogether}));
}

TEST_F(ToolRecords, MessagesThatATemplateLeavesOutAreCounted) {
  options_.prompt_format.chat =
      ChatTemplate::choose("auto",
                           "{% for m in messages %}{% if m.role != 'system' %}{{ '<|im_start|>' + m.content + "
                           "'<|im_end|>' }}{% endif %}{% endfor %}",
                           encoder_.special);
  EXPECT_THAT(read(std::vector<std::string>(2, R"({"system": "s", "instruction": "q", "output": "a"})")),
              ElementsAre("<q><|a>|", "<q><|a>|"));
  EXPECT_THAT(notes_, ElementsAre(HasSubstr("a.jsonl: the chat template leaves out 2 messages that carry no loss")));
}

}  // namespace
}  // namespace snug
